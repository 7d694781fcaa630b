package core

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Definition is what a sandbox is made from, and how its runs are kept. It holds no
// secret: those are named.
type Definition struct {
	Name      string        `json:"name"`
	Version   int           `json:"version"`
	Task      TaskTemplate  `json:"task"`
	Workspace WorkspacePlan `json:"workspace,omitzero"`
	// Reuse says whose sandbox it is: the thread's, by default, or each run's own.
	Reuse Reuse `json:"reuse,omitempty"`
	// MaxAgeSeconds is how long after its last use a sandbox is still used again; zero:
	// as long as it lives.
	MaxAgeSeconds int64 `json:"maxAgeSeconds,omitempty"`
	RunTTLSeconds int64 `json:"runTtlSeconds,omitempty"` // after the detach; zero: the installation's
	// SpendCapUSD is what a run may cost, in dollars, by list price from its start on;
	// zero: the installation's cap.
	SpendCapUSD float64 `json:"spendCapUSD,omitempty"`
	// PauseTTLSeconds is how long a run may stay paused; zero: the installation's time.
	PauseTTLSeconds int64 `json:"pauseTtlSeconds,omitempty"`
	// OnLapse is what becomes of a run whose host stopped renewing: detach, the default,
	// or cancel.
	OnLapse           OnLapse `json:"onLapse,omitempty"`
	DestroyOnComplete bool    `json:"destroyOnComplete,omitempty"` // also of a run that finished
	// Checkpoint says which ends of runs store the workspace; empty: the installation's.
	Checkpoint CheckpointPolicy `json:"checkpoint,omitempty"`
	Capture    CapturePlan      `json:"capture,omitzero"`
	// Secrets are what the agent and the set-up find in their environment, by name. They
	// are redacted from checkpoints.
	Secrets    []SecretPlan   `json:"secrets,omitempty"`
	Policy     PolicyPlan     `json:"policy,omitzero"`
	Hooks      HookPlan       `json:"hooks,omitzero"`
	FileEvents FileEventsPlan `json:"fileEvents,omitzero"`
	Tools      []ToolPlan     `json:"tools,omitempty"` // that its agents may call
	// IdleTTLSeconds is how long a sandbox is kept warm between two turns; zero: the
	// installation's time.
	IdleTTLSeconds int64 `json:"idleTtlSeconds,omitempty"`
	// Snapshots says when a provider that can takes a native snapshot of a sandbox. Fargate
	// cannot: there it takes none, and the thread's head alone brings a workspace back.
	Snapshots SnapshotPolicy `json:"snapshots,omitempty"`
}

// TaskTemplate is the task that a sandbox is.
type TaskTemplate struct {
	TaskDefinition string   `json:"taskDefinition"` // family, family:revision or ARN
	Container      string   `json:"container"`      // the agent's
	Cluster        string   `json:"cluster,omitempty"`
	Subnets        []string `json:"subnets"`
	SecurityGroups []string `json:"securityGroups,omitempty"`
	AssignPublicIP bool     `json:"assignPublicIp,omitempty"`
	// TaskRole is the ARN of the role that the task's processes have; empty: the task
	// definition's. The installation says which roles session may pass on.
	TaskRole string            `json:"taskRole,omitempty"`
	Tags     map[string]string `json:"tags,omitempty"`
}

// CapturePlan says what of the workspace a checkpoint holds.
type CapturePlan struct {
	Policy          json.RawMessage `json:"policy,omitempty"` // include, exclude, redact, as capture documents it
	DeadlineSeconds int64           `json:"deadlineSeconds,omitempty"`
	MaxBytes        int64           `json:"maxBytes,omitempty"`
}

// Reuse says how long a sandbox serves.
type Reuse string

// A sandbox serves the turns of its thread, or one run.
const (
	ReuseDefault Reuse = "" // the thread's
	ReuseThread  Reuse = "thread"
	ReuseNone    Reuse = "none"
)

// Definitions is where an installation keeps definitions.
type Definitions interface {
	// Definition reads that version of a name, or the newest for 0; ErrNotFound if there is
	// none.
	Definition(ctx context.Context, name string, version int) (Definition, error)
}

// DefinitionRef names a version as requests and records do, name@version; the name alone
// for version 0, which is the newest.
func DefinitionRef(name string, version int) string {
	if version == 0 {
		return name
	}
	return fmt.Sprintf("%s@%d", name, version)
}

// ParseDefinitionRef reads what [DefinitionRef] writes.
func ParseDefinitionRef(text string) (name string, version int, err error) {
	name, number, exact := strings.Cut(text, "@")
	if exact {
		version, err = strconv.Atoi(number)
	}
	if err != nil || exact && (version < 1 || strconv.Itoa(version) != number) || !definitionName.MatchString(name) {
		return "", 0, fmt.Errorf("definition: want a name like %s, or name@version, got %.120q", definitionName, text)
	}
	return name, version, nil
}

// Ref names this very version.
func (d Definition) Ref() string { return DefinitionRef(d.Name, d.Version) }

// The limits of a definition.
const (
	maxDefinition = 256 << 10 // bytes as JSON
	maxCapture    = 4 << 10   // bytes of a capture's policy: it stands in every record
	maxNames      = 50        // of subnets, groups, tags and secrets, each
	maxText       = 512       // bytes of a name that AWS gives
	maxSeconds    = int64(366 * 24 * time.Hour / time.Second)
)

var (
	definitionName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	roleARN        = regexp.MustCompile(`^arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+$`)
	secretName     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

// ParseDefinition reads a definition from JSON. Members that it does not know are
// refused, as is anything that [Definition.Validate] does.
func ParseDefinition(data []byte) (Definition, error) {
	var d Definition
	if len(data) > maxDefinition {
		return Definition{}, invalid("invalid-definition", "want at most %d bytes, got %d", maxDefinition, len(data))
	}
	if err := DecodeStrict(data, &d); err != nil {
		return Definition{}, invalid("invalid-definition", "%v", err)
	}
	return d, d.Validate()
}

// Validate reports the first member that is not as expected, as an [*InvalidError] with
// the code invalid-definition.
func (d Definition) Validate() error {
	if err := cmp.Or(
		d.checkNames(), d.Task.check(), d.checkLives(), d.checkChoices(), d.checkSecrets(), d.checkTools(),
		d.Workspace.check(d.secretNames()), d.Policy.check(), d.Hooks.check(), d.FileEvents.check(), d.checkSize(),
	); err != nil {
		return invalid("invalid-definition", "%v", err)
	}
	return nil
}

func (d Definition) checkNames() error {
	switch {
	case !definitionName.MatchString(d.Name):
		return fmt.Errorf("name: want %s, got %.120q", definitionName, d.Name)
	case d.Version < 1:
		return fmt.Errorf("version: want 1 or more, got %d", d.Version)
	}
	return nil
}

// checkSize bounds a definition as a whole, whoever brings it.
func (d Definition) checkSize() error {
	text, err := json.Marshal(d)
	if err == nil && len(text) > maxDefinition {
		return fmt.Errorf("want at most %d bytes, got %d", maxDefinition, len(text))
	}
	return err
}

func (t TaskTemplate) check() error {
	for name, text := range map[string]string{"taskDefinition": t.TaskDefinition, "container": t.Container} {
		if text == "" || len(text) > maxText {
			return fmt.Errorf("task.%s: want 1 to %d bytes, got %d", name, maxText, len(text))
		}
	}
	switch {
	case len(t.Cluster) > maxText:
		return fmt.Errorf("task.cluster: want at most %d bytes, got %d", maxText, len(t.Cluster))
	case t.TaskRole != "" && (len(t.TaskRole) > maxText || !roleARN.MatchString(t.TaskRole)):
		return fmt.Errorf("task.taskRole: want the ARN of a role, got %.120q", t.TaskRole)
	case len(t.Subnets) == 0 || len(t.Subnets) > maxNames:
		return fmt.Errorf("task.subnets: want 1 to %d, got %d", maxNames, len(t.Subnets))
	case len(t.SecurityGroups) > maxNames || len(t.Tags) > maxNames:
		return fmt.Errorf("task: want at most %d security groups and tags, got %d and %d", maxNames, len(t.SecurityGroups), len(t.Tags))
	}
	return nil
}

func (d Definition) checkLives() error {
	for name, n := range map[string]int64{"maxAgeSeconds": d.MaxAgeSeconds, "runTtlSeconds": d.RunTTLSeconds, "pauseTtlSeconds": d.PauseTTLSeconds, "idleTtlSeconds": d.IdleTTLSeconds, "capture.deadlineSeconds": d.Capture.DeadlineSeconds} {
		if n < 0 || n > maxSeconds {
			return fmt.Errorf("%s: want 0 to %d, got %d", name, maxSeconds, n)
		}
	}
	if len(d.Capture.Policy) > maxCapture {
		return fmt.Errorf("capture.policy: want at most %d bytes, got %d", maxCapture, len(d.Capture.Policy))
	}
	if !(d.SpendCapUSD >= 0 && d.SpendCapUSD <= MostDollars.USD()) {
		return fmt.Errorf("spendCapUSD: want 0 to %.0f, got %g", MostDollars.USD(), d.SpendCapUSD)
	}
	if d.Capture.MaxBytes < 0 {
		return fmt.Errorf("capture.maxBytes: want 0 or more, got %d", d.Capture.MaxBytes)
	}
	return nil
}

func (d Definition) checkChoices() error {
	switch {
	case !slices.Contains([]Reuse{ReuseDefault, ReuseThread, ReuseNone}, d.Reuse):
		return fmt.Errorf("reuse: want thread or none, got %.80q", d.Reuse)
	case !slices.Contains([]OnLapse{LapseDetaches, "detach", LapseCancels}, d.OnLapse):
		return fmt.Errorf("onLapse: want detach or cancel, got %.80q", d.OnLapse)
	case !slices.Contains(SnapshotPolicies, d.Snapshots):
		return fmt.Errorf("snapshots: want none, after-setup or after-run, got %.80q", d.Snapshots)
	}
	return d.checkPolicy()
}

func (d Definition) checkPolicy() error {
	if !slices.Contains(CheckpointPolicies, d.Checkpoint) {
		return fmt.Errorf("checkpoint: want none, finished or always, got %.80q", d.Checkpoint)
	}
	return nil
}

// Hash is the hex SHA-256 over the canonical JSON of everything but the secrets: what
// makes two sandboxes interchangeable (IS-3).
func (d Definition) Hash() (string, error) {
	d.Secrets = nil
	text, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("hash definition %s: %w", d.Name, err)
	}
	var members map[string]any
	if err := json.Unmarshal(text, &members); err != nil {
		return "", fmt.Errorf("hash definition %s: %w", d.Name, err)
	}
	return WorkspaceHash(members)
}

// material is what the key of a run's sandbox is made from.
func (d Definition) material(provider string, k ThreadKey, run RunID) (KeyMaterial, error) {
	hash, err := d.Hash()
	m := KeyMaterial{Provider: provider, Definition: d.Name, Tenant: k.Tenant, Thread: k.Thread, WorkspaceHash: hash}
	if d.Reuse == ReuseNone {
		m.Run = run
	}
	return m, err
}

// spec is the task to start.
func (d Definition) spec(cluster string) TaskSpec {
	return TaskSpec{
		Cluster: cmp.Or(d.Task.Cluster, cluster), TaskDefinition: d.Task.TaskDefinition, Container: d.Task.Container,
		Subnets: d.Task.Subnets, SecurityGroups: d.Task.SecurityGroups, AssignPublicIP: d.Task.AssignPublicIP, Tags: d.Task.Tags,
		TaskRole: d.Task.TaskRole,
	}
}

// reclaims is what a clean end of a run owes.
func (d Definition) reclaims() ReclaimKind {
	if d.Reuse == ReuseNone || d.DestroyOnComplete {
		return ReclaimEnd
	}
	return ReclaimIdle
}

// options are what a capture or restore of the workspace is told.
func (d Definition) options() JobOptions {
	return JobOptions{
		Dir: d.Workspace.Root, Policy: d.Capture.Policy, Secrets: d.secretNames(), DeadlineSeconds: d.Capture.DeadlineSeconds, MaxBytes: d.Capture.MaxBytes,
	}
}

// capture is what the record keeps of [Definition.options]; nil: nothing is said.
func (d Definition) capture() *JobOptions {
	if o := d.options(); o.Dir != "" || len(o.Policy) > 0 || len(o.Secrets) > 0 || o.DeadlineSeconds != 0 || o.MaxBytes != 0 {
		return &o
	}
	return nil
}

// lapse is the definition's choice as the record has it.
func (d Definition) lapse() OnLapse {
	if d.OnLapse == LapseCancels {
		return LapseCancels
	}
	return LapseDetaches
}

// tooOld reports whether a sandbox was last used longer ago than the definition allows;
// at exactly its age it is not (EN-2).
func (d Definition) tooOld(s Sandbox, now Millis) bool {
	return d.MaxAgeSeconds > 0 && now.Sub(s.UpdatedAt) > time.Duration(d.MaxAgeSeconds)*time.Second
}
