package spokes_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ecsexec"
	"github.com/sandkeeper/sandkeeper/internal/ecstask"
	"github.com/sandkeeper/sandkeeper/internal/spokes"
)

const (
	home   = "arn:aws:ecs:us-east-1:000000000000:cluster/keeper"
	abroad = "arn:aws:ecs:eu-west-1:111122223333:cluster/agents"
	role   = "arn:aws:iam::111122223333:role/keeper-spoke"
)

// aws4 is an STS and an ECS that note who asked them for what, by the signature's scope.
type aws4 struct {
	mu     sync.Mutex
	asked  []string // service operation key region
	assume url.Values
	denies bool
	tasks  bool // whether ECS knows the task
}

var scope = regexp.MustCompile(`Credential=([^/]+)/[0-9]+/([^/]+)/([^/]+)/aws4_request`)

func (a *aws4) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	by := scope.FindStringSubmatch(r.Header.Get("Authorization"))
	body, err := io.ReadAll(r.Body)
	if by == nil || err != nil {
		http.Error(w, "unsigned", http.StatusForbidden)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if by[3] == "sts" {
		a.assume, _ = url.ParseQuery(string(body))
		a.note("sts", a.assume.Get("Action"), by)
		a.answerAssume(w)
		return
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	a.note(by[3], operation, by)
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	switch {
	case operation == "ListTasks":
		_, _ = io.WriteString(w, `{"taskArns":[]}`)
	case operation == "DescribeTasks" && a.tasks:
		_, _ = io.WriteString(w, `{"tasks":[{"taskArn":"t","lastStatus":"RUNNING","desiredStatus":"RUNNING"}],"failures":[]}`)
	default:
		_, _ = io.WriteString(w, `{"tasks":[],"failures":[{"arn":"t","reason":"MISSING"}]}`)
	}
}

func (a *aws4) note(service, operation string, by []string) {
	a.asked = append(a.asked, strings.Join([]string{service, operation, by[1], by[2]}, " "))
}

func (a *aws4) answerAssume(w http.ResponseWriter) {
	if a.denies {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `<ErrorResponse><Error><Code>AccessDenied</Code><Message>not authorized to perform: sts:AssumeRole</Message></Error></ErrorResponse>`)
		return
	}
	fmt.Fprint(w, `<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>SPOKEKEY</AccessKeyId><SecretAccessKey>s</SecretAccessKey>`+
		`<SessionToken>t</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>`)
}

func (a *aws4) start(t *testing.T) *spokes.Fleet {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	return fleetAt(t, aws.Config{BaseEndpoint: &server.URL})
}

// fleetAt is an installation with one spoke, whose services are cfg's.
func fleetAt(t *testing.T, cfg aws.Config) *spokes.Fleet {
	t.Helper()
	places, err := core.ReadPlaces(`{"home":"` + home + `","spokes":[{"role":"` + role + `","region":"eu-west-1","externalId":"7d0e","clusters":["agents"]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Region, cfg.Credentials = "us-east-1", credentials.NewStaticCredentialsProvider("HOMEKEY", "s", "")
	return spokes.New(cfg, places, "reap")
}

func TestEachClusterIsAskedInItsOwnAccount(t *testing.T) {
	a := &aws4{tasks: true}
	tasks := &ecstask.Tasks{ECS: a.start(t)}
	for _, cluster := range []string{home, abroad, abroad, "named"} {
		if got, err := tasks.Describe(t.Context(), cluster, []string{"t"}); err != nil || got[0].Life != core.TaskLives {
			t.Fatalf("%s: %+v, %v", cluster, got, err)
		}
	}
	want := "ecs DescribeTasks HOMEKEY us-east-1, sts AssumeRole HOMEKEY us-east-1, ecs DescribeTasks SPOKEKEY eu-west-1, " +
		"ecs DescribeTasks SPOKEKEY eu-west-1, ecs DescribeTasks HOMEKEY us-east-1"
	if got := strings.Join(a.asked, ", "); got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	for key, want := range map[string]string{"RoleArn": role, "ExternalId": "7d0e", "RoleSessionName": "reap"} {
		if got := a.assume.Get(key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
}

// TestASessionIsTakenOnce, however many ask at a time.
func TestASessionIsTakenOnce(t *testing.T) {
	a := &aws4{}
	tasks := &ecstask.Tasks{ECS: a.start(t)}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := tasks.Living(t.Context(), abroad); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n := 0
	for _, line := range a.asked {
		if strings.HasPrefix(line, "sts ") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the role was assumed %d times for 20 calls", n)
	}
}

// TestNobodyIsAskedOfAnUnknownAccount, and no call says that a task is missing, stopped or
// gone.
func TestNobodyIsAskedOfAnUnknownAccount(t *testing.T) {
	for _, cluster := range []string{
		"arn:aws:ecs:eu-west-1:999999999999:cluster/agents", "arn:aws:ecs:eu-west-2:111122223333:cluster/agents", abroad + "-not-listed", "arn:cluster",
	} {
		a := &aws4{}
		fleet := a.start(t)
		for name, err := range calls(t, fleet, cluster) {
			if !errors.Is(err, core.ErrNoSpoke) || !strings.Contains(err.Error(), cluster) {
				t.Errorf("%s in %s: %v", name, cluster, err)
			}
		}
		_, err := ecsexec.NewFleet(fleet).Exec(t.Context(), core.ExecTarget{Cluster: cluster, TaskARN: "t", Container: "agent"}, "true", nil)
		if e, ok := errors.AsType[*core.ExecError](err); !ok || e.Reason != "no-spoke" || e.Healing != core.Configuration {
			t.Errorf("exec in %s: %v", cluster, err)
		}
		if len(a.asked) != 0 {
			t.Errorf("%s: asked %v", cluster, a.asked)
		}
	}
}

// TestARefusedRoleIsAnError, never a task that is missing.
func TestARefusedRoleIsAnError(t *testing.T) {
	a := &aws4{denies: true}
	fleet := a.start(t)
	for name, err := range calls(t, fleet, abroad) {
		if err == nil || !strings.Contains(err.Error(), "AccessDenied") || !strings.Contains(err.Error(), abroad) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := ecsexec.NewFleet(fleet).Exec(t.Context(), core.ExecTarget{Cluster: abroad, TaskARN: "t", Container: "agent"}, "true", nil)
	if e, ok := errors.AsType[*core.ExecError](err); !ok || e.Reason != "access-denied" || e.Healing != core.Configuration {
		t.Errorf("exec: %v", err)
	}
	for _, line := range a.asked {
		if !strings.HasPrefix(line, "sts ") {
			t.Errorf("asked %s without the role", line)
		}
	}
}

// TestARefusedRoleIsAskedForOnce, however many tasks are described: halves of them would be
// refused as the whole.
func TestARefusedRoleIsAskedForOnce(t *testing.T) {
	a := &aws4{denies: true}
	tasks := &ecstask.Tasks{ECS: a.start(t)}
	arns := make([]string, 100)
	for i := range arns {
		arns[i] = fmt.Sprintf("%s/%d", abroad, i)
	}
	if _, err := tasks.Describe(t.Context(), abroad, arns); err == nil || !strings.Contains(err.Error(), "AccessDenied") {
		t.Errorf("said %v", err)
	}
	if len(a.asked) != 1 {
		t.Errorf("asked %d times: %v", len(a.asked), a.asked)
	}
}

// calls makes each call of a task in a cluster.
func calls(t *testing.T, fleet *spokes.Fleet, cluster string) map[string]error {
	t.Helper()
	tasks := &ecstask.Tasks{ECS: fleet}
	errs := map[string]error{}
	for name, call := range map[string]func(context.Context) error{
		"describe": func(ctx context.Context) error { _, err := tasks.Describe(ctx, cluster, []string{"t"}); return err },
		"stop":     func(ctx context.Context) error { _, err := tasks.Stop(ctx, cluster, "t", "why"); return err },
		"living":   func(ctx context.Context) error { _, err := tasks.Living(ctx, cluster); return err },
		"started":  func(ctx context.Context) error { _, err := tasks.StartedBy(ctx, cluster, "keeper/x"); return err },
		"start": func(ctx context.Context) error {
			_, err := tasks.Start(ctx, core.TaskSpec{Cluster: cluster, TaskDefinition: "d", Subnets: []string{"s"}})
			return err
		},
	} {
		errs[name] = call(t.Context())
	}
	return errs
}

// sometimes is a service of which STS does not answer for a while.
type sometimes struct{ silent atomic.Bool }

// Do answers a request, or waits for its end.
func (s *sometimes) Do(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	switch {
	case !strings.HasPrefix(r.URL.Host, "sts."):
		_, _ = io.WriteString(w, `{"taskArns":[]}`)
	case s.silent.Load():
		<-r.Context().Done()
		return nil, r.Context().Err()
	default:
		new(aws4).answerAssume(w)
	}
	return w.Result(), nil
}

// TestAnSTSThatDidNotAnswerIsAskedAgain: who comes later waits for no answer that never
// comes.
func TestAnSTSThatDidNotAnswerIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var service sometimes
		tasks := &ecstask.Tasks{ECS: fleetAt(t, aws.Config{HTTPClient: &service})}
		list := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := tasks.Living(ctx, abroad)
			return err
		}
		service.silent.Store(true)
		if err := list(); err == nil {
			t.Fatal("without a session: no error")
		}
		service.silent.Store(false)
		time.Sleep(time.Minute)
		if err := list(); err != nil {
			t.Errorf("once STS answers: %v", err)
		}
	})
}
