package sim

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/mem"
)

// skewed is a process whose clock is ahead by a while, negative for behind. A bubble
// has one clock; so what the process reads is moved back by that much, and what it
// writes is moved on: to the process the records are as old as they would look to a
// clock that goes wrong, and to everybody else its times are wrong.
type skewed struct {
	*mem.Process
	by      time.Duration
	retries bool // a write that failed is sent once more, as SDKs do; others may act in between
}

var millis = reflect.TypeFor[core.Millis]()

// moved returns v with every time in it moved by d. Unset times stay unset.
func moved[T any](v T, d time.Duration) T {
	if d == 0 {
		return v
	}
	out := reflect.New(reflect.TypeFor[T]()).Elem()
	out.Set(reflect.ValueOf(&v).Elem())
	move(out, d)
	return out.Interface().(T)
}

// move moves the times in v, which can be set, in place; what v points to is copied.
func move(v reflect.Value, d time.Duration) {
	switch v.Kind() {
	case reflect.Int64:
		if v.Type() == millis && v.Int() != 0 {
			v.SetInt(v.Int() + d.Milliseconds())
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			move(field, d)
		}
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return
		}
		inner := v.Elem()
		fresh := reflect.New(inner.Type())
		fresh.Elem().Set(inner)
		move(fresh.Elem(), d)
		if v.Kind() == reflect.Pointer {
			v.Set(fresh)
		} else {
			v.Set(fresh.Elem())
		}
	case reflect.Slice:
		moveAll(v, d)
	}
}

func moveAll(v reflect.Value, d time.Duration) {
	if k := v.Type().Elem().Kind(); v.IsNil() || k != reflect.Struct && k != reflect.Pointer {
		return
	}
	fresh := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
	reflect.Copy(fresh, v)
	for i := range fresh.Len() {
		move(fresh.Index(i), d)
	}
	v.Set(fresh)
}

// sent carries out a write, and once more if the process was told that it failed.
func sent[T any](s skewed, write func() (T, error)) (T, error) {
	out, err := write()
	if s.retries && errors.Is(err, mem.ErrInjected) {
		out, err = write()
	}
	return moved(out, -s.by), err
}

// back returns an answer as the process's clock lets it look.
func back[T any](s skewed, v T, err error) (T, error) { return moved(v, -s.by), err }

func (s skewed) Run(ctx context.Context, key core.RunKey) (core.Run, error) {
	r, err := s.Process.Run(ctx, key)
	return back(s, r, err)
}

func (s skewed) Create(ctx context.Context, r core.Run) (core.Run, error) {
	return sent(s, func() (core.Run, error) { return s.Process.Create(ctx, moved(r, s.by)) })
}

func (s skewed) Update(ctx context.Context, key core.RunKey, t core.Transition) (core.Run, error) {
	return sent(s, func() (core.Run, error) { return s.Process.Update(ctx, key, moved(t, s.by)) })
}

func (s skewed) Append(ctx context.Context, key core.RunKey, a core.Append, segment core.Segment) (core.Run, error) {
	return sent(s, func() (core.Run, error) { return s.Process.Append(ctx, key, moved(a, s.by), segment) })
}

func (s skewed) Detached(ctx context.Context, shard int) ([]core.IndexEntry, error) {
	out, err := s.Process.Detached(ctx, shard)
	return back(s, out, err)
}

func (s skewed) Due(ctx context.Context, shard int, until core.Millis) ([]core.IndexEntry, error) {
	out, err := s.Process.Due(ctx, shard, until.Add(s.by))
	return back(s, out, err)
}

func (s skewed) Load(ctx context.Context, keys []core.RunKey) ([]core.Run, []core.Unreadable, error) {
	out, bad, err := s.Process.Load(ctx, keys)
	return moved(out, -s.by), bad, err
}

func (s skewed) DueSandboxes(ctx context.Context, shard int, until core.Millis) ([]core.DueSandbox, error) {
	out, err := s.Process.DueSandboxes(ctx, shard, until.Add(s.by))
	return back(s, out, err)
}

func (s skewed) Sandbox(ctx context.Context, key core.SandboxKey) (core.Sandbox, error) {
	box, err := s.Process.Sandbox(ctx, key)
	return back(s, box, err)
}

func (s skewed) UpdateSandbox(ctx context.Context, key core.SandboxKey, t core.SandboxTransition) (core.Sandbox, error) {
	return sent(s, func() (core.Sandbox, error) { return s.Process.UpdateSandbox(ctx, key, moved(t, s.by)) })
}

func (s skewed) Row(ctx context.Context, id core.InstanceID) (core.LedgerRow, error) {
	row, err := s.Process.Row(ctx, id)
	return back(s, row, err)
}

func (s skewed) PutIntent(ctx context.Context, row core.LedgerRow) (core.LedgerRow, error) {
	return sent(s, func() (core.LedgerRow, error) { return s.Process.PutIntent(ctx, moved(row, s.by)) })
}

func (s skewed) UpdateRow(ctx context.Context, id core.InstanceID, t core.LedgerTransition) (core.LedgerRow, error) {
	return sent(s, func() (core.LedgerRow, error) { return s.Process.UpdateRow(ctx, id, moved(t, s.by)) })
}

func (s skewed) Launch(ctx context.Context, t core.Launched) error {
	_, err := sent(s, func() (struct{}, error) { return struct{}{}, s.Process.Launch(ctx, moved(t, s.by)) })
	return err
}

func (s skewed) Condemn(ctx context.Context, t core.Condemn) error {
	_, err := sent(s, func() (struct{}, error) { return struct{}{}, s.Process.Condemn(ctx, moved(t, s.by)) })
	return err
}

func (s skewed) MoveDebt(ctx context.Context, t core.MoveDebt) error {
	_, err := sent(s, func() (struct{}, error) { return struct{}{}, s.Process.MoveDebt(ctx, moved(t, s.by)) })
	return err
}

func (s skewed) Thread(ctx context.Context, key core.ThreadKey) (core.Thread, error) {
	th, err := s.Process.Thread(ctx, key)
	return back(s, th, err)
}

func (s skewed) UpdateThread(ctx context.Context, key core.ThreadKey, t core.ThreadTransition) (core.Thread, error) {
	return sent(s, func() (core.Thread, error) { return s.Process.UpdateThread(ctx, key, moved(t, s.by)) })
}

func (s skewed) FindCheckpoint(ctx context.Context, tenant core.TenantID, id core.CheckpointID) (core.Checkpoint, error) {
	c, err := s.Process.FindCheckpoint(ctx, tenant, id)
	return back(s, c, err)
}

func (s skewed) Checkpoints(ctx context.Context, key core.ThreadKey) ([]core.Checkpoint, error) {
	all, err := s.Process.Checkpoints(ctx, key)
	return back(s, all, err)
}

func (s skewed) Commit(ctx context.Context, t core.Commit) error {
	return s.transact(func() error { return s.Process.Commit(ctx, moved(t, s.by)) })
}

func (s skewed) DeleteHead(ctx context.Context, t core.DeleteHead) error {
	return s.transact(func() error { return s.Process.DeleteHead(ctx, moved(t, s.by)) })
}

func (s skewed) Trim(ctx context.Context, t core.Trim) error {
	return s.transact(func() error { return s.Process.Trim(ctx, moved(t, s.by)) })
}

func (s skewed) Fork(ctx context.Context, t core.Fork) error {
	return s.transact(func() error { return s.Process.Fork(ctx, moved(t, s.by)) })
}

func (s skewed) Unpin(ctx context.Context, t core.Unpin) error {
	return s.transact(func() error { return s.Process.Unpin(ctx, moved(t, s.by)) })
}

func (s skewed) Objects(ctx context.Context, prefix string) ([]core.ObjectInfo, error) {
	all, err := s.Process.Objects(ctx, prefix)
	return back(s, all, err)
}

func (s skewed) Pieces(ctx context.Context, key core.RunKey, from int64) ([]core.SpoolPiece, bool, error) {
	pieces, more, err := s.Process.Pieces(ctx, key, from)
	return moved(pieces, -s.by), more, err
}

func (s skewed) PutArtifact(ctx context.Context, t core.PutArtifact) error {
	return s.transact(func() error { return s.Process.PutArtifact(ctx, moved(t, s.by)) })
}

func (s skewed) Resume(ctx context.Context, t core.Resumed) error {
	return s.transact(func() error { return s.Process.Resume(ctx, moved(t, s.by)) })
}

func (s skewed) Continue(ctx context.Context, t core.Continued) error {
	return s.transact(func() error { return s.Process.Continue(ctx, moved(t, s.by)) })
}

// transact carries out a transaction, and once more as sent does.
func (s skewed) transact(do func() error) error {
	_, err := sent(s, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (s skewed) Checkpoint(ctx context.Context, key core.ThreadKey, id core.CheckpointID) (core.Checkpoint, error) {
	c, err := s.Process.Checkpoint(ctx, key, id)
	return back(s, c, err)
}

func (s skewed) Control(ctx context.Context) (core.Control, error) {
	c, err := s.Process.Control(ctx)
	return back(s, c, err)
}

func (s skewed) UpdateControl(ctx context.Context, t core.ControlTransition) (core.Control, error) {
	return sent(s, func() (core.Control, error) { return s.Process.UpdateControl(ctx, moved(t, s.by)) })
}

func (s skewed) Note(ctx context.Context, key core.RunKey) (core.Note, error) {
	n, err := s.Process.Note(ctx, key)
	return back(s, n, err)
}

func (s skewed) PutNote(ctx context.Context, key core.RunKey, n core.Note) error {
	return s.Process.PutNote(ctx, key, moved(n, s.by))
}

func (s skewed) MarkWarned(ctx context.Context, key core.RunKey, was, end core.Millis) error {
	return s.Process.MarkWarned(ctx, key, moved(was, s.by), moved(end, s.by))
}

func (s skewed) Spent(ctx context.Context, tenants []core.TenantID, now core.Millis) (map[core.TenantID]core.Spending, error) {
	return s.Process.Spent(ctx, tenants, now.Add(s.by))
}

func (s skewed) Cursor(ctx context.Context, shard int) (core.Cursor, error) {
	c, err := s.Process.Cursor(ctx, shard)
	return back(s, c, err)
}

func (s skewed) MoveCursor(ctx context.Context, old, next core.Cursor) error {
	return s.Process.MoveCursor(ctx, moved(old, s.by), moved(next, s.by))
}

func (s skewed) Take(ctx context.Context, minute core.Millis, want, most int) (int, error) {
	return s.Process.Take(ctx, minute.Add(s.by), want, most)
}
