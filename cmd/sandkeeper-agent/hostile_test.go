package main_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/transfer"
)

// nobody is another user.
const nobody = 65534

// TestClaimsMadeByOthersAreRefused: where somebody else can put names into the claims,
// the agent, which may be root, would write and remove where those lead.
func TestClaimsMadeByOthersAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		make func(t *testing.T, s *sandbox, canary string) error
		root bool // needs two users
	}{
		"the directory is a link": {make: func(_ *testing.T, s *sandbox, canary string) error {
			return os.Symlink(canary, s.claims)
		}},
		"the claim is a link": {make: func(_ *testing.T, s *sandbox, canary string) error {
			return errors.Join(os.Mkdir(s.claims, 0o700), os.Symlink(canary, filepath.Join(s.claims, "c1.capture")))
		}},
		"the directory is another's": {root: true, make: func(_ *testing.T, s *sandbox, _ string) error {
			return errors.Join(os.Mkdir(s.claims, 0o755), os.Chown(s.claims, nobody, nobody))
		}},
		"the directory is open to all": {make: func(_ *testing.T, s *sandbox, _ string) error {
			return errors.Join(os.Mkdir(s.claims, 0o755), os.Chmod(s.claims, 0o777))
		}},
		"the claim is another's": {root: true, make: func(t *testing.T, s *sandbox, canary string) error {
			claim := filepath.Join(s.claims, "c1.capture")
			return errors.Join(os.Mkdir(s.claims, 0o755), os.Chmod(s.claims, 0o777|fs.ModeSticky), os.Mkdir(claim, 0o755),
				os.Symlink(filepath.Join(canary, "file"), filepath.Join(claim, "state.json.new")), os.Chown(claim, nobody, nobody))
		}},
		"the claim is open to all": {make: func(t *testing.T, s *sandbox, canary string) error {
			claim := filepath.Join(s.claims, "c1.capture")
			return errors.Join(os.Mkdir(s.claims, 0o700), os.Mkdir(claim, 0o755), os.Chmod(claim, 0o777),
				os.Symlink(filepath.Join(canary, "file"), filepath.Join(claim, "state.json.new")))
		}},
		"the claim is a file": {make: func(_ *testing.T, s *sandbox, _ string) error {
			return errors.Join(os.Mkdir(s.claims, 0o700), os.WriteFile(filepath.Join(s.claims, "c1.capture"), nil, 0o600))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("needs two users")
			}
			f, s, canary, dir := newFunction(t), newSandbox(t), t.TempDir(), t.TempDir()
			if err := errors.Join(os.Mkdir(filepath.Join(canary, "git"), 0o700), os.WriteFile(filepath.Join(canary, "git/file"), []byte("alive"), 0o600),
				os.WriteFile(filepath.Join(canary, "file"), []byte("alive"), 0o600), c.make(t, s, canary)); err != nil {
				t.Fatal(err)
			}
			out, said, code := s.say(f.job(transfer.JobCapture, "c1", dir), "start")
			if !strings.HasPrefix(out, "refused claim-") || !strings.HasSuffix(out, " configuration\n") || code != 0 {
				t.Errorf("exit %d, %q, %s", code, out, said)
			}
			for _, name := range []string{"file", "git/file"} {
				if data, err := os.ReadFile(filepath.Join(canary, name)); string(data) != "alive" {
					t.Errorf("%s is %q, %v", name, data, err)
				}
			}
			if left, _ := os.ReadDir(canary); len(left) != 2 {
				t.Errorf("made %v", left)
			}
		})
	}
}

// TestTheWholeSystemIsNoWorkspace: a capture of it would hold what other processes keep,
// a restore would remove it.
func TestTheWholeSystemIsNoWorkspace(t *testing.T) {
	for _, kind := range []transfer.JobKind{transfer.JobCapture, transfer.JobRestore} {
		for name, env := range map[string]string{"/": "", "": "SANDKEEPER_WORKSPACE=/../"} {
			f, s := newFunction(t), newSandbox(t)
			f.token = "dead" // the function itself would refuse whatever came
			job := f.job(kind, "c1", name)
			job.Token = "token"
			if env != "" {
				s.env = append(s.env, env)
			}
			if st, code := s.do(job); code == 0 || st.Code != "invalid-workspace" {
				t.Errorf("%s of %q, %q: exit %d, %+v", kind, name, env, code, st)
			}
		}
	}
}
