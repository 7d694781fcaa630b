package main_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

const secretValue = "hunter2-4f1c9a"

// setupJob is a set-up of these steps, each a shell text, one after the other.
func setupJob(t *testing.T, dir string, steps ...string) transfer.Job {
	t.Helper()
	group := core.SetupGroup{Name: "g"}
	for i, run := range steps {
		group.Steps = append(group.Steps, core.SetupStep{Name: string(rune('a' + i)), Run: run})
	}
	plan, err := json.Marshal(core.SetupPlan{Hash: "h", Secrets: []string{"PASSWORD"}, Workspace: core.WorkspacePlan{Setup: []core.SetupGroup{group}}})
	if err != nil {
		t.Fatal(err)
	}
	return transfer.Job{Kind: transfer.JobSetup, ID: "setup-r", Token: "token-1", Dir: dir, Plan: plan, Values: map[string]string{"PASSWORD": secretValue}}
}

// fifo is a file that a step waits at.
func fifo(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// reached waits until a step writes to its FIFO, and returns what.
func reached(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestASetupThatIsKilledGoesOn where it was: the same job handed over again does no done
// step twice.
func TestASetupThatIsKilledGoesOn(t *testing.T) {
	s, dir, gate := newSandbox(t), t.TempDir(), fifo(t)
	job := setupJob(t, dir, "echo a >>log", `echo b >>log; if [ ! -e resumed ]; then echo here >`+gate+`; sleep 600; fi`, "echo c >>log")
	if out, said, code := s.say(job, "start"); out != "started\n" || code != 0 {
		t.Fatalf("start: %q %s", out, said)
	}
	reached(t, gate)
	out, err := s.command("status", "-kind", "setup", "-id", job.ID).Output()
	var at state
	if err != nil || json.Unmarshal(out, &at) != nil || at.State != "working" || at.PID == 0 || !bytes.Contains(out, []byte(`"step":"g/b","stepsDone":1,"steps":3`)) {
		t.Fatalf("status %s, %v", out, err)
	}
	if out, _, _ := s.say(job, "start"); out != "already\n" {
		t.Errorf("a repeat: %q", out)
	}
	if err := syscall.Kill(at.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if st := s.settled(transfer.JobSetup, job.ID); st.State != "failed" || st.Code != core.SetupAbandoned {
		t.Errorf("killed: %+v", st)
	}
	write(t, dir, map[string]string{"resumed": ""})
	if out, said, _ := s.say(job, "start"); out != "started\n" {
		t.Fatalf("once more: %q %s", out, said)
	}
	out, err = s.command("status", "-kind", "setup", "-id", job.ID, "-wait", "30").Output()
	if err != nil || json.Unmarshal(out, &at) != nil || at.State != "done" {
		t.Fatalf("status %s, %v", out, err)
	}
	if log, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || string(log) != "a\nb\nb\nc\n" {
		t.Errorf("steps wrote %q, %v", log, err)
	}
}

// TestASetupsSecretsAreNowhereButWhereTheyMustBe: in the environment of the step that
// names them, and in the sandbox's own place for captures.
func TestASetupsSecretsAreNowhereButWhereTheyMustBe(t *testing.T) {
	s, dir, gate := newSandbox(t), t.TempDir(), fifo(t)
	job := setupJob(t, dir, `test "$PASSWORD" = `+secretValue[:7]+`-4f1c9a && echo "${PASSWORD}" >/dev/null`,
		`{ tr '\0' '\n' </proc/$PPID/environ; tr '\0' ' ' </proc/$PPID/cmdline; env; } >`+gate)
	out, said, code := s.say(job, "start")
	if out != "started\n" || code != 0 {
		t.Fatalf("start: %q %s", out, said)
	}
	if text := reached(t, gate); strings.Contains(text, secretValue) || !strings.Contains(text, "PATH=") {
		t.Errorf("the processes hold %s", text)
	}
	if st := s.settled(transfer.JobSetup, job.ID); st.State != "done" {
		t.Errorf("%+v", st)
	}
	failing := setupJob(t, dir, `echo "it is $PASSWORD"; exit 1`)
	failing.ID = "setup-2"
	out, said, code = s.say(failing, "setup")
	if code != 1 || !strings.Contains(out, `"code":"step-failed"`) || !strings.Contains(out, "it is ***") || strings.Contains(out+said, secretValue) {
		t.Errorf("exit %d: %s%s", code, out, said)
	}
	secrets := filepath.Join(filepath.Dir(s.claims), "secrets")
	if value, err := os.ReadFile(filepath.Join(secrets, "PASSWORD")); err != nil || string(value) != secretValue {
		t.Errorf("left %q, %v", value, err)
	}
	for _, place := range []string{s.claims, dir} {
		err := filepath.WalkDir(place, func(name string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(name)
			if bytes.Contains(data, []byte(secretValue)) {
				t.Errorf("%s holds it", name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	s := newSandbox(t)
	for name, plan := range map[string]string{
		"none": "", "no hash": `{"workspace":{}}`, "a hash that leads elsewhere": `{"workspace":{},"hash":"../x"}`, "an unknown member": `{"workspace":{"skils":[]},"hash":"h"}`,
	} {
		job := transfer.Job{Kind: transfer.JobSetup, ID: "x", Token: "token-1", Dir: t.TempDir(), Plan: json.RawMessage(plan)}
		if out, said, code := s.say(job, "setup"); code != 2 || out != "" || !strings.Contains(said, "plan") {
			t.Errorf("%s: exit %d, %q, %s", name, code, out, said)
		}
	}
}
