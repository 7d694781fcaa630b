package workspace_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/workspace"
	"github.com/sandkeeper/sandkeeper/internal/workspace/workspacetest"
)

// TestManyPartsOfFewFramesComeBack: a file of more extents than one round takes parts,
// all of them in few frames, comes back whole.
func TestManyPartsOfFewFramesComeBack(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	file, err := os.Create(filepath.Join(from, "sparse"))
	must(t, err)
	const extents, apart = 40_000, 8192
	for i := range int64(extents) {
		_, err := file.WriteAt([]byte{byte(i), byte(i >> 8), 1}, i*apart)
		must(t, err)
	}
	must(t, file.Close())
	store := &workspacetest.DirStore{Dir: t.TempDir(), Fence: 1}
	made, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: from, Store: store, ID: "c"})
	must(t, err)
	_, err = workspace.Restore(t.Context(), workspace.RestoreOptions{Root: to, Store: store, Manifest: made.Root})
	must(t, err)
	restored, err := os.Open(filepath.Join(to, "sparse"))
	must(t, err)
	defer restored.Close()
	var got [3]byte
	for i := range int64(extents) {
		_, err := restored.ReadAt(got[:], i*apart)
		must(t, err)
		if got != [3]byte{byte(i), byte(i >> 8), 1} {
			t.Fatalf("extent %d: got %v", i, got)
		}
	}
}
