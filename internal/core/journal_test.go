package core_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

var journal = core.DefaultJournal

func TestTokenKeepsRunsApart(t *testing.T) {
	long := strings.Repeat("a", 201)
	for _, c := range []struct{ name, id, want string }{
		{"plain letters, digits, dot and hyphen stay", "Ab0.-", "Ab0.-"},
		{"the escape character is escaped", "a_2fb", "a_5f2fb"},
		{"a slash is escaped, so that it is no path", "../etc/x", ".._2fetc_2fx"},
		{"every byte of a character is escaped", "日", "_e6_97_a5"},
		{"spaces and quotes are escaped", "a 'b\"", "a_20_27b_22"},
		{"a device name is escaped whole", "CON", "_43_4f_4e"},
		{"whatever its case", "lPt9", "_6c_50_74_39"},
		{"but not one with more to it", "CON.txt", "CON.txt"},
		{"nor one that is no device", "COM0", "COM0"},
		{"200 bytes stay", long[:200], long[:200]},
		{"more are cut and hashed", long, long[:183] + "-a92efd82109373e5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := journal.Token(core.RunID(c.id))
			if err != nil || len(got) > 200 {
				t.Fatalf("token %q, %v", got, err)
			}
			if got != c.want {
				t.Errorf("token %q, want %q", got, c.want)
			}
		})
	}
	for _, id := range []core.RunID{"", "\xed\xb0\x80", "a\xff"} {
		if token, err := journal.Token(id); err == nil {
			t.Errorf("token of %q: %q, want it refused", id, token)
		}
	}
}

func TestDecodeNameFailsClosed(t *testing.T) {
	a, hash := strings.Repeat("a", 183), "-0123456789abcdef"
	for _, c := range []struct {
		name, entry string
		want        core.JournalName
	}{
		{"a journal", "a_2fb.ndjson", core.JournalName{Kind: core.JournalNameRun, Run: "a/b"}},
		{"a sidecar", "r.err", core.JournalName{Kind: core.JournalNameRun, Run: "r"}},
		{"a start marker", "r.started", core.JournalName{Kind: core.JournalNameRun, Run: "r"}},
		{"extensions count at the end", "r.ndjson.err", core.JournalName{Kind: core.JournalNameRun, Run: "r.ndjson"}},
		{"no extension", "r", core.JournalName{Kind: core.JournalNameMalformed}},
		{"another case of it", "r.NDJSON", core.JournalName{Kind: core.JournalNameMalformed}},
		{"nothing before it", ".ndjson", core.JournalName{Kind: core.JournalNameMalformed}},
		{"an escape cut short", "a_4.ndjson", core.JournalName{Kind: core.JournalNameMalformed}},
		{"an escape that is no hex", "a_zz.ndjson", core.JournalName{Kind: core.JournalNameMalformed}},
		{"a character that would be escaped", "a b.ndjson", core.JournalName{Kind: core.JournalNameMalformed}},
		{"bytes that are no UTF-8", "_ff.ndjson", core.JournalName{Kind: core.JournalNameMalformed}},
		{"an escape nobody writes", "_61.ndjson", core.JournalName{Kind: core.JournalNameMalformed}},
		{"upper-case hex", "_5F.ndjson", core.JournalName{Kind: core.JournalNameMalformed}},
		{"a device name as it is", "CON.ndjson", core.JournalName{Kind: core.JournalNameMalformed}},
		{"a byte order mark is part of the id", "_ef_bb_bfabc.ndjson", core.JournalName{Kind: core.JournalNameRun, Run: "\ufeffabc"}},
		{"a shortened name", a + hash + ".ndjson", core.JournalName{Kind: core.JournalNameTruncated}},
		{"shortened within an escape", a[2:] + "_5" + hash + ".ndjson", core.JournalName{Kind: core.JournalNameTruncated}},
		{"longer than any", a + a + ".ndjson", core.JournalName{Kind: core.JournalNameTruncated}},
		{"as long but without a hash", a + "-0123456789abcdeg.err", core.JournalName{Kind: core.JournalNameRun, Run: core.RunID(a + "-0123456789abcdeg")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := journal.DecodeName(c.entry); got != c.want {
				t.Errorf("decode %q: %+v, want %+v", c.entry, got, c.want)
			}
		})
	}
}

func FuzzDecodeName(f *testing.F) {
	for _, name := range []string{"a.ndjson", "_5f.err", "_61.ndjson", "CON.err", "x.started", strings.Repeat("p", 200) + ".err"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got := journal.DecodeName(name)
		if got.Kind != core.JournalNameRun {
			if got.Run != "" {
				t.Errorf("decode %q: %+v", name, got)
			}
			return
		}
		token, err := journal.Token(got.Run)
		if err != nil || !slices.Contains([]string{token + ".ndjson", token + ".err", token + ".started"}, name) {
			t.Errorf("decode %q: run %q, whose token is %q, %v", name, got.Run, token, err)
		}
	})
}

func FuzzTokenDecodes(f *testing.F) {
	for _, id := range []string{"a", "a/b", "CON", "日本", "_", strings.Repeat("é", 34), strings.Repeat("x", 300)} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		token, err := journal.Token(core.RunID(id))
		if err != nil {
			if id != "" && utf8.ValidString(id) {
				t.Errorf("token of %q: %v", id, err)
			}
			return
		}
		got := journal.DecodeName(token + ".ndjson")
		if len(token) < 200 && got != (core.JournalName{Kind: core.JournalNameRun, Run: core.RunID(id)}) {
			t.Errorf("token %q of %q decodes to %+v", token, id, got)
		}
		if len(token) > 200 || strings.ContainsAny(token, "/\x00\n '\"$`") {
			t.Errorf("token %q", token)
		}
	})
}

func TestPathsDependOnDirectoryAndRunAlone(t *testing.T) {
	f := journal
	f.Dir = "/runs//"
	want := core.JournalPaths{Token: "a_2fb", Dir: "/runs/", Journal: "/runs//a_2fb.ndjson", Stderr: "/runs//a_2fb.err", Marker: "/runs//a_2fb.started", Files: "/runs//a_2fb.files"}
	if got, err := f.Paths("a/b"); err != nil || got != want {
		t.Errorf("paths %+v, %v, want %+v", got, err, want)
	}
}

func TestNonces(t *testing.T) {
	a, b := core.NewJournalNonce(), core.NewJournalNonce()
	if a == b || len(a) != 32 {
		t.Errorf("drawn %q and %q", a, b)
	}
	if got := journal.DerivedNonce("r"); got != journal.DerivedNonce("r") || got == journal.DerivedNonce("s") || len(got) != 32 {
		t.Errorf("derived %q", got)
	}
}

func TestParseSentinelTakesOnlyTheRunsOwn(t *testing.T) {
	own := `"__nonce":"` + testNonce + `"`
	for _, c := range []struct {
		name, line string
		exit       int
		ok         bool
	}{
		{"as the wrapper writes it", journal.Sentinel(testNonce, 7), 7, true},
		{"members in another order, more of them, white space", "  { " + own + `, "x":{"y":[1]}, "__exit" : 7 }` + "\r", 7, true},
		{"a negative status", `{"__exit":-1,` + own + `}`, -1, true},
		{"of members of one name the last counts", `{"__exit":0,"__exit":9,` + own + `}`, 9, true},
		{"another run's nonce", journal.Sentinel(strings.Repeat("0", 32), 0), 0, false},
		{"the nonce in another case", journal.Sentinel(strings.ToUpper(testNonce), 0), 0, false},
		{"no nonce", `{"__exit":0}`, 0, false},
		{"a nonce that is no string", `{"__exit":0,"__nonce":["` + testNonce + `"]}`, 0, false},
		{"a member in another case", `{"__EXIT":0,` + own + `}`, 0, false},
		{"another case beside the right one", `{"__exit":3,"__nonce":"bad","__NONCE":"` + testNonce + `"}`, 0, false},
		{"a status that is text", `{"__exit":"0",` + own + `}`, 0, false},
		{"a status that is no integer", `{"__exit":1.5,` + own + `}`, 0, false},
		{"no status", `{` + own + `}`, 0, false},
		{"within another object", `{"a":` + journal.Sentinel(testNonce, 0) + `}`, 0, false},
		{"within an array", `[` + journal.Sentinel(testNonce, 0) + `]`, 0, false},
		{"behind other text", `x` + journal.Sentinel(testNonce, 0), 0, false},
		{"with text behind it", journal.Sentinel(testNonce, 0) + `x`, 0, false},
		{"a number larger than any status", `{"__exit":9223372036854775808,` + own + `}`, 0, false},
		{"longer than a sentinel may be", `{"x":"` + strings.Repeat("x", core.MaxSentinelLine) + `","__exit":0,` + own + `}`, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if exit, ok := journal.ParseSentinel(testNonce, []byte(c.line)); exit != c.exit || ok != c.ok {
				t.Errorf("parse %q: %d, %v, want %d, %v", c.line, exit, ok, c.exit, c.ok)
			}
		})
	}
	if _, ok := journal.ParseSentinel("", []byte(`{"__exit":0,"__nonce":""}`)); ok {
		t.Error("a run without a nonce has no sentinel")
	}
}

func TestLastExitTakesTheLast(t *testing.T) {
	tail := "half a line\n" + journal.Sentinel(testNonce, 1) + "\noutput\n" + journal.Sentinel(testNonce, 2) + "\nmore"
	if exit, ok := journal.LastExit(testNonce, []byte(tail)); !ok || exit != 2 {
		t.Errorf("last exit %d, %v, want 2", exit, ok)
	}
	if _, ok := journal.LastExit(testNonce, nil); ok {
		t.Error("an empty tail has no exit")
	}
}

func FuzzParseSentinel(f *testing.F) {
	f.Add([]byte(journal.Sentinel(testNonce, 3)))
	f.Add([]byte("x\n" + journal.Sentinel(testNonce, 3) + "\n{\"__exit\""))
	f.Add([]byte(`{"__exit":1e1,"__nonce":"\u0030"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		exit, ok := journal.ParseSentinel(testNonce, line)
		if ok && !bytes.ContainsAny(line, "{") {
			t.Errorf("parse %q: %d", line, exit)
		}
		if last, found := journal.LastExit(testNonce, append([]byte("out\n"), line...)); ok && !bytes.Contains(line, []byte("\n")) && (!found || last != exit) {
			t.Errorf("last exit behind output: %d, %v, want %d", last, found, exit)
		}
	})
}

func TestCutKeepsExactlyTheAgentsOutput(t *testing.T) {
	sentinel := journal.Sentinel(testNonce, 4)
	forged := journal.Sentinel(strings.Repeat("0", 32), 0)
	for _, c := range []struct {
		name, piece string
		edge        core.JournalEdge
		want        string // appended
		sealed      bool
	}{
		{"the wrapper's newline is no output", "out\n\n" + sentinel + "\n", core.EdgeEnd, "out\n", true},
		{"nor where the agent's last line has none", "out\n" + sentinel + "\n", core.EdgeEnd, "out", true},
		{"an agent without output", "\n" + sentinel + "\n", core.EdgeEnd, "", true},
		{"what comes behind the sentinel is no output", "out\n" + sentinel + "\nlate\n", core.EdgeMore, "out", true},
		{"a sentinel without its newline counts at the end", "out\n" + sentinel, core.EdgeEnd, "out", true},
		{"but not before it", "out\n" + sentinel, core.EdgeMore, "out", false},
		{"the first of two counts", "a\n" + sentinel + "\nb\n" + journal.Sentinel(testNonce, 0) + "\n", core.EdgeEnd, "a", true},
		{"another run's is output", "a\n" + forged + "\nb", core.EdgeFinal, "a\n" + forged + "\nb", false},
		{"one that continues a line is output", sentinel + "\nb", core.EdgeFinal, sentinel + "\nb", false},
		{"a newline may be the wrapper's", "out\n", core.EdgeEnd, "out", false},
		{"and a brace behind it the sentinel's", "out\n{\"__ex", core.EdgeEnd, "out", false},
		{"other text behind it is not", "out\nx", core.EdgeEnd, "out\nx", false},
		{"nor is a line too long for it", "o\n{" + strings.Repeat("x", core.MaxSentinelLine), core.EdgeMore, "o\n{" + strings.Repeat("x", core.MaxSentinelLine), false},
		{"nothing is held back when nothing will come", "out\n{\"__ex", core.EdgeFinal, "out\n{\"__ex", false},
		{"NUL bytes are output", "\x00\x00\n" + sentinel, core.EdgeEnd, "\x00\x00", true},
		{"an empty piece", "", core.EdgeEnd, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := journal.Cut(testNonce, []byte(c.piece), c.edge)
			if c.piece[:got.Append] != c.want || got.Sealed != c.sealed || c.sealed && got.Exit != 4 {
				t.Errorf("cut %+v appends %q, want %q, sealed %v", got, c.piece[:got.Append], c.want, c.sealed)
			}
		})
	}
}

// drained is what pages of so many bytes make of a whole journal.
func drained(data []byte, page int) (string, core.JournalCut) {
	var log []byte
	for {
		end := min(len(log)+page, len(data))
		edge := core.EdgeMore
		if end == len(data) {
			edge = core.EdgeFinal
		}
		cut := journal.Cut(testNonce, data[len(log):end], edge)
		log = append(log, data[len(log):len(log)+cut.Append]...)
		if cut.Sealed || edge == core.EdgeFinal || cut.Append == 0 {
			return string(log), cut
		}
	}
}

func FuzzCutDoesNotDependOnPages(f *testing.F) {
	sentinel := journal.Sentinel(testNonce, 4)
	for _, text := range []string{"out\n\n" + sentinel + "\n", "x" + sentinel, "日本\n" + sentinel, "\n\n{\n", sentinel, "a\n" + sentinel + " x\nb\n" + sentinel} {
		f.Add([]byte(text), uint16(1))
		f.Add([]byte(strings.Repeat("y", 5000)+text), uint16(7))
	}
	f.Fuzz(func(t *testing.T, data []byte, extra uint16) {
		want, whole := drained(data, len(data)+1)
		page := core.MaxSentinelLine + 2 + int(extra)
		if got, cut := drained(data, page); got != want || cut.Sealed != whole.Sealed || cut.Exit != whole.Exit {
			t.Errorf("pages of %d: %d bytes, %+v; at once: %d bytes, %+v", page, len(got), cut, len(want), whole)
		}
		if !whole.Sealed && want != string(data) {
			t.Errorf("without a sentinel %d of %d bytes are output", len(want), len(data))
		}
	})
}

func TestCutWithPagesThatSplitTheSentinel(t *testing.T) {
	filler := strings.Repeat("line of output\n", 400)
	data := []byte(filler + "no newline" + "\n" + journal.Sentinel(testNonce, 4) + "\n")
	for page := len(filler); page < len(data)+2; page++ {
		if got, cut := drained(data, page); got != filler+"no newline" || !cut.Sealed || cut.Exit != 4 {
			t.Fatalf("pages of %d: %d bytes, %+v", page, len(got), cut)
		}
	}
}

func TestPageAfterTellsWhetherTheJournalGoesOn(t *testing.T) {
	page := core.JournalPage{Present: true, Size: 100, From: 10, Bytes: []byte("0123456789")}
	for _, c := range []struct {
		name  string
		at    int64
		last  string
		fresh string
		ok    bool
	}{
		{"the known bytes agree", 14, "xx0123", "456789", true},
		{"fewer are known than came", 14, "3", "456789", true},
		{"nothing is known", 14, "", "456789", true},
		{"nothing is new", 20, "89", "", true},
		{"the known bytes differ", 14, "xx0124", "", false},
		{"the page begins too late", 9, "", "", false},
		{"the page ends too early", 21, "", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			fresh, ok := page.After(c.at, []byte(c.last))
			if ok != c.ok || ok && string(fresh) != c.fresh {
				t.Errorf("after %d: %q, %v, want %q, %v", c.at, fresh, ok, c.fresh, c.ok)
			}
		})
	}
	short := core.JournalPage{Present: true, Size: 5, From: 0, Bytes: []byte("01234")}
	if _, ok := short.After(6, nil); ok {
		t.Error("a journal shorter than the log does not go on")
	}
}

const probeAnswer = "sandkeeper-journal/1 present=1 size=9 inode=5 changed=7 marker=1 wrapper=alive from=0 tail=9 stderr=2 has=1 rfrom=3 rest=6\n" +
	"123456789ee456789\nsandkeeper-journal/1 end\n"

func TestParseProbeBelievesWholeAnswersOnly(t *testing.T) {
	got := journal.ParseProbe(testNonce, []byte(probeAnswer))
	if got.State != core.JournalProducing || got.Size != 9 || got.Inode != 5 || got.ChangedAt != 7000 || !got.Marker ||
		got.Wrapper != core.WrapperAlive || string(got.Tail) != "123456789" || string(got.Rest) != "456789" || got.RestFrom != 3 || got.Stderr != nil {
		t.Errorf("whole answer: %+v", got)
	}
	for cut := range len(probeAnswer) {
		if p := journal.ParseProbe(testNonce, []byte(probeAnswer[:cut])); p.State != core.JournalUnknown || p.Healing != core.Retry || p.Reason == "" {
			t.Errorf("cut to %d bytes: %+v", cut, p)
		}
	}
	for name, change := range map[string][2]string{
		"another tail length":    {"tail=9", "tail=8"},
		"a length beyond":        {"rest=6", "rest=66"},
		"a negative length":      {"tail=9", "tail=-9"},
		"a field twice":          {"size=9", "size=9 size=9"},
		"a field missing":        {" inode=5", ""},
		"a tail beyond the size": {"from=0", "from=1"},
		"rest from elsewhere":    {"rfrom=3", "rfrom=2"},
		"an unknown wrapper":     {"wrapper=alive", "wrapper=undead"},
		"no journal with a size": {"present=1", "present=0"},
		"something in front":     {"sandkeeper-journal/1 present", "x\nsandkeeper-journal/1 present"},
		"another version":        {"journal/1 present", "journal/2 present"},
	} {
		t.Run(name, func(t *testing.T) {
			out := strings.Replace(probeAnswer, change[0], change[1], 1)
			if p := journal.ParseProbe(testNonce, []byte(out)); p.State != core.JournalUnknown || p.Reason != "answer-incomplete" {
				t.Errorf("%+v", p)
			}
		})
	}
	refused := "sandkeeper-journal/1 refused=journal-symlink healing=configuration\n\nsandkeeper-journal/1 end\n"
	if p := journal.ParseProbe(testNonce, []byte(refused)); p.State != core.JournalUnknown || p.Reason != "journal-symlink" || p.Healing != core.Configuration {
		t.Errorf("refusal: %+v", p)
	}
}

func FuzzParseAnswers(f *testing.F) {
	f.Add([]byte(probeAnswer))
	f.Add([]byte("sandkeeper-journal/1 present=1 size=3 inode=1 from=0 bytes=3 stderr=0\nabc\nsandkeeper-journal/1 end\n"))
	f.Add([]byte("sandkeeper-journal/1 result=started wrapper=alive\n\nsandkeeper-journal/1 end\n"))
	f.Add([]byte("sandkeeper-journal/1 names=2 times=4 stat=1\na\n1 .\n\nsandkeeper-journal/1 end\n"))
	f.Add([]byte("sandkeeper-journal/1 gone=1\n\nsandkeeper-journal/1 end\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		p := journal.ParseProbe(testNonce, out)
		if (p.State == core.JournalUnknown) != (p.Reason != "") {
			t.Errorf("probe %+v", p)
		}
		page, err := core.ParsePage(out)
		if err == nil && (len(page.Bytes) > len(out) || page.From < 0 || page.Size < 0) {
			t.Errorf("page %+v", page)
		}
		for _, parse := range []func() error{
			func() error { _, err := core.ParseStart(out); return err },
			func() error { _, err := core.ParseTerminate(out); return err },
			func() error { _, err := core.ParseListing(out); return err },
			func() error { _, err := core.ParseRemove(out, 1); return err },
		} {
			if err := parse(); err != nil {
				if e, ok := errors.AsType[*core.JournalError](err); !ok || e.Reason == "" && !bytes.Contains(out, []byte("refused=")) {
					t.Errorf("error %v", err)
				}
			}
		}
	})
}

func TestScriptsRefuseWhatTheyCannotSay(t *testing.T) {
	start := core.JournalStart{Run: "r", Nonce: testNonce, Argv: []string{"agent"}}
	for name, change := range map[string]func(s *core.JournalStart){
		"no run":                      func(s *core.JournalStart) { s.Run = "" },
		"no nonce":                    func(s *core.JournalStart) { s.Nonce = "" },
		"a nonce that is no hex":      func(s *core.JournalStart) { s.Nonce = "'; rm -r / #" },
		"no command":                  func(s *core.JournalStart) { s.Argv = nil },
		"blank shell text":            func(s *core.JournalStart) { s.Argv, s.Shell = nil, " \n" },
		"two commands":                func(s *core.JournalStart) { s.Shell = "x" },
		"a command that is an option": func(s *core.JournalStart) { s.Argv = []string{"-x"} },
		"a command with an equals":    func(s *core.JournalStart) { s.Argv = []string{"A=b"} },
		"an empty command":            func(s *core.JournalStart) { s.Argv = []string{""} },
		"a NUL byte":                  func(s *core.JournalStart) { s.Argv = []string{"a", "\x00"} },
		"a relative directory":        func(s *core.JournalStart) { s.Dir = "work" },
		"negative input":              func(s *core.JournalStart) { s.Input, s.InputBytes = true, -1 },
	} {
		t.Run(name, func(t *testing.T) {
			s := start
			change(&s)
			if script, err := journal.StartScript(s); err == nil {
				t.Errorf("got a script of %d bytes, want an error", len(script))
			}
		})
	}
	for name, compose := range map[string]func() (string, error){
		"probe without a nonce":       func() (string, error) { return journal.ProbeScript("r", "", 0) },
		"probe from a negative":       func() (string, error) { return journal.ProbeScript("r", testNonce, -1) },
		"page from beyond 2^53":       func() (string, error) { return journal.PageScript("r", 1<<53, 0) },
		"page larger than the cap":    func() (string, error) { return journal.PageScript("r", 0, core.MaxJournalPage+1) },
		"tail of nothing":             func() (string, error) { return journal.TailScript("r", 0) },
		"stderr of no run":            func() (string, error) { return journal.StderrScript("", 1) },
		"terminate without a nonce":   func() (string, error) { return journal.TerminateScript("r", "", 0) },
		"terminate with a long grace": func() (string, error) { return journal.TerminateScript("r", testNonce, 2*time.Hour) },
		"follow for no time":          func() (string, error) { return journal.FollowScript("r", 0, 0) },
		"remove of an empty id":       func() (string, error) { return journal.RemoveScript([]core.RunID{"a", ""}) },
		"existence of an empty id":    func() (string, error) { return journal.ExistsScript("") },
	} {
		t.Run(name, func(t *testing.T) {
			if script, err := compose(); err == nil {
				t.Errorf("got a script of %d bytes, want an error", len(script))
			}
		})
	}
}

func TestScriptsFitIntoOneCommand(t *testing.T) {
	id := core.RunID(strings.Repeat("é", 300))
	start, err := journal.StartScript(core.JournalStart{Run: id, Nonce: testNonce, Shell: "agent"})
	if err != nil {
		t.Fatal(err)
	}
	end, err := journal.TerminateScript(id, testNonce, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	// As base64 in one argument; commands of 37 kB are known to pass.
	for _, script := range []string{start, end} {
		if len(script)*4/3 > 37_000 {
			t.Errorf("a script of %d bytes: want fewer", len(script))
		}
	}
}

func TestFrameDecodesWhatArrivesInPieces(t *testing.T) {
	for _, c := range []struct {
		name   string
		chunks []string
		want   string
		err    error
	}{
		{"nothing", nil, "", nil},
		{"white space within", []string{"YW\r\n J", "j\tZA==\n"}, "abcd", nil},
		{"one character a piece", []string{"Y", "W", "J", "j"}, "abc", nil},
		{"a rest of one", []string{"YWJjZ"}, "", core.ErrFrameTruncated},
		{"a rest of three", []string{"YWJ"}, "", core.ErrFrameTruncated},
		{"another alphabet", []string{"-_-_"}, "", core.ErrFrameInvalid},
		{"padding in the middle", []string{"YQ==YWJj"}, "", core.ErrFrameInvalid},
		{"diagnostics in front", []string{"sh: not found\nYWJj"}, "", core.ErrFrameInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := decodeFrame(c.chunks)
			if !errors.Is(err, c.err) || err == nil && string(got) != c.want {
				t.Errorf("decoded %q, %v, want %q, %v", got, err, c.want, c.err)
			}
		})
	}
}

func TestLinesCarryAbsolutePositions(t *testing.T) {
	lines := core.JournalLines{Position: 100}
	var got []string
	for _, piece := range []string{"a", "b\n\n日", "本\nrest"} {
		for _, line := range lines.Feed([]byte(piece)) {
			got = append(got, fmt.Sprintf("%s@%d", line.Text, line.End))
		}
	}
	if want := []string{"ab@103", "@104", "日本@111"}; !slices.Equal(got, want) {
		t.Errorf("lines %v, want %v", got, want)
	}
	if lines.Position != 111 || lines.Next() != 115 {
		t.Errorf("position %d, next %d", lines.Position, lines.Next())
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\n\nc"), 1)
	f.Add([]byte("\x00\xff\n"), 2)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		if size < 1 {
			return
		}
		lines := core.JournalLines{}
		var back []byte
		for piece := range slices.Chunk(data, size) {
			for _, line := range lines.Feed(piece) {
				back = append(append(back, line.Text...), '\n')
				if line.End != int64(len(back)) {
					t.Fatalf("line ends at %d, want %d", line.End, len(back))
				}
			}
		}
		if !bytes.HasPrefix(data, back) || bytes.Contains(data[len(back):], []byte("\n")) || lines.Next() != int64(len(data)) {
			t.Errorf("lines of %q give %q", data, back)
		}
	})
}

func TestExitMessageIsTheEndOfStderr(t *testing.T) {
	if got := core.ExitMessage([]byte("\n boom \xff\n")); got != "boom \ufffd" {
		t.Errorf("message %q", got)
	}
	long := strings.Repeat("é", 999)
	if got := core.ExitMessage([]byte("first line\n" + long)); got != "\n"+long {
		t.Errorf("message of %d characters, begins %q", utf8.RuneCountInString(got), got[:4])
	}
}

func TestJournalTimesNeedTheirWitness(t *testing.T) {
	text := "1700000000 .\n1700000001 ./a.ndjson\nstat: no\n12 ./deep/x\n 1700000002 ./b.err\r\n99999999999999999999 ./c\n5\t./d\n"
	got := core.ParseJournalTimes(text, ".")
	want := []core.JournalTime{{Name: "a.ndjson", At: 1_700_000_001_000}, {Name: "b.err", At: 1_700_000_002_000}}
	if !got.Known || !slices.Equal(got.Of, want) {
		t.Errorf("times %+v, want %+v", got, want)
	}
	if got := core.ParseJournalTimes("1700000001 ./a.ndjson\n", "."); got.Known || got.Of != nil {
		t.Errorf("without the directory: %+v, want nothing known", got)
	}
}
