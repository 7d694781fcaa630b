// Command session is what hosts call: it begins, attaches, tails, leaves, pauses and ends
// runs, one JSON operation a request, as docs/session-api.md says. The tenant is bound to
// the caller by the stack, never taken from a sandbox.
package main

import (
	"fmt"
	"strconv"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
	"github.com/sandkeeper/sandkeeper/internal/wiring"
)

func main() {
	b := boot.New(names.Session)
	allowed, err := core.ReadTenants(b.Get(names.Tenants))
	if err != nil {
		panic(fmt.Errorf("boot session: %w", err)) // it does not start half configured
	}
	each, err := strconv.Atoi(b.Get(names.SandboxesPerTenant))
	if err != nil || each < 0 {
		panic(fmt.Errorf("boot session: sandboxes per tenant: want a whole number from 0 on, got %.20q", b.Get(names.SandboxesPerTenant)))
	}
	session := wiring.Installation{
		AWS: b.AWS, ECS: b.AWS, Places: b.Places,
		RunsTable: b.Get(names.RunsTable), SandboxesTable: b.Get(names.SandboxesTable), CheckpointsTable: b.Get(names.CheckpointsTable),
		LogBucket: b.Get(names.LogBucket), ReclaimQueue: b.Get(names.ReclaimQueue), EventBus: b.Get(names.EventBus),
		CheckpointFunction: b.Get(names.CheckpointFunction), ToolsFunction: b.Get(names.ToolsFunction), ReapFunction: b.Get(names.ReapFunction),
		Cluster: b.Get(names.Cluster), Install: b.Get(names.Install), HostFunctions: wiring.HostFunctions(b.Get(names.HostFunctions)),
		Quota: allowed.Quota(each), Limits: b.Limits, Logger: b.Log, Meter: b.Meter,
	}.Session()
	lambda.StartHandlerFunc(boot.Metered(b, false, handler{session, allowed, b.Log, b.Meter}.handle))
}
