# Made from docs/session-api.md by generate.py; not for editing.

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class AddedPlan(TypedDict):
    """
    AddedPlan is a skill or a plugin: its files, or the repository that holds them.
    """

    credential: NotRequired[str]
    directory: NotRequired[str]
    files: NotRequired[dict[str, str]]
    name: str
    ref: NotRequired[str]
    repository: NotRequired[str]


class AdoptRequest(TypedDict):
    """
    AdoptRequest takes over a task that a host started itself, and a run in it whose journal is kept as Sandkeeper's wrapper keeps it.
    """

    checkpoint: NotRequired[Literal['', 'none', 'finished', 'always']]
    cluster: NotRequired[str]
    container: str
    host: str
    journal: str
    journalDir: NotRequired[str]
    keep: NotRequired[bool]
    run: str
    taskArn: str
    tenant: str
    thread: str
    ttlSeconds: NotRequired[int]


class AgentPlan(TypedDict):
    """
    AgentPlan is the program of a run: words, or text for a shell.
    """

    argv: NotRequired[list[str]]
    dir: NotRequired[str]
    input: NotRequired[str]
    shell: NotRequired[str]


class AttachRequest(TypedDict):
    """
    AttachRequest takes a run for a host.
    """

    host: str
    run: str
    takeover: NotRequired[bool]
    tenant: str


class CancelRequest(TypedDict):
    """
    CancelRequest asks that a run end. With the host that has it, it ends it at once.
    """

    host: NotRequired[str]
    run: str
    tenant: str


class CapturePlan(TypedDict):
    """
    CapturePlan says what of the workspace a checkpoint holds.
    """

    deadlineSeconds: NotRequired[int]
    maxBytes: NotRequired[int]
    policy: NotRequired[Any]


class ConversationPut(TypedDict):
    """
    ConversationPut is the next version of a thread's conversation, opaque to Sandkeeper.
    """

    data: str
    folded: NotRequired[list[str]]
    seen: int


class FileEventsPlan(TypedDict):
    """
    FileEventsPlan says whether changes of the workspace are written down.
    """

    enabled: NotRequired[bool]
    exclude: NotRequired[list[str]]
    maxDiffBytes: NotRequired[int]


class FinishRequest(TypedDict):
    """
    FinishRequest ends a run whose agent has ended.
    """

    conversation: NotRequired[ConversationPut]
    host: str
    run: str
    tenant: str


class GetRequest(TypedDict):
    """
    GetRequest asks for a run.
    """

    run: str
    tenant: str


class HookPlan(TypedDict):
    """
    HookPlan names the Lambda functions that hear of a sandbox's life. Ready is waited for, and its failure fails the start; the others are only told.
    """

    destroyed: NotRequired[str]
    error: NotRequired[str]
    file: NotRequired[str]
    ready: NotRequired[str]


class HostRequest(TypedDict):
    """
    HostRequest is for what only the host of a run may ask: renew, detach, interrupt.
    """

    host: str
    run: str
    tenant: str


class ListRunsRequest(TypedDict):
    """
    ListRunsRequest asks for the runs of a thread.
    """

    active: NotRequired[bool]
    tenant: str
    thread: str


class LostWorkspace(TypedDict):
    """
    LostWorkspace tells that the work of an earlier run of the thread is not in the workspace.
    """

    run: str
    why: str


class RulePlan(TypedDict):
    """
    RulePlan is what one kind of act is judged by. Deny wins.
    """

    allow: NotRequired[list[str]]
    deny: NotRequired[list[str]]


class RunFault(TypedDict):
    """
    RunFault is a RunError as hosts see it.
    """

    code: str
    message: NotRequired[str]


class RunView(TypedDict):
    """
    RunView is a run as hosts see it.
    """

    attachedUntil: NotRequired[int]
    cancelRequested: NotRequired[int]
    checkpoint: NotRequired[str]
    checkpointId: NotRequired[str]
    complete: NotRequired[bool]
    definition: NotRequired[str]
    detachedSince: NotRequired[int]
    ending: NotRequired[str]
    error: NotRequired[RunFault]
    exitCode: NotRequired[int]
    exitedAt: NotRequired[int]
    finishedAt: NotRequired[int]
    instance: NotRequired[str]
    interruptedSince: NotRequired[int]
    logEnd: int
    parent: NotRequired[str]
    readyAt: NotRequired[int]
    run: str
    sandboxKey: NotRequired[str]
    sealed: NotRequired[bool]
    startedAt: int
    status: Literal['running', 'interrupted', 'completed', 'failed', 'aborted']
    taskArn: NotRequired[str]
    taskStoppedAt: NotRequired[int]
    tenant: str
    thread: str


SecretPlan = TypedDict(
    'SecretPlan',
    {
        'from': NotRequired[str],
        'name': str,
    },
)


SegmentView = TypedDict(
    'SegmentView',
    {
        'data': NotRequired[str],
        'early': NotRequired[bool],
        'end': int,
        'from': int,
        'headers': NotRequired[dict[str, str]],
        'omitted': NotRequired[bool],
        'sha256': NotRequired[str],
        'until': NotRequired[int],
        'url': NotRequired[str],
    },
)


class SegmentsReport(TypedDict):
    """
    SegmentsReport tells pieces of a run's output in order, without a gap.
    """

    end: NotRequired[bool]
    next: int
    run: RunView
    segments: list[SegmentView]


SegmentsRequest = TypedDict(
    'SegmentsRequest',
    {
        'from': int,
        'run': str,
        'tenant': str,
    },
)


class SetupStep(TypedDict):
    """
    SetupStep is one command of the set-up.
    """

    name: str
    run: str


class SourcePlan(TypedDict):
    """
    SourcePlan is the repository that the workspace is a clone of.
    """

    credential: NotRequired[str]
    depth: NotRequired[int]
    directory: NotRequired[str]
    ref: NotRequired[str]
    repository: str


class SpendView(TypedDict):
    """
    SpendView is what a run and its tenant have cost by now, as hosts see it; dollars.
    """

    capAt: NotRequired[int]
    capUSD: NotRequired[float]
    over: NotRequired[bool]
    tenantCapUSD: NotRequired[float]
    tenantUSD: NotRequired[float]
    usd: float


class StartReport(TypedDict):
    """
    StartReport is the answer of start.
    """

    ensured: NotRequired[Literal['created', 'resumed', 'native-restored']]
    restoredFrom: NotRequired[str]
    run: RunView
    state: Literal['provisioning', 'ready']
    waiting: NotRequired[str]
    workspaceLost: NotRequired[LostWorkspace]


TailReport = TypedDict(
    'TailReport',
    {
        'data': str,
        'end': NotRequired[bool],
        'from': int,
        'next': int,
        'run': RunView,
        'waiting': NotRequired[str],
    },
)


TailRequest = TypedDict(
    'TailRequest',
    {
        'from': int,
        'host': NotRequired[str],
        'run': str,
        'stallSeconds': NotRequired[int],
        'stream': NotRequired[Literal['', 'output', 'files']],
        'tenant': str,
        'waitSeconds': NotRequired[int],
    },
)


class TaskTemplate(TypedDict):
    """
    TaskTemplate is the task that a sandbox is.
    """

    assignPublicIp: NotRequired[bool]
    cluster: NotRequired[str]
    container: str
    securityGroups: NotRequired[list[str]]
    subnets: list[str]
    tags: NotRequired[dict[str, str]]
    taskDefinition: str
    taskRole: NotRequired[str]


class ThreadKey(TypedDict):
    """
    ThreadKey names one thread of one tenant. Every operation takes it whole (I16).
    """

    tenant: str
    thread: str


class ToolPlan(TypedDict):
    """
    ToolPlan is a tool that an agent may call: a Lambda function behind a name.
    """

    description: NotRequired[str]
    function: str
    inputSchema: NotRequired[Any]
    name: str
    timeoutSeconds: NotRequired[int]


class Refusal(TypedDict):
    code: str
    message: str


class EndReport(TypedDict):
    """
    EndReport is the answer of cancel and fail. An end that is not over yet is recorded, and goes on: in the host's next call, or in a sweep.
    """

    ended: bool
    run: RunView
    waiting: NotRequired[str]


class FailRequest(TypedDict):
    """
    FailRequest has a run's host give it up.
    """

    error: RunFault
    host: str
    run: str
    tenant: str


class FinishReport(TypedDict):
    """
    FinishReport is the answer of finish.
    """

    checkpoint: NotRequired[str]
    checkpointFailed: NotRequired[str]
    run: RunView
    state: Literal['finishing', 'finished']
    waiting: NotRequired[str]


class ListRunsReport(TypedDict):
    """
    ListRunsReport is the answer of list and active: newest first.
    """

    more: NotRequired[bool]
    runs: list[RunView]


class PolicyPlan(TypedDict):
    """
    PolicyPlan says what an agent may do; what no rule matches is as Default says.
    """

    commands: NotRequired[RulePlan]
    default: NotRequired[Literal['', 'allow', 'deny']]
    reach: NotRequired[RulePlan]
    write: NotRequired[RulePlan]


class RenewReport(TypedDict):
    """
    RenewReport is the answer of attach and renew.
    """

    cancel: NotRequired[bool]
    run: RunView
    spend: NotRequired[SpendView]
    writer: NotRequired[str]


class SetupGroup(TypedDict):
    """
    SetupGroup is steps that belong together: one after the other, or all at once.
    """

    name: str
    parallel: NotRequired[bool]
    steps: list[SetupStep]


class WorkspacePlan(TypedDict):
    """
    WorkspacePlan is where the agent works, and what is put there before it begins.
    """

    instructions: NotRequired[str]
    packageManager: NotRequired[Literal['', 'auto', 'npm', 'pnpm', 'yarn', 'bun', 'pip', 'uv', 'none']]
    plugins: NotRequired[list[AddedPlan]]
    root: NotRequired[str]
    scripts: NotRequired[dict[str, str]]
    setup: NotRequired[list[SetupGroup]]
    skills: NotRequired[list[AddedPlan]]
    source: NotRequired[SourcePlan]


class Answer(TypedDict):
    active: NotRequired[ListRunsReport]
    adopt: NotRequired[StartReport]
    attach: NotRequired[RenewReport]
    cancel: NotRequired[EndReport]
    detach: NotRequired[RenewReport]
    error: NotRequired[Refusal]
    fail: NotRequired[EndReport]
    finish: NotRequired[FinishReport]
    get: NotRequired[RunView]
    interrupt: NotRequired[RenewReport]
    list: NotRequired[ListRunsReport]
    renew: NotRequired[RenewReport]
    segments: NotRequired[SegmentsReport]
    start: NotRequired[StartReport]
    tail: NotRequired[TailReport]


class Definition(TypedDict):
    """
    Definition is what a sandbox is made from, and how its runs are kept. It holds no secret: those are named.
    """

    capture: NotRequired[CapturePlan]
    checkpoint: NotRequired[Literal['', 'none', 'finished', 'always']]
    destroyOnComplete: NotRequired[bool]
    fileEvents: NotRequired[FileEventsPlan]
    hooks: NotRequired[HookPlan]
    idleTtlSeconds: NotRequired[int]
    maxAgeSeconds: NotRequired[int]
    name: str
    onLapse: NotRequired[Literal['', 'detach', 'cancel']]
    pauseTtlSeconds: NotRequired[int]
    policy: NotRequired[PolicyPlan]
    reuse: NotRequired[Literal['', 'thread', 'none']]
    runTtlSeconds: NotRequired[int]
    secrets: NotRequired[list[str | SecretPlan]]
    snapshots: NotRequired[Literal['', 'none', 'after-setup', 'after-run']]
    spendCapUSD: NotRequired[float]
    task: TaskTemplate
    tools: NotRequired[list[ToolPlan]]
    version: int
    workspace: NotRequired[WorkspacePlan]


class StartRequest(TypedDict):
    """
    StartRequest begins a run, or asks how far its start is.
    """

    agent: AgentPlan
    conversation: NotRequired[Literal['', 'host', 'none']]
    definition: NotRequired[Definition]
    definitionName: NotRequired[str]
    host: str
    parent: NotRequired[str]
    run: str
    tenant: str
    thread: str
    tools: NotRequired[list[str]]


class Call(TypedDict):
    active: NotRequired[ThreadKey]
    adopt: NotRequired[AdoptRequest]
    attach: NotRequired[AttachRequest]
    cancel: NotRequired[CancelRequest]
    detach: NotRequired[HostRequest]
    fail: NotRequired[FailRequest]
    finish: NotRequired[FinishRequest]
    get: NotRequired[GetRequest]
    interrupt: NotRequired[HostRequest]
    list: NotRequired[ListRunsRequest]
    renew: NotRequired[HostRequest]
    segments: NotRequired[SegmentsRequest]
    start: NotRequired[StartRequest]
    tail: NotRequired[TailRequest]


class SandkeeperSession(TypedDict):
    answer: NotRequired[Answer]
    call: NotRequired[Call]
