package sandkeeper

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-cdk-go/awscdk/v2"
	"github.com/aws/aws-cdk-go/awscdk/v2/awsiam"
)

// TestAnAppHasTwoInstallations, each in a stack of its own, with grants and metrics that
// are of the one and not of the other.
func TestAnAppHasTwoInstallations(t *testing.T) {
	dist, out := t.TempDir(), t.TempDir()
	binaries(dist)
	app := awscdk.NewApp(&awscdk.AppProps{Outdir: &out})
	for _, name := range []string{"blue", "green"} {
		stack := awscdk.NewStack(app, &name, nil)
		k := New(stack, "Keeper", Props{Install: name, Dist: dist})
		host := awsiam.NewRole(stack, new("host"), &awsiam.RoleProps{AssumedBy: awsiam.NewAccountRootPrincipal()})
		k.GrantHost(host)
		k.GrantOperator(host)
		if len(k.Alarms()) == 0 || k.Dashboard() == nil || k.Cluster() == nil || k.Function("session") == nil {
			t.Errorf("%s has %d alarms, dashboard %v", name, len(k.Alarms()), k.Dashboard())
		}
		same(t, "metric", *k.Metric("FenceRefusals", "Sum", time.Hour).Dimensions(), map[string]any{"Install": name})
	}
	app.Synth(nil)
	blue, green := templateOf(out, "blue"), templateOf(out, "green")
	same(t, "resources", len(blue.Resources), len(green.Resources))
	if strings.Contains(blue.text, "green") || strings.Contains(green.text, "blue") {
		t.Error("one of them knows the other")
	}
	taken := physicalNames(blue)
	for name := range physicalNames(green) {
		if taken[name] {
			t.Errorf("both have %s", name)
		}
	}
}

// TestAStackHasOneInstallation: the second is refused with why, as is a key where the stack
// does not say its Region.
func TestAStackHasOneInstallation(t *testing.T) {
	dist := t.TempDir()
	binaries(dist)
	for want, make := range map[string]func(stack awscdk.Stack){
		"stack orchestrator has an installation already: want one a stack": func(stack awscdk.Stack) {
			New(stack, "Blue", Props{Install: "blue", Dist: dist})
			New(stack, "Green", Props{Install: "green", Dist: dist})
		},
		"key: want a stack whose env says its account and Region, those of the key": func(stack awscdk.Stack) {
			New(stack, "Keeper", Props{Dist: dist, Key: aKey})
		},
		"mode: want observe or enforce": func(stack awscdk.Stack) { New(stack, "Keeper", Props{Dist: dist, Mode: "dry"}) },
		"no binary, run make build":     func(stack awscdk.Stack) { New(stack, "Keeper", Props{Dist: t.TempDir()}) },
	} {
		func() {
			defer func() {
				if said := fmt.Sprint(recover()); !strings.Contains(said, want) {
					t.Errorf("said %.300q, want %q", said, want)
				}
			}()
			make(awscdk.NewStack(awscdk.NewApp(&awscdk.AppProps{Outdir: new(t.TempDir())}), new("orchestrator"), nil))
		}()
	}
}
