package core_test

import (
	"bytes"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/manifest"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// TestARootOfASandboxIsBelievedOnlyAsFarAsTheStoreBearsItOut: what the manifest names is
// the thread's own or its parent's, and stored as it says.
func TestARootOfASandboxIsBelievedOnlyAsFarAsTheStoreBearsItOut(t *testing.T) {
	tests := map[string]struct {
		code   string
		change func(w *keeping, r *manifest.Root)
	}{
		"a pack that was never stored":         {"invalid-entry", func(_ *keeping, r *manifest.Root) { r.Layers[0].SHA256[0]++ }},
		"a pack of another size":               {"invalid-entry", func(_ *keeping, r *manifest.Root) { r.Layers[0].Size++ }},
		"a pack of a fence to come":            {"invalid-entry", func(_ *keeping, r *manifest.Root) { r.Layers[0].Fence++ }},
		"a pack of the parent's, larger":       {"invalid-entry", func(w *keeping, r *manifest.Root) { w.enlarge(r) }},
		"another id":                           {"invalid-id", func(_ *keeping, r *manifest.Root) { r.ID = "other" }},
		"another parent":                       {"parent-mismatch", func(_ *keeping, r *manifest.Root) { r.Parent = "other" }},
		"no parent":                            {"parent-mismatch", func(_ *keeping, r *manifest.Root) { r.Parent = "" }},
		"counts that do not add up":            {"invalid-entry", func(_ *keeping, r *manifest.Root) { r.Counts.Files++ }},
		"a pack that no entry needs":           {"invalid-entry", func(_ *keeping, r *manifest.Root) { r.Packs = append(r.Packs, r.Layers[len(r.Layers)-1]) }},
		"a pack left out":                      {"invalid-entry", func(_ *keeping, r *manifest.Root) { r.Packs = r.Packs[1:] }},
		"a layer left out":                     {"invalid-entry", func(_ *keeping, r *manifest.Root) { r.Layers = r.Layers[1:] }},
		"another thread's pack, claimed":       {"invalid-entry", func(w *keeping, r *manifest.Root) { r.Layers[1] = w.theirs(); r.Layers[1].Owner = "victim" }},
		"another thread's pack, by hash alone": {"invalid-entry", func(w *keeping, r *manifest.Root) { r.Layers[1] = w.theirs() }},
		"an owner on a pack that was never stored": {"invalid-entry", func(_ *keeping, r *manifest.Root) {
			r.Layers[1].SHA256[0]++
			r.Layers[1].Owner = "t"
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			kept(t, func(w *keeping) {
				k, p := w.keeper(w.store.Process), w.store.Process
				w.box("victim")
				w.must(w.save(w.ctx(), p, "victim", "v1", tree{"secret": "theirs"}))
				w.must(w.save(w.ctx(), p, "t", "c1", first))
				_, err := k.Save(w.ctx(), saveOf("t", "c2"))
				w.must(err)
				data, err := w.pack(w.ctx(), p, "t", second)
				w.must(err)
				r, err := manifest.DecodeRoot(data)
				w.must(err)
				tt.change(w, &r)
				data, err = manifest.EncodeRoot(r)
				if err == nil {
					_, err = k.CommitRoot(w.ctx(), w.jobs["t"].Token, data)
					w.coded(err, tt.code)
				}
				head, err := k.Head(w.ctx(), thread("t"))
				w.must(err)
				if head.ID != "c1" {
					t.Errorf("head = %s, want c1", head.ID)
				}
				w.must(w.capture(w.ctx(), p, "t", second)) // the step goes on
				w.check("t", "victim")
			})
		})
	}
}

// enlarge writes the whole tree of a root anew, with a parent's pack of which more is
// claimed than is stored.
func (w *keeping) enlarge(r *manifest.Root) {
	a := &capturer{w: w, ctx: w.ctx(), p: w.store.Process, k: w.keeper(w.store.Process), id: "t", token: w.jobs["t"].Token}
	var layers []iter.Seq2[manifest.Entry, error]
	for _, ref := range r.Layers {
		data, err := w.store.Blob(w.ctx(), core.PackKey(thread("t"), core.PackRef{Fence: ref.Fence, SHA256: ref.SHA256.String()}))
		w.must(err)
		layers = append(layers, manifest.OpenLayer(bytes.NewReader(data), ref))
	}
	entries, err := gather(manifest.Merge(layers...))
	w.must(err)
	var layer bytes.Buffer
	lw := manifest.NewLayerWriter(&layer)
	for _, e := range entries {
		for i := range e.Chunks {
			if e.Chunks[i].Pack.Fence == 1 { // the parent's
				e.Chunks[i].Pack.Size += 100
			}
		}
		w.must(lw.Add(e))
	}
	w.must(lw.Close())
	for i := range r.Packs {
		if r.Packs[i].Fence == 1 {
			r.Packs[i].Size += 100
			r.Counts.StoredBytes += 100
		}
	}
	ref, err := a.put(layer.Bytes())
	w.must(err)
	r.Layers = []manifest.PackRef{ref}
}

// theirs is a layer of the thread "victim".
func (w *keeping) theirs() manifest.PackRef {
	c, err := w.store.Checkpoint(w.ctx(), thread("victim"), "v1")
	w.must(err)
	data, err := w.store.Blob(w.ctx(), c.Manifest.Key)
	w.must(err)
	r, err := manifest.DecodeRoot(data)
	w.must(err)
	return r.Layers[0]
}

func TestAClaimedOwnerCountsForNothing(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		_, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		data, err := w.pack(w.ctx(), p, "t", first)
		w.must(err)
		r, err := manifest.DecodeRoot(data)
		w.must(err)
		r.Layers[0].Owner, r.Packs[0].Owner = "victim", "victim"
		data, err = manifest.EncodeRoot(r)
		w.must(err)
		w.trees["c1"] = first
		_, err = k.CommitRoot(w.ctx(), w.jobs["t"].Token, data)
		w.must(err)
		w.check("t") // from the own thread's packs
	})
}

func TestARootThatIsNoneIsRefused(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		_, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		token := w.jobs["t"].Token
		root, err := w.pack(w.ctx(), p, "t", first)
		w.must(err)
		for name, tt := range map[string]struct {
			data []byte
			code string
		}{
			"nothing": {nil, "invalid-entry"}, "text": {[]byte("not a root"), "invalid-entry"}, "a root cut short": {root[:len(root)-1], "invalid-entry"},
			"a root and more": {append(bytes.Clone(root), 0), "invalid-entry"}, "too much": {bytes.Repeat([]byte{0}, core.MaxManifest+1), "too-large"},
		} {
			if _, err := k.CommitRoot(w.ctx(), token, tt.data); code(err) != tt.code {
				t.Errorf("%s: %v, want %s", name, err, tt.code)
			}
		}
		for n := range root {
			if _, err := k.CommitRoot(w.ctx(), token, root[:n]); code(err) != "invalid-entry" {
				t.Errorf("%d bytes of %d: %v", n, len(root), err)
			}
		}
		w.must(w.capture(w.ctx(), p, "t", first))
		w.check("t")
	})
}

// TestADamagedRootIsRefusedOrHarmless: some bytes say what the server says itself.
func TestADamagedRootIsRefusedOrHarmless(t *testing.T) {
	kept(t, func(w *keeping) {
		refused := 0
		for i := 0; ; i++ {
			w := newKeeping(t)
			w.box("t")
			k := w.keeper(w.store.Process)
			_, err := k.Save(w.ctx(), saveOf("t", "c1"))
			w.must(err)
			root, err := w.pack(w.ctx(), w.store.Process, "t", first)
			w.must(err)
			if i == len(root) {
				break
			}
			root[i] ^= 0x55
			w.trees["c1"] = first
			if _, err := k.CommitRoot(w.ctx(), w.jobs["t"].Token, root); err != nil {
				refused++
			}
			w.check("t")
		}
		if refused == 0 {
			t.Error("no damage was noticed")
		}
	})
}

// TestWhatAnotherCollectedIsNotTakenForStored: a capture that was cut left packs; after a
// collection that may be about to remove them, a later one must send them again.
func TestWhatAnotherCollectedIsNotTakenForStored(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		_, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		_, err = w.pack(w.ctx(), p, "t", first)
		w.must(err)
		old := w.sent["t"][packOf("A#!/bin/sh\n").SHA256]
		if old.Fence != 1 {
			t.Fatalf("sent %+v", w.sent)
		}
		has := func() bool {
			t.Helper()
			_, err := k.Save(w.ctx(), saveOf("t", "c1"))
			w.must(err)
			out, err := k.Has(w.ctx(), w.jobs["t"].Token, []core.PackRef{old})
			w.must(err)
			return out[0]
		}
		time.Sleep(core.LeaseLife)
		if !has() {
			t.Error("the cut capture's packs would be sent again")
		}
		time.Sleep(core.LeaseLife)
		report, err := k.Collect(w.ctx(), core.CollectRequest{ThreadKey: thread("t"), Apply: true})
		w.must(err)
		if report.Young == 0 || report.Deleted != 0 {
			t.Errorf("report = %+v, want young packs left", report)
		}
		if has() {
			t.Error("a pack that a collection may still remove counts as stored")
		}
		w.stubborn = true
		w.coded(w.capture(w.ctx(), p, "t", first), "invalid-entry")
		w.stubborn = false
		w.must(w.capture(w.ctx(), p, "t", first))
		w.check("t")
	})
}

func TestTheThreadOfATokenIsTheOnlyOne(t *testing.T) {
	kept(t, func(w *keeping) {
		k, p := w.keeper(w.store.Process), w.store.Process
		w.box("victim")
		w.must(w.save(w.ctx(), p, "victim", "v1", tree{"secret": "theirs"}))
		w.must(w.save(w.ctx(), p, "t", "c1", first))
		_, err := k.Save(w.ctx(), saveOf("t", "c2"))
		w.must(err)
		token, their := w.jobs["t"].Token, w.theirs()
		ref := core.PackRef{Fence: their.Fence, SHA256: their.SHA256.String(), Size: their.Size, Owner: "victim"}
		has, err := k.Has(w.ctx(), token, []core.PackRef{ref})
		w.must(err)
		if has[0] {
			t.Error("another thread's pack counts as stored")
		}
		_, err = k.Fetch(w.ctx(), token, []core.PackRef{ref})
		w.coded(err, "unknown-pack")
		grants, _, err := k.Grant(w.ctx(), token, []core.PackRef{ref})
		w.must(err)
		if !strings.Contains(grants[0].Grant.URL, "/threads/t/packs/") {
			t.Errorf("grant for %s, want the own thread's key", grants[0].Grant.URL)
		}
	})
}

func FuzzTokens(f *testing.F) {
	for _, seed := range []string{"", "acme.t.1.secret", "acme.t.+1.x", "_61.t.1.x", "a.b.c.d.e", "acme..1.x", "_ff.t.1.x", "acme.t.9223372036854775808.x"} {
		f.Add(seed)
	}
	store := mem.New(f)
	k := newKeeping(nil).keeper(store.Process)
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := k.Renew(t.Context(), token, 0, 0); code(err) != "token-dead" {
			t.Errorf("token %q: %v, want a dead one", token, err)
		}
	})
}

// TestWhatAnAgentSaysOfItsFailureIsPlain: people and other systems are shown it.
func TestWhatAnAgentSaysOfItsFailureIsPlain(t *testing.T) {
	kept(t, func(w *keeping) {
		k := w.keeper(w.store.Process)
		_, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		token := w.jobs["t"].Token
		for _, code := range []string{"", "Upper", "two words", "x\x1b[2J", "x\n", strings.Repeat("x", 65), "\xff"} {
			w.coded(k.Fail(w.ctx(), token, code, "why"), "invalid-code")
		}
		w.must(k.Fail(w.ctx(), token, "too-large", "too-large: größer\n\x1b[2J\u202efalse\x00"))
		report, err := k.Save(w.ctx(), saveOf("t", "c1"))
		w.must(err)
		if report.Why != "too-large: größer  [2J false " {
			t.Errorf("why %q", report.Why)
		}
	})
}

// TestVerifyReadsTheRootAnew: one that the function has read before may be gone since.
func TestVerifyReadsTheRootAnew(t *testing.T) {
	for name, spoil := range map[string]func(w *keeping, key string){
		"altered": func(w *keeping, key string) { w.store.Damage(key, []byte("other")) },
		"gone": func(w *keeping, key string) {
			info, err := w.store.Stat(w.ctx(), key)
			w.must(err)
			w.must(w.store.Delete(w.ctx(), key, info.Version))
		},
	} {
		t.Run(name, func(t *testing.T) {
			kept(t, func(w *keeping) {
				k := w.keeper(w.store.Process)
				w.must(w.save(w.ctx(), w.store.Process, "t", "c1", first))
				report, err := k.Verify(w.ctx(), thread("t"), "", 0)
				if err != nil || len(report.Broken) != 0 {
					t.Fatalf("before: %+v, %v", report, err)
				}
				made, err := w.store.Checkpoint(w.ctx(), thread("t"), "c1")
				w.must(err)
				spoil(w, made.Manifest.Key)
				report, err = k.Verify(w.ctx(), thread("t"), "", 0)
				if err != nil || len(report.Broken) != 1 || report.Broken[0] != made.Manifest.Key {
					t.Errorf("after: %+v, %v; want the root broken", report, err)
				}
			})
		})
	}
}
