package client_test

import (
	"context"
	"testing"

	"github.com/sandkeeper/sandkeeper/client"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// world is an installation in memory, whose agents the test plays.
type world struct {
	*testing.T
	fleet *mem.Fleet
	core.Session
}

func newWorld(t *testing.T) *world {
	store := mem.New(t)
	fleet := mem.NewFleet(store)
	view := fleet.View(store.Process)
	return &world{T: t, fleet: fleet, Session: core.Session{
		Launcher: &core.Launcher{
			Runs: store, Sandboxes: store, Ledger: store, Transactions: store, Describer: view, Provider: core.TaskProvider{TaskAPI: view, AgentStarter: view},
			Queue: store, Threads: store, Limits: core.DefaultLimits, Install: "test",
		},
		Binds: store, Controls: store, Log: &core.LogWriter{Log: store, Blobs: store, Inline: 100}, Prober: view, Notes: store, History: store,
		Provider: "fargate", Cluster: "c",
	}}
}

// api is the world as a host reaches it.
func (w *world) api() *hooked { return &hooked{API: &w.Session} }

// hooked lets a test answer in the API's place, or act before it does.
type hooked struct {
	client.API
	start func(client.StartRequest) (client.StartReport, error, bool)
	renew func() (client.RenewReport, error, bool)
	tail  func(client.TailRequest) (client.TailReport, error, bool)
}

func (h *hooked) Start(ctx context.Context, q client.StartRequest) (client.StartReport, error) {
	if h.start != nil {
		if report, err, mine := h.start(q); mine {
			return report, err
		}
	}
	return h.API.Start(ctx, q)
}

func (h *hooked) Renew(ctx context.Context, q client.HostRequest) (client.RenewReport, error) {
	if h.renew != nil {
		if report, err, mine := h.renew(); mine {
			return report, err
		}
	}
	return h.API.Renew(ctx, q)
}

func (h *hooked) Tail(ctx context.Context, q client.TailRequest) (client.TailReport, error) {
	if h.tail != nil {
		if report, err, mine := h.tail(q); mine {
			return report, err
		}
	}
	return h.API.Tail(ctx, q)
}

var key = client.RunKey{Tenant: "acme", Run: "r"}

func begin(host string) *client.StartRequest {
	return &client.StartRequest{
		RunKey: key, Thread: "t", Host: host, Agent: client.AgentPlan{Argv: []string{"agent"}},
		Definition: &client.Definition{Name: "d", Version: 1, Task: client.TaskTemplate{TaskDefinition: "f", Container: "agent", Subnets: []string{"s"}}},
	}
}

// get reads the run.
func (w *world) get() client.RunView {
	w.Helper()
	run, err := w.Get(w.Context(), client.GetRequest{RunKey: key})
	if err != nil {
		w.Fatal(err)
	}
	return run
}
