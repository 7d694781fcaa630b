package core_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// install puts a program in the place of the agent binary, and returns its path.
func (b *box) install(dir, program string) string {
	b.t.Helper()
	path := filepath.Join(filepath.Dir(b.dir), dir, core.AgentName)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(program), 0o755); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// takesJob notes its words and its stdin, and says what it is told to.
const takesJob = `#!/bin/sh
printf '%s ' "$@" >"$0.words"
cat >"$0.job"
echo diagnostics >&2
`

func TestTheAgentGetsTheJobOnItsStdin(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		path := b.install("opt", takesJob+"echo started\n")
		b.env = append(b.env, core.AgentVariable+"="+path)
		job := `{"token":"secret ' $(x)\n"}`
		already, err := core.ParseAgent(b.run(b.runs.AgentScript(), job, nil))
		if err != nil || already {
			t.Fatalf("already %v, %v", already, err)
		}
		if got := read(t, path+".job"); got != job {
			t.Errorf("job %q, want %q", got, job)
		}
		if got, want := read(t, path+".words"), "start -claims "+b.dir+" "; got != want {
			t.Errorf("words %q, want %q", got, want)
		}
	})
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestTheAgentIsFoundInTheSearchPath(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		path := b.install("bin", takesJob+"echo already\n")
		b.env = append(b.env, "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"))
		if already, err := core.ParseAgent(b.run(b.runs.AgentScript(), "{}", nil)); err != nil || !already {
			t.Errorf("already %v, %v", already, err)
		}
	})
}

// TestTheContainersEnvironmentNamesTheAgent: an exec session has its own.
func TestTheContainersEnvironmentNamesTheAgent(t *testing.T) {
	for name, variable := range map[string]func(path string) string{
		"by its path":        func(path string) string { return core.AgentVariable + "=" + path },
		"in its search path": func(path string) string { return "PATH=" + filepath.Dir(path) },
	} {
		t.Run(name, func(t *testing.T) {
			inEachShell(t, func(t *testing.T, b *box) {
				path := b.install("bin", takesJob+"echo started\n")
				main := exec.CommandContext(t.Context(), "sleep", "3600")
				main.Env = []string{"NOTE=two\nPATH=lines", variable(path)}
				if err := main.Start(); err != nil {
					t.Fatal(err)
				}
				b.env = append(b.env, core.JournalInitVariable+"="+strconv.Itoa(main.Process.Pid))
				if already, err := core.ParseAgent(b.run(b.runs.AgentScript(), "{}", nil)); err != nil || already {
					t.Errorf("already %v, %v", already, err)
				}
			})
		})
	}
}

func TestWhatTheAgentRefuses(t *testing.T) {
	tests := []struct {
		name, program string
		mode          os.FileMode
		reason        string
		healing       core.Healing
	}{
		{"nothing there", "", 0, core.ReasonAgentMissing, core.Configuration},
		{"no program", "#!/bin/sh\necho started\n", 0o644, "agent-not-executable", core.Configuration},
		{"of another machine", "\x7fELF\x02no", 0o755, "agent-unusable", core.Configuration},
		{"fails", "#!/bin/sh\nexit 3\n", 0o755, "agent-failed", core.Retry},
		{"says nothing", "#!/bin/sh\n", 0o755, "agent-failed", core.Retry},
		{"says another word", "#!/bin/sh\necho begun\n", 0o755, "agent-failed", core.Retry},
		{"says more than a word", "#!/bin/sh\necho started twice\n", 0o755, "agent-failed", core.Retry},
		{"says what is no word", "#!/bin/sh\necho 'refused a=b\nsandkeeper-journal/1 end'\n", 0o755, "agent-failed", core.Retry},
		{"refuses", "#!/bin/sh\necho refused job-invalid\n", 0o755, "job-invalid", core.Retry},
		{"refuses for good", "#!/bin/sh\necho refused claim-unwritable configuration\n", 0o755, "claim-unwritable", core.Configuration},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inEachShell(t, func(t *testing.T, b *box) {
				path := filepath.Join(filepath.Dir(b.dir), "opt", core.AgentName)
				if tt.program != "" {
					b.install("opt", tt.program)
					if err := os.Chmod(path, tt.mode); err != nil {
						t.Fatal(err)
					}
				}
				b.env = append(b.env, core.AgentVariable+"="+path)
				_, err := core.ParseAgent(b.run(b.runs.AgentScript(), "{}", nil))
				if e, ok := errors.AsType[*core.JournalError](err); !ok || e.Reason != tt.reason || e.Healing != tt.healing {
					t.Errorf("answered %v, want %s (%s)", err, tt.reason, tt.healing)
				}
			})
		})
	}
}

func TestAnAgentsAnswerThatIsNotWholeIsNone(t *testing.T) {
	inEachShell(t, func(t *testing.T, b *box) {
		path := b.install("opt", "#!/bin/sh\necho started\n")
		b.env = append(b.env, core.AgentVariable+"="+path)
		whole := string(b.run(b.runs.AgentScript(), "{}", nil))
		for cut := range len(whole) {
			if _, err := core.ParseAgent([]byte(whole[:cut])); err == nil {
				t.Errorf("%q is an answer", whole[:cut])
			}
		}
		if _, err := core.ParseAgent([]byte(strings.Replace(whole, "started", "maybe", 1))); err == nil {
			t.Error("another result is an answer")
		}
	})
}

// answering is an executor whose scripts all print the same.
type answering struct {
	stdout string
	err    error
	input  []byte
}

func (a *answering) Exec(_ context.Context, _ core.ExecTarget, _ string, input []byte) (core.ExecResult, error) {
	a.input = input
	return core.ExecResult{Stdout: []byte(a.stdout)}, a.err
}

func TestAStartedJob(t *testing.T) {
	const end = "\nsandkeeper-journal/1 end\n"
	unreachable := &core.ExecError{Healing: core.Retry, Reason: "target-not-connected"}
	tests := []struct {
		name, stdout string
		err          error
		want         core.AgentStarted
		reason       string
	}{
		{"began", "sandkeeper-journal/1 result=started\n" + end, nil, core.AgentBegan, ""},
		{"runs already", "sandkeeper-journal/1 result=already\n" + end, nil, core.AgentRuns, ""},
		{"has no agent", "sandkeeper-journal/1 refused=agent-missing healing=configuration\n" + end, nil, core.AgentMissing, ""},
		{"refuses", "sandkeeper-journal/1 refused=claim-unwritable healing=configuration\n" + end, nil, core.AgentRefused, "claim-unwritable"},
		{"fails", "sandkeeper-journal/1 refused=agent-failed healing=retry\n" + end, nil, "", "agent-failed"},
		{"cannot be reached", "", unreachable, "", "target-not-connected"},
		{"is cut", "sandkeeper-journal/1 result=star", nil, "", "answer-incomplete"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exec := &answering{stdout: tt.stdout, err: tt.err}
			job := core.AgentJob{Kind: core.StepCapture, ID: "c", URL: "https://u", Token: "secret", Dir: "/workspace"}
			got, err := core.ExecJobStarter{Exec: exec, Format: core.DefaultJournal}.Start(t.Context(), core.ExecTarget{}, job)
			if got != tt.want || (err == nil) != (tt.reason == "") || err != nil && !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("answered %q, %v; want %q with %q", got, err, tt.want, tt.reason)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error tells the token: %v", err)
			}
			if want := `{"kind":"capture","id":"c","url":"https://u","token":"secret","dir":"/workspace"}`; string(exec.input) != want {
				t.Errorf("the agent got %s, want %s", exec.input, want)
			}
		})
	}
}
