package core

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxPacksAsked is how many packs one request of an agent may name.
const MaxPacksAsked = 256

// statWidth is how many objects are asked about at once, where a keeper says nothing.
const statWidth = 16

func (k *Keeper) width() int { return cmp.Or(k.Width, statWidth) }

// Grant gives an agent leave to store packs under its own fence, and renews the lease.
// What is stored already, by a capture that was cut too, needs no leave. All that a step
// has leave for is at most [MaxGranted] bytes.
func (k *Keeper) Grant(ctx context.Context, token string, packs []PackRef) ([]PackGrant, Millis, error) {
	w, err := k.capturing(ctx, token, packs)
	if err != nil {
		return nil, 0, err
	}
	for i, p := range packs {
		if p.Size < 1 || p.Size > MaxPack {
			return nil, 0, invalid("invalid-pack", "packs[%d]: size: want 1 to %d bytes, got %d", i, MaxPack, p.Size)
		}
	}
	out := make([]PackGrant, len(packs))
	err = each(len(packs), k.width(), func(i int) (err error) {
		out[i], err = k.present(ctx, w, packs[i])
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	var leave int64
	for _, g := range out {
		if !g.Present {
			leave += g.Pack.Size
		}
	}
	// The lease before any grant: each lies under one that was live when it was given.
	until, err := k.notes(ctx, w, NoteStep{Files: w.step.Files, Bytes: w.step.Bytes, Grant: leave})
	if err != nil {
		return nil, 0, err
	}
	err = each(len(out), k.width(), func(i int) (err error) {
		if g := &out[i]; !g.Present {
			g.Grant, err = k.Objects.GrantPut(ctx, PackKey(w.ThreadKey, g.Pack), g.Pack.SHA256, g.Pack.Size, GrantLife)
		}
		return err
	})
	return out, until, err
}

// present finds a pack among what is stored, or says how the step is to store it.
func (k *Keeper) present(ctx context.Context, w working, p PackRef) (PackGrant, error) {
	p.Owner = ""
	for _, p.Fence = range append([]int64{w.step.Fence}, w.step.Former...) {
		if !w.reuses(p) {
			continue // it may be about to be collected
		}
		there, err := k.stored(ctx, PackKey(w.ThreadKey, p), p)
		if err != nil || there {
			return PackGrant{Pack: p, Present: there}, err
		}
	}
	p.Fence = w.step.Fence
	return PackGrant{Pack: p}, nil
}

// stored reports whether an object is there, with the content that p says.
func (k *Keeper) stored(ctx context.Context, key string, p PackRef) (bool, error) {
	info, err := k.Objects.Stat(ctx, key)
	switch {
	case errors.Is(err, ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case info.SHA256 != p.SHA256 || p.Size != 0 && info.Size != p.Size:
		return false, invalid("invalid-pack", "pack %d-%s: want %d bytes of that SHA-256, stored are %d of %s", p.Fence, p.SHA256, p.Size, info.Size, info.SHA256)
	}
	return true, nil
}

// Has tells an agent which packs it may name without storing them.
func (k *Keeper) Has(ctx context.Context, token string, packs []PackRef) ([]bool, error) {
	w, err := k.capturing(ctx, token, packs)
	if err != nil {
		return nil, err
	}
	listed, err := k.listed(ctx, w)
	if err != nil {
		return nil, err
	}
	out := make([]bool, len(packs))
	err = each(len(packs), k.width(), func(i int) (err error) {
		p := packs[i]
		if p.Fence == 0 {
			p.Fence = w.step.Fence
		}
		if _, out[i] = listed[nameOf(p)]; out[i] || !w.reuses(p) {
			return nil
		}
		out[i], err = k.stored(ctx, PackKey(w.ThreadKey, PackRef{Fence: p.Fence, SHA256: p.SHA256}), p)
		return err
	})
	return out, err
}

// reuses reports whether a pack of the own thread that no checkpoint lists may be named:
// nobody collects those of its fence.
func (w working) reuses(p PackRef) bool { return p.Fence >= w.Floor && p.Fence <= w.step.Fence }

// packName tells packs apart.
type packName struct {
	fence  int64
	sha256 string
}

func nameOf(p PackRef) packName { return packName{p.Fence, p.SHA256} }

// listed are the packs of the checkpoint that the step goes out from.
func (k *Keeper) listed(ctx context.Context, w working) (map[packName]PackRef, error) {
	if w.step.Checkpoint == "" {
		return nil, nil
	}
	r, err := k.rootOf(ctx, w.ThreadKey, w.step.Checkpoint)
	if err != nil {
		return nil, err
	}
	return r.packs, nil
}

// Parent gives an agent the root that its step goes out from: the parent of a capture,
// what is to be restored. None is nil.
func (k *Keeper) Parent(ctx context.Context, token string) ([]byte, error) {
	w, err := k.authorize(ctx, token, false)
	if err == nil {
		_, err = k.note(ctx, w, w.step.Files, w.step.Bytes) // an agent begins with this
	}
	if err != nil || w.step.Checkpoint == "" {
		return nil, err
	}
	r, err := k.rootOf(ctx, w.ThreadKey, w.step.Checkpoint)
	return r.data, err
}

// Fetch gives an agent leave to read packs of that root.
func (k *Keeper) Fetch(ctx context.Context, token string, packs []PackRef) ([]Grant, error) {
	w, err := k.authorize(ctx, token, false)
	if err == nil {
		err = checkPacks(packs)
	}
	if err != nil {
		return nil, err
	}
	listed, err := k.listed(ctx, w)
	if err != nil {
		return nil, err
	}
	out := make([]Grant, len(packs))
	for i, p := range packs {
		known, ok := listed[nameOf(p)]
		if !ok {
			return nil, invalid("unknown-pack", "packs[%d]: want one that checkpoint %s lists", i, w.step.Checkpoint)
		}
		if out[i], err = k.Objects.GrantGet(ctx, PackKey(w.ThreadKey, known), "", GrantLife); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Renew says that an agent lives and how far it is.
func (k *Keeper) Renew(ctx context.Context, token string, files, bytes int64) (Millis, error) {
	w, err := k.authorize(ctx, token, false)
	if err != nil {
		return 0, err
	}
	if files < 0 || bytes < 0 {
		return 0, invalid("invalid-progress", "want counts of 0 or more, got %d and %d", files, bytes)
	}
	return k.note(ctx, w, files, bytes)
}

// note renews the lease of a step that is heard of.
func (k *Keeper) note(ctx context.Context, w working, files, bytes int64) (Millis, error) {
	return k.notes(ctx, w, NoteStep{Files: files, Bytes: bytes})
}

// StepMost is how long one beginning of a step may go on, however lively its agent is. What
// an agent says keeps the thread's lease, and so the end of its own sandbox and the thread's
// next run waiting; a sandbox that means harm must not do so for ever. It is far more than
// the largest disk of a Fargate task takes.
const StepMost = 6 * time.Hour

// notes renews the lease of a step that is heard of, with what it says.
func (k *Keeper) notes(ctx context.Context, w working, n NoteStep) (Millis, error) {
	n.Fence, n.Token, n.Now = w.step.Fence, w.step.Token, nowMillis()
	over := w.step.StartedAt.Add(StepMost)
	if n.Now >= over {
		return 0, ErrToken
	}
	n.Until = min(leaseUntil(n.Now), over)
	th, err := k.Threads.UpdateThread(ctx, w.ThreadKey, n)
	switch {
	case refusalOf(err) == "granted":
		return 0, invalid("too-large", "packs: want one step to store at most %d bytes", int64(MaxGranted))
	case Refused(err):
		return 0, ErrToken
	}
	return th.Lease.Until, err
}

// MaxStepWhy is how long the reason of a failed step may be, bytes.
const MaxStepWhy = 1000

// failCode is what a caller of a failed step branches on.
var failCode = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,63}$`)

// plainText is a text of a sandbox as people may be shown it: nothing in it moves a cursor
// or begins a line of its own.
func plainText(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

// Fail ends a step because its agent says so. Said again, it is success.
func (k *Keeper) Fail(ctx context.Context, token, code, message string) error {
	w, err := k.authorize(ctx, token, true)
	if err != nil {
		return err
	}
	if !failCode.MatchString(code) || !utf8.ValidString(message) {
		return invalid("invalid-code", "want a code of 1 to 64 lower-case letters, digits and hyphens, and a message in UTF-8")
	}
	switch w.step.State {
	case StepDone:
		return refuse("fail", "step "+string(w.step.ID), "done")
	case StepWorking:
		why := cutBytes(code+": "+plainText(strings.TrimPrefix(message, code+": ")), MaxStepWhy)
		end := EndStep{Fence: w.step.Fence, Token: w.step.Token, State: StepFailed, Why: why, Release: releases(w.Lease.Owner), Now: nowMillis()}
		if _, err := k.Threads.UpdateThread(ctx, w.ThreadKey, end); err != nil {
			return err
		}
		k.tell(ctx, w.ThreadKey, w.step, StepReport{State: StepFailed, Why: why})
	}
	return k.wake(ctx, w.step)
}

// cutBytes is text, or as much of it as takes at most n bytes.
func cutBytes(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// wake sends the message that waits for a step to end.
func (k *Keeper) wake(ctx context.Context, s Step) error {
	if s.Job == nil || k.Queue == nil {
		return nil
	}
	if err := k.Queue.Send(ctx, []ReclaimJob{*s.Job}); err != nil {
		return fmt.Errorf("wake reclaim of step %s: %w", s.ID, err)
	}
	return nil
}

// capturing finds the capture that a token speaks for, and checks what it names.
func (k *Keeper) capturing(ctx context.Context, token string, packs []PackRef) (working, error) {
	w, err := k.authorize(ctx, token, false)
	switch {
	case err != nil:
		return working{}, err
	case w.step.Kind != StepCapture:
		return working{}, refuse(string(w.step.Kind), "step "+string(w.step.ID), "no-capture")
	}
	return w, checkPacks(packs)
}

func checkPacks(packs []PackRef) error {
	if n := len(packs); n == 0 || n > MaxPacksAsked {
		return invalid("invalid-pack", "packs: want 1 to %d, got %d", MaxPacksAsked, n)
	}
	for i, p := range packs {
		if !isSHA256(p.SHA256) || p.Fence < 0 {
			return invalid("invalid-pack", "packs[%d]: want a fence of 0 or more and 64 lower-case hex digits, got %d and %.80q", i, p.Fence, p.SHA256)
		}
	}
	return nil
}

func isSHA256(text string) bool {
	sum, err := hex.DecodeString(text)
	return err == nil && len(sum) == sha256.Size && hex.EncodeToString(sum) == text
}

// each calls do for 0 to n-1, width of them at a time, and returns the first error by
// index. One at a time they are called in order, up to the first error.
func each(n, width int, do func(i int) error) error {
	if width == 1 {
		for i := range n {
			if err := do(i); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, n)
	slots := make(chan struct{}, width)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(i)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
