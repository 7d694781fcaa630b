package core

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Collect counts, or removes, the objects of a thread that nothing needs any more.
//
// It removes under the writer lease, but what keeps it safe when it sleeps past that is
// the floor: before anything is read the thread says that objects of older fences are
// being collected, and from then on no writer takes such an object for its own unless a
// checkpoint lists it. What is removed is older than the floor, was stored before the
// listing, and is named by nothing that was read after it.
func (k *Keeper) Collect(ctx context.Context, q CollectRequest) (report CollectReport, err error) {
	if err := checkThread(q.ThreadKey); err != nil {
		return CollectReport{}, err
	}
	if q.Most < 0 {
		return CollectReport{}, invalid("invalid-most", "want 0 or more, got %d", q.Most)
	}
	if !q.Apply {
		return k.planCollection(ctx, q)
	}
	// An installation that observes writes nothing, not even a lease.
	if why, err := k.settings(ctx, ofRetention); why != "" || err != nil {
		if err == nil {
			report, err = k.planCollection(ctx, q)
		}
		report.Withheld = why
		return report, err
	}
	err = k.under(ctx, q.ThreadKey, OwnerCollect+rand.Text(), func(w Writer) error {
		c := &collection{k: k, writer: w, most: q.Most}
		err := c.apply(ctx)
		report = c.report
		return err
	})
	return report, err
}

// planCollection counts what a collection would remove.
func (k *Keeper) planCollection(ctx context.Context, q CollectRequest) (CollectReport, error) {
	th, err := k.Threads.Thread(ctx, q.ThreadKey)
	if err != nil {
		return CollectReport{}, err
	}
	c := &collection{k: k, writer: Writer{ThreadKey: q.ThreadKey, Fence: th.Fence + 1}, most: q.Most}
	err = c.plan(ctx)
	return c.report, err
}

// collection is one under way.
type collection struct {
	k      *Keeper
	writer Writer
	most   int
	young  bool // removes what is young too: the thread is being deleted
	// forgotten plans as if the thread had no records but pins on it.
	forgotten bool
	newest    Millis // when an object was stored last
	thread    Thread
	needed    map[string]bool   // keys
	owners    map[ThreadID]bool // other threads of which something is needed
	garbage   []ObjectInfo
	holds     *watch
	permitted Millis // when that was read last
	report    CollectReport
}

func (c *collection) apply(ctx context.Context) error {
	if c.holds == nil {
		c.holds = c.k.watch(c.writer)
	}
	raise := RaiseFloor{Owner: c.writer.Owner, Fence: c.writer.Fence, Now: nowMillis()}
	if _, err := c.k.Threads.UpdateThread(ctx, c.writer.ThreadKey, raise); err != nil {
		return err
	}
	if err := c.plan(ctx); err != nil {
		return err
	}
	if len(c.garbage) == 0 && !c.unpins() {
		return nil // and nobody's holds are read
	}
	if err := c.permit(ctx); err != nil || c.report.Withheld != "" {
		return err
	}
	if err := c.unpin(ctx); err != nil {
		return err
	}
	return c.remove(ctx)
}

// remove removes the garbage. A freeze is heard between one object and the next, a hold
// at the latest when the lease is renewed.
func (c *collection) remove(ctx context.Context) (err error) {
	for _, o := range c.garbage {
		if err := c.keepUp(ctx); err != nil || c.report.Withheld != "" {
			return err
		}
		if c.report.Withheld, err = c.k.settings(ctx, ofRetention); err != nil || c.report.Withheld != "" {
			return err
		}
		if err := c.k.Objects.Delete(ctx, o.Key, o.Version); err != nil {
			return fmt.Errorf("collect thread %s: %w", c.writer.ThreadKey, err)
		}
		c.report.Deleted++
	}
	return nil
}

// keepUp renews the lease, and reads the holds again, when it is time. The time from one
// reading to the next begins at its end: one that takes long leaves time to remove.
func (c *collection) keepUp(ctx context.Context) error {
	if err := c.holds.keepUp(ctx); err != nil || nowMillis().Sub(c.permitted) < LeaseRenew {
		return err
	}
	return c.permit(ctx)
}

// permit reads whether anything may be removed, after the lease and the floor are written.
func (c *collection) permit(ctx context.Context) (err error) {
	c.report.Withheld, err = c.holds.withheld(ctx, ofRetention)
	c.permitted = nowMillis()
	return err
}

// unpins reports whether there are threads to let go of.
func (c *collection) unpins() bool {
	return c.thread.Fork != nil && slices.ContainsFunc(c.thread.Fork.Owners, func(o ThreadID) bool { return !c.owners[o] })
}

// plan lists the objects, then reads what names them: an object that is named after the
// listing was named when it was read, or is of a newer fence.
func (c *collection) plan(ctx context.Context) error {
	objects, err := c.k.Objects.Objects(ctx, ThreadPrefix(c.writer.ThreadKey))
	if err != nil {
		return fmt.Errorf("collect thread %s: %w", c.writer.ThreadKey, err)
	}
	if err := c.roots(ctx); err != nil {
		return fmt.Errorf("collect thread %s: %w", c.writer.ThreadKey, err)
	}
	now := nowMillis()
	seen := map[string]bool{}
	for _, o := range objects {
		seen[o.Key] = true
		c.report.Objects++
		c.report.Bytes += o.Size
		c.newest = max(c.newest, o.ModifiedAt)
		switch {
		case c.needed[o.Key]:
			c.report.Needed++
		case !c.spent(o.Key):
		case now.Sub(o.ModifiedAt) < CollectAge && !c.young:
			c.report.Young++
		case c.most > 0 && len(c.garbage) == c.most:
			c.report.More = true
		default:
			c.garbage = append(c.garbage, o)
			c.report.Reclaimed += o.Size
		}
	}
	c.report.Garbage = len(c.garbage)
	return c.missing(ctx, seen)
}

// missing counts what is needed and was not listed: something is broken, unless it was
// stored since.
func (c *collection) missing(ctx context.Context, seen map[string]bool) error {
	for key := range c.needed {
		if seen[key] || !strings.HasPrefix(key, ThreadPrefix(c.writer.ThreadKey)) {
			continue
		}
		_, err := c.k.Objects.Stat(ctx, key)
		if errors.Is(err, ErrNotFound) {
			c.report.Missing++
		} else if err != nil {
			return err
		}
	}
	return nil
}

// spent reports whether nobody can come to need an object that nothing names now: its
// fence is behind.
func (c *collection) spent(key string) bool {
	rest, _ := strings.CutPrefix(key, ThreadPrefix(c.writer.ThreadKey))
	kind, name, _ := strings.Cut(rest, "/")
	number, sum, _ := strings.Cut(name, "-")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || !isSHA256(sum) {
		return false // none of ours
	}
	return n < c.writer.Fence && slices.Contains([]string{packObjects, manifestObjects, artifactObjects, conversationObjects}, kind)
}

// roots reads everything that names objects. Checkpoints come before pins: a fork needs
// its source while it pins. Pins are read twice: of one that gives way to another, the
// first reading or the second sees either.
func (c *collection) roots(ctx context.Context) error {
	c.needed, c.owners = map[string]bool{}, map[ThreadID]bool{}
	if err := c.ofCheckpoints(ctx); err != nil {
		return err
	}
	for range 2 {
		pins, err := c.k.Threads.Pins(ctx, c.writer.ThreadKey)
		if err != nil {
			return err
		}
		for _, p := range pins {
			if err := c.needPinned(ctx, p); err != nil {
				return err
			}
		}
	}
	if c.forgotten {
		return nil
	}
	return c.ofThread(ctx)
}

// ofCheckpoints marks what the thread's checkpoints name.
func (c *collection) ofCheckpoints(ctx context.Context) error {
	if c.forgotten {
		return nil
	}
	checkpoints, err := c.k.Threads.Checkpoints(ctx, c.writer.ThreadKey)
	if err != nil {
		return err
	}
	for _, p := range checkpoints {
		if err := c.need(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// ofThread marks what the thread itself names.
func (c *collection) ofThread(ctx context.Context) error {
	artifacts, err := c.k.Threads.Artifacts(ctx, c.writer.ThreadKey)
	if err != nil {
		return err
	}
	for _, a := range artifacts {
		c.needed[a.Object.Key] = true
	}
	if c.thread, err = c.k.Threads.Thread(ctx, c.writer.ThreadKey); err != nil {
		return err
	}
	if c.thread.Conversation.Object.Key != "" {
		c.needKey(c.thread.Conversation.Object.Key)
	}
	if f := c.thread.Fork; f != nil && len(f.Owners) > 0 {
		c.needed[f.Manifest.Key] = true // other threads' pins read it
	}
	return nil
}

// need marks what a checkpoint of the thread names.
func (c *collection) need(ctx context.Context, p Checkpoint) error {
	c.needed[p.Manifest.Key] = true
	for _, key := range p.objects() {
		c.needKey(key)
	}
	r, err := c.k.root(ctx, p.Manifest)
	if err != nil {
		return err
	}
	for _, pack := range r.facts.Needed() {
		c.needKey(PackKey(c.writer.ThreadKey, pack))
		if pack.Owner != "" {
			c.owners[pack.Owner] = true
		}
	}
	return nil
}

func (c *collection) needKey(key string) {
	c.needed[key] = true
	if owner, ok := ownerOfKey(c.writer.Tenant, key); ok && owner != c.writer.Thread {
		c.owners[owner] = true
	}
}

// needPinned marks what a fork needs of the thread.
func (c *collection) needPinned(ctx context.Context, p Pin) error {
	for _, key := range p.Objects {
		c.needed[key] = true
	}
	r, err := c.k.root(ctx, p.Manifest)
	if err != nil {
		return err
	}
	for _, pack := range r.facts.Needed() {
		if pack.Owner == c.writer.Thread {
			c.needed[PackKey(p.By, pack)] = true
		}
	}
	return nil
}

// unpin lets go of threads of which nothing is needed any more.
func (c *collection) unpin(ctx context.Context) error {
	if c.thread.Fork == nil {
		return nil
	}
	for _, owner := range slices.Sorted(slices.Values(c.thread.Fork.Owners)) {
		if c.owners[owner] {
			continue
		}
		if err := c.k.Threads.Unpin(ctx, Unpin{Writer: c.writer, Now: nowMillis(), Owner: owner, Root: c.thread.Fork.Checkpoint}); err != nil {
			return err
		}
		c.report.Unpinned++
	}
	return nil
}

// ThreadKeys lists all threads that have objects, for the daily collection.
func (k *Keeper) ThreadKeys(ctx context.Context) ([]ThreadKey, error) {
	found := map[ThreadKey]bool{}
	tenants, err := k.Objects.Prefixes(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	for _, tenant := range tenants {
		id, ok := unescapeToken(strings.TrimSuffix(tenant, "/"))
		if !ok {
			continue // none of ours
		}
		threads, err := k.Objects.Prefixes(ctx, tenant+"threads/")
		if err != nil {
			return nil, fmt.Errorf("list threads of tenant %s: %w", id, err)
		}
		for _, prefix := range threads {
			token := strings.TrimSuffix(strings.TrimPrefix(prefix, tenant+"threads/"), "/")
			if thread, ok := unescapeToken(token); ok && id != "" && thread != "" {
				found[ThreadKey{TenantID(id), ThreadID(thread)}] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b ThreadKey) int { return strings.Compare(a.String(), b.String()) }), nil
}
