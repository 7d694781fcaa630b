package manifest_test

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

func TestUnknownVersionSaysWhatWasExpected(t *testing.T) {
	root, layer := pinned(t, "root"), pinned(t, "layer")
	for _, version := range []byte{0, 2, 255} {
		root[7], layer[7] = version, version
		_, rootErr := manifest.DecodeRoot(root)
		_, layerErr := collect(manifest.ReadLayer(bytes.NewReader(layer)))
		for object, err := range map[string]error{"root": rootErr, "layer": layerErr} {
			got, ok := errors.AsType[*manifest.VersionError](err)
			if !ok || got.Version != int(version) || !strings.Contains(err.Error(), "want version 1") {
				t.Errorf("%s of version %d: got %v", object, version, err)
			}
		}
	}
	if _, err := manifest.EncodeRoot(manifest.Root{ID: "a"}); err == nil || err.Error() != "read root: version 0, want version 1" {
		t.Errorf("a root without a version is encoded: %v", err)
	}
}

// TestEveryByteOfALayerCounts: cut anywhere, and with any bit turned, a layer is
// refused when it is opened by its reference.
func TestEveryByteOfALayerCounts(t *testing.T) {
	layer := pinned(t, "kinds.layer")
	ref := manifest.PackRef{Fence: 1, SHA256: sha256.Sum256(layer), Size: int64(len(layer))}
	if _, err := collect(manifest.OpenLayer(bytes.NewReader(layer), ref)); err != nil {
		t.Fatal(err)
	}
	for cut := range layer {
		if _, err := collect(manifest.ReadLayer(bytes.NewReader(layer[:cut]))); !known(err) {
			t.Fatalf("cut after %d bytes: got %v", cut, err)
		}
		if _, err := collect(manifest.OpenLayer(bytes.NewReader(layer[:cut]), ref)); err == nil {
			t.Fatalf("opened although cut after %d bytes", cut)
		}
		for bit := range 8 {
			turned := bytes.Clone(layer)
			turned[cut] ^= 1 << bit
			if _, err := collect(manifest.OpenLayer(bytes.NewReader(turned), ref)); err == nil {
				t.Fatalf("opened although bit %d of byte %d is turned", bit, cut)
			}
		}
	}
	_, err := collect(manifest.OpenLayer(bytes.NewReader(append(layer, 0)), ref))
	if got, ok := errors.AsType[*manifest.ObjectError](err); !ok || got.Want != ref || got.Got.Size != ref.Size+1 {
		t.Errorf("a byte behind it: got %v", err)
	}
}

func TestReadingPassesOnWhatTheReaderSays(t *testing.T) {
	down := errors.New("line is down")
	layer := pinned(t, "kinds.layer")
	for _, cut := range []int{0, 4, 8, 12, 100, len(layer) - 4, len(layer)} {
		r := io.MultiReader(bytes.NewReader(layer[:cut]), iotest.ErrReader(down))
		if _, err := collect(manifest.ReadLayer(r)); !errors.Is(err, down) {
			t.Errorf("after %d bytes: got %v", cut, err)
		}
	}
	if _, err := collect(manifest.ReadLayer(iotest.OneByteReader(bytes.NewReader(layer)))); err != nil {
		t.Errorf("one byte at a time: %v", err)
	}
}

// full takes some bytes, and no more.
type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, errors.New("disk is full")
	}
	return len(b), nil
}

func TestWriterPassesOnWhatItsWriterSays(t *testing.T) {
	all := smallFiles(20_000)
	size := len(encodeLayer(t, all...))
	for _, room := range []int{0, 7, 8, size / 2, size - 16, size - 1} {
		w := manifest.NewLayerWriter(&full{room})
		var err error
		for _, e := range all {
			err = cmp.Or(err, w.Add(e))
		}
		if got := w.Close(); got == nil || !strings.Contains(got.Error(), "write layer: disk is full") {
			t.Errorf("room for %d of %d bytes: got %v", room, size, got)
		}
		if room < size/2 && err == nil {
			t.Errorf("room for %d of %d bytes: nothing said before the end", room, size)
		}
	}
	w := manifest.NewLayerWriter(io.Discard)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Add(file("late")) == nil || w.Close() == nil {
		t.Error("a closed writer goes on")
	}
}

// TestStoppingEarlyIsFine: nothing is read on behind the back of who stopped.
func TestStoppingEarlyIsFine(t *testing.T) {
	layer := encodeLayer(t, smallFiles(50_000)...)
	for name, seq := range map[string]func(r io.Reader) func(func(manifest.Entry, error) bool){
		"read": func(r io.Reader) func(func(manifest.Entry, error) bool) { return manifest.ReadLayer(r) },
		"merge": func(r io.Reader) func(func(manifest.Entry, error) bool) {
			return manifest.Merge(manifest.ReadLayer(r), manifest.Entries(file("a")))
		},
		"delta": func(r io.Reader) func(func(manifest.Entry, error) bool) {
			return manifest.Delta(manifest.ReadLayer(r), manifest.Entries())
		},
	} {
		r := bytes.NewReader(layer)
		for _, err := range seq(r) {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			break
		}
		if r.Len() < len(layer)/2 {
			t.Errorf("%s: read %d of %d bytes for one entry", name, len(layer)-r.Len(), len(layer))
		}
	}
}

func TestRebase(t *testing.T) {
	layers := func(sizes ...int64) manifest.Root {
		var r manifest.Root
		for _, size := range sizes {
			r.Layers = append(r.Layers, manifest.PackRef{Size: size})
		}
		return r
	}
	tests := []struct {
		name string
		root manifest.Root
		want bool
	}{
		{"no layers", layers(), false},
		{"a base alone", layers(1), false},
		{"a small layer above", layers(1000, 100), false},
		{"half of the base above", layers(1000, 300, 200), false},
		{"more than half of the base above", layers(1000, 300, 201), true},
		{"eight layers", layers(1000, 1, 1, 1, 1, 1, 1, 1), false},
		{"nine layers", layers(1000, 1, 1, 1, 1, 1, 1, 1, 1), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := manifest.Rebase(test.root); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}

func TestOutward(t *testing.T) {
	tests := []struct {
		path, target string
		want         bool
	}{
		{"link", "file", false}, {"link", "dir/../file", false}, {"link", ".", false}, {"link", "...", false}, {"link", "..file", false},
		{"link", "..", true}, {"link", "../file", true}, {"link", "dir/../../file", true}, {"link", "/usr/bin/python3", true},
		{"a/b/link", "../../file", false}, {"a/b/link", "../..", false}, {"a/b/link", "../../..", true}, {"a/b/link", "../../../a/file", true},
	}
	for _, test := range tests {
		if got := manifest.Outward(test.path, test.target); got != test.want {
			t.Errorf("%s to %s: got %t, want %t", test.path, test.target, got, test.want)
		}
	}
}

func TestMergeRefusesLayersThatAreNotInOrder(t *testing.T) {
	_, err := collect(manifest.Merge(manifest.Entries(file("a")), manifest.Entries(file("b"), file("a"))))
	if got := reasonOf(t, err); got != manifest.BadOrder {
		t.Errorf("got %v", err)
	}
}

func TestReferenceNamesItsObject(t *testing.T) {
	ref := manifest.PackRef{Fence: 12, SHA256: sha256.Sum256(nil), Size: 5, Owner: "other"}
	if got, want := ref.Name(), "12-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	var back manifest.PackRef
	if err := json.Unmarshal([]byte(jsonOf(t, ref)), &back); err != nil || back != ref {
		t.Errorf("got %+v back: %v", back, err)
	}
	for _, bad := range []string{`"e3b0"`, `"` + strings.Repeat("x", 64) + `"`} {
		if json.Unmarshal([]byte(bad), new(manifest.Digest)) == nil {
			t.Errorf("%s is read as a digest", bad)
		}
	}
}

func TestKindsHaveNames(t *testing.T) {
	rule := manifest.Rule{Kinds: []manifest.Kind{manifest.File, manifest.Dir, manifest.Symlink, manifest.Hardlink}}
	if got, want := jsonOf(t, rule), `{"kinds":["file","dir","symlink","hardlink"]}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if json.Unmarshal([]byte(`{"kinds":["socket"]}`), &rule) == nil {
		t.Error("a socket is read as a kind")
	}
	if _, err := json.Marshal(manifest.Kind(9)); err == nil {
		t.Error("kind 9 is written")
	}
}

// TestPathsOfTheOriginal holds CheckPath against the original's results.
func TestPathsOfTheOriginal(t *testing.T) {
	dir := cmp.Or(os.Getenv("SANDKEEPER_VECTORS"), filepath.Join("..", "..", "..", "shared", "vectors"))
	data, err := os.ReadFile(filepath.Join(dir, "snapshot_path.json"))
	if errors.Is(err, os.ErrNotExist) && os.Getenv("CI") == "" {
		t.Skipf("read vectors: %v", err)
	}
	var vectors struct {
		Cases []struct {
			Name  string
			Input struct{ Path string }
			Want  struct{ OK bool }
		}
	}
	if err == nil {
		err = json.Unmarshal(data, &vectors)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range vectors.Cases {
		if err := manifest.CheckPath(c.Input.Path); (err == nil) != c.Want.OK {
			t.Errorf("%s: %q: got %v, want ok %t", c.Name, c.Input.Path, err, c.Want.OK)
		}
	}
	if len(vectors.Cases) < 20 {
		t.Errorf("looked at %d cases", len(vectors.Cases))
	}
}
