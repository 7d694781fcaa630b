package bench_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// sandkeeper is ours: the agent's binary, with the job that the checkpoint function
// made, over presigned URLs.
type sandkeeper struct {
	program string
	storage *storage
	bucket  string
	tree    string
	claims  string // where the agent notes what it did
	keeping *keeping
	roots   []storedRoot // of this round
	sizes   string       // of the last change, for people
	jobs    int
}

// storedRoot is what the function stored of a checkpoint, beside layers and packs.
type storedRoot struct {
	root manifest.Root
	size int64
}

// everything is a policy that leaves nothing out, as a backup tool has it.
var everything = manifest.Policy{Exclude: []manifest.Rule{{}}}

// agentFor builds the agent as it ships.
func agentFor(t *testing.T, arch string) string {
	t.Helper()
	path := kept(t, "sandkeeper-agent-"+arch)
	c := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", path, "./cmd/sandkeeper-agent")
	c.Dir = filepath.Join("..", "..")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if said, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build the agent for %s: %v: %.1000s", arch, err, said)
	}
	return path
}

func (*sandkeeper) name() string { return "sandkeeper" }

func (s *sandkeeper) begin(t *testing.T, bucket, tree string) {
	t.Helper()
	s.storage.create(t, bucket)
	s.bucket, s.tree, s.keeping, s.roots, s.claims = bucket, tree, served(t, s.storage, bucket), nil, t.TempDir()
}

func (s *sandkeeper) end(t *testing.T) {
	t.Helper()
	s.storage.remove(t, s.bucket)
}

func (s *sandkeeper) capture(t *testing.T) used {
	t.Helper()
	u := s.run(t, core.StepCapture, s.tree)
	root, size, err := s.keeping.head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.roots = append(s.roots, storedRoot{root, size})
	return u
}

func (s *sandkeeper) restore(t *testing.T, into string) used {
	t.Helper()
	return s.run(t, core.StepRestore, into)
}

func (s *sandkeeper) run(t *testing.T, kind core.StepKind, dir string) used {
	t.Helper()
	s.jobs++
	job, err := s.keeping.begin(t.Context(), core.CheckpointID(fmt.Sprintf("bench-%d", s.jobs)), kind, dir)
	if err != nil {
		t.Fatal(err)
	}
	_, u := run{args: []string{s.program, string(kind), "-claims", s.claims}, stdin: job}.measured(t)
	return u
}

// shares compares the last checkpoint with the first.
func (s *sandkeeper) shares(written int64) shares {
	whole, recent := s.roots[0], s.roots[len(s.roots)-1]
	before := s.roots[len(s.roots)-2].root
	all := whole.size + added(whole.root.Layers, nil)
	part := recent.size + added(recent.root.Layers, before.Layers)
	s.sizes = fmt.Sprintf("root and layer: %d bytes, of %d", part, all)
	return shares{
		packs:    float64(added(recent.root.Packs, before.Packs)) / float64(written),
		manifest: float64(part) / float64(all),
	}
}

// added is the size of the objects that were not there before.
func added(refs, before []manifest.PackRef) (bytes int64) {
	for _, r := range refs {
		if !slices.ContainsFunc(before, func(b manifest.PackRef) bool { return b.ID() == r.ID() }) {
			bytes += r.Size
		}
	}
	return bytes
}
