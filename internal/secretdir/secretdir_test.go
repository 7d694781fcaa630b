package secretdir_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/secretdir"
)

func TestWhatIsLeftIsFound(t *testing.T) {
	own := filepath.Join(t.TempDir(), "secrets")
	for name, env := range map[string][]string{
		"the sandbox's own": {secretdir.Variable + "=" + own}, "in memory": {core.JournalDirVariable + "=" + t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			dir := secretdir.At(env)
			t.Cleanup(func() { _ = os.RemoveAll(dir[0]) })
			if err := dir.Leave(map[string]string{"A": "one", "B": "two"}); err != nil {
				t.Fatal(err)
			}
			if err := dir.Leave(map[string]string{"A": "three"}); err != nil {
				t.Fatal(err)
			}
			value, err := dir.Read("A")
			gone, goneErr := dir.Read("B")
			all, allErr := dir.All()
			if value != "three" || gone != "" || err != nil || goneErr != nil || allErr != nil || !maps.Equal(all, map[string]string{"A": "three"}) {
				t.Errorf("%q, %q, %v, %v, %v", value, gone, all, err, allErr)
			}
			for path, want := range map[string]os.FileMode{dir[0]: 0o700, filepath.Join(dir[0], "A"): 0o600} {
				if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
					t.Errorf("%s: %v, %v", path, info, err)
				}
			}
		})
	}
}

func TestNamesThatLeadElsewhereAreRefused(t *testing.T) {
	dir := secretdir.At([]string{secretdir.Variable + "=" + filepath.Join(t.TempDir(), "secrets")})
	for _, name := range []string{"../x", "", ".hidden", "a/b"} {
		if err := dir.Leave(map[string]string{name: "x"}); err == nil {
			t.Errorf("left %q", name)
		}
		if _, err := dir.Read(name); err == nil {
			t.Errorf("read %q", name)
		}
	}
}

func TestADirectoryThatOthersSeeIsRefused(t *testing.T) {
	seen := t.TempDir()
	if err := os.Chmod(seen, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := secretdir.At([]string{secretdir.Variable + "=" + seen}).Leave(map[string]string{"A": "x"}); err == nil {
		t.Error("left a secret where others look")
	}
}
