// A host in TypeScript: starts a run, follows its output, leaves, comes back, and
// finishes it.
//
//   node dist/host.js --definition sandbox.json --shell 'echo hello' --thread t1
//   node dist/host.js --definition sandbox.json --shell 'sleep 600' --thread t1 --detach
//   node dist/host.js --attach --run RUN --from 0
//   node dist/host.js --cancel --run RUN
//   node dist/host.js --pause --run RUN --host HOST
//   node dist/host.js --parent RUN --definition sandbox.json --shell 'echo answered' --thread t1
//
// A thread's next turn finds the workspace of the last, where the definition keeps
// checkpoints: in the sandbox that is still warm, or in a new one that it is restored into.
// Output goes to stdout; the last line on stderr is JSON and says how it went. Ctrl-C
// leaves: the agent works on. docs/hosts.md explains the order of the calls.

import { randomBytes } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { InvokeCommand, LambdaClient } from "@aws-sdk/client-lambda";
import type { HostRequest, RunView, SandkeeperSession, StartRequest } from "./session.js";

type Calls = Required<NonNullable<SandkeeperSession["call"]>>;
type Answers = Required<NonNullable<SandkeeperSession["answer"]>>;
type Operation = keyof Calls & keyof Answers;

// package-lock.json pins an SDK that runs on Node 20: its warning about later versions
// would stand before every other line on stderr.
process.env["AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED"] ??= "true";

const renewEvery = 30_000;
const busyMost = 120_000; // how long a start waits for an earlier turn of its thread to be over
const stallSeconds = 7 * 24 * 3600;
const throttled = new Set(["TooManyRequestsException", "ResourceConflictException", "ThrottlingException"]);

/** The call was understood, and changed nothing. */
class Refused extends Error {
  constructor(operation: string, readonly code: string, message: string) {
    super(`${operation}: ${code}: ${message}`);
  }
}

/** The host does not have the run any more, leaves it, or is to end it. */
class Gone extends Error {
  constructor(readonly why: string) {
    super(why);
  }
}

/** The session function. Each call may be made again with the same ids. */
class Session {
  private readonly lambda = new LambdaClient({ maxAttempts: 1 }); // retries are made here

  constructor(private readonly name: string) {}

  /** Makes a call until its answer has come. Refusals are answers. */
  async call<O extends Operation>(operation: O, request: Calls[O], signal?: AbortSignal): Promise<Answers[O]> {
    const payload = JSON.stringify({ [operation]: request });
    for (let attempt = 0; attempt < 5; attempt++) {
      if (attempt > 0) await pause(Math.min(500 * 2 ** attempt, 8000), undefined, { signal });
      const answer = await this.once(payload, signal);
      if (answer === undefined) continue; // what was done is open: the same call again
      if (answer.error !== undefined) throw new Refused(operation, answer.error.code, answer.error.message);
      const said = answer[operation];
      if (said !== undefined) return said as Answers[O];
    }
    throw new Error(`${operation}: no answer to 5 calls`);
  }

  private async once(payload: string, signal?: AbortSignal): Promise<NonNullable<SandkeeperSession["answer"]> | undefined> {
    const limits = [AbortSignal.timeout(90_000), ...(signal ? [signal] : [])];
    try {
      const out = await this.lambda.send(new InvokeCommand({ FunctionName: this.name, Payload: payload }), { abortSignal: AbortSignal.any(limits) });
      return out.FunctionError || out.Payload === undefined ? undefined : JSON.parse(Buffer.from(out.Payload).toString());
    } catch (e) {
      const fault = e as { name?: string; $metadata?: { httpStatusCode?: number } };
      const status = fault.$metadata?.httpStatusCode ?? 500;
      if (signal?.aborted || (status < 500 && !throttled.has(fault.name ?? ""))) throw e;
      return undefined;
    }
  }
}

/** A run that this host has, renewed in the background until close. */
class Attachment {
  private readonly lost = new AbortController();
  private readonly renewals = setInterval(() => void this.renew(), renewEvery);

  constructor(private readonly session: Session, private readonly me: HostRequest) {}

  /** Stops what waits for the run, and says why. */
  drop(why: string): void {
    this.lost.abort(new Gone(why));
  }

  close(): void {
    clearInterval(this.renewals);
  }

  private async renew(): Promise<void> {
    try {
      if ((await this.session.call("renew", this.me)).cancel) this.drop("cancelled");
    } catch (e) {
      // A renewal without an answer is no loss: the next one may come through. A writer
      // lease that is lost, finish tells.
      if (e instanceof Refused && e.code !== "writer-lost") this.drop(e.code);
    }
  }

  /** Pieces of output, each with the position behind it, until there is no more. */
  async *output(position: number): AsyncGenerator<[data: Buffer, position: number]> {
    for (;;) {
      const piece = await this.tail(position);
      if (piece === undefined) continue;
      if (piece.next > position) {
        position = piece.next;
        yield [Buffer.from(piece.data ?? "", "base64"), position];
      }
      if (piece.end) return;
      if (piece.run.cancelRequested) throw new Gone("cancelled");
      if (piece.waiting && piece.run.taskStoppedAt) throw new Gone("task-stopped");
      if (!piece.data) await this.wait(1000);
    }
  }

  private async tail(from: number) {
    try {
      return await this.until(this.session.call("tail", { ...this.me, from, waitSeconds: 20, stallSeconds }, this.lost.signal));
    } catch (e) {
      if (!(e instanceof Refused) || e.code !== "busy") throw e;
      await this.wait(1000);
      return undefined;
    }
  }

  async finish(): Promise<Answers["finish"]> {
    for (;;) {
      const report = await this.until(this.session.call("finish", this.me, this.lost.signal));
      if (report.state === "finished") return report;
      await this.wait(1000);
    }
  }

  private wait(ms: number): Promise<void> {
    return this.until(pause(ms, undefined, { signal: this.lost.signal }));
  }

  /** What was waited for, or why the run is lost meanwhile. */
  private async until<T>(promise: Promise<T>): Promise<T> {
    try {
      return await promise;
    } catch (e) {
      throw this.lost.signal.aborted ? this.lost.signal.reason : e;
    }
  }
}

/** Ends a run. Only the host that has it ends it at once; else whoever has it does. */
async function cancel(session: Session, me: HostRequest): Promise<RunView> {
  for (;;) {
    const report = await session.call("cancel", me);
    if (report.ended || report.waiting === "host") return report.run;
    await pause(1000);
  }
}

/** Asks until the agent works. An earlier turn that is being ended is waited for. */
async function start(session: Session, request: StartRequest, signal: AbortSignal): Promise<void> {
  const until = Date.now() + busyMost;
  for (;;) {
    try {
      const report = await session.call("start", request, signal);
      if (report.state === "ready") return;
    } catch (e) {
      if (!(e instanceof Refused) || !["thread-busy", "writer-conflict"].includes(e.code) || Date.now() > until) throw e;
    }
    await pause(1000, undefined, { signal });
  }
}

function told(what: Record<string, unknown>): void {
  console.error(JSON.stringify(what));
}

function of(run: RunView): Record<string, unknown> {
  return { status: run.status, exitCode: run.exitCode, checkpoint: run.checkpointId };
}

const text = { type: "string" } as const;
const flag = { type: "boolean", default: false } as const;

const known = {
  function: { ...text, default: process.env["SANDKEEPER_SESSION_FUNCTION"] ?? "", use: "the session function: its name, with an alias where tenants have one" },
  tenant: { ...text, default: "-", use: "whose data it is" },
  thread: { ...text, default: "thread-" + randomBytes(8).toString("hex"), use: "the conversation" },
  run: { ...text, default: "run-" + randomBytes(8).toString("hex"), use: "the turn" },
  host: { ...text, default: "host-" + randomBytes(16).toString("hex"), use: "this host's name: whoever knows it has the run" },
  parent: { ...text, use: "the paused run that this one goes on for" },
  definition: { ...text, use: "a file, or the name of one that the installation keeps" },
  shell: { ...text, use: "what the agent is" },
  input: { ...text, use: "the agent's stdin" },
  from: { ...text, default: "0", use: "byte position of the output to go on from" },
  attach: { ...flag, use: "come back to --run" },
  takeover: { ...flag, use: "although another host has it" },
  detach: { ...flag, use: "leave as soon as the agent works" },
  cancel: { ...flag, use: "end --run" },
  pause: { ...flag, use: "pause --run for a human; a run with it as --parent goes on" },
  help: { ...flag, use: "show this, and do nothing" },
};

function help(): string {
  const lines = Object.entries(known).map(([name, option]) =>
    `  --${name}${option.type === "string" ? " TEXT" : ""}`.padEnd(22) + option.use);
  return ["usage: node dist/host.js --definition FILE --shell COMMAND [option ...]", "", ...lines].join("\n");
}

function options() {
  const { values } = parseArgs({ options: known });
  if (values.help) return values;
  if (!values.function) throw new TypeError("want --function or SANDKEEPER_SESSION_FUNCTION");
  if (!/^\d+$/.test(values.from)) throw new TypeError(`--from: want a byte position, got ${values.from}`);
  if (!values.attach && !values.cancel && !values.pause && !(values.definition && values.shell)) {
    throw new TypeError("want --definition and --shell, or --attach, or --cancel, or --pause");
  }
  return values;
}

type Options = ReturnType<typeof options>;

/** The definition in a file. */
function read(file: string): NonNullable<StartRequest["definition"]> {
  try {
    return JSON.parse(readFileSync(file, "utf8"));
  } catch (e) {
    throw new Error(`${file}: want a definition in JSON: ${(e as Error).message}`);
  }
}

function plan(o: Options, me: HostRequest): StartRequest {
  const named = o.definition ?? "";
  const definition = existsSync(named) ? { definition: read(named) } : { definitionName: named };
  return { ...me, thread: o.thread, parent: o.parent, agent: { shell: o.shell, input: o.input }, ...definition };
}

/** Does what was asked for, and returns the exit status. */
async function drive(o: Options, session: Session, me: HostRequest): Promise<number> {
  const names = { run: o.run, host: o.host };
  let position = Number(o.from);
  if (o.cancel) {
    told({ ...names, ...of(await cancel(session, me)) });
    return 0;
  }
  if (o.pause) {
    told({ ...names, ...of((await session.call("interrupt", me)).run) });
    return 0;
  }
  const interrupt = new AbortController();
  process.once("SIGINT", () => interrupt.abort(new Gone("interrupt")));
  let run: Attachment | undefined;
  try {
    if (o.attach) await session.call("attach", { ...me, takeover: o.takeover }, interrupt.signal);
    else await start(session, plan(o, me), interrupt.signal);
    const attachment = (run = new Attachment(session, me));
    const leave = () => attachment.drop("interrupt");
    interrupt.signal.addEventListener("abort", leave);
    if (interrupt.signal.aborted) leave();
    if (o.detach) throw new Gone("detach");
    for await (const [data, next] of attachment.output(position)) {
      process.stdout.write(data);
      position = next;
    }
    const ended = await attachment.finish();
    told({ ...names, position, ...of(ended.run), checkpointFailed: ended.checkpointFailed });
    return ended.run.status === "completed" ? 0 : 1;
  } catch (e) {
    const why = e instanceof Gone ? e.why : interrupt.signal.aborted ? "interrupt" : "";
    if (why === "") throw e;
    if (why === "cancelled") {
      told({ ...names, cancelled: true, ...of(await cancel(session, me)) });
      return 1;
    }
    if (["detach", "interrupt", "task-stopped"].includes(why)) await session.call("detach", me);
    told({ ...names, left: true, why, position });
    return ({ detach: 0, interrupt: 130 } as Record<string, number>)[why] ?? 3;
  } finally {
    run?.close();
  }
}

async function main(): Promise<number> {
  let o: Options;
  try {
    o = options();
  } catch (e) {
    console.error((e as Error).message);
    return 2;
  }
  if (o.help) {
    console.log(help());
    return 0;
  }
  const session = new Session(o.function);
  const me = { tenant: o.tenant, run: o.run, host: o.host };
  try {
    return await drive(o, session, me);
  } catch (e) {
    if (!(e instanceof Refused)) { // no answer, no way to the function, no such file
      told({ run: o.run, host: o.host, message: (e as Error).message });
      return 1;
    }
    if (e.code === "cancel-requested") { // while its sandbox came up
      told({ run: o.run, host: o.host, cancelled: true, ...of(await cancel(session, me)) });
      return 1;
    }
    told({ run: o.run, host: o.host, refused: e.code, message: e.message });
    return 3;
  }
}

process.exitCode = await main();
