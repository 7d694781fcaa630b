package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// stamp is a time in the tool's JSON: RFC 3339 in UTC, absent where it is not set.
type stamp core.Millis

// MarshalText writes RFC 3339 with milliseconds.
func (s stamp) MarshalText() ([]byte, error) {
	return []byte(core.Millis(s).Time().Format("2006-01-02T15:04:05.000Z07:00")), nil
}

// UnmarshalText reads it back.
func (s *stamp) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return fmt.Errorf("want a time as RFC 3339, got %.40q", text)
	}
	*s = stamp(core.MillisOf(t))
	return nil
}

// String is the time for people, empty where it is not set.
func (s stamp) String() string {
	if s == 0 {
		return ""
	}
	return core.Millis(s).Time().Format(time.RFC3339)
}

// runView is a run as the tool shows it. Nonces, which prove who writes, and the
// log's hash state are nobody's business.
type runView struct {
	core.RunKey
	Thread     core.ThreadID `json:"thread,omitempty"`
	Status     core.Status   `json:"status"`
	Standing   string        `json:"standing"` // attached, lapsed, detached, paused, cancel-requested, ending, ended-owing, ended-warm, ended or outside-the-index
	StartedAt  stamp         `json:"startedAt,omitzero"`
	FinishedAt stamp         `json:"finishedAt,omitzero"`
	Error      *errorView    `json:"error,omitempty"`
	ExitCode   *int          `json:"exitCode,omitempty"`

	Provider   string          `json:"provider,omitempty"`
	Definition string          `json:"definition,omitempty"`
	SandboxKey core.SandboxKey `json:"sandboxKey,omitempty"`
	Instance   core.InstanceID `json:"instanceId,omitempty"`
	TaskARN    string          `json:"taskArn,omitempty"`
	Cluster    string          `json:"cluster,omitempty"`
	Container  string          `json:"container,omitempty"`

	Row              core.Row        `json:"row,omitempty"`  // which index shows it
	DueAt            stamp           `json:"dueAt,omitzero"` // when a sweep looks
	Epoch            int64           `json:"epoch"`
	ClaimUntil       stamp           `json:"claimUntil,omitzero"` // until then others leave it alone
	AttachedUntil    stamp           `json:"attachedUntil,omitzero"`
	DetachedSince    stamp           `json:"detachedSince,omitzero"`
	InterruptedSince stamp           `json:"interruptedSince,omitzero"`
	ExpiresAt        stamp           `json:"expiresAt,omitzero"` // when its time is over
	CancelRequested  stamp           `json:"cancelRequested,omitzero"`
	Ending           *endingView     `json:"ending,omitempty"`
	Sealed           *sealedView     `json:"sealed,omitempty"`
	LogEnd           int64           `json:"logEnd"` // bytes of its journal that are saved
	Transcript       *transcriptView `json:"transcript,omitempty"`
	TTLSeconds       int64           `json:"ttlSeconds,omitempty"` // its own
	TimeLimit        string          `json:"timeLimit"`            // how long it may stay without a host: its own, else the installation's
	SpendCapUSD      float64         `json:"spendCapUSD,omitempty"`
	HourlyUSD        float64         `json:"hourlyUSD,omitempty"` // of its task, where somebody has asked
	SpentUSD         float64         `json:"spentUSD,omitempty"`  // by now
	Hold             *holdView       `json:"hold,omitempty"`

	Checkpoint      *checkpointView     `json:"checkpoint,omitempty"`
	Reclaim         core.ReclaimKind    `json:"reclaim,omitempty"` // what becomes of its sandbox
	ReclaimSince    stamp               `json:"reclaimSince,omitzero"`
	ReclaimAttempts int                 `json:"reclaimAttempts,omitempty"`
	ReclaimOutcome  core.ReclaimOutcome `json:"reclaimOutcome,omitempty"`
	KeptUntil       stamp               `json:"keptUntil,omitzero"` // when its record goes
	TaskStoppedAt   stamp               `json:"taskStoppedAt,omitzero"`
	ExitedAt        stamp               `json:"exitedAt,omitzero"`
}

type errorView struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type endingView struct {
	Reason core.EndReason `json:"reason"`
	At     stamp          `json:"at"` // since when
}

type sealedView struct {
	ExitCode int   `json:"exitCode"`
	At       stamp `json:"at"`
}

type transcriptView struct {
	Bytes    int64  `json:"bytes"`
	SHA256   string `json:"sha256"`
	Complete bool   `json:"complete"`          // with its end
	Omitted  int64  `json:"omitted,omitempty"` // bytes of its middle that are not kept
	Side     string `json:"side,omitempty"`    // object with what a rewritten journal held
}

// checkpointView is what became of an ended run's workspace.
type checkpointView struct {
	State core.CheckpointState `json:"state"`
	ID    core.CheckpointID    `json:"id,omitempty"`
	Why   string               `json:"why,omitempty"`
}

type holdView struct {
	Until stamp  `json:"until"`
	By    string `json:"by"`
	Why   string `json:"why"`
}

func viewRun(r core.Run, now core.Millis, l core.Limits) runView {
	v := runView{
		RunKey: r.RunKey, Thread: r.Thread, Status: r.Status, Standing: core.StandingOf(r, now),
		StartedAt: stamp(r.StartedAt), FinishedAt: stamp(r.FinishedAt), ExitCode: r.ExitCode,
		Provider: r.Provider, Definition: r.Definition, SandboxKey: r.SandboxKey, Instance: r.Instance,
		TaskARN: r.TaskARN, Cluster: r.Cluster, Container: r.Container,
		Row: r.Row, Epoch: r.Epoch, ClaimUntil: stamp(r.ClaimUntil),
		AttachedUntil: stamp(r.AttachedUntil), DetachedSince: stamp(r.DetachedSince), InterruptedSince: stamp(r.InterruptedSince),
		CancelRequested: stamp(r.CancelRequested), LogEnd: r.LogEnd, TTLSeconds: r.TTLSeconds,
		Reclaim: r.Reclaim, ReclaimSince: stamp(r.ReclaimSince), ReclaimAttempts: r.ReclaimAttempts, ReclaimOutcome: r.ReclaimOutcome,
		KeptUntil: stamp(r.ExpiresAt), TaskStoppedAt: stamp(r.TaskStoppedAt), ExitedAt: stamp(r.ExitedAt), ExpiresAt: stamp(expiry(r, l)),
	}
	v.TimeLimit = secondsOr(r.TTLSeconds, l.RunTTL).String()
	v.SpendCapUSD, v.HourlyUSD, v.SpentUSD = core.RunCap(r, l).USD(), r.Price.USD(), core.RunSpent(r, r.Price, now).USD()
	if r.Row.Due() {
		v.DueAt = stamp(r.DueAt)
	}
	return v.facts(r)
}

// facts fills in what a run may have or not.
func (v runView) facts(r core.Run) runView {
	if r.Error != nil {
		v.Error = &errorView{r.Error.Code, r.Error.Message}
	}
	if r.Ending != nil {
		v.Ending = &endingView{r.Ending.Reason, stamp(r.Ending.At)}
	}
	if r.Sealed != nil {
		v.Sealed = &sealedView{r.Sealed.ExitCode, stamp(r.Sealed.At)}
	}
	if t := r.Transcript; t != nil {
		v.Transcript = &transcriptView{t.Bytes, t.SHA256, t.Complete, t.Omitted, t.Side}
	}
	if c := r.Checkpoint; c.State != "" {
		v.Checkpoint = &checkpointView{c.State, c.ID, c.Why}
	}
	if r.Hold.Until != 0 {
		v.Hold = &holdView{stamp(r.Hold.Until), r.Hold.By, r.Hold.Why}
	}
	return v
}

// expiry is when the time of a run that has not ended is over; zero while it has none.
func expiry(r core.Run, l core.Limits) core.Millis {
	switch {
	case r.Status.Terminal():
	case r.Status == core.Interrupted && r.InterruptedSince != 0:
		return r.InterruptedSince.Add(secondsOr(r.PauseSeconds, l.PauseTTL))
	case r.Status == core.Running && r.DetachedSince != 0 && r.Row == core.RowDetached:
		return r.DetachedSince.Add(secondsOr(r.TTLSeconds, l.RunTTL))
	}
	return 0
}

func secondsOr(n int64, otherwise time.Duration) time.Duration {
	if n > 0 {
		return time.Duration(n) * time.Second
	}
	return otherwise
}

// pairs is a run for people, line by line.
func (v runView) pairs() [][2]string {
	pairs := [][2]string{
		{"run", v.RunKey.String()}, {"thread", string(v.Thread)}, {"status", string(v.Status)}, {"standing", v.Standing},
		{"started", v.StartedAt.String()}, {"finished", v.FinishedAt.String()},
	}
	if v.Error != nil {
		pairs = append(pairs, [2]string{"error", strings.TrimSuffix(v.Error.Code+": "+v.Error.Message, ": ")})
	}
	if v.ExitCode != nil {
		pairs = append(pairs, [2]string{"exit status", strconv.Itoa(*v.ExitCode)})
	}
	pairs = append(pairs, [][2]string{
		{"definition", v.Definition}, {"instance", string(v.Instance)}, {"task", v.TaskARN}, {"container", v.Container},
		{"epoch", strconv.FormatInt(v.Epoch, 10)}, {"claimed until", v.ClaimUntil.String()}, {"attached until", v.AttachedUntil.String()},
		{"detached since", v.DetachedSince.String()}, {"paused since", v.InterruptedSince.String()}, {"time limit", timeText(v)}, {"expires", v.ExpiresAt.String()}, {"spend cap", capText(v)},
		{"cancel asked for", v.CancelRequested.String()}, {"due", dueText(v)}, {"saved", fmt.Sprintf("%d bytes", v.LogEnd)},
	}...)
	if t := v.Transcript; t != nil {
		pairs = append(pairs, [2]string{"transcript", fmt.Sprintf("%d bytes, sha256 %s, complete: %t", t.Bytes, t.SHA256, t.Complete)})
	}
	if v.Ending != nil {
		pairs = append(pairs, [2]string{"ending", string(v.Ending.Reason) + " since " + v.Ending.At.String()})
	}
	if v.Hold != nil {
		pairs = append(pairs, [2]string{"held", fmt.Sprintf("until %s by %s: %s", v.Hold.Until, v.Hold.By, v.Hold.Why)})
	}
	if c := v.Checkpoint; c != nil {
		pairs = append(pairs, [2]string{"checkpoint", strings.TrimSpace(fmt.Sprintf("%s %s %s", c.State, c.ID, c.Why))})
	}
	return append(pairs, [2]string{"reclaim", reclaimText(v)}, [2]string{"kept until", v.KeptUntil.String()})
}

// timeText is how long a run may stay without a host, and whose word that is.
func timeText(v runView) string {
	switch {
	case v.Status.Terminal():
		return ""
	case v.TTLSeconds != 0:
		return v.TimeLimit + " without a host"
	}
	return v.TimeLimit + " without a host, the installation's"
}

// capText is what a run may cost, and costs.
func capText(v runView) string {
	var spent string
	if v.HourlyUSD != 0 {
		spent = fmt.Sprintf("%s by now, at %s an hour", dollars(v.SpentUSD), dollars(v.HourlyUSD))
	}
	switch {
	case v.SpendCapUSD == 0:
		return spent
	case spent == "":
		return dollars(v.SpendCapUSD) + "; what its task costs is not known"
	}
	return dollars(v.SpendCapUSD) + "; " + spent
}

func dueText(v runView) string {
	if v.DueAt == 0 {
		return ""
	}
	return string(v.Row) + " at " + v.DueAt.String()
}

func reclaimText(v runView) string {
	text := string(v.ReclaimOutcome)
	if text == "" {
		text = string(v.Reclaim)
	}
	if v.ReclaimAttempts > 0 {
		text += fmt.Sprintf(", %d failed attempts", v.ReclaimAttempts)
	}
	return text
}

// size is a number of bytes, for people.
func size(n int64) string {
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	units, value := "KMGT", float64(n)/(1<<10)
	for value >= 1<<10 && len(units) > 1 {
		units, value = units[1:], value/(1<<10)
	}
	return fmt.Sprintf("%.1f %ciB", value, units[0])
}

// taskID is the last part of a task's ARN.
func taskID(arn string) string { return arn[strings.LastIndexByte(arn, '/')+1:] }

// ago is how long something has been so, for people.
func ago(since, now core.Millis) string {
	if since == 0 {
		return ""
	}
	return short(now.Sub(since))
}

// short writes a duration with its two largest units.
func short(d time.Duration) string {
	switch d = d.Round(time.Second); {
	case d < 0:
		return "-" + short(-d)
	case d < time.Minute:
		return d.String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 2*day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
}

// byStart sorts runs, the newest first.
func byStart(runs []core.Run) {
	slices.SortFunc(runs, func(a, b core.Run) int {
		return cmp.Or(cmp.Compare(b.StartedAt, a.StartedAt), strings.Compare(a.RunKey.String(), b.RunKey.String()))
	})
}

// unreadableView is a record that this version does not understand.
type unreadableView struct {
	core.RunKey
	Error string `json:"error"`
}

func viewUnreadable(bad []core.Unreadable) []unreadableView {
	out := []unreadableView{} // a list in JSON, also of none
	for _, b := range bad {
		out = append(out, unreadableView{b.RunKey, b.Err.Error()})
	}
	return out
}
