package boot_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/boot"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// whole looks variables up in an environment where each key's value is its name.
func whole(key string) (string, bool) { return "value of " + key, true }

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
			if got, want := env.Get(key), "value of "+string(key); got != want {
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
	if err == nil || err.Error() != "boot reclaim: missing environment: RUNS_TABLE, SANDBOXES_TABLE" {
		t.Errorf("got %v", err)
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
	if got, want := string(output), "boot probe: missing environment: SANDBOXES_TABLE\n"; got != want {
		t.Errorf("said %q, want %q", got, want)
	}
}
