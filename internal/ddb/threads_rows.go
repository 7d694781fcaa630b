package ddb

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/aws/aws-sdk-go-v2/feature/dynamodb/attributevalue"

	"github.com/sandkeeper/sandkeeper/internal/core"
)

// The sort keys of the checkpoints table (DESIGN 4.3).
const (
	skHead       = "head"
	skCheckpoint = "ckpt#"
	skArtifact   = "art#"
	skPin        = "pin#"
	skName       = "id#"
	pkNames      = "#ids" // after the tenant
)

// maxSK is the longest sort key, bytes, before it is shortened; DynamoDB allows 1,024.
const maxSK = 1000

// boundedSK is a sort key that fits. What is too long ends in its own hash.
func boundedSK(sk string) string {
	if len(sk) <= maxSK {
		return sk
	}
	sum := sha256.Sum256([]byte(sk))
	return sk[:maxSK-1-2*sha256.Size] + "~" + hex.EncodeToString(sum[:])
}

func threadPK(k core.ThreadKey) string { return threadKey(k.Tenant, k.Thread) }

func namesPK(tenant core.TenantID) string { return core.KeyToken(string(tenant)) + pkNames }

func nameSK(id core.CheckpointID) string { return boundedSK(skName + core.KeyToken(string(id))) }

func checkpointSK(at core.Millis, id core.CheckpointID) string {
	return boundedSK(fmt.Sprintf("%s%016d#%s", skCheckpoint, at, core.KeyToken(string(id))))
}

func pinSK(by core.ThreadID, id core.CheckpointID) string {
	return boundedSK(skPin + core.KeyToken(string(by)) + "#" + core.KeyToken(string(id)))
}

func artifactSK(run core.RunID, id string) string {
	return boundedSK(skArtifact + core.KeyToken(string(run)) + "#" + core.KeyToken(id))
}

type objectRow struct {
	Key     string `dynamodbav:"key"`
	Version string `dynamodbav:"version,omitempty"`
	SHA256  string `dynamodbav:"sha256"`
	Size    int64  `dynamodbav:"size"`
}

type conversationRow struct {
	Version int64        `dynamodbav:"version"`
	Object  objectRow    `dynamodbav:"object"`
	Runs    []core.RunID `dynamodbav:"runs,omitempty"`
}

// conversationOf is the row of a conversation; none has no row.
func conversationOf(c core.Conversation) *conversationRow {
	if c.Version == 0 {
		return nil
	}
	return &conversationRow{c.Version, objectRow(c.Object), c.Runs}
}

func (r *conversationRow) conversation() core.Conversation {
	if r == nil {
		return core.Conversation{}
	}
	return core.Conversation{Version: r.Version, Object: core.ObjectRef(r.Object), Runs: r.Runs}
}

type lossRow struct {
	Run core.RunID  `dynamodbav:"run"`
	Why string      `dynamodbav:"why"`
	At  core.Millis `dynamodbav:"at"`
}

type jobRow struct {
	Tenant   core.TenantID   `dynamodbav:"tenant,omitempty"`
	Run      core.RunID      `dynamodbav:"run,omitempty"`
	Key      core.SandboxKey `dynamodbav:"key,omitempty"`
	Instance core.InstanceID `dynamodbav:"instance,omitempty"`
	Kind     core.JobKind    `dynamodbav:"kind"`
}

type stepRow struct {
	ID         core.CheckpointID `dynamodbav:"id"`
	Kind       core.StepKind     `dynamodbav:"kind"`
	Run        core.RunID        `dynamodbav:"run,omitempty"`
	Fence      int64             `dynamodbav:"fence"`
	Former     []int64           `dynamodbav:"former,omitempty"`
	Token      string            `dynamodbav:"token"`
	State      core.StepState    `dynamodbav:"state"`
	Why        string            `dynamodbav:"why,omitempty"`
	Attempts   int               `dynamodbav:"attempts"`
	Checkpoint core.CheckpointID `dynamodbav:"checkpoint,omitempty"`
	Reason     core.Reason       `dynamodbav:"reason,omitempty"`
	Label      *string           `dynamodbav:"label,omitempty"`
	Job        *jobRow           `dynamodbav:"job,omitempty"`
	StartedAt  core.Millis       `dynamodbav:"startedAt"`
	SeenAt     core.Millis       `dynamodbav:"seenAt"`
	Files      int64             `dynamodbav:"files"`
	Bytes      int64             `dynamodbav:"bytes"`
	Granted    int64             `dynamodbav:"granted,omitempty"`
}

func stepOf(s *core.Step) *stepRow {
	if s == nil {
		return nil
	}
	return &stepRow{
		s.ID, s.Kind, s.Run, s.Fence, s.Former, s.Token, s.State, s.Why, s.Attempts, s.Checkpoint, s.Reason, s.Label, (*jobRow)(s.Job),
		s.StartedAt, s.SeenAt, s.Files, s.Bytes, s.Granted,
	}
}

func (r *stepRow) step() *core.Step {
	if r == nil {
		return nil
	}
	return &core.Step{
		ID: r.ID, Kind: r.Kind, Run: r.Run, Fence: r.Fence, Former: r.Former, Token: r.Token, State: r.State, Why: r.Why, Attempts: r.Attempts,
		Checkpoint: r.Checkpoint, Reason: r.Reason, Label: r.Label, Job: (*core.ReclaimJob)(r.Job),
		StartedAt: r.StartedAt, SeenAt: r.SeenAt, Files: r.Files, Bytes: r.Bytes, Granted: r.Granted,
	}
}

type forkRow struct {
	From       core.ThreadID     `dynamodbav:"from"`
	Checkpoint core.CheckpointID `dynamodbav:"checkpoint"`
	Manifest   objectRow         `dynamodbav:"manifest"`
}

type threadRow struct {
	head
	Tenant     core.TenantID     `dynamodbav:"tenant"`
	Thread     core.ThreadID     `dynamodbav:"thread"`
	Head       core.CheckpointID `dynamodbav:"headId,omitempty"`
	Fence      int64             `dynamodbav:"fence,omitempty"`
	LeaseOwner string            `dynamodbav:"leaseOwner,omitempty"`
	LeaseUntil core.Millis       `dynamodbav:"leaseUntil,omitempty"`
	Floor      int64             `dynamodbav:"floor,omitempty"`

	Conversation  *conversationRow `dynamodbav:"conversation,omitempty"`
	PendingRuns   []core.RunID     `dynamodbav:"pendingRuns,omitempty,stringset"`
	WorkspaceLost *lossRow         `dynamodbav:"workspaceLost,omitempty"`
	Step          *stepRow         `dynamodbav:"step,omitempty"`
	FirstRun      core.RunID       `dynamodbav:"firstRun,omitempty"`
	BegunAt       core.Millis      `dynamodbav:"begunAt,omitempty"`
	Artifacts     bool             `dynamodbav:"artifacts,omitempty"`
	Fork          *forkRow         `dynamodbav:"fork,omitempty"`
	ForkOwners    []core.ThreadID  `dynamodbav:"forkOwners,omitempty,stringset"`
	UpdatedAt     core.Millis      `dynamodbav:"updatedAt,omitempty"`
}

// threadDecoder reads the item of that thread; no item is the thread of which nothing is
// known. What it does not understand is an error: heads are moved on its answer.
func threadDecoder(k core.ThreadKey) func(item) (core.Thread, error) {
	return func(it item) (core.Thread, error) {
		if len(it) == 0 {
			return core.Thread{ThreadKey: k}, nil
		}
		var row threadRow
		if err := attributevalue.UnmarshalMap(it, &row); err != nil {
			return core.Thread{}, fmt.Errorf("parse thread item: %w", err)
		}
		if err := row.check(); err != nil {
			return core.Thread{}, err
		}
		states := []core.StepState{core.StepWorking, core.StepDone, core.StepFailed}
		switch {
		case row.Tenant != k.Tenant || row.Thread != k.Thread || row.SK != skHead:
			return core.Thread{}, fmt.Errorf("parse thread item %s, %s: it is about thread %s/%s", row.PK, row.SK, row.Tenant, row.Thread)
		case row.Step != nil && !slices.Contains(states, row.Step.State):
			return core.Thread{}, fmt.Errorf("parse thread item %s: step: state %q, want one of %v", row.PK, row.Step.State, states)
		}
		return row.decoded(), nil
	}
}

func (row threadRow) decoded() core.Thread {
	slices.Sort(row.PendingRuns) // a set has no order
	slices.Sort(row.ForkOwners)
	th := core.Thread{
		ThreadKey: core.ThreadKey{Tenant: row.Tenant, Thread: row.Thread}, Head: row.Head, Fence: row.Fence,
		Lease: core.Lease{Owner: row.LeaseOwner, Until: row.LeaseUntil}, Floor: row.Floor, Conversation: row.Conversation.conversation(),
		PendingRuns: row.PendingRuns, WorkspaceLost: (*core.WorkspaceLoss)(row.WorkspaceLost), Step: row.Step.step(), FirstRun: row.FirstRun, BegunAt: row.BegunAt,
		Artifacts: row.Artifacts, UpdatedAt: row.UpdatedAt,
	}
	if row.Fork != nil {
		th.Fork = &core.ForkRoot{From: row.Fork.From, Checkpoint: row.Fork.Checkpoint, Manifest: core.ObjectRef(row.Fork.Manifest), Owners: row.ForkOwners}
	}
	return th
}

type artifactRow struct {
	Run       core.RunID  `dynamodbav:"run"`
	ID        string      `dynamodbav:"id"`
	Name      string      `dynamodbav:"name"`
	MIME      string      `dynamodbav:"mime"`
	CreatedAt core.Millis `dynamodbav:"createdAt"`
	Object    objectRow   `dynamodbav:"object"`
}

func artifactOf(a core.Artifact) artifactRow {
	return artifactRow{a.Run, a.ID, a.Name, a.MIME, a.CreatedAt, objectRow(a.Object)}
}

func (r artifactRow) artifact() core.Artifact {
	return core.Artifact{Run: r.Run, ID: r.ID, Name: r.Name, MIME: r.MIME, CreatedAt: r.CreatedAt, Object: core.ObjectRef(r.Object)}
}

type artifactItem struct {
	head
	artifactRow
}

func decodeArtifact(it item) (core.Artifact, error) {
	var row artifactItem
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Artifact{}, fmt.Errorf("parse artifact item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.Artifact{}, err
	}
	if row.SK != artifactSK(row.Run, row.ID) {
		return core.Artifact{}, fmt.Errorf("parse artifact item %s, %s: it is about %s of run %s", row.PK, row.SK, row.ID, row.Run)
	}
	return row.artifact(), nil
}

type ckptItem struct {
	head
	Tenant       core.TenantID     `dynamodbav:"tenant"`
	Thread       core.ThreadID     `dynamodbav:"thread"`
	ID           core.CheckpointID `dynamodbav:"id"`
	Parent       core.CheckpointID `dynamodbav:"parent,omitempty"`
	CreatedAt    core.Millis       `dynamodbav:"createdAt"`
	Reason       core.Reason       `dynamodbav:"reason"`
	Label        *string           `dynamodbav:"label,omitempty"`
	SourceRun    core.RunID        `dynamodbav:"sourceRun,omitempty"`
	Digest       string            `dynamodbav:"digest"`
	Manifest     objectRow         `dynamodbav:"manifest"`
	Files        int64             `dynamodbav:"files"`
	Bytes        int64             `dynamodbav:"bytes"`
	Conversation *conversationRow  `dynamodbav:"conversation,omitempty"`
	Artifacts    []artifactRow     `dynamodbav:"artifacts,omitempty"`
	PendingRuns  []core.RunID      `dynamodbav:"pendingRuns,omitempty"`
	ForkOf       core.CheckpointID `dynamodbav:"forkOf,omitempty"`
}

func encodeCheckpoint(c core.Checkpoint) (item, error) {
	row := ckptItem{
		head: head{threadPK(c.ThreadKey), checkpointSK(c.CreatedAt, c.ID), version}, Tenant: c.Tenant, Thread: c.Thread, ID: c.ID,
		Parent: c.Parent, CreatedAt: c.CreatedAt, Reason: c.Reason, Label: c.Label, SourceRun: c.SourceRun, Digest: c.Digest,
		Manifest: objectRow(c.Manifest), Files: c.Files, Bytes: c.Bytes, Conversation: conversationOf(c.Conversation),
		PendingRuns: c.PendingRuns, ForkOf: c.ForkOf,
	}
	for _, a := range c.Artifacts {
		row.Artifacts = append(row.Artifacts, artifactOf(a))
	}
	return attributevalue.MarshalMap(row)
}

func decodeCheckpoint(it item) (core.Checkpoint, error) {
	if len(it) == 0 {
		return core.Checkpoint{}, core.ErrNotFound
	}
	var row ckptItem
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Checkpoint{}, fmt.Errorf("parse checkpoint item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.Checkpoint{}, err
	}
	c := core.Checkpoint{
		ThreadKey: core.ThreadKey{Tenant: row.Tenant, Thread: row.Thread}, ID: row.ID, Parent: row.Parent, CreatedAt: row.CreatedAt,
		Reason: row.Reason, Label: row.Label, SourceRun: row.SourceRun, Digest: row.Digest, Manifest: core.ObjectRef(row.Manifest),
		Files: row.Files, Bytes: row.Bytes, Conversation: row.Conversation.conversation(), PendingRuns: row.PendingRuns, ForkOf: row.ForkOf,
	}
	if row.PK != threadPK(c.ThreadKey) || row.SK != checkpointSK(c.CreatedAt, c.ID) {
		return core.Checkpoint{}, fmt.Errorf("parse checkpoint item %s, %s: it is about checkpoint %s of thread %s", row.PK, row.SK, c.ID, c.ThreadKey)
	}
	for _, a := range row.Artifacts {
		c.Artifacts = append(c.Artifacts, a.artifact())
	}
	return c, nil
}

type nameRow struct {
	head
	ID        core.CheckpointID `dynamodbav:"id"`
	Thread    core.ThreadID     `dynamodbav:"thread"`
	CreatedAt core.Millis       `dynamodbav:"createdAt"`
	Digest    string            `dynamodbav:"digest"`
	ForkOf    core.CheckpointID `dynamodbav:"forkOf,omitempty"`
}

func encodeName(tenant core.TenantID, n core.CheckpointName) (item, error) {
	return attributevalue.MarshalMap(nameRow{head{namesPK(tenant), nameSK(n.ID), version}, n.ID, n.Thread, n.CreatedAt, n.Digest, n.ForkOf})
}

func decodeName(it item) (core.CheckpointName, error) {
	if len(it) == 0 {
		return core.CheckpointName{}, core.ErrNotFound
	}
	var row nameRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.CheckpointName{}, fmt.Errorf("parse name item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.CheckpointName{}, err
	}
	if row.SK != nameSK(row.ID) {
		return core.CheckpointName{}, fmt.Errorf("parse name item %s, %s: it is about checkpoint %s", row.PK, row.SK, row.ID)
	}
	return core.CheckpointName{ID: row.ID, Thread: row.Thread, CreatedAt: row.CreatedAt, Digest: row.Digest, ForkOf: row.ForkOf}, nil
}

type pinRow struct {
	head
	Tenant     core.TenantID     `dynamodbav:"tenant"`
	Owner      core.ThreadID     `dynamodbav:"owner"`
	By         core.ThreadID     `dynamodbav:"by"`
	Checkpoint core.CheckpointID `dynamodbav:"checkpoint"`
	Manifest   objectRow         `dynamodbav:"manifest"`
	Objects    []string          `dynamodbav:"objects,omitempty"`
}

func encodePin(p core.Pin) (item, error) {
	return attributevalue.MarshalMap(pinRow{
		head{threadPK(p.Owner), pinSK(p.By.Thread, p.Checkpoint), version}, p.Owner.Tenant, p.Owner.Thread, p.By.Thread, p.Checkpoint,
		objectRow(p.Manifest), p.Objects,
	})
}

func decodePin(it item) (core.Pin, error) {
	var row pinRow
	if err := attributevalue.UnmarshalMap(it, &row); err != nil {
		return core.Pin{}, fmt.Errorf("parse pin item: %w", err)
	}
	if err := row.check(); err != nil {
		return core.Pin{}, err
	}
	p := core.Pin{
		Owner: core.ThreadKey{Tenant: row.Tenant, Thread: row.Owner}, By: core.ThreadKey{Tenant: row.Tenant, Thread: row.By},
		Checkpoint: row.Checkpoint, Manifest: core.ObjectRef(row.Manifest), Objects: row.Objects,
	}
	if row.PK != threadPK(p.Owner) || row.SK != pinSK(p.By.Thread, p.Checkpoint) {
		return core.Pin{}, fmt.Errorf("parse pin item %s, %s: it is by thread %s on %s", row.PK, row.SK, p.By, p.Owner)
	}
	return p, nil
}
