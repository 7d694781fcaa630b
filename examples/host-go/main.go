// Command host-go is a host in Go: it starts a run, follows its output, leaves, comes
// back, and finishes it.
//
//	host-go --definition sandbox.json --shell 'echo hello' --thread t1
//	host-go --definition sandbox.json --shell 'sleep 600' --thread t1 --detach
//	host-go --attach --run RUN --from 0
//	host-go --cancel --run RUN
//	host-go --pause --run RUN --host HOST
//	host-go --parent RUN --definition sandbox.json --shell 'echo answered' --thread t1
//
// A thread's next turn finds the workspace of the last, where the definition keeps
// checkpoints: in the sandbox that is still warm, or in a new one that it is restored into.
// Output goes to stdout; the last line on stderr is JSON and says how it went. Ctrl-C
// leaves: the agent works on. docs/hosts.md explains the order of the calls.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/sandkeeper/sandkeeper/client"
)

// options are what the command line says.
type options struct {
	function, tenant, thread, run, host, parent, definition, shell, input string
	from                                                                  int64
	attach, takeover, detach, cancel, pause                               bool
}

func parse() (options, error) {
	var o options
	for _, f := range []struct {
		to               *string
		name, usual, use string
	}{
		{&o.function, "function", os.Getenv("SANDKEEPER_SESSION_FUNCTION"), "the session function: its name, with an alias where tenants have one"},
		{&o.tenant, "tenant", "-", "whose data it is"},
		{&o.thread, "thread", "thread-" + string(client.NewRun()), "the conversation"},
		{&o.run, "run", string(client.NewRun()), "the turn"},
		{&o.host, "host", client.NewHost(), "this host's name: whoever knows it has the run"},
		{&o.parent, "parent", "", "the paused run that this one goes on for"},
		{&o.definition, "definition", "", "a file, or the name of one that the installation keeps"},
		{&o.shell, "shell", "", "what the agent is"},
		{&o.input, "input", "", "the agent's stdin"},
	} {
		flag.StringVar(f.to, f.name, f.usual, f.use)
	}
	flag.Int64Var(&o.from, "from", 0, "byte position of the output to go on from")
	flag.BoolVar(&o.attach, "attach", false, "come back to --run")
	flag.BoolVar(&o.takeover, "takeover", false, "although another host has it")
	flag.BoolVar(&o.detach, "detach", false, "leave as soon as the agent works")
	flag.BoolVar(&o.cancel, "cancel", false, "end --run")
	flag.BoolVar(&o.pause, "pause", false, "pause --run for a human; a run with it as --parent goes on")
	flag.Parse()
	switch {
	case o.function == "":
		return o, errors.New("want --function or SANDKEEPER_SESSION_FUNCTION")
	case !o.attach && !o.cancel && !o.pause && (o.definition == "" || o.shell == ""):
		return o, errors.New("want --definition and --shell, or --attach, or --cancel, or --pause")
	}
	return o, nil
}

func (o options) key() client.RunKey {
	return client.RunKey{Tenant: client.TenantID(o.tenant), Run: client.RunID(o.run)}
}

// start is the request that begins the run.
func (o options) start() (client.StartRequest, error) {
	q := client.StartRequest{RunKey: o.key(), Thread: client.ThreadID(o.thread), Host: o.host, Agent: client.AgentPlan{Shell: o.shell}, Parent: client.RunID(o.parent)}
	if o.input != "" {
		q.Agent.Input = &o.input
	}
	data, err := os.ReadFile(o.definition)
	if errors.Is(err, os.ErrNotExist) {
		q.DefinitionName = o.definition
		return q, nil
	}
	if err != nil {
		return q, err
	}
	d, err := client.ParseDefinition(data)
	q.Definition = &d
	return q, err
}

// turn is what the command line asks for.
func (o options) turn() (client.Turn, error) {
	t := client.Turn{From: o.from, Line: write}
	if o.attach {
		t.Attach = &client.AttachRequest{RunKey: o.key(), Host: o.host, Takeover: o.takeover}
		return t, nil
	}
	q, err := o.start()
	t.Start = &q
	return t, err
}

// write shows a line of output.
func write(l client.Line) error {
	if !l.Cut && !l.Omitted {
		l.Text = append(l.Text, '\n')
	}
	_, err := os.Stdout.Write(l.Text)
	return err
}

// report is the last line.
type report struct {
	Run        client.RunID  `json:"run"`
	Host       string        `json:"host"`
	Position   int64         `json:"position"`
	Status     client.Status `json:"status,omitempty"`
	ExitCode   *int          `json:"exitCode,omitempty"`
	Checkpoint string        `json:"checkpoint,omitempty"`
	Unstored   string        `json:"checkpointFailed,omitempty"` // why; it is tried again before the sandbox ends
	Left       bool          `json:"left,omitempty"`
	Cancelled  bool          `json:"cancelled,omitempty"`
	Refused    client.Code   `json:"refused,omitempty"`
	Message    string        `json:"message,omitempty"`
}

func (o options) told(r client.Result, err error) {
	out := report{
		Run: client.RunID(o.run), Host: o.host, Position: r.Position, Status: r.Run.Status, ExitCode: r.Run.ExitCode,
		Checkpoint: string(r.Run.CheckpointID), Unstored: r.Finish.CheckpointFailed, Left: r.Left, Cancelled: errors.Is(err, client.ErrCancelled), Refused: client.CodeOf(err),
	}
	if err != nil && !r.Left { // to leave is what was asked for
		out.Message = err.Error()
	}
	json.NewEncoder(os.Stderr).Encode(out)
}

// busyMost is how long a start waits for an earlier turn of its thread to be over.
const busyMost = 2 * time.Minute

// drive does what was asked for.
func (o options) drive(ctx context.Context, api client.API) (client.Result, error) {
	if o.cancel {
		run, err := client.Cancel(ctx, api, client.CancelRequest{RunKey: o.key(), Host: o.host})
		return client.Result{Run: run}, err
	}
	if o.pause {
		report, err := api.Interrupt(ctx, client.HostRequest{RunKey: o.key(), Host: o.host})
		return client.Result{Run: report.Run}, err
	}
	t, err := o.turn()
	if err != nil {
		return client.Result{}, err
	}
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	if o.detach {
		t.Started = func(client.StartReport) { leave() }
	}
	for until := time.Now().Add(busyMost); ; {
		result, err := client.Run(ctx, api, t)
		switch client.CodeOf(err) {
		case client.ThreadBusy, client.WriterConflict:
			if time.Now().Before(until) {
				time.Sleep(time.Second)
				continue
			}
		}
		return result, err
	}
}

func main() {
	o, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	result, err := o.drive(ctx, client.NewFunction(cfg, o.function))
	o.told(result, err)
	os.Exit(status(o, result, err))
}

// status is the exit status: 0 for a turn that was completed, or left as asked.
func status(o options, r client.Result, err error) int {
	switch {
	case err == nil && (o.cancel || o.pause || r.Run.Status == client.Completed), o.detach && r.Left:
		return 0
	case errors.Is(err, context.Canceled) && r.Left:
		return 130
	case client.CodeOf(err) != "":
		return 3
	}
	return 1
}
