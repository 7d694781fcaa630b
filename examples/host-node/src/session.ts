// Made from docs/session-api.md by generate.mjs; not for editing.

export interface SandkeeperSession {
  answer?: {
    active?: ListRunsReport;
    adopt?: StartReport;
    attach?: RenewReport;
    cancel?: EndReport;
    detach?: RenewReport;
    error?: Refusal;
    fail?: EndReport;
    finish?: FinishReport;
    get?: RunView;
    interrupt?: RenewReport;
    list?: ListRunsReport;
    renew?: RenewReport;
    segments?: SegmentsReport;
    start?: StartReport;
    tail?: TailReport;
  };
  call?: {
    active?: ThreadKey;
    adopt?: AdoptRequest;
    attach?: AttachRequest;
    cancel?: CancelRequest;
    detach?: HostRequest;
    fail?: FailRequest;
    finish?: FinishRequest;
    get?: GetRequest;
    interrupt?: HostRequest;
    list?: ListRunsRequest;
    renew?: HostRequest;
    segments?: SegmentsRequest;
    start?: StartRequest;
    tail?: TailRequest;
  };
}
/**
 * ListRunsReport is the answer of list and active: newest first.
 */
export interface ListRunsReport {
  /**
   * older ones are left out
   */
  more?: boolean;
  runs: RunView[];
}
/**
 * RunView is a run as hosts see it.
 */
export interface RunView {
  attachedUntil?: number;
  cancelRequested?: number;
  checkpoint?: string;
  checkpointId?: string;
  /**
   * of an ended run: the log is whole
   */
  complete?: boolean;
  definition?: string;
  detachedSince?: number;
  ending?: string;
  error?: RunFault;
  exitCode?: number;
  /**
   * hint
   */
  exitedAt?: number;
  finishedAt?: number;
  instance?: string;
  interruptedSince?: number;
  logEnd: number;
  parent?: string;
  readyAt?: number;
  run: string;
  /**
   * with instance, what a save by name asks for
   */
  sandboxKey?: string;
  sealed?: boolean;
  startedAt: number;
  status: "running" | "interrupted" | "completed" | "failed" | "aborted";
  taskArn?: string;
  /**
   * hint
   */
  taskStoppedAt?: number;
  tenant: string;
  thread: string;
}
/**
 * RunFault is a RunError as hosts see it.
 */
export interface RunFault {
  /**
   * short, lower-case with hyphens
   */
  code: string;
  message?: string;
}
/**
 * StartReport is the answer of start.
 */
export interface StartReport {
  ensured?: "created" | "resumed" | "native-restored";
  restoredFrom?: string;
  run: RunView;
  state: "provisioning" | "ready";
  /**
   * what a provisioning start waits for
   */
  waiting?: string;
  workspaceLost?: LostWorkspace;
}
/**
 * LostWorkspace tells that the work of an earlier run of the thread is not in the workspace.
 */
export interface LostWorkspace {
  run: string;
  why: string;
}
/**
 * RenewReport is the answer of attach and renew.
 */
export interface RenewReport {
  /**
   * Cancel says that the run is to end: its host asks for cancel, and it ends.
   */
  cancel?: boolean;
  run: RunView;
  spend?: SpendView;
  /**
   * of attach: why the thread's writer lease was not to be had
   */
  writer?: string;
}
/**
 * Spend is what the run costs, of renew, where the installation, the definition or an operator has set a cap.
 */
export interface SpendView {
  /**
   * when the run will have cost that
   */
  capAt?: number;
  /**
   * of the run; absent: none
   */
  capUSD?: number;
  /**
   * Over says that a cap is reached: once its host leaves or pauses it, the next sweep ends the run.
   */
  over?: boolean;
  tenantCapUSD?: number;
  /**
   * of the tenant, this calendar month, UTC
   */
  tenantUSD?: number;
  /**
   * of the run
   */
  usd: number;
}
/**
 * EndReport is the answer of cancel and fail. An end that is not over yet is recorded, and goes on: in the host's next call, or in a sweep.
 */
export interface EndReport {
  ended: boolean;
  run: RunView;
  waiting?: string;
}
export interface Refusal {
  code: string;
  message: string;
}
/**
 * FinishReport is the answer of finish.
 */
export interface FinishReport {
  checkpoint?: string;
  /**
   * CheckpointFailed is why the workspace could not be stored yet; reclaim tries again before the sandbox ends.
   */
  checkpointFailed?: string;
  run: RunView;
  state: "finishing" | "finished";
  /**
   * what a finishing one waits for
   */
  waiting?: string;
}
/**
 * SegmentsReport tells pieces of a run's output in order, without a gap.
 */
export interface SegmentsReport {
  /**
   * End says that nothing follows.
   */
  end?: boolean;
  /**
   * from where to ask again
   */
  next: number;
  run: RunView;
  segments: SegmentView[];
}
/**
 * SegmentView is a piece of a run's output: its bytes, or where they can be read for a while.
 */
export interface SegmentView {
  /**
   * base64
   */
  data?: string;
  /**
   * Early says that the log does not have the piece yet: a sandbox has sent it ahead, and what the log has there in the end is what counts.
   */
  early?: boolean;
  end: number;
  from: number;
  headers?: {
    [k: string]: string;
  };
  omitted?: boolean;
  /**
   * hex, over the piece's bytes
   */
  sha256?: string;
  /**
   * how long the URL is good
   */
  until?: number;
  /**
   * to GET, with these headers
   */
  url?: string;
}
/**
 * TailReport is a piece of a run's output: whole lines, unless the run has ended or a line is very long. The newline of the last one may come with the next piece.
 */
export interface TailReport {
  /**
   * base64
   */
  data: string;
  /**
   * End says that nothing follows.
   */
  end?: boolean;
  from: number;
  /**
   * from where to go on; behind an omitted piece it is more than Data is long
   */
  next: number;
  run: RunView;
  /**
   * why the sandbox gave no answer
   */
  waiting?: string;
}
/**
 * ThreadKey names one thread of one tenant. Every operation takes it whole (I16).
 */
export interface ThreadKey {
  tenant: string;
  thread: string;
}
/**
 * AdoptRequest takes over a task that a host started itself, and a run in it whose journal is kept as Sandkeeper's wrapper keeps it.
 */
export interface AdoptRequest {
  checkpoint?: "" | "none" | "finished" | "always";
  /**
   * empty: the installation's
   */
  cluster?: string;
  container: string;
  host: string;
  /**
   * Journal is the nonce with which the run's sentinel will be written.
   */
  journal: string;
  /**
   * JournalDir is the directory of the journal in the container, where that is neither the usual one nor what the container's own environment says.
   */
  journalDir?: string;
  /**
   * Keep leaves the sandbox warm after a clean end.
   */
  keep?: boolean;
  run: string;
  taskArn: string;
  tenant: string;
  thread: string;
  ttlSeconds?: number;
}
/**
 * AttachRequest takes a run for a host.
 */
export interface AttachRequest {
  host: string;
  run: string;
  /**
   * although another host has it
   */
  takeover?: boolean;
  tenant: string;
}
/**
 * CancelRequest asks that a run end. With the host that has it, it ends it at once.
 */
export interface CancelRequest {
  host?: string;
  run: string;
  tenant: string;
}
/**
 * HostRequest is for what only the host of a run may ask: renew, detach, interrupt.
 */
export interface HostRequest {
  host: string;
  run: string;
  tenant: string;
}
/**
 * FailRequest has a run's host give it up.
 */
export interface FailRequest {
  error: RunFault;
  host: string;
  run: string;
  tenant: string;
}
/**
 * FinishRequest ends a run whose agent has ended.
 */
export interface FinishRequest {
  conversation?: ConversationPut;
  host: string;
  run: string;
  tenant: string;
}
/**
 * saved first, where it is given
 */
export interface ConversationPut {
  /**
   * base64
   */
  data: string;
  /**
   * Folded are the runs whose transcripts it holds; none: the run that finishes.
   */
  folded?: string[];
  /**
   * the version that it goes on from; 0: none
   */
  seen: number;
}
/**
 * GetRequest asks for a run.
 */
export interface GetRequest {
  run: string;
  tenant: string;
}
/**
 * ListRunsRequest asks for the runs of a thread.
 */
export interface ListRunsRequest {
  /**
   * only those that have not ended
   */
  active?: boolean;
  tenant: string;
  thread: string;
}
/**
 * SegmentsRequest asks where the output of a run lies, from a byte position on: for viewers that read it from the store themselves, and come back with the position they got to.
 */
export interface SegmentsRequest {
  from: number;
  run: string;
  tenant: string;
}
/**
 * StartRequest begins a run, or asks how far its start is.
 */
export interface StartRequest {
  agent: AgentPlan;
  /**
   * Conversation says who keeps the thread's conversation: the host, which hands it in with finish or by the checkpoint function, or none. Without one no workspace is kept.
   */
  conversation?: "" | "host" | "none";
  definition?: Definition;
  definitionName?: string;
  host: string;
  /**
   * Parent is the paused run that this one goes on for, in the same sandbox.
   */
  parent?: string;
  run: string;
  tenant: string;
  thread: string;
  /**
   * Tools are the definition's tools that the run's agent may call; absent: all.
   */
  tools?: string[];
}
/**
 * AgentPlan is the program of a run: words, or text for a shell.
 */
export interface AgentPlan {
  argv?: string[];
  /**
   * absolute; empty: the container's
   */
  dir?: string;
  /**
   * its stdin; it is in no record, argument or log
   */
  input?: string;
  shell?: string;
}
/**
 * Definition is given, or the name of one that the installation keeps: its newest version, or name@version.
 */
export interface Definition {
  capture?: CapturePlan;
  /**
   * Checkpoint says which ends of runs store the workspace; empty: the installation's.
   */
  checkpoint?: "" | "none" | "finished" | "always";
  /**
   * also of a run that finished
   */
  destroyOnComplete?: boolean;
  fileEvents?: FileEventsPlan;
  hooks?: HookPlan;
  /**
   * IdleTTLSeconds is how long a sandbox is kept warm between two turns; zero: the installation's time.
   */
  idleTtlSeconds?: number;
  /**
   * MaxAgeSeconds is how long after its last use a sandbox is still used again; zero: as long as it lives.
   */
  maxAgeSeconds?: number;
  name: string;
  /**
   * OnLapse is what becomes of a run whose host stopped renewing: detach, the default, or cancel.
   */
  onLapse?: "" | "detach" | "cancel";
  /**
   * PauseTTLSeconds is how long a run may stay paused; zero: the installation's time.
   */
  pauseTtlSeconds?: number;
  policy?: PolicyPlan;
  /**
   * Reuse says whose sandbox it is: the thread's, by default, or each run's own.
   */
  reuse?: "" | "thread" | "none";
  /**
   * after the detach; zero: the installation's
   */
  runTtlSeconds?: number;
  /**
   * Secrets are what the agent and the set-up find in their environment, by name. They are redacted from checkpoints.
   */
  secrets?: (string | SecretPlan)[];
  /**
   * Snapshots says when a provider that can takes a native snapshot of a sandbox. Fargate cannot: there it takes none, and the thread's head alone brings a workspace back.
   */
  snapshots?: "" | "none" | "after-setup" | "after-run";
  /**
   * SpendCapUSD is what a run may cost, in dollars, by list price from its start on; zero: the installation's cap.
   */
  spendCapUSD?: number;
  task: TaskTemplate;
  /**
   * that its agents may call
   */
  tools?: ToolPlan[];
  version: number;
  workspace?: WorkspacePlan;
}
/**
 * CapturePlan says what of the workspace a checkpoint holds.
 */
export interface CapturePlan {
  deadlineSeconds?: number;
  maxBytes?: number;
  /**
   * include, exclude, redact, as capture documents it
   */
  policy?: {
    [k: string]: unknown;
  };
}
/**
 * FileEventsPlan says whether changes of the workspace are written down.
 */
export interface FileEventsPlan {
  enabled?: boolean;
  /**
   * globs, beside the default ones
   */
  exclude?: string[];
  /**
   * of one change; zero: no diffs are cut short but by the default
   */
  maxDiffBytes?: number;
}
/**
 * HookPlan names the Lambda functions that hear of a sandbox's life. Ready is waited for, and its failure fails the start; the others are only told.
 */
export interface HookPlan {
  destroyed?: string;
  error?: string;
  file?: string;
  ready?: string;
}
/**
 * PolicyPlan says what an agent may do; what no rule matches is as Default says.
 */
export interface PolicyPlan {
  commands?: RulePlan;
  /**
   * empty: deny where something is allowed by a list, else allow
   */
  default?: "" | "allow" | "deny";
  reach?: RulePlan1;
  write?: RulePlan2;
}
/**
 * globs of first words
 */
export interface RulePlan {
  allow?: string[];
  deny?: string[];
}
/**
 * hosts, *.name for all below one
 */
export interface RulePlan1 {
  allow?: string[];
  deny?: string[];
}
/**
 * globs of paths below the workspace
 */
export interface RulePlan2 {
  allow?: string[];
  deny?: string[];
}
/**
 * SecretPlan names a secret, and where its value is kept. It is written as an object, or as its name alone where the container's environment holds the value already.
 */
export interface SecretPlan {
  /**
   * From is the ARN of a Secrets Manager secret or of an SSM parameter.
   */
  from?: string;
  name: string;
}
/**
 * TaskTemplate is the task that a sandbox is.
 */
export interface TaskTemplate {
  assignPublicIp?: boolean;
  cluster?: string;
  /**
   * the agent's
   */
  container: string;
  securityGroups?: string[];
  subnets: string[];
  tags?: {
    [k: string]: string;
  };
  /**
   * family, family:revision or ARN
   */
  taskDefinition: string;
  /**
   * TaskRole is the ARN of the role that the task's processes have; empty: the task definition's. The installation says which roles session may pass on.
   */
  taskRole?: string;
}
/**
 * ToolPlan is a tool that an agent may call: a Lambda function behind a name.
 */
export interface ToolPlan {
  description?: string;
  /**
   * name or ARN
   */
  function: string;
  /**
   * of its arguments, an object
   */
  inputSchema?: {
    [k: string]: unknown;
  };
  name: string;
  timeoutSeconds?: number;
}
/**
 * WorkspacePlan is where the agent works, and what is put there before it begins.
 */
export interface WorkspacePlan {
  /**
   * text of the workspace's AGENTS.md
   */
  instructions?: string;
  /**
   * empty: auto
   */
  packageManager?: "" | "auto" | "npm" | "pnpm" | "yarn" | "bun" | "pip" | "uv" | "none";
  plugins?: AddedPlan[];
  /**
   * absolute; empty: as WorkspaceVariable says
   */
  root?: string;
  /**
   * Scripts are programs for the agent, by name.
   */
  scripts?: {
    [k: string]: string;
  };
  /**
   * Setup is run in order, a group after the other.
   */
  setup?: SetupGroup[];
  skills?: AddedPlan[];
  source?: SourcePlan;
}
/**
 * AddedPlan is a skill or a plugin: its files, or the repository that holds them.
 */
export interface AddedPlan {
  credential?: string;
  /**
   * of the repository
   */
  directory?: string;
  /**
   * text by path
   */
  files?: {
    [k: string]: string;
  };
  name: string;
  ref?: string;
  repository?: string;
}
/**
 * SetupGroup is steps that belong together: one after the other, or all at once.
 */
export interface SetupGroup {
  name: string;
  parallel?: boolean;
  steps: SetupStep[];
}
/**
 * SetupStep is one command of the set-up.
 */
export interface SetupStep {
  name: string;
  /**
   * for a shell
   */
  run: string;
}
/**
 * SourcePlan is the repository that the workspace is a clone of.
 */
export interface SourcePlan {
  /**
   * Credential names the secret with which the repository is read.
   */
  credential?: string;
  depth?: number;
  /**
   * below the root; empty: the root itself
   */
  directory?: string;
  /**
   * branch, tag or commit; empty: the repository's own head
   */
  ref?: string;
  repository: string;
}
/**
 * TailRequest asks for a run's output from a byte position on.
 */
export interface TailRequest {
  from: number;
  /**
   * Host reads the journal itself, and brings new output to the log; without it the log is read.
   */
  host?: string;
  run: string;
  /**
   * StallSeconds is how long a host waits for a run's first byte; zero: TailStall.
   */
  stallSeconds?: number;
  /**
   * Stream is what is read: the run's output, or what changed in the workspace.
   */
  stream?: "" | "output" | "files";
  tenant: string;
  /**
   * for output, at most MaxTailWait
   */
  waitSeconds?: number;
}
