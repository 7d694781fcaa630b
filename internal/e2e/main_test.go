// Package e2e_test runs the whole installation: the stack as CDK deploys it, on
// the local engine, with real processes as agents in local Fargate. Its rule: a
// test acts only as somebody outside could, by the functions' triggers, a host's
// calls and the services' own APIs, and looks at what the stores and ECS say. One
// installation serves the whole test process; tests run one after another and
// leave nothing behind that a later sweep could meet.
package e2e_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/ddb"
	"github.com/sandkeeper/sandkeeper/internal/engine"
	"github.com/sandkeeper/sandkeeper/internal/engine/installtest"
	"github.com/sandkeeper/sandkeeper/internal/localfargate"
	"github.com/sandkeeper/sandkeeper/internal/s3blob"
	"github.com/sandkeeper/sandkeeper/internal/sqsout"
)

func TestMain(m *testing.M) {
	localfargate.MaybeInit()
	if place := os.Getenv(asAgent); place != "" {
		if err := agentMain(place); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	if err := closeInstallation(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// installation is the deployed stack, local Fargate, and a host's side of both.
type installation struct {
	*installtest.Installation

	dir     string
	engine  *engine.Engine
	fargate *localfargate.Server
	gate    *gate
	out     engine.Outputs

	db        *dynamodb.Client
	functions *lambda.Client
	queues    *sqs.Client

	runs  *ddb.Runs
	boxes *ddb.Sandboxes
	blobs *s3blob.Blobs
	queue *sqsout.Queue
	host  core.Launcher
}

// shared is the installation of this test process; shared.Close ends it.
var (
	shared = installtest.Shared{Options: installtest.Options{
		Agent:   installAgent,
		Fargate: func(o *localfargate.Options) { o.Habits.Notice = core.LongestStop },
		Front: func(url string) (string, error) {
			var err error
			if front, err = openGate(url); err != nil {
				return "", err
			}
			return front.url(), nil
		},
	}}
	front *gate // of the shared installation
)

// installed returns the installation of this test process. The first test that
// asks deploys it. Where it cannot be, the test skips and says so, except under CI.
func installed(t *testing.T) *installation {
	t.Helper()
	in, since := of(shared.Get(t)), time.Now()
	t.Cleanup(func() {
		if t.Failed() {
			in.tell(t, since)
		}
	})
	return in
}

// tell adds to a failure what the functions have logged since then, but for metrics, the
// engine's own lines, and questions for a head, which a test that waits asks all the time.
func (in *installation) tell(t *testing.T, since time.Time) {
	const most = 100
	for f, output := range deployed {
		lines := slices.DeleteFunc(in.logged(t, in.out[output], since), func(line string) bool {
			return strings.Contains(line, `"_aws"`) || strings.Contains(line, "operation=head") || !strings.Contains(line, "requestId=")
		})
		if left := len(lines) - most; left > 0 {
			lines = append([]string{fmt.Sprintf("(%d lines)", left)}, lines[left:]...)
		}
		t.Logf("%s logged\n%s", f, strings.Join(lines, "\n"))
	}
}

// of is an installation as the tests of this package drive it.
func of(in *installtest.Installation) *installation {
	return &installation{
		Installation: in, gate: front, dir: in.Dir, engine: in.Engine, fargate: in.Fargate, out: in.Out,
		db: in.DB, functions: in.Functions, queues: in.Queues,
		runs: in.Runs, boxes: in.Boxes, blobs: in.Blobs, queue: in.Queue, host: in.Host,
	}
}

// closeInstallation ends what was begun. The engine ends with the process.
func closeInstallation() error {
	err := shared.Close()
	if front != nil {
		front.close()
	}
	return err
}
