package boot_test

import (
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// whole looks variables up in an environment where each key's value is its name, or
// the last one that it may have.
func whole(key string) (string, bool) {
	if allowed := names.Values[names.Key(key)]; len(allowed) > 0 {
		return allowed[len(allowed)-1], true
	}
	switch names.Key(key) {
	case names.Limits:
		return "{}", true
	case names.Places:
		return `{"home":"arn:aws:ecs:us-east-1:000000000000:cluster/sandkeeper","spokes":[]}`, true
	}
	return "value of " + key, true
}

func TestReadEnvReadsWhatIsListed(t *testing.T) {
	for _, f := range names.Functions {
		asked := map[string]bool{}
		env, err := boot.ReadEnv(f, func(key string) (string, bool) {
			asked[key] = true
			return whole(key)
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range names.Env[f] {
			want, _ := whole(string(key))
			if got := env.Get(key); got != want {
				t.Errorf("%s: %s is %q, want %q", f, key, got, want)
			}
		}
		if len(asked) != len(names.Env[f]) {
			t.Errorf("%s: read %v, listed are %v", f, asked, names.Env[f])
		}
	}
}

func TestReadEnvNamesAllThatIsMissing(t *testing.T) {
	_, err := boot.ReadEnv(names.Reclaim, func(key string) (string, bool) {
		return "", key == string(names.RunsTable) // set, but empty
	})
	if err == nil || err.Error() != "boot reclaim: missing environment: RUNS_TABLE, SANDBOXES_TABLE, CHECKPOINTS_TABLE, CHECKPOINT_FUNCTION, HOST_FUNCTIONS, EVENT_BUS, INSTALL, LIMITS, MODE, ON_CHECKPOINT_FAILURE, PLACES" {
		t.Errorf("got %v", err)
	}
}

func TestReadEnvRefusesAValueThatIsNone(t *testing.T) {
	for _, tt := range []struct{ name, mode, tables, want string }{
		{"another mode", "dry-run", "t", `boot reclaim: MODE: want observe or enforce, got "dry-run"`},
		{"a mode in capitals", "OBSERVE", "t", `boot reclaim: MODE: want observe or enforce, got "OBSERVE"`},
		{"with others that are missing", "on", "", `boot reclaim: missing environment: RUNS_TABLE, SANDBOXES_TABLE, CHECKPOINTS_TABLE, CHECKPOINT_FUNCTION, HOST_FUNCTIONS, EVENT_BUS, INSTALL, LIMITS, PLACES; MODE: want observe or enforce, got "on"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := boot.ReadEnv(names.Reclaim, func(key string) (string, bool) {
				switch names.Key(key) {
				case names.Mode:
					return tt.mode, true
				case names.OnFailure:
					return names.FailureHold, true
				}
				return tt.tables, true
			})
			if err == nil || err.Error() != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestReadEnvRefusesAnUnknownFunction(t *testing.T) {
	if _, err := boot.ReadEnv("nosuch", whole); err == nil || !strings.Contains(err.Error(), "no such function") {
		t.Errorf("got %v", err)
	}
}

func TestGetPanicsOnAKeyOfAnotherFunction(t *testing.T) {
	env, err := boot.ReadEnv(names.Probe, whole)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		said, _ := recover().(string)
		if !strings.Contains(said, "boot probe: RECLAIM_QUEUE_URL") {
			t.Errorf("panicked with %q", said)
		}
	}()
	env.Get(names.ReclaimQueue)
}

// TestNewExits runs itself as a function without its environment.
func TestMemoryIsCollectedBeforeLambdaEndsTheFunction(t *testing.T) {
	had, limit := lambdacontext.MemoryLimitInMB, debug.SetMemoryLimit(-1)
	t.Cleanup(func() {
		lambdacontext.MemoryLimitInMB = had
		debug.SetMemoryLimit(limit)
	})
	lambdacontext.MemoryLimitInMB = 512
	t.Setenv("AWS_REGION", "us-east-1")
	for _, key := range names.Env[names.Probe] {
		value, _ := whole(string(key))
		t.Setenv(string(key), value)
	}
	for own, want := range map[string]int64{"1GiB": limit, "": 448 << 20} {
		debug.SetMemoryLimit(limit)
		t.Setenv("GOMEMLIMIT", own)
		boot.New(names.Probe)
		if got := debug.SetMemoryLimit(-1); got != want {
			t.Errorf("GOMEMLIMIT %q: the limit is %d, want %d", own, got, want)
		}
	}
}

func TestNewExits(t *testing.T) {
	if os.Getenv("BOOT_TEST_CHILD") != "" {
		boot.New(names.Probe)
		return
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=TestNewExits$")
	command.Env = []string{"BOOT_TEST_CHILD=1"}
	output, err := command.CombinedOutput()
	if command.ProcessState.ExitCode() != 1 {
		t.Errorf("exit %d (%v), want 1", command.ProcessState.ExitCode(), err)
	}
	if got, want := string(output), "boot probe: missing environment: SANDBOXES_TABLE, INSTALL, PLACES\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}
