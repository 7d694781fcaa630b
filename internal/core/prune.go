package core

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// PruneStanding is what the run store says of a run whose journal lies around.
type PruneStanding int

// The standings. The zero value keeps the journal.
const (
	PruneLive     PruneStanding = iota // not terminal, or of a status nobody knows
	PruneTerminal                      // ended
	PruneUnknown                       // the store does not know the run
)

// PruneReason says why a journal was kept.
type PruneReason string

// The reasons.
const (
	KeptNonTerminal   PruneReason = "non-terminal"
	KeptTooRecent     PruneReason = "orphan-too-recent"
	KeptNoAgeGate     PruneReason = "age-gate-unavailable"
	KeptNoEntry       PruneReason = "age-gate-missing-entry"
	KeptUndecodable   PruneReason = "undecodable-name"
	KeptStoreError    PruneReason = "store-error"
	KeptDeleteFailed  PruneReason = "delete-failed"
	KeptMaxDeletes    PruneReason = "max-deletes"
	defaultOrphanAge              = time.Hour
	defaultMaxDeletes             = 200
)

// maxPruneAsked is of how many runs one prune asks the store: whoever plants names by the
// thousand must not have it asked for hours.
const maxPruneAsked = 2000

// PrunePolicy bounds a prune. The zero value is the default.
type PrunePolicy struct {
	// OrphanAge is how old the newest file of a run that the store does not know has
	// to be; nil: one hour. A reader makes the journal before the record exists.
	OrphanAge *time.Duration
	// MaxDeletes is how many runs' files one prune removes; 0: 200.
	MaxDeletes int
}

// PruneRun is one run's files in a journal directory: one decision.
type PruneRun struct {
	Run   RunID
	Names []string
	// Orphan is why these files are kept if the store does not know the run; empty:
	// they are old enough to go.
	Orphan PruneReason
}

// PrunePlan says, for one journal directory, what is to be asked of the store and
// what each answer leads to.
type PrunePlan struct {
	Listed     int // names in the directory
	Runs       []PruneRun
	Kept       []PruneKept // names that belong to no run: never deleted
	AgeGate    bool        // times of change are known
	TimesErr   error       // why they could not be asked for
	MaxDeletes int
}

// PruneKept are files that stay, and why. Run is empty for an undecodable name.
type PruneKept struct {
	Run    RunID       `json:"run,omitempty"`
	Names  []string    `json:"names"`
	Reason PruneReason `json:"reason"`
}

// PlanPrune decides what of a listing may go. Names are grouped by the run they
// decode to, in the order of the listing.
func (f JournalFormat) PlanPrune(listing JournalListing, now Millis, policy PrunePolicy) PrunePlan {
	plan := PrunePlan{Listed: len(listing.Names), AgeGate: listing.Times.Known, TimesErr: listing.TimesErr, MaxDeletes: policy.MaxDeletes}
	if plan.MaxDeletes <= 0 {
		plan.MaxDeletes = defaultMaxDeletes
	}
	at := map[RunID]int{}
	for _, name := range listing.Names {
		decoded := f.DecodeName(name)
		if decoded.Kind != JournalNameRun {
			plan.Kept = append(plan.Kept, PruneKept{Names: []string{name}, Reason: KeptUndecodable})
			continue
		}
		i, seen := at[decoded.Run]
		if !seen {
			i = len(plan.Runs)
			at[decoded.Run] = i
			plan.Runs = append(plan.Runs, PruneRun{Run: decoded.Run})
		}
		plan.Runs[i].Names = append(plan.Runs[i].Names, name)
	}
	changed := listing.Times.byName() // once: a directory may hold any number of names
	for i, run := range plan.Runs {
		plan.Runs[i].Orphan = orphan(run.Names, changed, now, policy)
	}
	return plan
}

// byName are the times by name; nil where nothing is known.
func (t JournalTimes) byName() map[string]Millis {
	if !t.Known {
		return nil
	}
	changed := make(map[string]Millis, len(t.Of))
	for _, entry := range t.Of {
		changed[entry.Name] = entry.At
	}
	return changed
}

// orphan says why the files of a run that no store knows stay, or nothing.
func orphan(names []string, changed map[string]Millis, now Millis, policy PrunePolicy) PruneReason {
	if changed == nil {
		return KeptNoAgeGate
	}
	var newest Millis
	for _, name := range names {
		at, ok := changed[name]
		if !ok {
			return KeptNoEntry
		}
		newest = max(newest, at)
	}
	age := defaultOrphanAge
	if policy.OrphanAge != nil {
		age = *policy.OrphanAge
	}
	if now.Sub(newest) < age {
		return KeptTooRecent
	}
	return ""
}

// Decide says why the run's files are kept under what the store says, or nothing:
// they go.
func (r PruneRun) Decide(standing PruneStanding) PruneReason {
	switch standing {
	case PruneTerminal:
		return ""
	case PruneUnknown:
		return r.Orphan
	}
	return KeptNonTerminal
}

// PruneStore tells a run's standing.
type PruneStore interface {
	// Standing answers from a consistent read. A store that could not be asked is an
	// error, never "unknown".
	Standing(ctx context.Context, run RunID) (PruneStanding, error)
}

// PruneRemover removes runs' files.
type PruneRemover interface {
	// Remove answers for each run, in order: nil if its files are gone.
	Remove(ctx context.Context, runs []RunID) []error
}

// PruneReport is what a prune did.
type PruneReport struct {
	Listed   int            `json:"listed"`
	Runs     int            `json:"runs"`
	Deleted  []RunID        `json:"deleted"`
	Kept     []PruneKept    `json:"kept"`
	AgeGate  bool           `json:"ageGate"`
	Failures []PruneFailure `json:"failures"`
}

// PruneFailure is a question or a removal that failed. The files stay.
type PruneFailure struct {
	Stage string `json:"stage"` // list, mtime-list, store, delete
	Run   RunID  `json:"run,omitempty"`
	Err   error  `json:"-"`
}

// pruneVerdict is how one run's files fared: gone, or kept for a reason and
// perhaps after a failure.
type pruneVerdict struct {
	reason  PruneReason
	failure *PruneFailure
}

// Apply asks the store about each run, removes what may go and reports. It never
// fails as a whole: what could not be asked or removed is kept and listed. When
// enough was removed, or asked, the rest is kept without asking.
func (p PrunePlan) Apply(ctx context.Context, store PruneStore, remover PruneRemover) PruneReport {
	verdicts := make([]pruneVerdict, len(p.Runs))
	for next, left := 0, p.MaxDeletes; next < len(p.Runs); {
		if left == 0 || next >= maxPruneAsked || ctx.Err() != nil {
			verdicts[next].reason = KeptMaxDeletes
			next++
			continue
		}
		var batch []int
		batch, next = p.candidates(ctx, next, left, store, verdicts)
		left -= p.remove(ctx, batch, remover, verdicts)
	}
	return p.report(verdicts)
}

// candidates asks about the runs from next on until max of them may go.
func (p PrunePlan) candidates(ctx context.Context, next, max int, store PruneStore, verdicts []pruneVerdict) ([]int, int) {
	var batch []int
	for ; next < min(len(p.Runs), maxPruneAsked) && len(batch) < max; next++ {
		run := p.Runs[next]
		standing, err := store.Standing(ctx, run.Run)
		if err != nil {
			verdicts[next] = pruneVerdict{KeptStoreError, &PruneFailure{Stage: "store", Run: run.Run, Err: err}}
			continue
		}
		if verdicts[next].reason = run.Decide(standing); verdicts[next].reason == "" {
			batch = append(batch, next)
		}
	}
	return batch, next
}

// remove removes the files of the runs in batch and counts those that are gone.
func (p PrunePlan) remove(ctx context.Context, batch []int, remover PruneRemover, verdicts []pruneVerdict) int {
	if len(batch) == 0 {
		return 0
	}
	runs := make([]RunID, len(batch))
	for i, at := range batch {
		runs[i] = p.Runs[at].Run
	}
	gone := 0
	for i, err := range remover.Remove(ctx, runs) {
		if err == nil {
			gone++
			continue
		}
		verdicts[batch[i]] = pruneVerdict{KeptDeleteFailed, &PruneFailure{Stage: "delete", Run: runs[i], Err: err}}
	}
	return gone
}

func (p PrunePlan) report(verdicts []pruneVerdict) PruneReport {
	report := PruneReport{Listed: p.Listed, Runs: len(p.Runs), Kept: slices.Clone(p.Kept), AgeGate: p.AgeGate}
	if p.TimesErr != nil {
		report.Failures = append(report.Failures, PruneFailure{Stage: "mtime-list", Err: p.TimesErr})
	}
	for i, run := range p.Runs {
		v := verdicts[i]
		if v.failure != nil {
			report.Failures = append(report.Failures, *v.failure)
		}
		if v.reason == "" {
			report.Deleted = append(report.Deleted, run.Run)
			continue
		}
		report.Kept = append(report.Kept, PruneKept{Run: run.Run, Names: run.Names, Reason: v.reason})
	}
	return report
}

// JournalDirectory is the journal directory of sandboxes.
type JournalDirectory interface {
	// List lists a sandbox's directory. An incomplete answer is an error.
	List(ctx context.Context, target ExecTarget) (JournalListing, error)
	// Remove removes the journals of runs and tells of each, in order, whether it is
	// gone. Start markers stay: a run that was claimed in a sandbox never begins there
	// again (I14).
	Remove(ctx context.Context, target ExecTarget, runs []RunID) ([]bool, error)
}

// JournalPruner removes leftover journals from sandboxes that live on.
type JournalPruner struct {
	Dir    JournalDirectory
	Format JournalFormat
	Store  PruneStore
	Policy PrunePolicy
	// Permit is asked before each removal, and its error keeps one back; nil: nothing does.
	Permit func(ctx context.Context) error
}

// Prune removes what nobody will read again from target's journal directory. A
// listing that failed is reported as such, and nothing is removed.
func (p JournalPruner) Prune(ctx context.Context, target ExecTarget, now Millis) PruneReport {
	listing, err := p.Dir.List(ctx, target)
	if err != nil {
		return PruneReport{Failures: []PruneFailure{{Stage: "list", Err: err}}}
	}
	return p.Format.PlanPrune(listing, now, p.Policy).Apply(ctx, p.Store, directoryRemover{p.Dir, target, p.Permit})
}

type directoryRemover struct {
	dir    JournalDirectory
	target ExecTarget
	permit func(ctx context.Context) error
}

// removeBatch bounds the runs that one script removes, and so its length.
const removeBatch = 50

func (r directoryRemover) Remove(ctx context.Context, runs []RunID) []error {
	var errs []error
	for batch := range slices.Chunk(runs, removeBatch) {
		var gone []bool
		var err error
		if r.permit != nil {
			err = r.permit(ctx)
		}
		if err == nil {
			gone, err = r.dir.Remove(ctx, r.target, batch)
		}
		for i, run := range batch {
			switch {
			case err != nil:
				errs = append(errs, err)
			case i >= len(gone) || !gone[i]:
				errs = append(errs, fmt.Errorf("remove journal of run %s: %w", run, errFilesStay))
			default:
				errs = append(errs, nil)
			}
		}
	}
	return errs
}

var errFilesStay = errors.New("files stay")
