package ecsexec_test

import (
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/core/coretest"
)

// TestProviderContract: Fargate, its tasks and ECS Exec together are a provider. It takes
// no snapshots of its own.
func TestProviderContract(t *testing.T) {
	coretest.Provider(t, func(t *testing.T) coretest.Site {
		b := newSandbox(t, scene{})
		return coretest.Site{
			Provider: core.TaskProvider{
				TaskAPI: b.tasks, AgentStarter: core.JournalStarter{Exec: b.exec, Format: core.DefaultJournal},
			},
			Spec: core.TaskSpec{Cluster: cluster, TaskDefinition: "sandbox", Container: "main", Subnets: []string{"subnet-1"}},
			Unknown: core.ExecTarget{
				Cluster: cluster, TaskARN: "arn:aws:ecs:us-east-1:000000000000:task/" + cluster + "/0123456789abcdef0123456789abcdef", Container: "main",
			},
			Await: b.until,
		}
	})
}
