package core_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

const (
	home  = "arn:aws:ecs:us-east-1:000000000000:cluster/sandkeeper"
	spoke = "arn:aws:ecs:eu-west-1:111122223333:cluster/agents"
)

// atHomeAndInASpoke are places with one spoke of two clusters.
const atHomeAndInASpoke = `{"home":"` + home + `","spokes":[{"role":"arn:aws:iam::111122223333:role/sandkeeper-spoke",` +
	`"region":"eu-west-1","externalId":"7d0e","clusters":["agents","more"]}]}`

func TestAClusterIsAtHomeInItsSpokeOrNowhere(t *testing.T) {
	places, err := core.ReadPlaces(atHomeAndInASpoke)
	if err != nil {
		t.Fatal(err)
	}
	for cluster, where := range map[string]string{
		home:            "home",
		"":              "home",
		"agents":        "home", // a name is of the account that is asked
		spoke:           "spoke",
		spoke + "2":     "nowhere", // not listed
		home + "-other": "home",
		strings.Replace(spoke, "111122223333", "999999999999", 1): "nowhere",
		strings.Replace(spoke, "eu-west-1", "eu-west-2", 1):       "nowhere",
		strings.Replace(home, "us-east-1", "eu-west-1", 1):        "nowhere",
		"arn:aws:ecs:eu-west-1:111122223333:task/agents":          "nowhere",
	} {
		s, err := places.Spoke(cluster)
		got := "home"
		switch {
		case errors.Is(err, core.ErrNoSpoke):
			got = "nowhere"
		case err != nil:
			t.Errorf("%s: %v", cluster, err)
		case s != nil:
			got = "spoke"
		}
		if got != where {
			t.Errorf("%s: %s, want %s (%v)", cluster, got, where, err)
		}
	}
	if got := places.Abroad(); !slices.Equal(got, []string{spoke, strings.Replace(spoke, "agents", "more", 1)}) {
		t.Errorf("abroad %v", got)
	}
	if s, err := (core.Places{}).Spoke(spoke); s != nil || err != nil {
		t.Errorf("without a home: %v, %v", s, err)
	}
}

func TestPlacesAreRefusedWithWhatWasExpected(t *testing.T) {
	for _, tt := range []struct{ name, was, is, want string }{
		{"another field", `"region"`, `"regions"`, "unknown field"},
		{"no home", home, "", "home: want the ARN of a cluster"},
		{"a role that is none", ":role/", ":user/", "role: want the ARN of a role"},
		{"a pattern for a role", "role/sandkeeper-spoke", "role/*", "role: want the ARN of a role"},
		{"no Region", `"eu-west-1"`, `"Ireland"`, "region: want a Region as eu-west-1"},
		{"no external id", `"7d0e"`, `""`, "externalId: want 2 to 128"},
		{"no cluster", `["agents","more"]`, `[]`, "clusters: want the name of one at least"},
		{"a cluster's ARN", `"agents"`, `"` + spoke + `"`, "clusters: want names, no ARNs"},
		{"the home as a spoke", `111122223333:role/sandkeeper-spoke","region":"eu-west-1"`, `000000000000:role/s","region":"us-east-1"`, "is the installation's own"},
		{"a spoke twice", `}]}`, `},{"role":"arn:aws:iam::111122223333:role/b","region":"eu-west-1","externalId":"7d0e","clusters":["x"]}]}`, "account 111122223333 in eu-west-1 has one already"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(atHomeAndInASpoke, tt.was, tt.is, 1)
			if text == atHomeAndInASpoke {
				t.Fatalf("nothing is replaced by %s", tt.was)
			}
			if _, err := core.ReadPlaces(text); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// byCluster lists one stray task in each cluster but those that fail.
type byCluster struct {
	core.TaskLister
	core.TaskDescriber
	fails map[string]bool
}

func (b byCluster) Living(_ context.Context, cluster string) ([]string, error) {
	if b.fails[cluster] {
		return nil, errors.New("access denied")
	}
	return []string{cluster + "/task"}, nil
}

func (b byCluster) Describe(_ context.Context, cluster string, arns []string) ([]core.Task, error) {
	return []core.Task{{ARN: arns[0], Life: core.TaskLives, StartedBy: "test/" + strings.ReplaceAll(cluster, "/", "-"), CreatedAt: 1}}, nil
}

// TestTheAuditLooksIntoEverySpoke, and one that cannot be listed is an error that hides
// nothing of the others (I10).
func TestTheAuditLooksIntoEverySpoke(t *testing.T) {
	for name, fails := range map[string]map[string]bool{
		"all answer": nil, "home does not": {home: true}, "a spoke does not": {spoke: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				time.Sleep(w.limits.LeakGrace)
				sweep := w.sweep(w.store.Process)
				tasks := byCluster{fails: fails}
				sweep.Cluster, sweep.Abroad, sweep.Lister, sweep.Tasks = home, []string{spoke}, tasks, tasks
				sweep.StopLeaks = true
				report, err := sweep.Daily(t.Context())
				if (err != nil) != (len(fails) > 0) || len(report.Leaked) != 2-len(fails) || report.Home == fails[home] {
					t.Fatalf("leaked %+v, home listed %t, %v", report.Leaked, report.Home, err)
				}
				for _, cluster := range []string{home, spoke} {
					row, err := sweep.Ledger.Row(t.Context(), core.InstanceID(strings.ReplaceAll(cluster, "/", "-")))
					if fails[cluster] != (err != nil) || err == nil && row.Cluster != cluster {
						t.Errorf("the row of %s is %+v, %v", cluster, row, err)
					}
				}
			})
		})
	}
}

// hanging are clusters whose ECS, or whose role, does not answer before the call is given up.
type hanging struct {
	core.TaskLister
	core.TaskDescriber
	fine string // the cluster that answers
}

const givenUp = 15 * time.Second

func (h hanging) wait(cluster string) error {
	if cluster == h.fine {
		return nil
	}
	time.Sleep(givenUp)
	return errors.New("deadline exceeded")
}

func (h hanging) Describe(ctx context.Context, cluster string, arns []string) ([]core.Task, error) {
	if err := h.wait(cluster); err != nil {
		return nil, err
	}
	return h.TaskDescriber.Describe(ctx, cluster, arns)
}

func (h hanging) Living(ctx context.Context, cluster string) ([]string, error) {
	if err := h.wait(cluster); err != nil {
		return nil, err
	}
	return h.TaskLister.Living(ctx, cluster)
}

// TestSpokesThatDoNotAnswerKeepNobodyWaiting: with many of them at once a sweep still ends
// what is over at home, an audit still tells, and no run of theirs is touched.
func TestSpokesThatDoNotAnswerKeepNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.limits.SweepWidth, w.limits.ProbeCalls, w.limits.ProbeWidth = core.DefaultLimits.SweepWidth, core.DefaultLimits.ProbeCalls, core.DefaultLimits.ProbeWidth
		w.left("home", "done")
		w.fleet.Exit("home", 0)
		var abroad []string
		for n := range 12 {
			r := leftRun(fmt.Sprintf("abroad-%d", n))
			r.Cluster = string(r.Run)
			abroad = append(abroad, r.Cluster)
			w.store.SeedRun(r)
		}
		s := w.sweep(w.store.Process)
		tasks := hanging{s.Lister, s.Tasks, s.Cluster}
		s.Tasks, s.Lister, s.Abroad = tasks, tasks, abroad
		begun := time.Now()
		report, err := s.Run(t.Context(), core.SweepRequest{})
		if err != nil || outcomes(report)["home"] != core.Finalized {
			t.Errorf("%v, %v", err, outcomes(report))
		}
		if took := time.Since(begun); took > 2*givenUp {
			t.Errorf("the sweep took %s", took)
		}
		for _, run := range abroad {
			if r := w.run(run); r.Epoch != 1 || r.Status != core.Running {
				t.Errorf("run %s was touched: %+v", run, r)
			}
		}
		begun = time.Now()
		daily, err := s.Audit(t.Context())
		if took := time.Since(begun); took > 2*givenUp || err == nil || !daily.Home {
			t.Errorf("the audit took %s: %+v, %v", took, daily, err)
		}
	})
}
