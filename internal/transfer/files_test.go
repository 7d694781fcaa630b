package transfer_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

// answering leaves line as the answer to the only request that is there.
func answering(t *testing.T, dir, line string) (asked string) {
	t.Helper()
	requests, err := filepath.Glob(filepath.Join(dir, "*.q"))
	if err != nil || len(requests) != 1 {
		t.Fatalf("requests %q, %v", requests, err)
	}
	data, err := os.ReadFile(requests[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(strings.TrimSuffix(requests[0], ".q")+".a", []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestARequestIsAFileUntilItIsAnswered(t *testing.T) {
	tests := []struct {
		name, line, want, code string
	}{
		{"a success", "200 eyJ1bnRpbCI6NX0=\n", `{"until":5}`, ""},
		{"an empty success", "200 \n", "", ""},
		{"a refusal", "409 eyJlcnJvciI6eyJjb2RlIjoic3RhbGUtaGVhZCIsIm1lc3NhZ2UiOiJtIn19\n", "", "stale-head"},
		{"a fault", "503 e30=\n", "", transfer.CodeUnavailable},
		{"no status", "ok\n", "", transfer.CodeUnavailable},
		{"no base64", "200 ***\n", "", transfer.CodeUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &transfer.Files{Dir: filepath.Join(t.TempDir(), "relay"), Token: token}
				var answer []byte
				var err error
				done := make(chan struct{})
				go func() {
					defer close(done)
					answer, err = f.Call(t.Context(), transfer.PathRenew, []byte(`{}`))
				}()
				synctest.Wait()
				if asked := answering(t, f.Dir, tt.line); asked != "/renew "+token+" e30=\n" {
					t.Errorf("asked %q", asked)
				}
				<-done
				e, _ := errors.AsType[*transfer.Error](err)
				if string(answer) != tt.want || (e == nil) != (tt.code == "") || e != nil && e.Code != tt.code {
					t.Errorf("answered %q, %v; want %q with %q", answer, err, tt.want, tt.code)
				}
				if left, err := os.ReadDir(f.Dir); err != nil || len(left) != 0 {
					t.Errorf("left behind: %v, %v", left, err)
				}
			})
		})
	}
}

func TestNobodyWhoAnswersMayPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &transfer.Files{Dir: filepath.Join(t.TempDir(), "relay"), Token: token}
		begun := time.Now()
		_, err := f.Call(t.Context(), transfer.PathRenew, []byte(`{}`))
		e, ok := errors.AsType[*transfer.Error](err)
		if !ok || e.Code != transfer.CodeUnavailable || strings.Contains(e.Message, "c2VjcmV0") || time.Since(begun) > 5*time.Minute {
			t.Errorf("after %s: %v", time.Since(begun), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := f.Call(ctx, transfer.PathRenew, nil); err == nil {
			t.Error("a call that was given up has an answer")
		}
	})
}

func TestADirectoryThatOthersReadIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{dir, link, filepath.Join(dir, "no", "parent")} {
		if _, err := (&transfer.Files{Dir: at, Token: token}).Call(t.Context(), transfer.PathRenew, nil); err == nil {
			t.Errorf("%s takes a request", at)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.q")); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}
