package localfargate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/localfargate"
)

// A directory that its owner names may hold other things, another server's tasks among
// them: neither a start that fails nor an end removes what the server did not make.
func TestFilesThatWereThereBeforeStay(t *testing.T) {
	for name, addr := range map[string]string{"a start that would succeed": "", "a start that fails": "127.0.0.1:99999"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			mine := filepath.Join(dir, "tasks", "mine")
			if err := os.MkdirAll(mine, 0o755); err != nil {
				t.Fatal(err)
			}
			s, err := localfargate.New(localfargate.Options{Addr: addr, Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			err = s.Start()
			if err == nil || !strings.Contains(err.Error(), "want one without tasks in it") {
				t.Errorf("start in a directory with tasks: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(mine); err != nil {
				t.Errorf("what was there before: %v", err)
			}
		})
	}
}
