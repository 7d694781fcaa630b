package core_test

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

// inBox runs scripts in a box instead of a container.
type inBox struct{ *box }

func (b inBox) Exec(_ context.Context, _ core.ExecTarget, script string, input []byte) (core.ExecResult, error) {
	return core.ExecResult{Stdout: b.run(script, string(input), nil)}, nil
}

// TestRequestsGoOverExecSessions: from the agent's files through the script and back.
func TestRequestsGoOverExecSessions(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		dir := filepath.Join(t.TempDir(), "relay")
		relayer := core.ExecJobStarter{Exec: inBox{b}, Format: b.runs}
		if requests, err := relayer.Exchange(t.Context(), core.ExecTarget{}, dir, nil); err != nil || len(requests) != 0 {
			t.Fatalf("before there is an agent: %+v, %v", requests, err)
		}
		agent := &transfer.Files{Dir: dir, Token: "token.of.7.words"}
		said := map[string]string{}
		var mu sync.Mutex
		var calls sync.WaitGroup
		for _, path := range []string{transfer.PathRenew, transfer.PathCommit, transfer.PathFail} {
			calls.Go(func() {
				answer, err := agent.Call(t.Context(), path, []byte("body of "+path))
				mu.Lock()
				defer mu.Unlock()
				said[path] = string(answer)
				if err != nil {
					said[path] = err.Error()
				}
			})
		}
		var answers []core.RelayedAnswer
		for served := 0; served < 3 || len(answers) > 0; {
			requests, err := relayer.Exchange(t.Context(), core.ExecTarget{}, dir, answers)
			if err != nil {
				t.Fatal(err)
			}
			answers = nil
			for _, r := range requests {
				if r.Token != agent.Token || string(r.Body) != "body of "+r.Path {
					t.Errorf("request %+v", r)
				}
				a := core.RelayedAnswer{Name: r.Name, Status: 200, Body: []byte("answer to " + r.Path)}
				if r.Path == transfer.PathFail {
					a.Status, a.Body = 409, []byte(`{"error":{"code":"stale-head","message":"m"}}`)
				}
				answers = append(answers, a)
			}
			served += len(requests)
		}
		calls.Wait()
		want := map[string]string{
			transfer.PathRenew: "answer to /renew", transfer.PathCommit: "answer to /commit",
			transfer.PathFail: "checkpoint function: stale-head: m",
		}
		if !reflect.DeepEqual(said, want) {
			t.Errorf("the agent heard %q, want %q", said, want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
}

// TestWhatIsNoRequestIsPassedOver: the directory lies in the sandbox.
func TestWhatIsNoRequestIsPassedOver(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		dir := t.TempDir()
		secret := filepath.Join(t.TempDir(), "secret")
		for path, text := range map[string]string{
			secret: "/renew token e30=\n", filepath.Join(dir, "GOOD.q"): "/renew token e30=\n", filepath.Join(dir, "bad name.q"): "/renew token e30=\n",
			filepath.Join(dir, "lower.q"): "/renew token e30=\n", filepath.Join(dir, "HUGE.q"): strings.Repeat("x", 4<<20), filepath.Join(dir, "WORDS.q"): "one two\n",
			filepath.Join(dir, "BASE.q"): "/renew token ***\n", filepath.Join(dir, "OTHER.a"): "200 e30=\n",
		} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink(secret, filepath.Join(dir, "LINK.q")); err != nil {
			t.Fatal(err)
		}
		got, err := core.ExecJobStarter{Exec: inBox{b}, Format: b.runs}.Exchange(t.Context(), core.ExecTarget{}, dir, nil)
		if want := []core.RelayedRequest{{Name: "GOOD", Path: "/renew", Token: "token", Body: []byte("{}")}}; err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("took %+v, %v, want %+v", got, err, want)
		}
	})
}
