package manifest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/sandkeeper/sandkeeper/internal/manifest"
)

// smallFiles is a tree of n files of 4 KiB in directories of 100, as a capture
// finds it: times of a kernel's clock, inodes in the order in which the files were
// made, which is not that of their names.
func smallFiles(n int) []manifest.Entry {
	random := rand.New(rand.NewPCG(1, 2))
	made := random.Perm(n)
	var all []manifest.Entry
	for i := range n {
		if i%100 == 0 {
			dir := stat(random, manifest.Dir, fmt.Sprintf("packages/group-%04d", i/100), 4_000_000+n+i/100, 0)
			dir.Mode = 0o755
			all = append(all, dir)
		}
		e := stat(random, manifest.File, fmt.Sprintf("packages/group-%04d/file-%02d.txt", i/100, i%100), 4_000_000+made[i], made[i])
		e.Size = 4096
		e.Chunks = []manifest.Chunk{placed(random, i)}
		all = append(all, e)
	}
	return all
}

func stat(random *rand.Rand, kind manifest.Kind, path string, inode, made int) manifest.Entry {
	// A file takes 50 µs. Of the clock's 4 ms no digit can be guessed.
	mtime := 1_700_000_000_000_000_000 + int64(made)*50_000 + random.Int64N(4_000_000)
	return manifest.Entry{Kind: kind, Path: path, Mode: 0o644, UID: 1000, GID: 1000, MTime: mtime, CTime: mtime, Inode: uint64(inode), Device: 66306}
}

// placed is a chunk of content that compresses by half, in frames of 1 MiB and
// packs of 8 MiB.
func placed(random *rand.Rand, i int) manifest.Chunk {
	frame := i / 256
	c := manifest.Chunk{Length: 4096, SHA256: randomDigest(random), Skip: int64(i%256) * 4096}
	c.Pack = manifest.PackRef{Fence: 7, SHA256: sha256.Sum256(binary.AppendVarint(nil, int64(frame/16))), Size: 8 << 20}
	c.Frame = manifest.Frame{Offset: int64(frame%16) * (512 << 10), Stored: 512<<10 - int64(i/256%100), Raw: 1 << 20}
	return c
}

func randomDigest(random *rand.Rand) (d manifest.Digest) {
	for at := 0; at < len(d); at += 8 {
		binary.LittleEndian.PutUint64(d[at:], random.Uint64())
	}
	return d
}

// touch changes each hundredth file of a tree, scattered, and answers the tree.
func touch(all []manifest.Entry) []manifest.Entry {
	random := rand.New(rand.NewPCG(3, 4))
	changed := slices.Clone(all)
	for n := 0; n < len(all)/100; {
		i := random.IntN(len(all))
		if all[i].Kind != manifest.File || all[i].MTime != changed[i].MTime {
			continue
		}
		changed[i].MTime += 3_600_000_000_000 + random.Int64N(1e9)
		changed[i].CTime = changed[i].MTime
		changed[i].Chunks = []manifest.Chunk{placed(random, n)}
		changed[i].Chunks[0].Pack.Fence = 8
		n++
	}
	return changed
}

// TestSizeOfLayers holds what a manifest costs: little more than the digests, and
// a small change little more than what changed.
func TestSizeOfLayers(t *testing.T) {
	all := smallFiles(100_000)
	base := len(encodeLayer(t, all...))
	delta, err := collect(manifest.Delta(manifest.Entries(all...), manifest.Entries(touch(all)...)))
	if err != nil {
		t.Fatal(err)
	}
	layer := len(encodeLayer(t, delta...))
	t.Logf("base %d bytes, %.1f an entry; 1 %% touched: %d entries, %d bytes, %.2f %%", base, float64(base)/float64(len(all)), len(delta), layer, 100*float64(layer)/float64(base))
	if base > 48*len(all) {
		t.Errorf("base of %d entries has %d bytes, want at most 48 an entry", len(all), base)
	}
	if layer*50 > base {
		t.Errorf("layer of 1 %% of the entries has %d bytes, want at most 2 %% of %d", layer, base)
	}
}

// TestReadingHoldsOneBlock compares the memory that reading takes for a small tree
// and for one of twenty times its size.
func TestReadingHoldsOneBlock(t *testing.T) {
	small, large := encodeLayer(t, smallFiles(5_000)...), encodeLayer(t, smallFiles(100_000)...)
	if grown := peak(t, large) - peak(t, small); grown > 8<<20 {
		t.Errorf("reading a layer of %d bytes holds %d bytes more than reading one of %d, want no more than a few blocks", len(large), grown, len(small))
	}
}

// peak is the most memory in use, beyond what there was, at any hundredth of the
// way through a layer.
func peak(t *testing.T, layer []byte) int64 {
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most, n := int64(0), 0
	for _, err := range manifest.Merge(manifest.ReadLayer(bytes.NewReader(layer))) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; n%5000 == 0 {
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, int64(now.HeapAlloc)-int64(before.HeapAlloc))
		}
	}
	return most
}

func BenchmarkWriteLayer(b *testing.B) {
	all := smallFiles(100_000)
	for b.Loop() {
		w := manifest.NewLayerWriter(io.Discard)
		for _, e := range all {
			if err := w.Add(e); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			b.Fatal(err)
		}
	}
	perEntry(b, len(all))
}

func BenchmarkReadLayer(b *testing.B) {
	layer := encodeLayer(b, smallFiles(100_000)...)
	for b.Loop() {
		drain(b, manifest.ReadLayer(bytes.NewReader(layer)))
	}
	perEntry(b, 101_000)
}

func BenchmarkCheckMerged(b *testing.B) {
	all := smallFiles(100_000)
	changed := touch(all)
	delta, err := collect(manifest.Delta(manifest.Entries(all...), manifest.Entries(changed...)))
	if err != nil {
		b.Fatal(err)
	}
	base, layer := encodeLayer(b, all...), encodeLayer(b, delta...)
	root := rootOf(b, changed...)
	for b.Loop() {
		merged := manifest.Merge(manifest.ReadLayer(bytes.NewReader(base)), manifest.ReadLayer(bytes.NewReader(layer)))
		if err := manifest.Check(root, merged); err != nil {
			b.Fatal(err)
		}
	}
	perEntry(b, len(all))
}

func BenchmarkDiff(b *testing.B) {
	all := smallFiles(100_000)
	x, y := encodeLayer(b, all...), encodeLayer(b, touch(all)...)
	for b.Loop() {
		drain(b, manifest.Diff(manifest.ReadLayer(bytes.NewReader(x)), manifest.ReadLayer(bytes.NewReader(y))))
	}
	perEntry(b, len(all))
}

func perEntry(b *testing.B, entries int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(entries), "ns/entry")
	b.ReportAllocs()
}

func drain[T any](b *testing.B, seq func(func(T, error) bool)) {
	for _, err := range seq {
		if err != nil {
			b.Fatal(err)
		}
	}
}
