package draw

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode"
)

// openEnd is how many more than it must a part without a bound repeats at most.
const openEnd = 8

// StringMatching makes texts that pattern, a regular expression of package regexp,
// matches from end to end. It panics if there are none or pattern is no such expression.
func StringMatching(pattern string) Generator[string] {
	whole := regexp.MustCompile(`\A(?:` + pattern + `)\z`)
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		panic(err) // Go's own package has just compiled it
	}
	one := maker(parsed)
	return Custom(one).Filter(whole.MatchString)
}

// maker makes what e matches, but for conditions on what is beside it.
func maker(e *syntax.Regexp) func(*T) string {
	switch e.Op {
	case syntax.OpLiteral:
		return literal(e)
	case syntax.OpCharClass:
		return newAlphabet(e.Rune).checked(e).draw
	case syntax.OpAnyChar:
		return newAlphabet([]rune{0, unicode.MaxRune}).draw
	case syntax.OpAnyCharNotNL:
		return newAlphabet([]rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune}).draw
	case syntax.OpCapture:
		return maker(e.Sub[0])
	case syntax.OpStar:
		return repeated(e, bounds(0, openEnd))
	case syntax.OpPlus:
		return repeated(e, bounds(1, 1+openEnd))
	case syntax.OpQuest:
		return repeated(e, bounds(0, 1))
	case syntax.OpRepeat:
		if e.Max < 0 {
			return repeated(e, bounds(e.Min, e.Min+openEnd))
		}
		return repeated(e, bounds(e.Min, e.Max))
	case syntax.OpConcat:
		return inOrder(e)
	case syntax.OpAlternate:
		return alternatives(e)
	case syntax.OpNoMatch:
		panic(fmt.Sprintf("draw: nothing matches %s", e))
	}
	return func(*T) string { return "" } // a condition, which the whole is held against
}

// checked is a, which must have a character.
func (a alphabet) checked(e *syntax.Regexp) alphabet {
	if a.size == 0 {
		panic(fmt.Sprintf("draw: nothing matches %s", e))
	}
	return a
}

// literal makes the text itself, or it in any mixture of cases.
func literal(e *syntax.Regexp) func(*T) string {
	if e.Flags&syntax.FoldCase == 0 {
		return func(*T) string { return string(e.Rune) }
	}
	return func(t *T) string {
		var text strings.Builder
		for _, r := range e.Rune {
			cases := []rune{r}
			for c := unicode.SimpleFold(r); c != r; c = unicode.SimpleFold(c) {
				cases = append(cases, c)
			}
			text.WriteString(string(SampledFrom(cases).value(t)))
		}
		return text.String()
	}
}

func repeated(e *syntax.Regexp, s size) func(*T) string {
	one := maker(e.Sub[0])
	return func(t *T) string { return t.text(s, one) }
}

func inOrder(e *syntax.Regexp) func(*T) string {
	parts := makers(e)
	return func(t *T) string {
		var text strings.Builder
		for _, part := range parts {
			text.WriteString(part(t))
		}
		return text.String()
	}
}

func alternatives(e *syntax.Regexp) func(*T) string {
	one := SampledFrom(makers(e))
	return func(t *T) string { return one.value(t)(t) }
}

func makers(e *syntax.Regexp) []func(*T) string {
	var parts []func(*T) string
	for _, sub := range e.Sub {
		parts = append(parts, maker(sub))
	}
	return parts
}
