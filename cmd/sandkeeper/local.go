package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/localfargate/box"
)

// localCommand runs local Fargate until it is interrupted.
type localCommand struct {
	Addr           string   `default:"127.0.0.1:0" help:"Loopback address to listen on."`
	Dir            string   `type:"path" help:"Directory for the tasks' files, in tasks, which must not be there; a new one otherwise."`
	Account        string   `default:"000000000000" help:"Account in ARNs."`
	Cluster        []string `help:"Clusters that exist; without any, every name does."`
	Driver         string   `enum:"process,docker" default:"process" help:"What a task is (process, docker): processes of this machine, or containers of its Docker engine."`
	Image          string   `help:"With docker: image in place of one that the engine does not have; none is pulled."`
	Isolation      string   `enum:",namespaces,user-namespaces,directory" default:"" help:"What separates tasks (namespaces, user-namespaces, directory); the best that works otherwise."`
	Visible        []string `type:"path" help:"Paths below /tmp that tasks see although they have their own /tmp."`
	Agent          string   `type:"existingfile" help:"sandkeeper-agent for this machine, which tasks find as an image would bring it."`
	EventsEndpoint string   `placeholder:"URL" help:"Loopback EventBridge endpoint that gets task state changes as source local.ecs."`
	EventsBus      string   `help:"Event bus; the default one otherwise."`
	Quick          bool     `help:"Leave out the waits of the real thing."`
	Unthrottled    bool     `help:"Leave out the request limits of the real thing."`
}

// localReady is the line on stdout that says where local Fargate is.
type localReady struct {
	Endpoint  string        `json:"endpoint"`
	Driver    string        `json:"driver"`
	Isolation box.Isolation `json:"isolation,omitempty"`
	PID       int           `json:"pid"`
}

// Run serves until ctx ends, then stops every task.
func (c *localCommand) Run(ctx context.Context, g *globals) error {
	region := cmp.Or(g.Region, engine.Region)
	opts := localfargate.Options{
		Addr: c.Addr, Dir: c.Dir, Region: region, Account: c.Account, Clusters: c.Cluster,
		Driver: localfargate.Driver(c.Driver), Image: c.Image, Isolation: box.Isolation(c.Isolation), Visible: c.Visible,
		Throttle: localfargate.Throttle{Off: c.Unthrottled},
		Log:      slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}
	if c.Agent != "" {
		opts.Env = []string{core.AgentVariable + "=" + c.Agent}
		opts.Visible = append(opts.Visible, c.Agent)
	}
	if c.Quick {
		opts.Habits = localfargate.QuickHabits()
	}
	if c.EventsEndpoint != "" {
		sender, err := localfargate.NewSender(c.EventsEndpoint, region, c.EventsBus)
		if err != nil {
			return badInput("%v", err)
		}
		sender.Log = opts.Log
		opts.Events = sender.Send
	}
	server, err := localfargate.New(opts)
	if _, ok := errors.AsType[*net.AddrError](err); ok || errors.Is(err, localfargate.ErrNotLoopback) {
		return badInput("addr: want a loopback address and a port, like 127.0.0.1:4570, got %q", c.Addr)
	}
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	ready := localReady{Endpoint: server.URL(), Driver: c.Driver, Isolation: server.Isolation(), PID: os.Getpid()}
	if err := json.NewEncoder(os.Stdout).Encode(ready); err != nil {
		return fmt.Errorf("write endpoint: %w", err)
	}
	<-ctx.Done()
	return server.Close()
}
