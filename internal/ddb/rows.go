package ddb

import (
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"
	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/expression"

	"github.com/sandkeeper/sandkeeper/internal/core"
	"github.com/sandkeeper/sandkeeper/internal/names"
)

// version is the schema version of every item that this code writes, and oldest that of
// the oldest release whose items it reads: the one before. Code that meets another does not
// touch the item. An item is of the newer version once it is written.
const (
	version = names.Schema
	oldest  = 1
)

// The rows below are the items as they are stored. A member that is zero is absent,
// so that a condition on absence and core's "not set" are the same; members of a
// nested row are always there.

// head begins every item.
type head struct {
	PK string `dynamodbav:"pk"`
	SK string `dynamodbav:"sk"`
	V  int    `dynamodbav:"v"`
}

func (h head) check() error {
	if err := checkVersion(h.V, oldest, version); err != nil {
		return fmt.Errorf("item %s, %s: %w", h.PK, h.SK, err)
	}
	return nil
}

// checkVersion refuses what a reader of the versions from oldest to newest does not know.
func checkVersion(v, oldest, newest int) error {
	switch {
	case v > newest:
		return fmt.Errorf("schema version %d is a newer release's, this one reads up to %d: deploy that release again", v, newest)
	case v < oldest:
		return fmt.Errorf("schema version %d, this release reads from %d to %d: pass through the releases between", v, oldest, newest)
	}
	return nil
}

// known is the condition that an item is of a version that this code reads.
func known() expression.ConditionBuilder { return ofVersions(oldest, version) }

func ofVersions(oldest, newest int) expression.ConditionBuilder {
	if oldest == newest {
		return is("v", newest)
	}
	return expression.Name("v").Between(expression.Value(oldest), expression.Value(newest))
}

type runRow struct {
	head
	Tenant     core.TenantID `dynamodbav:"tenant,omitempty"`
	Run        core.RunID    `dynamodbav:"run,omitempty"`
	Thread     core.ThreadID `dynamodbav:"thread,omitempty"`
	Status     core.Status   `dynamodbav:"status,omitempty"`
	StartedAt  core.Millis   `dynamodbav:"startedAt"` // an index key
	FinishedAt core.Millis   `dynamodbav:"finishedAt,omitempty"`
	Error      *errorRow     `dynamodbav:"error,omitempty"`
	ExitCode   *int          `dynamodbav:"exitCode,omitempty"`

	Provider   string          `dynamodbav:"provider,omitempty"`
	Definition string          `dynamodbav:"definition,omitempty"`
	SandboxKey core.SandboxKey `dynamodbav:"sandboxKey,omitempty"`
	Instance   core.InstanceID `dynamodbav:"instanceId,omitempty"`
	TaskARN    string          `dynamodbav:"taskArn,omitempty"`
	Cluster    string          `dynamodbav:"cluster,omitempty"`
	Container  string          `dynamodbav:"container,omitempty"`

	Epoch            int64          `dynamodbav:"driverEpoch,omitempty"`
	ClaimNonce       string         `dynamodbav:"claimNonce,omitempty"`
	ClaimUntil       core.Millis    `dynamodbav:"claimUntil,omitempty"`
	AttachedUntil    core.Millis    `dynamodbav:"attachedUntil,omitempty"`
	DetachedSince    core.Millis    `dynamodbav:"detachedSince,omitempty"`
	InterruptedSince core.Millis    `dynamodbav:"interruptedSince,omitempty"`
	CancelRequested  core.Millis    `dynamodbav:"cancelRequested,omitempty"`
	Ending           *endingRow     `dynamodbav:"ending,omitempty"`
	Nonce            string         `dynamodbav:"nonce,omitempty"`
	JournalDir       string         `dynamodbav:"journalDir,omitempty"`
	Sealed           *sealedRow     `dynamodbav:"sealed,omitempty"`
	LogEnd           int64          `dynamodbav:"logEnd,omitempty"`
	LogHash          []byte         `dynamodbav:"logHash,omitempty"`
	LogOmitted       int64          `dynamodbav:"logOmitted,omitempty"`
	LogTail          []byte         `dynamodbav:"logTail,omitempty"`
	Transcript       *transcriptRow `dynamodbav:"transcript,omitempty"`

	TTLSeconds   int64            `dynamodbav:"ttlSeconds,omitempty"`
	SpendCap     core.Dollars     `dynamodbav:"spendCap,omitempty"`
	Price        core.Dollars     `dynamodbav:"price,omitempty"`
	PublicIP     bool             `dynamodbav:"publicIp,omitempty"`
	Hold         *holdRow         `dynamodbav:"hold,omitempty"`
	Reclaim      core.ReclaimKind `dynamodbav:"reclaimKind,omitempty"`
	OnLapse      core.OnLapse     `dynamodbav:"onLapse,omitempty"`
	PauseSeconds int64            `dynamodbav:"pauseSeconds,omitempty"`

	CheckpointPolicy core.CheckpointPolicy `dynamodbav:"checkpointPolicy,omitempty"`
	Checkpoint       *checkpointRow        `dynamodbav:"checkpoint,omitempty"`
	Start            *startRow             `dynamodbav:"start,omitempty"`
	Capture          string                `dynamodbav:"capture,omitempty"` // JSON

	Tools       string              `dynamodbav:"tools,omitempty"` // JSON
	Bearers     []string            `dynamodbav:"bearers,omitempty"`
	Files       *filesRow           `dynamodbav:"files,omitempty"`
	Watched     bool                `dynamodbav:"watched,omitempty"`
	Hooks       string              `dynamodbav:"hooks,omitempty"` // JSON
	Snapshots   core.SnapshotPolicy `dynamodbav:"snapshots,omitempty"`
	IdleSeconds int64               `dynamodbav:"idleSeconds,omitempty"`

	ReclaimSince    core.Millis         `dynamodbav:"reclaimSince,omitempty"`
	ReclaimAttempts int                 `dynamodbav:"reclaimAttempts,omitempty"`
	ReclaimOutcome  core.ReclaimOutcome `dynamodbav:"reclaimOutcome,omitempty"`
	KeepUntil       core.Millis         `dynamodbav:"keepUntil,omitempty"`
	ExpiresAt       int64               `dynamodbav:"expiresAt,omitempty"` // keepUntil in seconds, for DynamoDB's TTL

	TaskStoppedAt core.Millis `dynamodbav:"taskStoppedAt,omitempty"`
	ExitedAt      core.Millis `dynamodbav:"exitedAt,omitempty"`

	ThreadKey     string      `dynamodbav:"threadKey,omitempty"`
	DetachedShard *int        `dynamodbav:"detachedShard,omitempty"` // there: in the detached index
	DueShard      *int        `dynamodbav:"dueShard,omitempty"`      // there: in the due index
	DueAt         core.Millis `dynamodbav:"dueAt,omitempty"`
	DueKind       core.Row    `dynamodbav:"dueKind,omitempty"`
}

type errorRow struct {
	Code    string `dynamodbav:"code"`
	Message string `dynamodbav:"message"`
}

type endingRow struct {
	Reason core.EndReason `dynamodbav:"reason"`
	At     core.Millis    `dynamodbav:"at"`
}

type sealedRow struct {
	ExitCode int         `dynamodbav:"exitCode"`
	At       core.Millis `dynamodbav:"at"`
	Stderr   string      `dynamodbav:"stderr"`
	Side     string      `dynamodbav:"side"`
}

type transcriptRow struct {
	Bytes    int64  `dynamodbav:"bytes"`
	SHA256   string `dynamodbav:"sha256"`
	Complete bool   `dynamodbav:"complete"`
	Omitted  int64  `dynamodbav:"omitted"`
	Side     string `dynamodbav:"side"`
}

type holdRow struct {
	Until core.Millis `dynamodbav:"until"`
	By    string      `dynamodbav:"by"`
	Why   string      `dynamodbav:"why"`
	ID    string      `dynamodbav:"id"`
}

type filesRow struct {
	Key     string `dynamodbav:"key"`
	Version string `dynamodbav:"version"`
	Bytes   int64  `dynamodbav:"bytes"`
	SHA256  string `dynamodbav:"sha256"`
}

type checkpointRow struct {
	State    core.CheckpointState `dynamodbav:"state"`
	ID       core.CheckpointID    `dynamodbav:"id"`
	Why      string               `dynamodbav:"why"`
	Tries    int                  `dynamodbav:"tries"`
	FailedAt core.Millis          `dynamodbav:"failedAt"`
	Older    core.RunID           `dynamodbav:"older,omitempty"`
}

type startRow struct {
	Hosted   bool              `dynamodbav:"hosted,omitempty"`
	Parent   core.RunID        `dynamodbav:"parent"`
	Resumed  bool              `dynamodbav:"resumed"`
	Noted    bool              `dynamodbav:"noted"`
	Head     core.CheckpointID `dynamodbav:"head"`
	Restored core.CheckpointID `dynamodbav:"restored"`
	LostRun  core.RunID        `dynamodbav:"lostRun"`
	LostWhy  string            `dynamodbav:"lostWhy"`
	AskedAt  core.Millis       `dynamodbav:"askedAt"`
	ReadyAt  core.Millis       `dynamodbav:"readyAt"`
	Native   core.SnapshotID   `dynamodbav:"native,omitempty"`
	CloneAt  core.Millis       `dynamodbav:"cloneAt,omitempty"`
	Cloned   bool              `dynamodbav:"cloned,omitempty"`
	SetupAt  core.Millis       `dynamodbav:"setupAt,omitempty"`
	SetUp    bool              `dynamodbav:"setUp,omitempty"`
	HookedAt core.Millis       `dynamodbav:"hookedAt,omitempty"`
	Owes     bool              `dynamodbav:"owes,omitempty"`
	Key      core.SandboxKey   `dynamodbav:"key,omitempty"`
}

type segmentRow struct {
	head
	From   int64  `dynamodbav:"from"`
	End    int64  `dynamodbav:"end"`
	Epoch  int64  `dynamodbav:"epoch"`
	SHA256 string `dynamodbav:"sha256"`
	Inline []byte `dynamodbav:"inline,omitempty"`
	Blob   string `dynamodbav:"blob,omitempty"`

	Omitted   bool        `dynamodbav:"omitted,omitempty"`
	KeepUntil core.Millis `dynamodbav:"keepUntil,omitempty"`
	ExpiresAt int64       `dynamodbav:"expiresAt,omitempty"`
}

type sandboxRow struct {
	head
	Key           core.SandboxKey `dynamodbav:"key,omitempty"`
	Provider      string          `dynamodbav:"provider,omitempty"`
	Definition    string          `dynamodbav:"definition,omitempty"`
	Tenant        core.TenantID   `dynamodbav:"tenant,omitempty"`
	Thread        core.ThreadID   `dynamodbav:"thread,omitempty"`
	Run           core.RunID      `dynamodbav:"run,omitempty"`
	WorkspaceHash string          `dynamodbav:"workspaceHash,omitempty"`
	Instance      core.InstanceID `dynamodbav:"instanceId,omitempty"`
	TaskARN       string          `dynamodbav:"taskArn,omitempty"`
	Cluster       string          `dynamodbav:"cluster,omitempty"`
	Container     string          `dynamodbav:"container,omitempty"`
	LatestRun     core.RunID      `dynamodbav:"latestRun,omitempty"`
	HoldUntil     core.Millis     `dynamodbav:"holdUntil,omitempty"`
	CreatedAt     core.Millis     `dynamodbav:"createdAt,omitempty"`
	UpdatedAt     core.Millis     `dynamodbav:"updatedAt,omitempty"`
	Reclaiming    string          `dynamodbav:"reclaiming,omitempty"`
	ExecUntil     core.Millis     `dynamodbav:"execUntil,omitempty"`
	ExecBy        string          `dynamodbav:"execBy,omitempty"`
	ExecEpoch     int64           `dynamodbav:"execEpoch,omitempty"`
	IdleSince     core.Millis     `dynamodbav:"idleSince,omitempty"`
	DueShard      *int            `dynamodbav:"dueShard,omitempty"`
	DueAt         core.Millis     `dynamodbav:"dueAt,omitempty"`
	Snapshot      core.SnapshotID `dynamodbav:"latestSnapshotId,omitempty"`
}

type ledgerRow struct {
	head
	Instance    core.InstanceID  `dynamodbav:"instanceId,omitempty"`
	Key         core.SandboxKey  `dynamodbav:"key,omitempty"`
	Provider    string           `dynamodbav:"provider,omitempty"`
	Tenant      core.TenantID    `dynamodbav:"tenant,omitempty"`
	Run         core.RunID       `dynamodbav:"run,omitempty"`
	State       core.LedgerState `dynamodbav:"state,omitempty"`
	LaunchUntil core.Millis      `dynamodbav:"launchUntil,omitempty"`
	TaskARN     string           `dynamodbav:"taskArn,omitempty"`
	Cluster     string           `dynamodbav:"cluster,omitempty"`
	DueShard    *int             `dynamodbav:"dueShard,omitempty"`
	DueAt       core.Millis      `dynamodbav:"dueAt,omitempty"`
	Attempts    int              `dynamodbav:"attempts,omitempty"`
	Why         string           `dynamodbav:"why,omitempty"`
	Unsealed    bool             `dynamodbav:"unsealed,omitempty"`
	Missing     core.Millis      `dynamodbav:"missing,omitempty"`
	Owed        core.RunID       `dynamodbav:"owed,omitempty"`
	Quota       int              `dynamodbav:"quota,omitempty"`
	Price       core.Dollars     `dynamodbav:"price,omitempty"`
	PricedSince core.Millis      `dynamodbav:"pricedSince,omitempty"`
	UpdatedAt   core.Millis      `dynamodbav:"updatedAt,omitempty"`
	ExpiresAt   int64            `dynamodbav:"expiresAt,omitempty"` // seconds; only when closed
}

type controlRow struct {
	head
	Mode        core.Mode   `dynamodbav:"mode,omitempty"`
	Frozen      bool        `dynamodbav:"frozen,omitempty"`
	FrozenAt    core.Millis `dynamodbav:"frozenAt,omitempty"`
	FrozenBy    string      `dynamodbav:"frozenBy,omitempty"`
	FrozenWhy   string      `dynamodbav:"frozenWhy,omitempty"`
	WindowStart core.Millis `dynamodbav:"windowStart,omitempty"`
	Count       int         `dynamodbav:"count,omitempty"`
	TrippedAt   core.Millis `dynamodbav:"trippedAt,omitempty"`
	QuietUntil  core.Millis `dynamodbav:"quietUntil,omitempty"`
}

type auditRow struct {
	head
	At      core.Millis `dynamodbav:"at"`
	By      string      `dynamodbav:"by"`
	Why     string      `dynamodbav:"why"`
	Op      string      `dynamodbav:"op"`
	Subject string      `dynamodbav:"subject"`
	Detail  string      `dynamodbav:"detail,omitempty"`
}

// indexRow is what the sparse indexes project.
type indexRow struct {
	PK            string      `dynamodbav:"pk"`
	SK            string      `dynamodbav:"sk"`
	DetachedSince core.Millis `dynamodbav:"detachedSince"`
	DueAt         core.Millis `dynamodbav:"dueAt"`
	DueKind       core.Row    `dynamodbav:"dueKind"`
}

// encodeRun is the item of a record.
func encodeRun(r core.Run) (item, error) {
	pk := runPK(r.RunKey)
	row := runRow{
		head: head{pk, skRun, version}, Tenant: r.Tenant, Run: r.RunKey.Run, Thread: r.Thread, Status: r.Status,
		StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, Error: (*errorRow)(r.Error), ExitCode: r.ExitCode,
		Provider: r.Provider, Definition: r.Definition, SandboxKey: r.SandboxKey, Instance: r.Instance,
		TaskARN: r.TaskARN, Cluster: r.Cluster, Container: r.Container,
		Epoch: r.Epoch, ClaimNonce: r.ClaimNonce, ClaimUntil: r.ClaimUntil, AttachedUntil: r.AttachedUntil,
		DetachedSince: r.DetachedSince, InterruptedSince: r.InterruptedSince, CancelRequested: r.CancelRequested,
		Ending: (*endingRow)(r.Ending), Nonce: r.Nonce, JournalDir: r.JournalDir, Sealed: (*sealedRow)(r.Sealed),
		LogEnd: r.LogEnd, LogOmitted: r.LogOmitted, LogHash: r.LogHash, LogTail: r.LogTail, Transcript: (*transcriptRow)(r.Transcript),
		TTLSeconds: r.TTLSeconds, SpendCap: r.SpendCap, Price: r.Price, PublicIP: r.PublicIP, Reclaim: r.Reclaim, OnLapse: r.OnLapse, PauseSeconds: r.PauseSeconds, CheckpointPolicy: r.CheckpointPolicy,
		ReclaimSince: r.ReclaimSince, ReclaimAttempts: r.ReclaimAttempts, ReclaimOutcome: r.ReclaimOutcome,
		KeepUntil: r.ExpiresAt, ExpiresAt: ttl(r.ExpiresAt),
		TaskStoppedAt: r.TaskStoppedAt, ExitedAt: r.ExitedAt, ThreadKey: threadKey(r.Tenant, r.Thread),
	}
	if r.Hold != (core.Hold{}) {
		row.Hold = new(holdRow(r.Hold))
	}
	if r.Checkpoint != (core.RunCheckpoint{}) {
		row.Checkpoint = new(checkpointRow(r.Checkpoint))
	}
	if r.Start != (core.RunStart{}) {
		row.Start = new(startRow(r.Start))
	}
	capture, err := encodeCapture(r.Capture)
	if err != nil {
		return nil, err
	}
	row.Capture = capture
	row.Bearers, row.Files, row.Watched, row.Snapshots, row.IdleSeconds = r.Bearers, (*filesRow)(r.Files), r.Watched, r.Snapshots, r.IdleSeconds
	if row.Tools, row.Hooks, err = encodeReach(r); err != nil {
		return nil, err
	}
	if err := checkPlace(r.Row, r.DueAt, r.DetachedSince); err != nil {
		return nil, err
	}
	switch {
	case r.Row == core.RowDetached:
		row.DetachedShard = new(shard(pk))
	case r.Row.Due():
		row.DueShard, row.DueAt, row.DueKind = new(shard(pk)), r.DueAt, r.Row
	}
	return attributevalue.MarshalMap(row)
}

// checkPlace refuses a row that would silently not stand in its index.
func checkPlace(row core.Row, dueAt, detachedSince core.Millis) error {
	switch {
	case row.Due() && dueAt == 0:
		return fmt.Errorf("row %s: want a due time, got none", row)
	case row == core.RowDetached && detachedSince == 0:
		return fmt.Errorf("row %s: want detachedSince, got none", row)
	}
	return nil
}

// decodeRun is the record of an item; no item is a record that does not exist. What it does not understand is an error:
// callers stop and delete on its answer.
func decodeRun(it item) (core.Run, error) {
	if len(it) == 0 {
		return core.Run{}, core.ErrNotFound
	}
	var row runRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Run{}, fmt.Errorf("parse run item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.Run{}, err
	}
	key := core.RunKey{Tenant: row.Tenant, Run: row.Run}
	if runPK(key) != row.PK || row.SK != skRun {
		return core.Run{}, fmt.Errorf("parse run item %s, %s: it is about run %s", row.PK, row.SK, key)
	}
	status, err := core.ParseStatus(string(row.Status))
	if err != nil {
		return core.Run{}, fmt.Errorf("parse run item %s: %w", row.PK, err)
	}
	place, err := row.place()
	if err != nil {
		return core.Run{}, fmt.Errorf("parse run item %s: %w", row.PK, err)
	}
	r := core.Run{
		RunKey: key, Thread: row.Thread, Status: status,
		StartedAt: row.StartedAt, FinishedAt: row.FinishedAt, Error: (*core.RunError)(row.Error), ExitCode: row.ExitCode,
		Provider: row.Provider, Definition: row.Definition, SandboxKey: row.SandboxKey, Instance: row.Instance,
		TaskARN: row.TaskARN, Cluster: row.Cluster, Container: row.Container, Row: place, DueAt: row.DueAt,
		Epoch: row.Epoch, ClaimNonce: row.ClaimNonce, ClaimUntil: row.ClaimUntil, AttachedUntil: row.AttachedUntil,
		DetachedSince: row.DetachedSince, InterruptedSince: row.InterruptedSince, CancelRequested: row.CancelRequested,
		Ending: (*core.Ending)(row.Ending), Nonce: row.Nonce, JournalDir: row.JournalDir, Sealed: (*core.Sealed)(row.Sealed),
		LogEnd: row.LogEnd, LogOmitted: row.LogOmitted, LogHash: row.LogHash, LogTail: row.LogTail, Transcript: (*core.Transcript)(row.Transcript),
		TTLSeconds: row.TTLSeconds, SpendCap: row.SpendCap, Price: row.Price, PublicIP: row.PublicIP, Reclaim: row.Reclaim, OnLapse: row.OnLapse, PauseSeconds: row.PauseSeconds, CheckpointPolicy: row.CheckpointPolicy,
		ReclaimSince: row.ReclaimSince, ReclaimAttempts: row.ReclaimAttempts, ReclaimOutcome: row.ReclaimOutcome,
		ExpiresAt:     row.KeepUntil,
		TaskStoppedAt: row.TaskStoppedAt, ExitedAt: row.ExitedAt,
	}
	if row.Hold != nil {
		r.Hold = core.Hold(*row.Hold)
	}
	if row.Checkpoint != nil {
		r.Checkpoint = core.RunCheckpoint(*row.Checkpoint)
	}
	if row.Start != nil {
		r.Start = core.RunStart(*row.Start)
	}
	if r.Capture, err = decodeCapture(row.Capture); err != nil {
		return core.Run{}, fmt.Errorf("parse run item %s: %w", row.PK, err)
	}
	r.Bearers, r.Files, r.Watched, r.Snapshots, r.IdleSeconds = row.Bearers, (*core.RunFiles)(row.Files), row.Watched, row.Snapshots, row.IdleSeconds
	if r.Tools, r.Hooks, err = decodeReach(row.Tools, row.Hooks); err != nil {
		return core.Run{}, fmt.Errorf("parse run item %s: %w", row.PK, err)
	}
	if !slices.Contains(core.CheckpointStates, r.Checkpoint.State) {
		return core.Run{}, fmt.Errorf("parse run item %s: checkpoint %q, want one of %q", row.PK, r.Checkpoint.State, core.CheckpointStates)
	}
	return r, nil
}

// place tells in which index an item stands, from the attributes that put it there.
func (row runRow) place() (core.Row, error) {
	due := []core.Row{core.RowLapse, core.RowPause, core.RowCancel, core.RowReclaim}
	switch {
	case row.DetachedShard != nil && row.DueShard != nil:
		return "", fmt.Errorf("want one index row, got detached and %s", row.DueKind)
	case row.DueShard != nil && (row.DueAt == 0 || !slices.Contains(due, row.DueKind)):
		return "", fmt.Errorf("due row: want a time and one of %v, got %d and %q", due, row.DueAt, row.DueKind)
	case row.DueShard != nil:
		return row.DueKind, nil
	case row.DueAt != 0 || row.DueKind != "":
		return "", fmt.Errorf("due row %q at %d without a shard", row.DueKind, row.DueAt)
	case row.DetachedShard != nil && row.DetachedSince == 0:
		return "", fmt.Errorf("detached row without detachedSince")
	case row.DetachedShard != nil:
		return core.RowDetached, nil
	}
	return core.RowNone, nil
}

// ttl is a time as DynamoDB's TTL takes it: whole seconds; zero is no expiry.
func ttl(at core.Millis) int64 { return int64(at) / 1000 }

func encodeSegment(key core.RunKey, s core.Segment) (item, error) {
	return attributevalue.MarshalMap(segmentRow{
		head: head{runPK(key), segmentSK(s.From), version},
		From: s.From, End: s.End, Epoch: s.Epoch, SHA256: s.SHA256, Inline: s.Inline, Blob: s.Blob, Omitted: s.Omitted,
		KeepUntil: s.ExpiresAt, ExpiresAt: ttl(s.ExpiresAt),
	})
}

func decodeSegment(it item) (core.Segment, error) {
	var row segmentRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Segment{}, fmt.Errorf("parse segment item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.Segment{}, err
	}
	if row.SK != segmentSK(row.From) {
		return core.Segment{}, fmt.Errorf("parse segment item %s, %s: it begins at %d", row.PK, row.SK, row.From)
	}
	return core.Segment{
		From: row.From, End: row.End, Epoch: row.Epoch, SHA256: row.SHA256, Inline: row.Inline, Blob: row.Blob, Omitted: row.Omitted,
		ExpiresAt: row.KeepUntil,
	}, nil
}

func encodeSandbox(s core.Sandbox) (item, error) {
	row := sandboxRow{
		head: head{sandboxPK(s.Key), skSandbox, version}, Key: s.Key,
		Provider: s.Material.Provider, Definition: s.Material.Definition, Tenant: s.Material.Tenant,
		Thread: s.Material.Thread, Run: s.Material.Run, WorkspaceHash: s.Material.WorkspaceHash,
		Instance: s.Instance, TaskARN: s.TaskARN, Cluster: s.Cluster, Container: s.Container, LatestRun: s.LatestRun,
		HoldUntil: s.HoldUntil, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, Reclaiming: s.Reclaiming,
		ExecUntil: s.Exec.Until, ExecBy: s.Exec.By, ExecEpoch: s.Exec.Epoch, IdleSince: s.IdleSince, Snapshot: s.LatestSnapshot,
	}
	if s.DueAt != 0 {
		row.DueShard, row.DueAt = new(shard(row.PK)), s.DueAt
	}
	return attributevalue.MarshalMap(row)
}

func decodeSandbox(it item) (core.Sandbox, error) {
	if len(it) == 0 {
		return core.Sandbox{}, core.ErrNotFound
	}
	var row sandboxRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Sandbox{}, fmt.Errorf("parse sandbox item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.Sandbox{}, err
	}
	if sandboxPK(row.Key) != row.PK || row.SK != skSandbox {
		return core.Sandbox{}, fmt.Errorf("parse sandbox item %s, %s: it is about key %q", row.PK, row.SK, row.Key)
	}
	if (row.DueShard != nil) != (row.DueAt != 0) {
		return core.Sandbox{}, fmt.Errorf("parse sandbox item %s: want a shard and a due time or neither", row.PK)
	}
	return core.Sandbox{
		Key: row.Key, Instance: row.Instance, TaskARN: row.TaskARN, Cluster: row.Cluster, Container: row.Container,
		Material: core.KeyMaterial{
			Provider: row.Provider, Definition: row.Definition, Tenant: row.Tenant, Thread: row.Thread,
			Run: row.Run, WorkspaceHash: row.WorkspaceHash,
		},
		LatestRun: row.LatestRun, HoldUntil: row.HoldUntil, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
		Reclaiming: row.Reclaiming, IdleSince: row.IdleSince, DueAt: row.DueAt,
		LatestSnapshot: row.Snapshot, Exec: core.ExecHold{ExecHolder: core.ExecHolder{By: row.ExecBy, Epoch: row.ExecEpoch}, Until: row.ExecUntil},
	}, nil
}

func encodeLedger(r core.LedgerRow) (item, error) {
	row := ledgerRow{
		head: head{rowPK(r.Instance), skRow, version}, Instance: r.Instance, Key: r.Key, Provider: r.Provider,
		Tenant: r.Tenant, Run: r.Run, State: r.State, LaunchUntil: r.LaunchUntil, TaskARN: r.TaskARN,
		Cluster: r.Cluster, Attempts: r.Attempts, Why: r.Why, Unsealed: r.Unsealed, Missing: r.Missing, Owed: r.Owed, Quota: r.Quota, Price: r.Metered.Price, PricedSince: r.Metered.Since, UpdatedAt: r.UpdatedAt,
	}
	if r.DueAt != 0 {
		row.DueShard, row.DueAt = new(shard(row.PK)), r.DueAt
	}
	if r.State == core.LedgerClosed {
		row.ExpiresAt = expiry(r.UpdatedAt)
	}
	return attributevalue.MarshalMap(row)
}

func decodeLedger(it item) (core.LedgerRow, error) {
	if len(it) == 0 {
		return core.LedgerRow{}, core.ErrNotFound
	}
	var row ledgerRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.LedgerRow{}, fmt.Errorf("parse ledger item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.LedgerRow{}, err
	}
	states := []core.LedgerState{core.LedgerIntent, core.LedgerRunning, core.LedgerStopping, core.LedgerClosed}
	switch {
	case rowPK(row.Instance) != row.PK || row.SK != skRow:
		return core.LedgerRow{}, fmt.Errorf("parse ledger item %s, %s: it is about instance %q", row.PK, row.SK, row.Instance)
	case !slices.Contains(states, row.State):
		return core.LedgerRow{}, fmt.Errorf("parse ledger item %s: state %q, want one of %v", row.PK, row.State, states)
	case (row.DueShard != nil) != (row.DueAt != 0):
		return core.LedgerRow{}, fmt.Errorf("parse ledger item %s: want a shard and a due time or neither", row.PK)
	}
	return core.LedgerRow{
		Instance: row.Instance, Key: row.Key, Provider: row.Provider, Tenant: row.Tenant, Run: row.Run, State: row.State,
		LaunchUntil: row.LaunchUntil, TaskARN: row.TaskARN, Cluster: row.Cluster, DueAt: row.DueAt,
		Attempts: row.Attempts, Why: row.Why, Unsealed: row.Unsealed, Missing: row.Missing, Owed: row.Owed, Quota: row.Quota, Metered: core.Metering{Price: row.Price, Since: row.PricedSince}, UpdatedAt: row.UpdatedAt,
	}, nil
}

// decodeControl reads the settings of an item; no item is the zero value. A mode that
// is not known is an error: it must not be read as enforce.
func decodeControl(it item) (core.Control, error) {
	if len(it) == 0 {
		return core.Control{}, nil
	}
	var row controlRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Control{}, fmt.Errorf("parse control item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.Control{}, err
	}
	if modes := []core.Mode{"", core.Observe, core.Enforce}; !slices.Contains(modes, row.Mode) {
		return core.Control{}, fmt.Errorf("parse control item: mode %q, want one of %q", row.Mode, modes)
	}
	return core.Control{
		Mode: row.Mode, Frozen: row.Frozen, FrozenAt: row.FrozenAt, FrozenBy: row.FrozenBy, FrozenWhy: row.FrozenWhy,
		Breaker: core.Breaker{WindowStart: row.WindowStart, Count: row.Count, TrippedAt: row.TrippedAt, QuietUntil: row.QuietUntil},
	}, nil
}

// encodeAudit is an entry's item. nonce makes it one of its own.
func encodeAudit(e core.AuditEntry, nonce string) (item, error) {
	return attributevalue.MarshalMap(auditRow{
		head: head{auditPK(e.At.Time()), fmt.Sprintf("%016d#%s", e.At, nonce), version},
		At:   e.At, By: e.By, Why: e.Why, Op: e.Op, Subject: e.Subject, Detail: e.Detail,
	})
}

func decodeAudit(it item) (core.AuditEntry, error) {
	var row auditRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.AuditEntry{}, fmt.Errorf("parse audit item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.AuditEntry{}, err
	}
	return core.AuditEntry{At: row.At, By: row.By, Why: row.Why, Op: row.Op, Subject: row.Subject, Detail: row.Detail}, nil
}
