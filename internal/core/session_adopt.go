package core

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

// AdoptRequest takes over a task that a host started itself, and a run in it whose
// journal is kept as Sandkeeper's wrapper keeps it.
type AdoptRequest struct {
	RunKey
	Thread    ThreadID `json:"thread"`
	Host      string   `json:"host"`
	TaskARN   string   `json:"taskArn"`
	Cluster   string   `json:"cluster,omitempty"` // empty: the installation's
	Container string   `json:"container"`
	// Journal is the nonce with which the run's sentinel will be written.
	Journal string `json:"journal"`
	// JournalDir is the directory of the journal in the container, where that is neither the
	// usual one nor what the container's own environment says.
	JournalDir string `json:"journalDir,omitempty"`
	// Keep leaves the sandbox warm after a clean end.
	Keep       bool             `json:"keep,omitempty"`
	TTLSeconds int64            `json:"ttlSeconds,omitempty"`
	Checkpoint CheckpointPolicy `json:"checkpoint,omitempty"`
}

// adopted is what the material of an adopted sandbox names as its definition.
const adopted = "adopted"

func (q AdoptRequest) check() error {
	err := cmp.Or(checkRun(q.RunKey), checkThread(ThreadKey{q.Tenant, q.Thread}), checkHost(q.Host))
	switch {
	case err != nil:
		return err
	case q.TaskARN == "" || len(q.TaskARN) > maxText || q.Container == "" || len(q.Container) > maxText || len(q.Cluster) > maxText:
		return invalid("invalid-task", "want a task's ARN and a container, of 1 to %d bytes", maxText)
	case !journalNonce.MatchString(q.Journal):
		return invalid("invalid-journal", "want the journal's nonce, 16 to 128 hex digits, got %d bytes", len(q.Journal))
	case !validJournalDir(q.JournalDir):
		return invalid("invalid-journal", "journalDir: want a clean absolute path below the root, of at most %d printable bytes, got %.140q", maxText, q.JournalDir)
	case q.TTLSeconds < 0 || q.TTLSeconds > maxSeconds:
		return invalid("invalid-time", "ttlSeconds: want 0 to %d, got %d", maxSeconds, q.TTLSeconds)
	}
	if err := (Definition{Checkpoint: q.Checkpoint}).checkPolicy(); err != nil {
		return invalid("invalid-definition", "%v", err)
	}
	return nil
}

// validJournalDir reports whether a directory may hold journals; empty is the usual one.
func validJournalDir(dir string) bool {
	odd := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
	return dir == "" || path.IsAbs(dir) && path.Clean(dir) == dir && dir != "/" && len(dir) <= maxText && !strings.ContainsFunc(dir, odd)
}

// Adopt makes a run of a task that the host started itself: the record, attached; the
// ledger row; then the transaction of every launch. The task must live.
func (s *Session) Adopt(ctx context.Context, q AdoptRequest) (StartReport, error) {
	if err := q.check(); err != nil {
		return StartReport{}, err
	}
	q.Cluster = cmp.Or(q.Cluster, s.Cluster)
	if _, err := s.Places.Spoke(q.Cluster); err != nil {
		return StartReport{}, invalid("invalid-task", "%v", err)
	}
	st := &starting{q: StartRequest{RunKey: q.RunKey, Thread: q.Thread, Host: q.Host}}
	st.material = KeyMaterial{Provider: s.Provider, Definition: adopted, Tenant: q.Tenant, Thread: q.Thread, Run: q.Run}
	st.key = st.material.Key()
	if err := s.adoptRecord(ctx, st, q); err != nil {
		return StartReport{}, err
	}
	if st.run.TaskARN == "" {
		waiting, err := s.bindAdopted(ctx, st, q)
		if err != nil {
			waiting, err = outrun("adopt", q.Tenant, err)
		}
		if waiting != "" || err != nil {
			return st.report(Provisioning, waiting), lostClaim("adopt", q.RunKey, err)
		}
	}
	if st.run.TaskARN != q.TaskARN {
		return StartReport{}, refusedRun("adopt", q.RunKey, "another-task")
	}
	waiting, err := s.write(ctx, st)
	if waiting != "" || err != nil {
		return st.report(Provisioning, waiting), err
	}
	if _, err := s.price(ctx, st); err != nil {
		return StartReport{}, lostClaim("adopt", q.RunKey, err)
	}
	if st.run.Start.ReadyAt == 0 {
		start := st.run.Start
		start.Noted, start.Head, start.AskedAt, start.ReadyAt = true, st.thread.Head, nowMillis(), nowMillis()
		err := s.note(ctx, st, start)
		if refusalOf(err) == "start" { // another call of this host has gone on with it
			return st.report(Provisioning, "sandbox"), nil
		}
		if err != nil {
			return StartReport{}, lostClaim("adopt", q.RunKey, err)
		}
	}
	return st.report(Ready, ""), nil
}

// adoptRecord puts the run's record, or finds it as the host's own.
func (s *Session) adoptRecord(ctx context.Context, st *starting, q AdoptRequest) error {
	r, err := s.runs().Run(ctx, q.RunKey)
	switch {
	case err == nil:
		if err := s.own(st.q, r); err != nil {
			return err
		}
		st.run, err = s.runs().Update(ctx, q.RunKey, Renew{Epoch: r.Epoch, Until: nowMillis().Add(s.limits().Attachment)})
		return lostClaim("adopt", q.RunKey, err)
	case !isNotFound(err):
		return err
	}
	want := RunRequest{
		RunKey: q.RunKey, Thread: q.Thread, HostNonce: q.Host, Definition: adopted, TTLSeconds: q.TTLSeconds,
		Reclaim: ReclaimEnd, Checkpoint: cmp.Or(q.Checkpoint, s.Checkpoint),
	}
	if q.Keep {
		want.Reclaim = ReclaimIdle
	}
	record, err := s.Launcher.record(want)
	if err != nil {
		return err
	}
	record.Nonce, record.JournalDir = q.Journal, q.JournalDir
	if st.noted, err = s.noteRun(ctx, record); err != nil {
		return err
	}
	st.run, err = s.runs().Create(ctx, record)
	if refusalOf(err) == "terminal" {
		return refusedRun("adopt", q.RunKey, "terminal-run")
	}
	return err
}

// bindAdopted gives the task a ledger row and a record, as a launch does.
func (s *Session) bindAdopted(ctx context.Context, st *starting, q AdoptRequest) (waiting string, err error) {
	l := s.Launcher
	tasks, err := l.Describer.Describe(ctx, q.Cluster, []string{q.TaskARN})
	switch {
	case err != nil:
		return "", err
	case len(tasks) != 1 || tasks[0].Life == TaskUnknown:
		return "unreachable", nil
	case tasks[0].Life != TaskLives:
		return "", refusedRun("adopt", q.RunKey, "task-"+string(tasks[0].Life))
	case strings.HasPrefix(tasks[0].StartedBy, StartedBy(l.Install, "")):
		return "", refusedRun("adopt", q.RunKey, "task-taken") // whoever's it is
	case tasks[0].lacks(q.Container):
		return "", refuse("adopt", "run "+q.RunKey.String()+": "+noContainer(tasks[0], q.Container).Error(), invalidTask)
	}
	row, err := s.adoptRow(ctx, st, q)
	if err != nil {
		return "", err
	}
	now := nowMillis()
	box := Sandbox{
		Key: st.key, Material: st.material, Instance: row.Instance, TaskARN: q.TaskARN, Cluster: q.Cluster, Container: q.Container,
		LatestRun: q.Run, CreatedAt: now, UpdatedAt: now,
	}
	if err := l.Transactions.Launch(ctx, Launched{Run: q.RunKey, Epoch: st.run.Epoch, Sandbox: box, Now: now}); err != nil {
		return "", fmt.Errorf("adopt task %s: %w", q.TaskARN, err)
	}
	st.run, err = l.launched(ctx, st.run)
	return "", err
}

// adoptions is how often one task can be begun to be adopted and not be.
const adoptions = 32

// adoptedInstance names the nth attempt to adopt a task. It is the task's alone, so that its
// row is what two runs, of whichever tenants, contend for.
func adoptedInstance(arn string, n int) InstanceID {
	sum := sha256.Sum256(fmt.Appendf(nil, "sandkeeper/adopt/v1:%d:%s", n, arn))
	return InstanceID(base32.StdEncoding.EncodeToString(sum[:16])[:26])
}

// adoptRow is the ledger row of an adoption, the first of the task's that is not spent: one
// that this run has put before is as good as new, for no task is asked for under it.
func (s *Session) adoptRow(ctx context.Context, st *starting, q AdoptRequest) (LedgerRow, error) {
	for n := range adoptions {
		id := adoptedInstance(q.TaskARN, n)
		row, err := s.Launcher.Ledger.Row(ctx, id)
		if isNotFound(err) {
			row, err = s.putAdopted(ctx, st, q, id)
		}
		switch {
		case err != nil:
			return LedgerRow{}, err
		case row.State == LedgerClosed:
			continue
		case row.Tenant != q.Tenant || row.Run != q.Run || row.State == LedgerStopping:
			return LedgerRow{}, refusedRun("adopt", q.RunKey, "task-taken")
		case row.State != LedgerIntent:
			return LedgerRow{}, fmt.Errorf("adopt task %s: %w", q.TaskARN, ErrLaunchPending)
		}
		return row, s.nameAdopted(ctx, st, q, id)
	}
	return LedgerRow{}, refusedRun("adopt", q.RunKey, "task-taken")
}

// putAdopted puts the row, or finds that of who was faster.
func (s *Session) putAdopted(ctx context.Context, st *starting, q AdoptRequest, id InstanceID) (LedgerRow, error) {
	if err := s.nameAdopted(ctx, st, q, id); err != nil {
		return LedgerRow{}, err
	}
	return s.Launcher.intend(ctx, st.run, st.key, s.Provider, q.Cluster)
}

// nameAdopted has the run name the instance before anything else does.
func (s *Session) nameAdopted(ctx context.Context, st *starting, q AdoptRequest, id InstanceID) (err error) {
	if st.run.Instance == id {
		return nil
	}
	st.run, err = s.Launcher.Runs.Update(ctx, st.run.RunKey, NameInstance{
		Epoch: st.run.Epoch, Old: st.run.Instance, Instance: id, Key: st.key, Provider: s.Provider, Cluster: q.Cluster,
	})
	return err
}
