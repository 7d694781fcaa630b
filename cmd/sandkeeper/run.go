package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sandkeeper/sandkeeper/internal/console"
	"github.com/sandkeeper/sandkeeper/internal/core"
)

// globals are the flags of every command.
type globals struct {
	JSON        bool              `help:"Print one JSON document."`
	Profile     string            `help:"Profile of the AWS configuration." placeholder:"NAME"`
	Region      string            `help:"AWS Region." placeholder:"REGION"`
	Stack       string            `help:"Name of the stack." default:"sandkeeper" env:"SANDKEEPER_STACK" placeholder:"NAME"`
	Output      map[string]string `help:"An output of the stack, instead of asking CloudFormation for it." env:"SANDKEEPER_OUTPUTS" mapsep:"," placeholder:"KEY=VALUE"`
	EndpointURL string            `name:"endpoint-url" help:"Endpoint of the services for which no AWS_ENDPOINT_URL_<SERVICE> is set." placeholder:"URL"`
	Local       bool              `name:"local" help:"Refuse every endpoint but this machine, and use credentials that are nobody's." env:"SANDKEEPER_LOCAL"`
	As          string            `help:"Who acts, for the record; the caller's AWS identity otherwise." env:"SANDKEEPER_AS" placeholder:"NAME"`

	Version versionFlag `help:"Print the version and exit."`
}

// versionFlag prints what the binary was built from.
type versionFlag bool

// BeforeReset prints and exits before any command is asked for.
func (versionFlag) BeforeReset(k *kong.Kong, out *console.Console) error {
	fmt.Fprintln(out.Out, version())
	k.Exit(exitDone)
	return nil
}

// version is the module's version and the commit, where the build knows them.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	var text strings.Builder
	text.WriteString(info.Main.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			text.WriteString(" " + s.Value)
		}
	}
	return text.String()
}

// The exit codes of every command.
const (
	exitDone        = 0
	exitFailed      = 1   // a call failed, or what was done did not come out well
	exitUsage       = 2   // the command line, or a file that it names, is not as expected
	exitNotFound    = 3   // no such run, or no such stack
	exitRefused     = 4   // a condition does not hold, a guard refused, nobody said yes
	exitFindings    = 5   // audit or doctor found something
	exitInterrupted = 130 // Ctrl-C
)

// usageError is bad input: what was expected, and what came.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func badInput(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// refusedError is a thing that this tool does not do as matters stand.
type refusedError struct {
	text   string
	reason string // its word, if it has one
}

func (e *refusedError) Error() string { return e.text }

// findingsError tells that a check found something, which is printed already.
type findingsError struct{ found int }

func (e *findingsError) Error() string { return fmt.Sprintf("%d findings", e.found) }

// codes are the words for exit codes in an error's JSON.
var codes = map[int]string{
	exitFailed: "failed", exitUsage: "usage", exitNotFound: "not-found", exitRefused: "refused",
	exitFindings: "findings", exitInterrupted: "interrupted",
}

// codeOf is the exit code for an error.
func codeOf(err error) int {
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*kong.ParseError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*findingsError](err); ok {
		return exitFindings
	}
	if e, ok := errors.AsType[*partlyError](err); ok {
		return e.code()
	}
	_, refused := errors.AsType[*refusedError](err)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, core.ErrNotFound):
		return exitNotFound
	case refused, core.Refused(err), errors.Is(err, core.ErrTooLate), errors.Is(err, console.ErrDeclined), errors.Is(err, console.ErrNobody):
		return exitRefused
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}

// exit is the panic by which the parser ends a command after a flag like --help.
type exit int

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, out *console.Console) (code int) {
	defer func() {
		if c, ok := recover().(exit); ok {
			code = int(c)
		}
	}()
	var (
		c      commands
		opened *installation
	)
	k, err := parser(ctx, &c, out, kong.BindSingletonProvider(func() (in *installation, err error) {
		in, err = open(ctx, &c.globals)
		opened = in
		return in, err
	}))
	if err != nil {
		return report(out, err)
	}
	unsetEmpty()
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := k.Parse(shielded(args))
	out.JSON = c.JSON
	if err != nil {
		return report(out, err)
	}
	if err = parsed.Run(); errors.Is(err, core.ErrNotFound) && opened != nil {
		err = opened.alike(ctx, parsed.Selected().Target.Addr().Interface(), err)
	}
	return report(out, err)
}

// unsetEmpty takes variables that are set to nothing for those that are not set: a script
// passes on what it has.
func unsetEmpty() {
	for _, name := range []string{"SANDKEEPER_STACK", "SANDKEEPER_OUTPUTS", "SANDKEEPER_LOCAL", "SANDKEEPER_AS"} {
		if os.Getenv(name) == "" {
			os.Unsetenv(name)
		}
	}
}

// parser is the grammar of the command line.
func parser(ctx context.Context, c *commands, out *console.Console, more ...kong.Option) (*kong.Kong, error) {
	return kong.New(c, append(more,
		kong.Name("sandkeeper"),
		kong.Description("The end-of-life keeper of AI-agent sandboxes on Fargate."),
		kong.Writers(out.Out, out.Err),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "runs", Title: "Runs"}, {Key: "sweeps", Title: "Sweeps"}, {Key: "acts", Title: "Acts, each recorded with who and why"},
			{Key: "checkpoints", Title: "Checkpoints of workspaces"}, {Key: "state", Title: "The installation"}, {Key: "machine", Title: "This machine"},
		}),
		kong.TypeMapper(spanType, spanMapper{}),
		kong.TypeMapper(reflect.TypeFor[time.Time](), timeMapper{}),
		kong.KindMapper(reflect.String, textMapper{}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(out, &c.globals),
	)...)
}

// errInterrupted is what there is to say of a command that Ctrl-C ended, unless the
// command says more.
var errInterrupted = errors.New("interrupted")

// printJSON prints a document on a line of its own.
func printJSON(w io.Writer, v any) error {
	text, err := console.Encode(v, "")
	if err == nil {
		_, err = w.Write(append(text, '\n'))
	}
	return err
}

// report says an error, if there is one, once, and returns the exit code.
func report(out *console.Console, err error) int {
	code := codeOf(err)
	if err == nil || code == exitFindings {
		return code
	}
	if code == exitInterrupted && strings.HasSuffix(err.Error(), context.Canceled.Error()) {
		err = errInterrupted // whatever call it was under
	}
	text, reason := worded(err)
	if out.JSON {
		told := map[string]string{"error": text, "code": codes[code]}
		if reason != "" {
			told["reason"] = reason
		}
		_ = printJSON(out.Err, told) // stderr is the last resort
		return code
	}
	// What follows the first line is set in: whatever an error quotes passes for no line of ours.
	fmt.Fprintln(out.Err, "sandkeeper: error: "+strings.ReplaceAll(console.CleanLines(text), "\n", "\n  "))
	if e, ok := errors.AsType[*kong.ParseError](err); ok {
		fmt.Fprintln(out.Err, "see "+helpOf(e.Context)+" --help")
	}
	return code
}

// worded is an error as it is said: its text with what to do about it, and the reason's word.
func worded(err error) (text, reason string) {
	reason = reasonOf(err)
	text = strings.ReplaceAll(strings.TrimSpace(err.Error()), shield, "")
	if advice := adviceOf(reason); advice != "" {
		text += ": " + advice
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		text += ": nobody listens there: look at --endpoint-url and the AWS_ENDPOINT_URL variables"
	}
	return text, reason
}

// reasonOf is the word of a refusal: why a condition did not hold.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*core.RefusedError](err); ok {
		return e.Why
	}
	if e, ok := errors.AsType[*refusedError](err); ok {
		return e.reason
	}
	return ""
}

// adviceOf says what the word of a refusal means and what there is to do. A sweep means by held
// that a time is over too.
func adviceOf(reason string) string {
	if reason == core.WithheldHeld {
		return "an operator holds it until a time that sandkeeper runs shows; sandkeeper release takes that back"
	}
	return core.Advice(reason)
}

// helpOf is the command whose help tells how a line that could not be read is written.
func helpOf(c *kong.Context) string {
	var path strings.Builder
	path.WriteString("sandkeeper")
	for _, p := range c.Path {
		if p.Command != nil {
			path.WriteString(" " + p.Command.Name)
		}
	}
	return path.String()
}

// span is a duration that may be told in days.
type span time.Duration

func (s span) duration() time.Duration { return time.Duration(s) }
