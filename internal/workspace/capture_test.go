package workspace_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandkeeper/sandkeeper/internal/draw"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/workspace"
)

func randomBytes(size int, seed uint64) string {
	data := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data)
	return string(data)
}

func reasons(root manifest.Root) map[string]string {
	all := map[string]string{}
	for _, s := range root.Skipped {
		all[s.Path] = s.Reason
	}
	return all
}

func TestSpecialEntriesAreSkippedWithTheReason(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "file"), "x", 0o644)
	write(t, filepath.Join(root, `back\slash`), "x", 0o644)
	write(t, filepath.Join(root, "c:drive"), "x", 0o644)
	must(t, unix.Mkfifo(filepath.Join(root, "pipe"), 0o600))
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(socket)
	t.Chdir(root) // names of sockets are short
	must(t, unix.Bind(socket, &unix.SockaddrUnix{Name: "sock"}))
	result := capture(t, workspace.CaptureOptions{Root: root, Store: store})
	got := reasons(result.Root)
	for path, want := range map[string]string{"pipe": "named pipe", "sock": "socket", `back\slash`: "name cannot be stored", "c:drive": "name cannot be stored"} {
		if !strings.HasPrefix(got[path], want) {
			t.Errorf("%s is skipped as %q, want %q", path, got[path], want)
		}
	}
	if len(got) != 4 || result.Root.Counts.Files != 1 {
		t.Errorf("skipped %v, counts %+v", got, result.Root.Counts)
	}
	_, err = workspace.Capture(t.Context(), workspace.CaptureOptions{Root: root, Store: store, ID: "c", Policy: manifest.Policy{Strict: true}})
	if code(err) != workspace.CodeInvalidWorkspace {
		t.Errorf("strict capture: %v", err)
	}
}

// TestUnreadableEntriesAreSkipped needs a process that permissions stop: as root it
// runs as another user in a thread of its own.
func TestUnreadableEntriesAreSkipped(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "dir/in"), "x", 0o644)
	write(t, filepath.Join(root, "open"), "x", 0o644)
	write(t, filepath.Join(root, "secret"), "x", 0)
	must(t, os.Chmod(filepath.Join(root, "dir"), 0))
	t.Cleanup(func() { os.Chmod(filepath.Join(root, "dir"), 0o755) })
	if os.Geteuid() == 0 {
		// Both are directories of this test alone.
		must(t, os.Chmod(filepath.Dir(root), 0o755), os.Chmod(root, 0o755), os.Chmod(store.Dir, 0o777), syscall.Setegid(65534), syscall.Seteuid(65534))
		defer func() { must(t, syscall.Seteuid(0), syscall.Setegid(0)) }()
	}
	result, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: root, Store: store, ID: "c"})
	must(t, err)
	got := reasons(result.Root)
	if len(got) != 2 || !strings.HasPrefix(got["secret"], "unreadable: ") || !strings.HasPrefix(got["dir"], "unreadable directory: ") {
		t.Errorf("skipped %v", got)
	}
	if c := result.Root.Counts; c.Files != 1 || c.Dirs != 1 {
		t.Errorf("counts %+v, want the file that is readable and the directory itself", c)
	}
	_, err = workspace.Capture(t.Context(), workspace.CaptureOptions{Root: root, Store: store, ID: "c", Policy: manifest.Policy{Strict: true}})
	if err == nil {
		t.Error("a strict capture leaves out what it cannot read")
	}
}

func TestStrictCaptureRefusesWhatTheOriginalRefuses(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"link":         func(path string) error { return os.Symlink("a", path) },
		"pipe":         func(path string) error { return unix.Mkfifo(path, 0o600) },
		"executable":   func(path string) error { return os.WriteFile(path, nil, 0o755) },
		"group script": func(path string) error { return os.WriteFile(path, nil, 0o610) },
	} {
		t.Run(name, func(t *testing.T) {
			root, store := t.TempDir(), newStore(t)
			must(t, put(filepath.Join(root, "entry")))
			options := workspace.CaptureOptions{Root: root, Store: store, ID: "c", Policy: manifest.Policy{Strict: true, Include: []manifest.Rule{{Exact: []string{"else"}}}}}
			if _, err := workspace.Capture(t.Context(), options); code(err) != workspace.CodeUnsupportedEntry {
				t.Errorf("error is %v: include must not skip it", err)
			}
			options.Policy.Exclude = []manifest.Rule{{Exact: []string{"entry"}}}
			if _, err := workspace.Capture(t.Context(), options); err != nil {
				t.Errorf("error is %v: exclude must skip it", err)
			}
			if store.Puts.Load() != 0 {
				t.Errorf("%d objects are stored", store.Puts.Load())
			}
		})
	}
}

// TestFileThatChangesIsReadAgain changes a file after the walk has seen it, and
// before it is read: content in front of it holds the capture up.
func TestFileThatChangesIsReadAgain(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "a-long-one"), randomBytes(96<<20, 1), 0o644)
	for _, name := range []string{"z-grows", "z-large", "z-goes", "z-stays"} {
		write(t, filepath.Join(root, name), strings.Repeat("before ", 10), 0o644)
	}
	write(t, filepath.Join(root, "z-large"), randomBytes(5<<20, 2), 0o644)
	var once sync.Once
	store.FailPut = func(workspace.Object) error {
		once.Do(func() {
			write(t, filepath.Join(root, "z-grows"), strings.Repeat("after ", 1000), 0o755)
			write(t, filepath.Join(root, "z-large"), randomBytes(6<<20, 3), 0o644)
			must(t, os.Remove(filepath.Join(root, "z-goes")))
		})
		return nil
	}
	result := capture(t, workspace.CaptureOptions{Root: root, Store: store})
	if got := reasons(result.Root); len(got) != 1 || !strings.HasPrefix(got["z-goes"], "gone") {
		t.Errorf("skipped %v, want the one that is gone", got)
	}
	to := t.TempDir()
	restoreTo(t, store, result.Root, to)
	if err := differences(snapshot(t, to), snapshot(t, root)); err != nil {
		t.Error(err)
	}
}

func TestFileThatGoesOnChangingIsSkipped(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	log := filepath.Join(root, "log")
	write(t, log, randomBytes(24<<20, 1), 0o644)
	write(t, filepath.Join(root, "quiet"), "x", 0o644)
	first := capture(t, workspace.CaptureOptions{Root: root, Store: store})
	must(t, os.Chtimes(log, time.Time{}, time.Unix(1, 0)))
	var stop atomic.Bool
	var group sync.WaitGroup
	group.Go(func() {
		file, err := os.OpenFile(log, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return
		}
		defer file.Close()
		for !stop.Load() {
			file.WriteString("line\n")
		}
	})
	result, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: root, Store: store, ID: "c2", Parent: &first.Root})
	stop.Store(true)
	group.Wait()
	must(t, err)
	if got := reasons(result.Root); !maps.Equal(got, map[string]string{"log": "changed while it was read"}) {
		t.Errorf("skipped %v", got)
	}
	if result.Root.Counts.Files != 1 {
		t.Errorf("counts %+v: the parent's content stands for one that is not known", result.Root.Counts)
	}
	// It is in the destination, and in no checkpoint: it survives.
	restoreTo(t, store, result.Root, root)
	if _, err := os.Stat(log); err != nil {
		t.Error(err)
	}
}

// TestCutCaptureSendsNoPackTwice lets a capture fail at each of its packs in turn.
func TestCutCaptureSendsNoPackTwice(t *testing.T) {
	root := t.TempDir()
	for i := range 300 {
		write(t, filepath.Join(root, fmt.Sprintf("d%d/f%d", i%7, i)), randomBytes(50_000+i, uint64(i)), 0o644)
	}
	write(t, filepath.Join(root, "e"), randomBytes(30<<20, 9), 0o644)
	whole := newStore(t)
	want := capture(t, workspace.CaptureOptions{Root: root, Store: whole})
	if want.Packs < 4 {
		t.Fatalf("%d packs: too few to cut", want.Packs)
	}
	store := newStore(t)
	cut := errors.New("connection lost")
	for n := range want.Packs + 1 {
		puts, left := store.Puts.Load(), new(atomic.Int64)
		left.Store(n)
		store.FailPut = func(workspace.Object) error {
			if left.Add(-1) < 0 {
				return cut
			}
			return nil
		}
		if _, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: root, Store: store, ID: "c1"}); !errors.Is(err, cut) {
			t.Fatalf("error is %v, want the store's", err)
		}
		if store.Puts.Load() > puts+max(n, 1) {
			t.Errorf("cut %d sent %d objects", n, store.Puts.Load()-puts)
		}
	}
	if n := workspace.SlabsInUse(); n != 0 {
		t.Errorf("%d buffers were not given back", n)
	}
	store.FailPut = nil
	got := capture(t, workspace.CaptureOptions{Root: root, Store: store})
	if store.Puts.Load() != whole.Puts.Load() {
		t.Errorf("sent %d objects in all, want %d: something was sent twice", store.Puts.Load(), whole.Puts.Load())
	}
	if !slices.Equal(got.Root.Packs, want.Root.Packs) || !slices.Equal(got.Root.Layers, want.Root.Layers) {
		t.Error("the same tree makes other packs or another layer")
	}
}

func TestLimitsEndACapture(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "a"), randomBytes(1<<20, 1), 0o644)
	write(t, filepath.Join(root, "b"), randomBytes(1<<20, 2), 0o644)
	_, err := workspace.Capture(t.Context(), workspace.CaptureOptions{Root: root, Store: store, ID: "c", MaxBytes: 2<<20 - 1})
	if code(err) != workspace.CodeByteLimit {
		t.Errorf("error is %v, want %s", err, workspace.CodeByteLimit)
	}
	_, err = workspace.Capture(t.Context(), workspace.CaptureOptions{Root: root, Store: store, ID: "c", Deadline: time.Now().Add(-time.Second)})
	if code(err) != workspace.CodeTimeLimit {
		t.Errorf("error is %v, want %s", err, workspace.CodeTimeLimit)
	}
	capture(t, workspace.CaptureOptions{Root: root, Store: store, MaxBytes: 2 << 20, Deadline: time.Now().Add(time.Hour)})
}

func TestManyLayersBecomeOne(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	for i := range 400 {
		write(t, filepath.Join(root, fmt.Sprint("f", i)), fmt.Sprint("content ", i), 0o644)
	}
	var parent *manifest.Root
	rebased := 0
	for round := range 20 {
		write(t, filepath.Join(root, fmt.Sprint("f", round)), fmt.Sprint("changed ", round), 0o644)
		must(t, os.Remove(filepath.Join(root, fmt.Sprint("f", 399-round))))
		result := capture(t, workspace.CaptureOptions{Root: root, Store: store, ID: fmt.Sprint("c", round), Parent: parent})
		if round > 0 && len(result.Root.Layers) == 1 {
			rebased++
		}
		if len(result.Root.Layers) > 8 {
			t.Errorf("round %d has %d layers", round, len(result.Root.Layers))
		}
		if len(result.Root.Layers) > 1 && result.LayerBytes > result.Root.Layers[0].Size/5 {
			t.Errorf("round %d adds a layer of %d bytes to one of %d", round, result.LayerBytes, result.Root.Layers[0].Size)
		}
		parent = &result.Root
	}
	if rebased == 0 {
		t.Error("layers were never made one")
	}
	to := t.TempDir()
	restoreTo(t, store, *parent, to)
	if err := differences(snapshot(t, to), snapshot(t, root)); err != nil {
		t.Error(err)
	}
}

func TestGitPolicyFullStoresTheRepository(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "sub/.git/config"), "x", 0o644)
	write(t, filepath.Join(root, "sub/.env"), "x", 0o644)
	for git, want := range map[string]int64{"full": 1, "state": 0, "none": 0, "": 0} {
		result := capture(t, workspace.CaptureOptions{Root: root, Store: store, Policy: manifest.Policy{Git: git}})
		if got := result.Root.Counts.Files; got != want {
			t.Errorf("git %q: %d files, want %d", git, got, want)
		}
	}
}

// timeless is a tree without its times.
func timeless(tree map[string]node) map[string]node {
	for name, n := range tree {
		n.mtime = 0
		tree[name] = n
	}
	return tree
}

func TestGitAreaTravelsBesideTheWorkspace(t *testing.T) {
	root, git, store := t.TempDir(), t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "a"), "workspace", 0o644)
	write(t, filepath.Join(git, "a"), "git", 0o600)
	write(t, filepath.Join(git, ".git/node_modules/.env"), "nothing is excluded there", 0o644)
	result := capture(t, workspace.CaptureOptions{Root: root, GitDir: git, Git: "state", Store: store})
	if result.Root.Git != "state" || result.Root.Counts.Files != 3 {
		t.Errorf("root is %+v", result.Root)
	}
	to, gitTo := t.TempDir(), filepath.Join(t.TempDir(), "git")
	_, err := workspace.Restore(t.Context(), workspace.RestoreOptions{Root: to, GitDir: gitTo, Store: store, Manifest: result.Root})
	must(t, err)
	if err := errors.Join(differences(snapshot(t, to), snapshot(t, root)), differences(timeless(snapshot(t, gitTo)), timeless(snapshot(t, git)))); err != nil {
		t.Error(err)
	}
	// The same state, made anew, costs nothing.
	later := t.TempDir()
	must(t, os.CopyFS(later, os.DirFS(git)), os.Chmod(filepath.Join(later, "a"), 0o600))
	puts := store.Puts.Load()
	same := capture(t, workspace.CaptureOptions{Root: root, GitDir: later, Git: "state", Store: store, ID: "c1b", Parent: &result.Root})
	if store.Puts.Load() != puts {
		t.Errorf("sent %d objects, layer of %d bytes", store.Puts.Load()-puts, same.LayerBytes)
	}
	// Without its directory the area is left out, and gone from the next checkpoint.
	next := capture(t, workspace.CaptureOptions{Root: root, Store: store, ID: "c2", Parent: &result.Root})
	if next.Root.Counts.Files != 1 {
		t.Errorf("counts %+v", next.Root.Counts)
	}
}

// secretCapture captures one file and returns what comes back of it.
func secretCapture(t testing.TB, content string, secrets []workspace.Secret, forms ...string) (string, workspace.CaptureResult) {
	t.Helper()
	root, to, store := t.TempDir(), t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "file"), content, 0o644)
	result := capture(t, workspace.CaptureOptions{Root: root, Store: store, Secrets: secrets, Policy: manifest.Policy{RedactForms: forms}})
	restoreTo(t, store, result.Root, to)
	data, err := os.ReadFile(filepath.Join(to, "file"))
	must(t, err)
	return string(data), result
}

func TestSecretsAcrossPiecesAreRedacted(t *testing.T) {
	secret := "correct horse battery staple"
	for _, shift := range []int{0, 1, len(secret) / 2, len(secret) - 1, len(secret)} {
		content := randomBytes(9<<20, 4)
		for _, border := range []int{4 << 20, 8 << 20} {
			at := border - shift
			content = content[:at] + secret + content[at+len(secret):]
		}
		got, result := secretCapture(t, content, []workspace.Secret{{Name: "A", Value: secret}})
		want := strings.ReplaceAll(content, secret, strings.Repeat("\x00", len(secret)))
		if got != want {
			t.Errorf("shift %d: secret at a border of pieces is not redacted exactly", shift)
		}
		if result.Root.Counts.RedactedFiles != 1 {
			t.Errorf("counts %+v", result.Root.Counts)
		}
	}
}

func TestEncodedSecretsAreRedactedWhenAsked(t *testing.T) {
	secret := "p@ss/w?rd+1 ÄÖ~"
	encoded := map[string]string{"url query": url.QueryEscape(secret), "url path": url.PathEscape(secret), "url lower": strings.ToLower(url.QueryEscape(secret))}
	for alignment := range 3 {
		text := strings.Repeat("x", alignment) + secret + "tail"
		encoded[fmt.Sprint("base64 ", alignment)] = base64.StdEncoding.EncodeToString([]byte(text))
		encoded[fmt.Sprint("base64 url ", alignment)] = base64.RawURLEncoding.EncodeToString([]byte(text))
	}
	for name, form := range encoded {
		content := "key = '" + form + "'\n"
		secrets := []workspace.Secret{{Name: "A", Value: secret}}
		if got, _ := secretCapture(t, content, secrets); got != content {
			t.Errorf("%s: redacted without being asked: %q", name, got)
		}
		got, _ := secretCapture(t, content, secrets, workspace.FormBase64, workspace.FormURL)
		if len(got) != len(content) {
			t.Errorf("%s: length changed", name)
		}
		kept := strings.Trim(strings.NewReplacer("key = '", "", "'\n", "").Replace(got), "\x00")
		if strings.HasPrefix(name, "base64") {
			if data, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.NewReplacer("-", "+", "_", "/", "\x00", "A").Replace(got[7:len(got)-2]), "=")); err == nil && bytes.Contains(data, []byte(secret[1:len(secret)-1])) {
				t.Errorf("%s: the secret can be read from %q", name, got)
			}
			if strings.Count(got, "\x00") < len(secret) {
				t.Errorf("%s: %q keeps too much", name, got)
			}
		} else if name != "url lower" && strings.Contains(got, form) {
			t.Errorf("%s: %q keeps %q", name, got, kept)
		}
	}
	_, err := workspace.NewRedactor(nil, []string{"rot13"})
	if code(err) != workspace.CodeInvalidPolicy {
		t.Errorf("an unknown form: %v", err)
	}
}

// TestRedactionIsThatOfTheDefinition compares with the definition: a byte that any
// occurrence of any secret covers becomes zero.
func TestRedactionIsThatOfTheDefinition(t *testing.T) {
	draw.Check(t, func(rt *draw.T) {
		data := draw.SliceOfN(draw.Range[byte]('a', 'c'), 0, 300).Draw(rt, "data")
		var secrets []workspace.Secret
		// Many of them, and long ones, are looked for in another way than few.
		for _, value := range draw.SliceOfN(draw.StringMatching(`[a-c]{0,9}`), 0, 12).Draw(rt, "secrets") {
			secrets = append(secrets, workspace.Secret{Value: value})
		}
		for range draw.Range(0, 6).Draw(rt, "from the data") {
			from := draw.Range(0, len(data)).Draw(rt, "from")
			secrets = append(secrets, workspace.Secret{Value: string(data[from:min(len(data), from+draw.Range(0, 20).Draw(rt, "length"))])})
		}
		want := slices.Clone(data)
		for _, s := range secrets {
			for i := 0; s.Value != "" && i+len(s.Value) <= len(data); i++ {
				if string(data[i:i+len(s.Value)]) == s.Value {
					clear(want[i : i+len(s.Value)])
				}
			}
		}
		redactor, err := workspace.NewRedactor(secrets, nil)
		must(t, err)
		redactor.Redact(data)
		if !bytes.Equal(data, want) {
			rt.Fatalf("redacted %q, want %q", data, want)
		}
	})
}

// TestOtherSecretsAreLookedForInAllFiles changes the secrets between two captures: no
// file is taken from the parent by its times.
func TestOtherSecretsAreLookedForInAllFiles(t *testing.T) {
	root, to, store := t.TempDir(), t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "file"), "first SECRET second OTHER", 0o644)
	secrets := []workspace.Secret{{Name: "A", Value: "SECRET"}}
	later := time.Now().Add(time.Minute)
	first := capture(t, workspace.CaptureOptions{Root: root, Store: store, Secrets: secrets, Now: later})
	same := capture(t, workspace.CaptureOptions{Root: root, Store: store, ID: "c2", Parent: &first.Root, Secrets: secrets, Now: later})
	if same.ReadFiles != 0 {
		t.Errorf("read %d files with the same secrets", same.ReadFiles)
	}
	secrets = append(secrets, workspace.Secret{Name: "B", Value: "OTHER"})
	other := capture(t, workspace.CaptureOptions{Root: root, Store: store, ID: "c3", Parent: &same.Root, Secrets: secrets, Now: later})
	restoreTo(t, store, other.Root, to)
	if data, err := os.ReadFile(filepath.Join(to, "file")); string(data) != "first \x00\x00\x00\x00\x00\x00 second \x00\x00\x00\x00\x00" {
		t.Errorf("file is %q, %v", data, err)
	}
	if bytes.Contains(must1(manifest.EncodeRoot(other.Root)), []byte("OTHER")) {
		t.Error("the root tells a secret")
	}
}

func must1[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func TestLongCaptureRenews(t *testing.T) {
	root, inner := t.TempDir(), newStore(t)
	write(t, filepath.Join(root, "file"), "x", 0o644)
	synctest.Test(t, func(t *testing.T) {
		inner.FailPut = func(workspace.Object) error { time.Sleep(100 * time.Second); return nil }
		var told atomic.Int64
		_, err := workspace.Capture(t.Context(), workspace.CaptureOptions{
			Root: root, Store: inner, ID: "c", Progress: func(workspace.Progress) { told.Add(1) },
		})
		must(t, err)
		if inner.Renewals.Load() < 3 || told.Load() < 100 {
			t.Errorf("%d renewals and %d reports of progress", inner.Renewals.Load(), told.Load())
		}
	})
}

func TestEmptyTreeIsACheckpoint(t *testing.T) {
	root, to, store := t.TempDir(), t.TempDir(), newStore(t)
	write(t, filepath.Join(to, "old"), "old", 0o644)
	empty := capture(t, workspace.CaptureOptions{Root: root, Store: store})
	restoreTo(t, store, empty.Root, to)
	if tree := snapshot(t, to); len(tree) > 0 {
		t.Errorf("tree is %v", tree)
	}
	write(t, filepath.Join(root, "new"), "new", 0o644)
	next := capture(t, workspace.CaptureOptions{Root: root, Store: store, ID: "c2", Parent: &empty.Root})
	must(t, os.Remove(filepath.Join(root, "new")))
	last := capture(t, workspace.CaptureOptions{Root: root, Store: store, ID: "c3", Parent: &next.Root})
	restoreTo(t, store, last.Root, to)
	if tree := snapshot(t, to); len(tree) > 0 || last.Root.Counts != (manifest.Counts{}) {
		t.Errorf("tree is %v, counts %+v", tree, last.Root.Counts)
	}
}

func TestNoLinkIsFollowedOnTheWayDown(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, "a/b/c"), 0o755), os.Symlink("b", filepath.Join(root, "a/link")), os.Symlink(root, filepath.Join(root, "abs")))
	top, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	defer unix.Close(top)
	for path, want := range map[string]bool{"a": true, "a/b/c": true, "a/link": false, "a/link/c": false, "abs": false, "abs/a": false, "none": false} {
		for _, stepwise := range []bool{false, true} {
			fd, err := workspace.OpenBeneath(top, path, stepwise)
			if (err == nil) != want {
				t.Errorf("open %s (step by step: %v): %v", path, stepwise, err)
			}
			if err == nil {
				unix.Close(fd)
			}
		}
	}
}

// TestSpoolReadsWhatWasWritten goes over the border between memory and file.
func TestSpoolReadsWhatWasWritten(t *testing.T) {
	content := randomBytes(11<<20+12345, 5)
	spool, digest, closeSpool := workspace.NewSpool()
	defer closeSpool()
	for rest := []byte(content); len(rest) > 0; {
		n := min(len(rest), 70_001)
		_, err := spool.Write(rest[:n])
		must(t, err)
		rest = rest[n:]
	}
	if digest() != sha256.Sum256([]byte(content)) {
		t.Error("the digest is another one")
	}
	for _, at := range []int{0, 1, 256<<10 - 1, 8<<20 - 3, 8 << 20, len(content) - 10} {
		got := make([]byte, min(600_000, len(content)-at))
		_, err := spool.ReadAt(got, int64(at))
		must(t, err)
		if string(got) != content[at:at+len(got)] {
			t.Errorf("bytes at %d are others", at)
		}
	}
	if n, err := spool.ReadAt(make([]byte, 100), int64(len(content)-10)); n != 10 || !errors.Is(err, io.EOF) {
		t.Errorf("read %d bytes at the end, %v", n, err)
	}
}

func TestManyDirectoriesNeedFewDescriptors(t *testing.T) {
	root, store := t.TempDir(), newStore(t)
	for i := range 3000 {
		write(t, filepath.Join(root, fmt.Sprintf("%d/%d/file", i%50, i)), fmt.Sprint("content ", i), 0o644)
	}
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &before))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: min(300, before.Max), Max: before.Max}))
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &before)
	result := capture(t, workspace.CaptureOptions{Root: root, Store: store})
	if len(result.Root.Skipped) > 0 || result.Root.Counts.Files != 3000 {
		t.Errorf("skipped %d, the first %+v", len(result.Root.Skipped), result.Root.Skipped[:min(1, len(result.Root.Skipped))])
	}
	to := t.TempDir()
	restoreTo(t, store, result.Root, to)
	if err := differences(snapshot(t, to), snapshot(t, root)); err != nil {
		t.Error(err)
	}
}

func BenchmarkRedact(b *testing.B) {
	for _, count := range []int{1, 4, 20, 200} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			var secrets []workspace.Secret
			for i := range count {
				secrets = append(secrets, workspace.Secret{Value: base64.StdEncoding.EncodeToString([]byte(randomBytes(24, uint64(i))))})
			}
			redactor, err := workspace.NewRedactor(secrets, nil)
			must(b, err)
			data := []byte(strings.Repeat("The quick brown fox jumps over the lazy dog. ", 100_000))
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				redactor.Redact(data)
			}
		})
	}
}
