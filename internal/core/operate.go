package core

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"time"
)

// SetHold keeps a run's sandbox from expiry and reclaim until a time, or takes
// that back.
type SetHold struct {
	Hold Hold
	Was  *Hold // as read; nil: whatever it is
}

// Name is "hold".
func (SetHold) Name() string { return "hold" }

// Apply: the run has not been reclaimed, or its sandbox is kept warm; the hold as
// read, if it was.
func (t SetHold) Apply(r Run) (Run, error) {
	if why := failing(
		check{holdable(r), "reclaimed"},
		check{t.Was == nil || r.Hold == *t.Was, "hold"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.Hold = t.Hold
	return r, nil
}

// holdable reports whether a hold of the run can be written: not once it has been reclaimed.
func holdable(r Run) bool {
	return !r.Status.Terminal() || r.Row != RowNone || r.ReclaimOutcome == ReclaimIdled
}

// Landed: the hold is mine.
func (t SetHold) Landed(r Run) bool { return r.Hold == t.Hold }

// SetTTL changes how long a run may stay detached. An expiry's claim carries the TTL
// as it read it, so an extension and an expiry never both succeed (I8).
type SetTTL struct {
	Seconds int64
	Was     *int64 // as read; nil: whatever it is
}

// Name is "extend".
func (SetTTL) Name() string { return "extend" }

// Apply: running, not ending; the TTL as read, if it was. A pause has a time of its own.
func (t SetTTL) Apply(r Run) (Run, error) {
	if why := failing(
		check{r.Status == Running, "not-running"},
		check{r.Ending == nil, "ending"},
		check{t.Was == nil || r.TTLSeconds == *t.Was, "ttl"},
	); why != "" {
		return refusal(t, r, why)
	}
	r.TTLSeconds = t.Seconds
	return r, nil
}

// Landed: the TTL is mine, and in time. From one that was read, another may have come to the
// same: rather than lose an extension, one whose answer was lost is made twice.
func (t SetTTL) Landed(r Run) bool {
	return t.Was == nil && r.TTLSeconds == t.Seconds && r.Status == Running && r.Ending == nil
}

// AuditEntry is what an operator did, to what, and why. Entries are appended only.
type AuditEntry struct {
	At      Millis
	By, Why string
	Op      string // hold, release, extend, kill, freeze, thaw, mode
	Subject string // "tenant/run", or the installation
	Detail  string
}

// AuditLog keeps who did what and why.
type AuditLog interface {
	// Record appends an entry.
	Record(ctx context.Context, e AuditEntry) error
}

// MaxHold is the longest hold: no longer than a log outlives what retention counts.
const MaxHold = 30 * 24 * time.Hour

// ErrTooLate tells that a sandbox is being reclaimed already, or has gone on to a newer run.
var ErrTooLate = errors.New("too late: its sandbox is being reclaimed, or serves a newer run")

// Operator is the use case of the operator's own commands. Each is recorded with
// who and why before it is done; what is about a run that does not exist is refused before.
type Operator struct {
	Runs      Runs
	Sandboxes Sandboxes
	Ledger    Ledger
	Due       SandboxIndex
	Controls  ControlWriter
	Audit     AuditLog
	Queue     ReclaimQueue
	Limits    Limits
}

// By is who acts, and why. Both are asked for.
type By struct{ Who, Why string }

func (o *Operator) record(ctx context.Context, by By, op, subject, detail string) error {
	if by.Who == "" || by.Why == "" {
		return fmt.Errorf("%s %s: want who does it and why, got %q and %q", op, subject, by.Who, by.Why)
	}
	return o.Audit.Record(ctx, AuditEntry{
		At: nowMillis(), By: by.Who, Why: by.Why, Op: op, Subject: subject, Detail: detail,
	})
}

// recordOf reads a run and records what is about to be done to it. Of one that nobody began
// nothing is recorded: the entry would tell of an act that could not be.
func (o *Operator) recordOf(ctx context.Context, by By, op string, key RunKey, detail string) (Run, error) {
	r, err := o.Runs.Run(ctx, key)
	if err != nil {
		return Run{}, fmt.Errorf("%s run %s: %w", op, key, err)
	}
	return r, o.record(ctx, by, op, key.String(), detail)
}

// Hold writes the hold and then reads the mark and the ledger row, where the
// destroyer marks and then reads the hold (I13): of the two, at least one sees the
// other. Where the sandbox's end has begun, or a newer run has it, whose own hold counts from
// then on, it answers ErrTooLate and takes the hold back: what it replaced was promised to
// somebody, and stands again.
func (o *Operator) Hold(ctx context.Context, key RunKey, until Millis, by By) error {
	if now := nowMillis(); until <= now || until > now.Add(MaxHold) {
		return fmt.Errorf("hold run %s: until: want a time to come within %s, got %s", key, MaxHold, until.Time().Format(time.RFC3339))
	}
	r, err := o.recordOf(ctx, by, "hold", key, until.Time().Format(time.RFC3339))
	if err != nil {
		return err
	}
	mine := Hold{Until: until, By: by.Who, Why: by.Why, ID: rand.Text()}
	r, former, err := o.replaceHold(ctx, r, mine)
	if err != nil {
		return fmt.Errorf("hold run %s: %w", key, err)
	}
	late, err := o.reclaiming(ctx, r)
	if err != nil {
		return fmt.Errorf("hold run %s: it is written, and whether in time is not known: %w", key, err)
	}
	if !late {
		return nil
	}
	_, err = o.Runs.Update(ctx, key, SetHold{Hold: former, Was: &mine})
	return fmt.Errorf("hold run %s: %w", key, errors.Join(ErrTooLate, ignoreRefused(err)))
}

// replaceHold writes a hold of r, as it was read, and returns the one that it replaced.
func (o *Operator) replaceHold(ctx context.Context, r Run, mine Hold) (after Run, former Hold, err error) {
	var moved error
	for range rowTries {
		after, err = o.Runs.Update(ctx, r.RunKey, SetHold{Hold: mine, Was: &r.Hold})
		if refusalOf(err) != "hold" {
			return after, r.Hold, err
		}
		moved = err
		if r, err = o.Runs.Run(ctx, r.RunKey); err != nil {
			return Run{}, Hold{}, err
		}
	}
	return Run{}, Hold{}, moved
}

// reclaiming reads the record, with its mark and whom it serves, and then the ledger row of
// a run's sandbox. In that order: a condemnation takes the record with its mark away and
// leaves the row, so that the other order could meet neither.
func (o *Operator) reclaiming(ctx context.Context, r Run) (bool, error) {
	if r.Instance == "" {
		return false, nil
	}
	box, err := o.Sandboxes.Sandbox(ctx, r.SandboxKey)
	switch {
	case err == nil && box.Instance == r.Instance && r.Status.Terminal() && box.LatestRun != r.RunKey.Run:
		return true, nil
	case err == nil && box.Instance == r.Instance && box.Reclaiming != "":
		return true, nil
	case err != nil && !isNotFound(err):
		return false, err
	}
	row, err := o.Ledger.Row(ctx, r.Instance)
	if err != nil {
		return false, ignoreNotFound(err)
	}
	return row.State == LedgerStopping || row.State == LedgerClosed, nil
}

// Release takes a hold back. A sandbox whose end it held up is announced to reclaim
// at once; should the message be lost, the mark is due when the hold would have ended.
func (o *Operator) Release(ctx context.Context, key RunKey, by By) error {
	if _, err := o.recordOf(ctx, by, "release", key, ""); err != nil {
		return err
	}
	r, err := o.Runs.Update(ctx, key, SetHold{})
	if err != nil {
		return fmt.Errorf("release run %s: %w", key, err)
	}
	jobs, err := o.heldUp(ctx, r)
	if err == nil && len(jobs) > 0 {
		err = o.Queue.Send(ctx, jobs)
	}
	if err != nil {
		return fmt.Errorf("release run %s: %w", key, err)
	}
	return nil
}

// heldUp is what a hold of r kept from happening: its sandbox's end, or that of the
// idle sandbox whose latest run it is. The idle row is made due again.
func (o *Operator) heldUp(ctx context.Context, r Run) ([]ReclaimJob, error) {
	if !r.Status.Terminal() {
		return nil, nil
	}
	if r.Row == RowReclaim {
		return []ReclaimJob{jobOf(r)}, nil
	}
	box, err := o.Sandboxes.Sandbox(ctx, r.SandboxKey)
	if isNotFound(err) || err == nil && (box.DueAt == 0 || box.LatestRun != r.RunKey.Run || box.Reclaiming != "") {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	now, by := nowMillis(), rand.Text()
	spent := box.IdleSince.Add(seconds(r.IdleSeconds, o.Limits.IdleTTL))
	if box.DueAt <= spent {
		return nil, nil // it was never held up
	}
	mark := MarkReclaiming{Instance: box.Instance, LatestRun: box.LatestRun, By: by, Idle: true, Now: now}
	if _, err := o.Sandboxes.UpdateSandbox(ctx, box.Key, mark); err != nil {
		return nil, ignoreRefused(err)
	}
	if _, err := o.Sandboxes.UpdateSandbox(ctx, box.Key, Unmark{Instance: box.Instance, By: by, DueAt: max(now, spent), Now: now}); err != nil {
		return nil, ignoreRefused(err)
	}
	return []ReclaimJob{{Tenant: r.Tenant, Key: box.Key, Instance: box.Instance, Kind: JobDue}}, nil
}

// Extend gives a run that many seconds from its detach.
func (o *Operator) Extend(ctx context.Context, key RunKey, seconds int64, by By) error {
	if seconds <= 0 {
		return fmt.Errorf("extend run %s: ttl: want seconds from 1 on, got %d", key, seconds)
	}
	if _, err := o.recordOf(ctx, by, "extend", key, fmt.Sprintf("%d s", seconds)); err != nil {
		return err
	}
	if _, err := o.Runs.Update(ctx, key, SetTTL{Seconds: seconds}); err != nil {
		return fmt.Errorf("extend run %s: %w", key, err)
	}
	return nil
}

// ExtendBy gives a run that much longer than it has, whoever else extends it meanwhile.
func (o *Operator) ExtendBy(ctx context.Context, key RunKey, by time.Duration, who By) error {
	if by < time.Second {
		return fmt.Errorf("extend run %s: by: want a second at least, got %s", key, by)
	}
	r, err := o.recordOf(ctx, who, "extend", key, "by "+by.String())
	if err != nil {
		return err
	}
	if err := o.lengthen(ctx, r, by); err != nil {
		return fmt.Errorf("extend run %s: %w", key, err)
	}
	return nil
}

// lengthen adds to the time of r, as it was read.
func (o *Operator) lengthen(ctx context.Context, r Run, by time.Duration) error {
	var moved error
	for range rowTries {
		total := seconds(r.TTLSeconds, cmp.Or(o.Limits.RunTTL, DefaultLimits.RunTTL)) + by
		if total < by { // beyond what a duration holds
			total = math.MaxInt64
		}
		_, err := o.Runs.Update(ctx, r.RunKey, SetTTL{Seconds: int64(total / time.Second), Was: new(r.TTLSeconds)})
		if refusalOf(err) != "ttl" {
			return err
		}
		moved = err
		if r, err = o.Runs.Run(ctx, r.RunKey); err != nil {
			return err
		}
	}
	return moved
}

// ExtendSpend lets a run cost that much in all, from its start on.
func (o *Operator) ExtendSpend(ctx context.Context, key RunKey, most Dollars, by By) error {
	if most <= 0 || most > MostDollars {
		return fmt.Errorf("extend run %s: spend cap: want dollars above 0, up to %.0f, got %g", key, MostDollars.USD(), most.USD())
	}
	if _, err := o.recordOf(ctx, by, "extend", key, "spend cap "+most.String()); err != nil {
		return err
	}
	if _, err := o.Runs.Update(ctx, key, SetSpendCap{Cap: most}); err != nil {
		return fmt.Errorf("extend run %s: %w", key, err)
	}
	return nil
}

// Kill records the wish that a run end; its host or the next sweep ends it.
func (o *Operator) Kill(ctx context.Context, key RunKey, by By) error {
	r, err := o.recordOf(ctx, by, "kill", key, "")
	if err != nil {
		return err
	}
	if _, err := requestCancel(ctx, o.Runs, r); err != nil {
		return fmt.Errorf("kill run %s: %w", key, err)
	}
	return nil
}

// rowTries bounds how often a record is read again that moved under a write.
const rowTries = 5

// RequestCancelOf records a cancel, reading the row again where it moved.
func RequestCancelOf(ctx context.Context, runs Runs, key RunKey) (Run, error) {
	r, err := runs.Run(ctx, key)
	if err != nil {
		return Run{}, err
	}
	return requestCancel(ctx, runs, r)
}

// requestCancel is RequestCancelOf of a run that was read.
func requestCancel(ctx context.Context, runs Runs, r Run) (Run, error) {
	var moved error
	for range rowTries {
		after, err := runs.Update(ctx, r.RunKey, RequestCancel{Now: nowMillis(), Row: r.Row})
		if refusalOf(err) != "row" {
			return after, err
		}
		moved = err
		if r, err = runs.Run(ctx, r.RunKey); err != nil {
			return Run{}, err
		}
	}
	return Run{}, moved
}

// Freeze stops all stopping and answers with the tasks whose end is under way still;
// it is complete one reclaim timeout later.
func (o *Operator) Freeze(ctx context.Context, by By) ([]LedgerRow, error) {
	if err := o.record(ctx, by, "freeze", "installation", ""); err != nil {
		return nil, err
	}
	if _, err := o.Controls.UpdateControl(ctx, Freeze{Now: nowMillis(), By: by.Who, Why: by.Why}); err != nil {
		return nil, fmt.Errorf("freeze: %w", err)
	}
	return o.stopping(ctx)
}

// farAhead lists every open row, whenever it is due.
const farAhead = Millis(1) << 52

func (o *Operator) stopping(ctx context.Context) ([]LedgerRow, error) {
	var rows []LedgerRow
	for shard := range Shards {
		due, err := o.Due.DueSandboxes(ctx, shard, farAhead)
		if err != nil {
			return nil, fmt.Errorf("list what is stopping: %w", err)
		}
		for _, d := range due {
			if d.Instance == "" {
				continue
			}
			row, err := o.Ledger.Row(ctx, d.Instance)
			if err != nil && !isNotFound(err) {
				return nil, fmt.Errorf("list what is stopping: %w", err)
			}
			if err == nil && row.State == LedgerStopping {
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}

// Thaw takes a freeze back and resets the breaker, which counts again a window later.
func (o *Operator) Thaw(ctx context.Context, by By) error {
	quiet := nowMillis().Add(cmp.Or(o.Limits.BreakerWindow, DefaultLimits.BreakerWindow))
	return o.control(ctx, by, "thaw", Thaw{QuietUntil: quiet}, "")
}

// SetMode makes the installation observe or enforce.
func (o *Operator) SetMode(ctx context.Context, mode Mode, by By) error {
	return o.control(ctx, by, "mode", SetMode{Mode: mode}, string(mode))
}

func (o *Operator) control(ctx context.Context, by By, op string, t ControlTransition, detail string) error {
	if err := o.record(ctx, by, op, "installation", detail); err != nil {
		return err
	}
	if _, err := o.Controls.UpdateControl(ctx, t); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}
