package client

import "github.com/sandkeeper/sandkeeper/internal/core"

// Ids. Each is the host's own text; docs/session-api.md says what it may be.
type (
	// TenantID is whose data it is, "-" where there is one tenant.
	TenantID = core.TenantID
	// ThreadID is a conversation.
	ThreadID = core.ThreadID
	// RunID is one turn of an agent, unique in its tenant.
	RunID = core.RunID
	// RunKey names a run.
	RunKey = core.RunKey
	// ThreadKey names a thread.
	ThreadKey = core.ThreadKey
	// InstanceID is a sandbox.
	InstanceID = core.InstanceID
	// Millis is a time: milliseconds since 1970.
	Millis = core.Millis
)

// Requests and answers of the session function, member by member as in
// docs/session-api.md.
type (
	// StartRequest begins a run, or asks how far its start is.
	StartRequest = core.StartRequest
	// StartReport is the answer of start and adopt.
	StartReport = core.StartReport
	// StartState is how far a start is.
	StartState = core.StartState
	// Ensured is how a run came to its sandbox.
	Ensured = core.Ensured
	// LostWorkspace tells that the work of an earlier run is not in the workspace.
	LostWorkspace = core.LostWorkspace
	// AgentPlan is the program of a run: words, or text for a shell.
	AgentPlan = core.AgentPlan
	// AdoptRequest takes over a task that a host started itself.
	AdoptRequest = core.AdoptRequest
	// AttachRequest takes a run for a host.
	AttachRequest = core.AttachRequest
	// HostRequest is what renew, detach and interrupt are asked with.
	HostRequest = core.HostRequest
	// RenewReport is the answer of attach, renew, detach and interrupt.
	RenewReport = core.RenewReport
	// TailRequest asks for output from a byte position on.
	TailRequest = core.TailRequest
	// TailStream is what of a run is read.
	TailStream = core.TailStream
	// TailReport is a piece of output.
	TailReport = core.TailReport
	// SegmentsRequest asks where output lies from a byte position on.
	SegmentsRequest = core.SegmentsRequest
	// SegmentsReport tells it, piece by piece.
	SegmentsReport = core.SegmentsReport
	// SegmentView is one piece: its bytes, or where they can be read for a while.
	SegmentView = core.SegmentView
	// CancelRequest asks that a run end.
	CancelRequest = core.CancelRequest
	// FailRequest has a run's host give it up.
	FailRequest = core.FailRequest
	// EndReport is the answer of cancel and fail.
	EndReport = core.EndReport
	// FinishRequest ends a run whose agent has ended.
	FinishRequest = core.FinishRequest
	// ConversationPut is the next version of a thread's conversation.
	ConversationPut = core.ConversationPut
	// FinishReport is the answer of finish.
	FinishReport = core.FinishReport
	// FinishState is how far a finish is.
	FinishState = core.FinishState
	// GetRequest asks for a run.
	GetRequest = core.GetRequest
	// ListRunsRequest asks for the runs of a thread.
	ListRunsRequest = core.ListRunsRequest
	// ListRunsReport is the answer of list: newest first.
	ListRunsReport = core.ListRunsReport
	// RunView is a run as hosts see it.
	RunView = core.RunView
	// RunFault is why a run failed.
	RunFault = core.RunFault
	// Status is where a run stands.
	Status = core.Status
	// EndReason is why a run was ended before its agent ended by itself.
	EndReason = core.EndReason
)

// What a sandbox is made from, as JSON or named.
type (
	// Definition is what a sandbox is made from, and how its runs are kept.
	Definition = core.Definition
	// TaskTemplate is the task that a sandbox is.
	TaskTemplate = core.TaskTemplate
	// WorkspacePlan is where the agent works, and what is put there before it begins.
	WorkspacePlan = core.WorkspacePlan
	// SourcePlan is the repository that the workspace is a clone of.
	SourcePlan = core.SourcePlan
	// AddedPlan is a skill or a plugin.
	AddedPlan = core.AddedPlan
	// PackageManager is what brings a workspace's dependencies.
	PackageManager = core.PackageManager
	// SetupGroup is steps of a set-up that belong together.
	SetupGroup = core.SetupGroup
	// SetupStep is one command of the set-up.
	SetupStep = core.SetupStep
	// SecretPlan names a secret, and where its value is kept.
	SecretPlan = core.SecretPlan
	// PolicyPlan says what an agent may do.
	PolicyPlan = core.PolicyPlan
	// RulePlan is what one kind of act is judged by.
	RulePlan = core.RulePlan
	// HookPlan names the functions that hear of a sandbox's life.
	HookPlan = core.HookPlan
	// FileEventsPlan says whether changes of the workspace are written down.
	FileEventsPlan = core.FileEventsPlan
	// ToolPlan is a tool that an agent may call: a function behind a name.
	ToolPlan = core.ToolPlan
	// Reuse says whose sandbox it is.
	Reuse = core.Reuse
	// OnLapse is what becomes of a run whose host stopped renewing.
	OnLapse = core.OnLapse
	// CapturePlan says what of the workspace a checkpoint holds.
	CapturePlan = core.CapturePlan
	// CheckpointPolicy says which ends of runs store the workspace.
	CheckpointPolicy = core.CheckpointPolicy
)

// ParseDefinition reads a definition from JSON. Members that are unknown, and values that
// are not as expected, are refused with [InvalidDefinition].
func ParseDefinition(data []byte) (Definition, error) { return core.ParseDefinition(data) }

// How far a step is, and where a run stands.
const (
	Provisioning = core.Provisioning
	Ready        = core.Ready

	Finishing = core.Finishing
	Finished  = core.Finished

	Running     = core.Running
	Interrupted = core.Interrupted
	Completed   = core.Completed
	Failed      = core.Failed
	Aborted     = core.Aborted
)

// What of a run is read: its output, or what it changed in the workspace.
const (
	StreamOutput = core.StreamOutput
	StreamFiles  = core.StreamFiles
)

// Which ends of runs store the workspace.
const (
	CheckpointNone     = core.CheckpointNone
	CheckpointFinished = core.CheckpointFinished
	CheckpointAlways   = core.CheckpointAlways
)
