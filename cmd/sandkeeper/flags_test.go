package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/lambda"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// TestBadInputIsOneClearErrorAndExitCode2 needs no installation: none of these gets
// that far.
func TestBadInputIsOneClearErrorAndExitCode2(t *testing.T) {
	for name, row := range map[string]struct {
		args []string
		says string
	}{
		"a command that is none":       {[]string{"reap"}, "unexpected argument reap"},
		"a flag that is none":          {[]string{"runs", "--colour"}, "unknown flag --colour"},
		"a status that is none":        {[]string{"runs", "--status", "done"}, "must be one of"},
		"a hold without a reason":      {[]string{"hold", "a/b", "--for", "1h"}, "missing flags: --why"},
		"a hold with an empty reason":  {[]string{"hold", "a/b", "--for", "1h", "--why", "  "}, "want a reason"},
		"a hold without a time":        {[]string{"hold", "a/b", "--why", "x"}, "--for"},
		"a hold with two times":        {[]string{"hold", "a/b", "--why", "x", "--for", "1h", "--until", "2030-01-01T00:00:00Z"}, "can't be used together"},
		"a duration without a unit":    {[]string{"hold", "a/b", "--why", "x", "--for", "12"}, "want a duration above zero"},
		"a duration below zero":        {[]string{"extend", "a/b", "--why", "x", "--ttl=-1h"}, "want a duration above zero"},
		"a time that is none":          {[]string{"hold", "a/b", "--why", "x", "--until", "tomorrow"}, `want a time like 2030-01-31T18:00:00Z or 2030-01-31T18:00:00+01:00, got "tomorrow"`},
		"a kill without a reason":      {[]string{"kill", "a/b"}, "missing flags: --why"},
		"a freeze without a reason":    {[]string{"freeze"}, "missing flags: --why"},
		"a thaw without a reason":      {[]string{"thaw"}, "missing flags: --why"},
		"a release without a reason":   {[]string{"release", "a/b"}, "missing flags: --why"},
		"a mode that is none":          {[]string{"mode", "off"}, "must be one of"},
		"a queue that is none":         {[]string{"redrive", "--queue", "x"}, "must be one of"},
		"a sum that is none":           {[]string{"cost", "--by", "week"}, "must be one of"},
		"a shell that is none":         {[]string{"completion", "csh"}, "must be one of"},
		"a run without an argument":    {[]string{"show"}, `expected "<run>"`},
		"where to look it up":          {[]string{"checkpoints", "diff"}, "see sandkeeper checkpoints diff --help"},
		"a tenant without a run":       {[]string{"-/run-1"}, "unexpected argument -/run-1"},
		"an address of everybody":      {[]string{"local", "--addr", "0.0.0.0:1"}, `addr: want a loopback address and a port, like 127.0.0.1:4570, got "0.0.0.0:1"`},
		"an address without a port":    {[]string{"local", "--addr", "127.0.0.1"}, `want a loopback address and a port, like 127.0.0.1:4570, got "127.0.0.1"`},
		"events for somebody else":     {[]string{"local", "--events-endpoint", "http://events.example.test"}, `"http://events.example.test" is not loopback`},
		"one name of several is none":  {[]string{"hold", "a/b", "/", "--for", "1h", "--why", "x", "--local", "--endpoint-url", "http://127.0.0.1:9", "--output", everyOutput()}, `run: want TENANT/RUN, or RUN alone, got "/"`},
		"a position that is no number": {[]string{"logs", "a/b", "--from", "end"}, "end"},
	} {
		t.Run(name, func(t *testing.T) {
			a := tool(t, "", row.args...).wants(t, exitUsage)
			if !strings.Contains(a.err, row.says) || a.out != "" {
				t.Errorf("stdout %q, stderr %q, want it to say %q", a.out, a.err, row.says)
			}
			if n := strings.Count(a.err, "sandkeeper: error: "); n != 1 {
				t.Errorf("%d errors in %q", n, a.err)
			}
		})
	}
}

// everyOutput names outputs enough for no service to be asked.
func everyOutput() string {
	var all []string
	for _, name := range needed {
		all = append(all, string(name)+"=x")
	}
	return strings.Join(all, ",")
}

func TestLocalRefusesWhatIsNotThisMachine(t *testing.T) {
	for name, row := range map[string]struct {
		env  map[string]string
		args []string
		says string
	}{
		"a foreign endpoint by flag":        {nil, []string{"--endpoint-url", "https://dynamodb.example.test"}, "--endpoint-url is not a loopback URL"},
		"a foreign endpoint by environment": {map[string]string{"AWS_ENDPOINT_URL": "http://10.0.0.1:4566"}, nil, "AWS_ENDPOINT_URL is not a loopback URL"},
		"one foreign service among others": {map[string]string{"AWS_ENDPOINT_URL": "http://127.0.0.1:4566", "AWS_ENDPOINT_URL_ECS": "https://ecs.example.test"}, nil,
			"AWS_ENDPOINT_URL_ECS is not a loopback URL"},
		"a foreign service beside one by flag": {map[string]string{"AWS_ENDPOINT_URL_ECS": "https://ecs.example.test"}, []string{"--endpoint-url", "http://127.0.0.1:4566"},
			"AWS_ENDPOINT_URL_ECS is not a loopback URL"},
		"a name that may resolve to anything": {nil, []string{"--endpoint-url", "http://127.0.0.1.example.test"}, "not a loopback URL"},
		"no endpoint at all":                  {nil, nil, "AWS_ENDPOINT_URL is not set"},
		"a profile":                           {map[string]string{"AWS_ENDPOINT_URL": "http://127.0.0.1:4566"}, []string{"--profile", "prod"}, "AWS_PROFILE is set"},
		"endpoints that are ignored": {map[string]string{"AWS_ENDPOINT_URL": "http://127.0.0.1:4566", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, nil,
			"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is set"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, variable := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_ECS", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"} {
				t.Setenv(variable, row.env[variable])
			}
			a := tool(t, "", append([]string{"--local", "runs"}, row.args...)...).wants(t, exitRefused)
			if !strings.Contains(a.err, row.says) || a.out != "" {
				t.Errorf("stdout %q, stderr %q, want it to say %q", a.out, a.err, row.says)
			}
		})
	}
}

func TestErrorsAreJSONWhereThatIsAskedFor(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL", "")
	a := tool(t, "", "runs", "--local", "--json").wants(t, exitRefused)
	if a.out != "" || !strings.HasPrefix(a.err, `{"code":"refused","error":"refuse to run`) {
		t.Errorf("stdout %q, stderr %q", a.out, a.err)
	}
}

func TestHelpAndVersionExitWith0(t *testing.T) {
	help := tool(t, "", "--help").wants(t, exitDone)
	for _, command := range []string{"plan", "apply", "sweep", "runs", "show", "explain", "hold", "release", "extend", "kill", "freeze", "thaw", "mode",
		"redrive", "audit", "checkpoints", "logs", "cost", "doctor", "watch", "local", "demo", "completion"} {
		if !strings.Contains(help.out, "\n  "+command) {
			t.Errorf("--help does not list %s", command)
		}
	}
	if strings.Contains(help.out, "__complete") || strings.Contains(help.out, "demo-agent") {
		t.Error("--help lists what is for programs alone")
	}
	if a := tool(t, "", "--version").wants(t, exitDone); strings.TrimSpace(a.out) == "" {
		t.Error("--version prints nothing")
	}
}

func TestARunIsNamedByTenantAndRun(t *testing.T) {
	for text, want := range map[string]core.RunKey{
		"acme/run-1":           {Tenant: "acme", Run: "run-1"},
		"run-1":                {Tenant: "-", Run: "run-1"},
		"-/nightly/2026-11-30": {Tenant: "-", Run: "nightly/2026-11-30"},
		"acme/nightly/11/30":   {Tenant: "acme", Run: "nightly/11/30"},
	} {
		if got, err := (oneRun{Run: text}).key(); err != nil || got != want {
			t.Errorf("%s is %+v: %v, want %+v", text, got, err, want)
		}
	}
	if got, err := (oneRun{Run: "x/y", Tenant: "a/b"}).key(); err != nil || got != (core.RunKey{Tenant: "a/b", Run: "x/y"}) {
		t.Errorf("with --tenant: %+v: %v", got, err)
	}
	for _, text := range []string{"", "/", "/run", "tenant/"} {
		if got, err := (oneRun{Run: text}).key(); err == nil || codeOf(err) != exitUsage {
			t.Errorf("%q is %+v: %v, want a usage error", text, got, err)
		}
	}
}

// TestARunWithoutATenantIsReadAsItIsPrinted: -/run-1 begins as a flag does and is none,
// wherever a name or a text may stand.
func TestARunWithoutATenantIsReadAsItIsPrinted(t *testing.T) {
	for name, row := range map[string]struct {
		args []string
		got  func(c *commands) string
		want string
	}{
		"an argument":        {[]string{"kill", "-/run-1", "--why", "x"}, func(c *commands) string { return strings.Join(c.Kill.Runs, " ") }, "-/run-1"},
		"several":            {[]string{"hold", "a/b", "-/run-1", "c", "--for", "1h", "--why", "x"}, func(c *commands) string { return strings.Join(c.Hold.Runs, " ") }, "a/b -/run-1 c"},
		"several behind two": {[]string{"release", "--why", "x", "--", "-/run-1", "--why", "-/c"}, func(c *commands) string { return strings.Join(c.Release.Runs, " ") }, "-/run-1 --why -/c"},
		"some of several":    {[]string{"sweep", "a/b", "-/run-1"}, func(c *commands) string { return strings.Join(c.Sweep.Runs, " ") }, "a/b -/run-1"},
		"a thread":           {[]string{"checkpoints", "head", "-/thread-1"}, func(c *commands) string { return c.Checkpoints.Head.Thread }, "-/thread-1"},
		"a flag's value":     {[]string{"audit", "trail", "--subject", "-/run-1"}, func(c *commands) string { return c.Audit.Trail.Subject }, "-/run-1"},
		"behind two hyphens": {[]string{"show", "--", "-/run-1"}, func(c *commands) string { return c.Show.oneRun.Run }, "-/run-1"},
		"a reason":           {[]string{"freeze", "--why", "-/run-1 loops"}, func(c *commands) string { return string(c.Freeze.Why) }, "-/run-1 loops"},
	} {
		var c commands
		k, err := parser(t.Context(), &c, &console.Console{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.Parse(shielded(row.args)); err != nil || row.got(&c) != row.want {
			t.Errorf("%s: %q, want %q: %v", name, row.got(&c), row.want, err)
		}
	}
}

// TestSeveralRunsAreEachNamedOnce: what is said twice is not done twice, as more time would
// be; a question names them, but not hundreds.
func TestSeveralRunsAreEachNamedOnce(t *testing.T) {
	keys, err := (someRuns{Runs: []string{"b", "a/b", "-/b", "a/b", "b"}}).keys()
	if want := []core.RunKey{{Tenant: "-", Run: "b"}, {Tenant: "a", Run: "b"}}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("%v, %v, want %v", keys, err, want)
	}
	ask := question{"end %s?", "end %s, all?"}
	if got := ask.about(keys[:1]); got != "end -/b?" {
		t.Errorf("of one: %q", got)
	}
	if got := ask.about(keys); got != "end 2 runs, -/b, a/b, all?" {
		t.Errorf("of two: %q", got)
	}
	if got := ask.about(slices.Repeat(keys, askedMost)); strings.Count(got, "/b") != askedMost || !strings.HasSuffix(got, " and 10 more, all?") {
		t.Errorf("of many: %q", got)
	}
}

// TestAWrongNameLeadsToTheRightOne, the likeliest first, and never to all there are.
func TestAWrongNameLeadsToTheRightOne(t *testing.T) {
	runs := []core.Run{}
	for _, name := range []string{"acme/run-7f3a", "acme/run-7f3b", "zeta/run-7f3a", "-/nightly", "-/other"} {
		runs = append(runs, core.Run{RunKey: parseRun("", name)})
	}
	for given, want := range map[string]string{
		"run-7f3a":      "acme/run-7f3a zeta/run-7f3a",
		"acme/run-7f":   "acme/run-7f3a acme/run-7f3b zeta/run-7f3a",
		"acme/NIGHTLY":  "-/nightly",
		"nightly-2":     "-/nightly",
		"acme/7f3b":     "acme/run-7f3b",
		"acme/anything": "",
	} {
		var got []string
		for _, k := range meant(parseRun("", given), runs) {
			got = append(got, k.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", given, got, want)
		}
	}
	for n := range 2 * alikeMost {
		runs = append(runs, core.Run{RunKey: core.RunKey{Tenant: "acme", Run: core.RunID(fmt.Sprintf("run-7f3a-%d", n))}})
	}
	if got := meant(parseRun("", "run-7f3a"), runs); len(got) != alikeMost {
		t.Errorf("%d are named, want %d", len(got), alikeMost)
	}
}

func TestWithoutACommandTheHelpIsPrinted(t *testing.T) {
	if a := tool(t, "").wants(t, exitDone); !strings.Contains(a.out, "Usage: sandkeeper") || a.err != "" {
		t.Errorf("stdout %q, stderr %q", a.out, a.err)
	}
}

// TestWhereNobodyListensIsSaid with where that may come from.
func TestWhereNobodyListensIsSaid(t *testing.T) {
	t.Setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
	a := tool(t, "", "--local", "runs").wants(t, exitFailed)
	if !strings.HasSuffix(a.err, "connection refused: nobody listens there: look at --endpoint-url and the AWS_ENDPOINT_URL variables\n") {
		t.Errorf("stderr %q", a.err)
	}
}

// TestMissingCredentialsAreSaidBeforeTheFirstCall, with the cure.
func TestMissingCredentialsAreSaidBeforeTheFirstCall(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", os.DevNull)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	a := tool(t, "", "runs", "--region", "eu-west-1").wants(t, exitUsage)
	if !strings.Contains(a.err, "no AWS credentials: say --profile") {
		t.Errorf("stderr %q", a.err)
	}
}

func TestExitCodesTellWhatHappened(t *testing.T) {
	for name, row := range map[string]struct {
		err  error
		want int
	}{
		"nothing":                {nil, exitDone},
		"no such run":            {fmt.Errorf("read run a/b: %w", core.ErrNotFound), exitNotFound},
		"a condition that fails": {fmt.Errorf("kill: %w", &core.RefusedError{Op: "cancel", Why: "terminal"}), exitRefused},
		"too late":               {fmt.Errorf("hold: %w", core.ErrTooLate), exitRefused},
		"nobody to ask":          {console.ErrNobody, exitRefused},
		"a no":                   {console.ErrDeclined, exitRefused},
		"findings":               {&findingsError{2}, exitFindings},
		"bad input":              {badInput("x"), exitUsage},
		"any other error":        {errors.New("broken"), exitFailed},
		"some of several":        {&partlyError{[]error{core.ErrNotFound}, 3}, exitNotFound},
		"alike ones of several":  {&partlyError{[]error{core.ErrTooLate, &core.RefusedError{Op: "cancel", Why: "terminal"}}, 3}, exitRefused},
		"unlike ones of several": {&partlyError{[]error{core.ErrNotFound, core.ErrTooLate}, 2}, exitFailed},
	} {
		if got := codeOf(row.err); got != row.want {
			t.Errorf("%s: %d, want %d", name, got, row.want)
		}
	}
}

func TestSpansHaveDays(t *testing.T) {
	for text, want := range map[string]time.Duration{"90m": 90 * time.Minute, "7d": 7 * day, "1.5d": 36 * time.Hour} {
		if got, err := parseSpan(text); err != nil || got != want {
			t.Errorf("%s is %s: %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0s", "-1h", "d", "7", "7w"} {
		if got, err := parseSpan(text); err == nil {
			t.Errorf("%q is %s, want an error", text, got)
		}
	}
}

func TestCompletionKnowsTheGrammar(t *testing.T) {
	for name, row := range map[string]struct {
		words []string
		want  []string
		not   string
	}{
		"commands by their beginning": {[]string{"re"}, []string{"redrive", "release"}, "runs"},
		"flags of a command":          {[]string{"hold", "--"}, []string{"--for", "--until", "--why", "--dry-run", "--json"}, "--yes"},
		"values of a flag":            {[]string{"cost", "--by", ""}, []string{"run", "tenant", "thread"}, "--by"},
		"values of an argument":       {[]string{"mode", ""}, []string{"enforce", "observe"}, ""},
		"a value in the flag's word":  {[]string{"cost", "--by=t"}, []string{"--by=tenant", "--by=thread"}, "--by=run"},
		"standings":                   {[]string{"runs", "--standing", "ended"}, []string{"ended", "ended-owing", "ended-warm"}, "detached"},
		"a command's own commands":    {[]string{"audit", "t"}, []string{"tasks", "trail"}, ""},
		"behind a flag's value":       {[]string{"--region", "us-east-1", "ex"}, []string{"explain", "extend"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Fields(tool(t, "", append([]string{"__complete"}, row.words...)...).wants(t, exitDone).out)
			for _, want := range row.want {
				if !slices.Contains(got, want) {
					t.Errorf("%q lacks %s", got, want)
				}
			}
			if row.not != "" && slices.Contains(got, row.not) {
				t.Errorf("%q has %s", got, row.not)
			}
		})
	}
}

// TestBashCompletes what is typed, in a real shell at a terminal: readline ends words at : = and
// @ as well, so that a name that holds one must not be doubled there.
func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	exe, err := filepath.Abs(testBinary(t))
	if err != nil {
		t.Fatal(err)
	}
	begins := `PS1='ready> '
sandkeeper() {
  if [[ $1 != __complete ]]; then printf 'ran: '; printf '%s|' "$@"; echo; return; fi
  case ${@: -1} in
    acme* | us@* | k=*) printf '%s\n' acme:eu:1/run-7 us@eu/run-8 k=v/run-9 | grep "^${@: -1}" ;;
    *) ` + asMain + `=1 "$EXE" "$@" ;;
  esac
}
` + tool(t, "", "completion", "bash").wants(t, exitDone).out
	for name, more := range map[string]string{
		"as it comes": "", "where somebody took the colon out": "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n", "without names of hosts": "shopt -u hostcomplete\n",
	} {
		t.Run(name, func(t *testing.T) {
			rc := filepath.Join(t.TempDir(), "rc")
			if err := os.WriteFile(rc, []byte(begins+more), 0o600); err != nil {
				t.Fatal(err)
			}
			command := exec.CommandContext(t.Context(), bash, "--noprofile", "--rcfile", rc, "-i")
			command.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=xterm", "INPUTRC=" + os.DevNull, "HISTFILE=", "EXE=" + exe, "LC_ALL=C"}
			s := onScreen(t, command, 100, 40)
			s.shows("the shell is ready", "ready>")
			for _, row := range []struct{ typed, runs string }{
				{"expl\t", "explain|"},
				{"show acme:\t", "show|acme:eu:1/run-7|"},
				{"show acme:eu:1/r\t", "show|acme:eu:1/run-7|"},
				{"kill us@e\t", "kill|us@eu/run-8|"},
				{"hold k=\t", "hold|k=v/run-9|"},
				{"cost --by=te\t", "cost|--by=tenant|"},
				{"cost --by te\t", "cost|--by|tenant|"},
				{"hold acme:e\tus@\t", "hold|acme:eu:1/run-7|us@eu/run-8|"},
				{"show acme:e zzz\x1b[D\x1b[D\x1b[D\x1b[D\t", "show|acme:eu:1/run-7|zzz|"}, // the cursor is in the line
			} {
				s.press("clear; sandkeeper " + row.typed + "\r")
				s.shows(row.typed, "ran: "+row.runs, "ready>")
			}
		})
	}
}

// TestAnInterruptedCommandSaysSo, unless it has more to say.
func TestAnInterruptedCommandSaysSo(t *testing.T) {
	for name, row := range map[string]struct {
		err  error
		says string
	}{
		"under a call":      {fmt.Errorf("read run a/b: %w", context.Canceled), "interrupted"},
		"with its cause":    {errors.Join(fmt.Errorf("deploy: %w", context.Canceled), context.Canceled), "interrupted"},
		"with more to tell": {fmt.Errorf("%w: the work in the sandbox goes on", context.Canceled), "the work in the sandbox goes on"},
	} {
		var errs strings.Builder
		code := report(&console.Console{Out: &errs, Err: &errs}, row.err)
		if code != exitInterrupted || !strings.Contains(errs.String(), row.says) || row.says == "interrupted" && strings.Contains(errs.String(), "context") {
			t.Errorf("%s: exit code %d, %q", name, code, errs.String())
		}
	}
}

// TestListsInJSONAreLists, also of none.
func TestListsInJSONAreLists(t *testing.T) {
	if text, err := json.Marshal(viewUnreadable(nil)); err != nil || string(text) != "[]" {
		t.Errorf("unreadable records: %s, %v", text, err)
	}
	var out strings.Builder
	in := &installation{out: map[names.Output]string{names.OutInstall: "i"}}
	empty := fmt.Sprintf(`{"v": %d, "install": "i", "region": "", "madeAt": "2030-01-01T00:00:00Z", "entries": []}`, planVersion)
	err := (&applyCommand{Plan: "-"}).Run(t.Context(), in, &console.Console{JSON: true, In: strings.NewReader(empty), Out: &out, Err: &out})
	if err != nil || strings.Contains(out.String(), "null") || !strings.Contains(out.String(), `"runs"`) {
		t.Errorf("a plan without entries: %s, %v", out.String(), err)
	}
}

// paster is a test, or one run of a property.
type paster interface {
	Helper()
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// typed is what a shell makes of a command line: the arguments with which it would begin the
// tool. It types in dir, which nothing else is in.
func typed(t paster, dir, line string) []string {
	t.Helper()
	tool := "#!/bin/sh\nprintf '%s\\0' \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "sandkeeper"), []byte(tool), 0o755); err != nil {
		t.Fatalf("%v", err)
	}
	shell := exec.CommandContext(t.Context(), "bash", "-c", line)
	shell.Dir, shell.Env = dir, []string{"PATH=" + dir + ":/usr/bin:/bin"}
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", line, err, out)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Fatalf("%q left %v, %v", line, left, err)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

// TestAPrintedCommandNamesItsRun: whatever ids hold, what events and explain print can be
// pasted: the shell runs nothing else, and the tool takes it for that very run.
func TestAPrintedCommandNamesItsRun(t *testing.T) {
	hostile := []string{
		"run-1", "-", "-x", "--yes", "--", "--why=x", "a b", "a/b", "/", "//", "-/x", "'", `"`, "'; touch pwned; '", "$(touch pwned)", "`touch pwned`",
		"$HOME", "*", "~", "!!", "\\", "\\'", "a\nb", "a\rb", "\x1b[2J", "\x15touch pwned\r", "\u009b31m", "\u202egnp", "é", "日本", "=x", "#", "%s", "…",
	}
	dir := t.TempDir()
	check := func(t paster, k core.RunKey) {
		line := core.CommandLine("hold", k, "--for 4h --why '…'")
		if strings.ContainsAny(line, `"`) || console.Clean(line) != line {
			t.Errorf("%q holds what is not to be pasted", line)
		}
		var c commands
		parser, err := parser(t.Context(), &c, &console.Console{Out: io.Discard, Err: io.Discard})
		if err != nil {
			t.Fatalf("%v", err)
		}
		parsed, err := parser.Parse(shielded(typed(t, dir, line)))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		got, err := c.Hold.key()
		if err != nil || got != k || parsed.Command() != "hold <run>" || c.Hold.Why != "…" || c.Hold.For.duration() != 4*time.Hour {
			t.Errorf("%q is %s of %+q: %v, want %+q", line, parsed.Command(), got, err, k)
		}
	}
	for _, id := range hostile {
		for _, k := range []core.RunKey{
			{Tenant: "-", Run: core.RunID(id)}, {Tenant: "acme", Run: core.RunID(id)}, {Tenant: core.TenantID(id), Run: "run-1"}, {Tenant: core.TenantID(id), Run: core.RunID(id)},
		} {
			check(t, k)
		}
	}
	draw.Check(t, func(rt *draw.T) {
		id := draw.OneOf(draw.SampledFrom(hostile), draw.StringMatching(`[^\x00]{1,12}`))
		check(rt, core.RunKey{Tenant: core.TenantID(id.Draw(rt, "tenant")), Run: core.RunID(id.Draw(rt, "run"))})
	})
	if line := core.CommandLine("kill", core.RunKey{Tenant: "acme", Run: "victim\x00"}, ""); line != "" {
		t.Errorf("%q would name another run", line)
	}
}

// TestALocalCommandFollowsNobodyElsewhere: not even an engine of this machine that
// answers with another address.
func TestALocalCommandFollowsNobodyElsewhere(t *testing.T) {
	server := httptest.NewServer(http.RedirectHandler("http://192.0.2.1:9/", http.StatusTemporaryRedirect))
	defer server.Close()
	cfg, err := (&globals{Local: true, EndpointURL: server.URL}).config(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = lambda.NewFromConfig(cfg).GetFunctionConfiguration(t.Context(), &lambda.GetFunctionConfigurationInput{FunctionName: new("f")}, once)
	if !errors.Is(err, engine.ErrElsewhere) {
		t.Errorf("said %v", err)
	}
}

// TestAnErrorIsOneErrorWhateverItQuotes: a host's id or an agent's text begins no line of
// the tool's, and moves no cursor.
func TestAnErrorIsOneErrorWhateverItQuotes(t *testing.T) {
	for _, text := range []string{"x\nsandkeeper: released acme/y", "x\r\nsandkeeper: done", "x\x1b[1A\x1b[2Ksandkeeper: done", "x\u009b1Asandkeeper: done", "x\u2028sandkeeper"} {
		for _, json := range []bool{false, true} {
			var errs strings.Builder
			out := &console.Console{Err: &errs, JSON: json}
			report(out, fmt.Errorf("hold run acme/%s: %w", text, core.ErrTooLate))
			for n, line := range strings.Split(strings.TrimSuffix(errs.String(), "\n"), "\n") {
				if console.Clean(line) != line || n > 0 && !strings.HasPrefix(line, "  ") {
					t.Errorf("of %q, line %d: %q", text, n, line)
				}
			}
		}
	}
}
