package mem_test

import (
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// site is a fleet in memory as the checks of a provider see it.
func site(t *testing.T) coretest.Site {
	s := mem.New(t)
	view := mem.NewFleet(s).View(s.Process)
	return coretest.Site{
		Provider: core.TaskProvider{TaskAPI: view, AgentStarter: view}, Snapshots: view, Spec: core.TaskSpec{Cluster: "c", Container: "agent"},
		Unknown: core.ExecTarget{Cluster: "c", TaskARN: "arn:none", Container: "agent"},
		Await: func(what string, holds func() bool) { // nothing takes time here
			if !holds() {
				t.Fatalf("%s: it never does", what)
			}
		},
	}
}

func TestProviderContract(t *testing.T) { coretest.Provider(t, site) }

func TestSnapshotContract(t *testing.T) { coretest.Snapshots(t, site) }
