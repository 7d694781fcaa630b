package e2e_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// insight is a query of CloudWatch Logs Insights, as far as those that the stack saves go:
// fields, filter, and stats of sums and counts. What sorts and limits leaves the lines that
// are found as they are, and is only read.
type insight struct {
	fields []string // that it names, wherever it does
	filter []condition
	sums   map[string]string // by what each is called; "" counts lines
	by     []string
}

// logLine is a line of JSON that a function wrote.
type logLine map[string]any

// condition is one filter of a query; a line passes all of them.
type condition func(logLine) bool

// insightToken is a word, number, text in quotes, pattern between slashes, or sign of a query.
var insightToken = regexp.MustCompile(`"[^"]*"|/(?:\\/|[^/])*/|@?[A-Za-z_][A-Za-z0-9_.]*|[0-9]+[a-z]*|>|[()\[\],=*]`)

// readInsight reads a query. What it does not know is an error.
func readInsight(text string) (insight, error) {
	q := insight{sums: map[string]string{}}
	for command := range strings.SplitSeq(text, "\n") {
		command = strings.TrimPrefix(command, "| ")
		if strings.HasPrefix(command, "#") {
			continue
		}
		if rest := strings.TrimSpace(insightToken.ReplaceAllString(command, "")); rest != "" {
			return insight{}, fmt.Errorf("read %q: cannot tell what %q is", command, rest)
		}
		p := &insightParser{tokens: insightToken.FindAllString(command, -1), query: &q}
		if err := p.command(); err != nil {
			return insight{}, fmt.Errorf("read %q: %w", command, err)
		}
	}
	return q, nil
}

// finds reports whether a line passes.
func (q insight) finds(l logLine) bool {
	return !slices.ContainsFunc(q.filter, func(c condition) bool { return !c(l) })
}

// insightParser reads one command.
type insightParser struct {
	tokens []string
	query  *insight
}

func (p *insightParser) peek() string {
	if len(p.tokens) == 0 {
		return ""
	}
	return p.tokens[0]
}

func (p *insightParser) next() string {
	t := p.peek()
	p.tokens = p.tokens[min(1, len(p.tokens)):]
	return t
}

func (p *insightParser) is(word string) bool {
	if p.peek() != word {
		return false
	}
	p.next()
	return true
}

func (p *insightParser) want(word string) error {
	if got := p.next(); got != word {
		return fmt.Errorf("want %s, got %q", word, got)
	}
	return nil
}

func (p *insightParser) field() string {
	f := p.next()
	p.query.fields = append(p.query.fields, f)
	return f
}

func (p *insightParser) command() error {
	var err error
	switch word := p.next(); word {
	case "fields":
		for p.field(); p.is(","); p.field() {
		}
	case "filter":
		var c condition
		if c, err = p.either(); err == nil {
			p.query.filter = append(p.query.filter, c)
		}
	case "stats":
		err = p.stats()
	case "sort":
		p.next() // of the lines, or of what stats made
		if !p.is("asc") {
			err = p.want("desc")
		}
	case "limit":
		_, err = strconv.Atoi(p.next())
	default:
		return fmt.Errorf("no command %q", word)
	}
	if err == nil && len(p.tokens) > 0 {
		return fmt.Errorf("what is %q", p.tokens)
	}
	return err
}

func (p *insightParser) either() (condition, error) {
	first, err := p.both()
	for err == nil && p.is("or") {
		before := first
		var second condition
		second, err = p.both()
		first = func(l logLine) bool { return before(l) || second(l) }
	}
	return first, err
}

func (p *insightParser) both() (condition, error) {
	first, err := p.one()
	for err == nil && p.is("and") {
		before := first
		var second condition
		second, err = p.one()
		first = func(l logLine) bool { return before(l) && second(l) }
	}
	return first, err
}

func (p *insightParser) one() (condition, error) {
	switch {
	case p.is("("):
		c, err := p.either()
		return c, errors.Join(err, p.want(")"))
	case p.is("ispresent"):
		err := p.want("(")
		name := p.field()
		return func(l logLine) bool { _, there := l[name]; return there }, errors.Join(err, p.want(")"))
	}
	name := p.field()
	switch sign := p.next(); sign {
	case "=":
		value, err := text(p.next())
		return func(l logLine) bool { return l[name] == value }, err
	case ">":
		than, err := strconv.ParseFloat(p.next(), 64)
		return func(l logLine) bool { n, ok := l[name].(float64); return ok && n > than }, err
	case "like":
		return p.like(name)
	case "in":
		return p.in(name)
	default:
		return nil, fmt.Errorf("no comparison %q", sign)
	}
}

func (p *insightParser) like(name string) (condition, error) {
	what := p.next()
	part, err := text(what)
	matches := func(s string) bool { return strings.Contains(s, part) }
	if inner, ok := strings.CutPrefix(what, "/"); ok {
		var pattern *regexp.Regexp
		if pattern, err = regexp.Compile(strings.TrimSuffix(inner, "/")); err == nil {
			matches = pattern.MatchString
		}
	}
	return func(l logLine) bool { s, ok := l[name].(string); return ok && matches(s) }, err
}

func (p *insightParser) in(name string) (condition, error) {
	errs := []error{p.want("[")}
	var among []any
	for {
		value, err := text(p.next())
		errs, among = append(errs, err), append(among, value)
		if !p.is(",") {
			break
		}
	}
	errs = append(errs, p.want("]"))
	return func(l logLine) bool { return slices.Contains(among, l[name]) }, errors.Join(errs...)
}

// text is what stands between quotes.
func text(quoted string) (string, error) {
	inner, ok := strings.CutPrefix(quoted, `"`)
	if !ok {
		return "", fmt.Errorf("want text in quotes, got %q", quoted)
	}
	return strings.TrimSuffix(inner, `"`), nil
}

func (p *insightParser) stats() error {
	for {
		what := p.next()
		err := p.want("(")
		var of string
		switch what {
		case "sum":
			of = p.field()
		case "count":
			err = errors.Join(err, p.want("*"))
		default:
			return fmt.Errorf("no aggregate %q", what)
		}
		if err := errors.Join(err, p.want(")"), p.want("as")); err != nil {
			return err
		}
		p.query.sums[p.next()] = of
		if !p.is(",") {
			break
		}
	}
	if err := p.want("by"); err != nil {
		return err
	}
	for {
		if p.is("bin") { // of time: whichever line has it
			if err := errors.Join(p.want("("), func() error { p.next(); return nil }(), p.want(")")); err != nil {
				return err
			}
		} else {
			p.query.by = append(p.query.by, p.field())
		}
		if !p.is(",") {
			return nil
		}
	}
}

// add makes the sums of lines, each group's by the values that it is made by.
func (q insight) add(lines []logLine) map[string]map[string]float64 {
	groups := map[string]map[string]float64{}
	for _, l := range lines {
		var group []string
		for _, name := range q.by {
			group = append(group, fmt.Sprint(l[name]))
		}
		key := strings.Join(group, " ")
		if groups[key] == nil {
			groups[key] = map[string]float64{}
		}
		for as, of := range q.sums {
			if n, ok := l[of].(float64); ok {
				groups[key][as] += n
			} else if of == "" {
				groups[key][as]++
			}
		}
	}
	return groups
}

// TestInsightsAreRead as CloudWatch reads them, as far as the saved ones go.
func TestInsightsAreRead(t *testing.T) {
	lines := []logLine{
		{"message": "run", "run": "a/1", "outcome": "lost", "N": 2.0}, {"message": "run", "run": "a/2", "outcome": "died", "N": 0.0},
		{"message": "step", "level": "WARN", "code": "x"}, {"N": 3.0, "run": 7.0},
	}
	for query, want := range map[string][]int{
		`filter message = "run"`: {0, 1},
		`filter message = "run" and outcome = "lost" or level = "WARN"`:    {0, 2},
		`filter message = "run" and (outcome = "lost" or level = "WARN")`:  {0},
		"filter ispresent(N)\n| filter N > 0":                              {0, 3},
		`filter run like "a/"`:                                             {0, 1},
		`filter run like /^a\/2$/`:                                         {1},
		`filter code in ["y", "x"]`:                                        {2},
		"# all\nfields @timestamp, run\n| sort @timestamp desc\n| limit 5": {0, 1, 2, 3},
	} {
		q, err := readInsight(query)
		if err != nil {
			t.Error(err)
			continue
		}
		var got []int
		for i, l := range lines {
			if q.finds(l) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s finds %v, want %v", query, got, want)
		}
	}
	q, err := readInsight("filter message = \"run\"\n| stats sum(N) as n, count(*) as runs by message, bin(5m)")
	if sums := q.add(lines[:2]); err != nil || fmt.Sprint(sums) != "map[run:map[n:2 runs:2]]" || !slices.Equal(q.fields, []string{"message", "N", "message"}) {
		t.Errorf("sums %v of %v, %v", sums, q.fields, err)
	}
	for _, query := range []string{
		"", "parse x", "filter a", "filter a = b", `filter a == "b"`, `filter a = "b" "c"`, `filter (a = "b"`, "filter a in []", "stats avg(a) as b by c",
		"stats sum(a) by c", "stats sum(a) as b", "limit x", "sort a", "filter a ! 1", "filter ispresent a", "filter a like /(/",
	} {
		if _, err := readInsight(query); err == nil {
			t.Errorf("%q is read", query)
		}
	}
}
