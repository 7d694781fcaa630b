package gitstate_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/gitstate"
)

// given makes everything below dir a user's, and lets that user get there.
func given(t *testing.T, dir string, uid int) {
	t.Helper()
	for p := filepath.Dir(dir); p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err := filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(name, uid, uid)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRootWorksOnAUsersRepositoryAsThatUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("change user: this user may not, for only root may") // no component is missing: CI too may run as a user
	}
	const uid = 12345
	r := newRepo(t, filepath.Join(t.TempDir(), "w"))
	locals["a split index"](t, r)
	r.write("a", "2\n")
	r.git("stash", "push", "-q")
	r.write("c", "3\n")
	r.git("add", "c")
	given(t, r.dir, uid)
	// As root git could read it all the same.
	private := filepath.Join(t.TempDir(), "claims")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	in, s := save(t, r, gitstate.Options{Temp: private})
	if s.Empty() || len(s.Skipped) > 0 {
		t.Fatalf("saved %+v", s)
	}
	before := stateOf(r)
	place := filepath.Join(t.TempDir(), "w")
	if err := os.Mkdir(place, 0o755); err != nil {
		t.Fatal(err)
	}
	filesAway(t, r.dir, place)
	given(t, place, uid)
	fresh := repo{t, place}
	if result := restore(t, fresh, in); !result.Restored {
		t.Fatalf("restored %+v", result)
	}
	err := filepath.WalkDir(place, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && stat.Uid != uid {
			t.Errorf("%s belongs to %d", name, stat.Uid)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if after := stateOf(fresh); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

func stateOf(r repo) string {
	safe := []string{"-c", "safe.directory=*"}
	var all strings.Builder
	for _, args := range [][]string{{"status", "--porcelain"}, {"stash", "list"}, {"rev-parse", "HEAD"}, {"ls-files", "-s"}} {
		all.WriteString(r.git(append(safe, args...)...))
	}
	return all.String()
}
