"""A host in Python: starts a run, follows its output, leaves, comes back, and finishes it.

    host.py --definition sandbox.json --shell 'echo hello' --thread t1
    host.py --definition sandbox.json --shell 'sleep 600' --thread t1 --detach
    host.py --attach --run RUN --from 0
    host.py --cancel --run RUN
    host.py --pause --run RUN --host HOST
    host.py --parent RUN --definition sandbox.json --shell 'echo answered' --thread t1

A thread's next turn finds the workspace of the last, where the definition keeps
checkpoints: in the sandbox that is still warm, or in a new one that it is restored into.
Output goes to stdout; the last line on stderr is JSON and says how it went. Ctrl-C leaves:
the agent works on. docs/hosts.md explains the order of the calls.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from session import (
    AgentPlan, AttachRequest, Definition, EndReport, FinishReport, FinishRequest, HostRequest, RenewReport, RunView,
    StartReport, StartRequest, TailReport, TailRequest,
)

RENEW_SECONDS = 30
BUSY_SECONDS = 120  # how long a start waits for an earlier turn of its thread to be over
STALL_SECONDS = 7 * 24 * 3600
THROTTLED = {"TooManyRequestsException", "ResourceConflictException", "ThrottlingException"}


class Refused(Exception):
    """The call was understood, and changed nothing."""

    def __init__(self, operation: str, code: str, message: str) -> None:
        super().__init__(f"{operation}: {code}: {message}")
        self.code = code


class Gone(Exception):
    """The host does not have the run any more; or it is to be cancelled."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Session:
    """The session function. Each method may be called again with the same ids."""

    def __init__(self, function: str) -> None:
        # A long poll takes 20 seconds, an end up to a minute. Retries are made here.
        config = Config(read_timeout=90, connect_timeout=10, retries={"total_max_attempts": 1}, max_pool_connections=4)
        self.function = function
        # boto3 alone reads AWS_DEFAULT_REGION only.
        self.functions = boto3.client("lambda", region_name=os.environ.get("AWS_REGION"), config=config)

    def call(self, operation: str, request: Any) -> Any:
        """Makes a call until its answer has come. Refusals are answers."""
        payload = json.dumps({operation: request}).encode()
        last = ""
        for attempt in range(5):
            if attempt > 0:
                time.sleep(min(0.5 * 2**attempt, 8))
            try:
                out = self.functions.invoke(FunctionName=self.function, Payload=payload)
            except ClientError as e:
                status = e.response["ResponseMetadata"]["HTTPStatusCode"]
                if status < 500 and e.response["Error"]["Code"] not in THROTTLED:
                    raise
                last = str(e)
                continue
            except BotoCoreError as e:
                last = str(e)
                continue
            answer = json.loads(out["Payload"].read())
            if "FunctionError" in out:
                last = answer.get("errorMessage", "")
                continue  # what was done is open: the same call again
            if "error" in answer:
                raise Refused(operation, answer["error"]["code"], answer["error"]["message"])
            return answer[operation]
        raise ConnectionError(f"{operation}: no answer to 5 calls: {last}")

    def start(self, q: StartRequest) -> StartReport:
        return cast(StartReport, self.call("start", q))

    def attach(self, q: AttachRequest) -> RenewReport:
        return cast(RenewReport, self.call("attach", q))

    def renew(self, q: HostRequest) -> RenewReport:
        return cast(RenewReport, self.call("renew", q))

    def detach(self, q: HostRequest) -> RenewReport:
        return cast(RenewReport, self.call("detach", q))

    def tail(self, q: TailRequest) -> TailReport:
        return cast(TailReport, self.call("tail", q))

    def finish(self, q: FinishRequest) -> FinishReport:
        return cast(FinishReport, self.call("finish", q))

    def interrupt(self, q: HostRequest) -> RenewReport:
        return cast(RenewReport, self.call("interrupt", q))

    def cancel(self, q: HostRequest) -> EndReport:
        return cast(EndReport, self.call("cancel", q))


class Attachment:
    """A run that this host has, renewed by a thread of its own until close."""

    def __init__(self, session: Session, me: HostRequest) -> None:
        self.session, self.me = session, me
        self.gone: str | None = None
        self.closed = threading.Event()
        self.renewals = threading.Thread(target=self.renew, daemon=True)
        self.renewals.start()

    def renew(self) -> None:
        while not self.closed.wait(RENEW_SECONDS):
            try:
                if self.session.renew(self.me).get("cancel"):
                    self.gone = "cancelled"
            except Refused as e:
                if e.code != "writer-lost":  # finish tells
                    self.gone = e.code
            except ConnectionError:
                pass  # the next one may come through
            if self.gone is not None:
                return

    def close(self) -> None:
        self.closed.set()
        self.renewals.join()

    def output(self, position: int) -> Iterator[tuple[bytes, int]]:
        """Pieces of output, each with the position behind it, until there is no more."""
        while True:
            if self.gone is not None:
                raise Gone(self.gone)
            request: TailRequest = {
                "tenant": self.me["tenant"], "run": self.me["run"], "host": self.me["host"],
                "from": position, "waitSeconds": 20, "stallSeconds": STALL_SECONDS,
            }
            try:
                piece = self.session.tail(request)
            except Refused as e:
                if e.code != "busy":
                    raise
                time.sleep(1)
                continue
            if piece["next"] > position:
                position = piece["next"]
                yield base64.b64decode(piece["data"] or ""), position
            if piece.get("end"):
                return
            if piece["run"].get("cancelRequested"):
                raise Gone("cancelled")
            if piece.get("waiting") and piece["run"].get("taskStoppedAt"):
                raise Gone("task-stopped")
            if not piece["data"]:
                time.sleep(1)

    def finish(self) -> FinishReport:
        while True:
            report = self.session.finish(FinishRequest(tenant=self.me["tenant"], run=self.me["run"], host=self.me["host"]))
            if report["state"] == "finished":
                return report
            time.sleep(1)


def cancel(session: Session, me: HostRequest) -> RunView:
    """Ends a run. Only the host that has it ends it at once; else whoever has it does."""
    while True:
        report = session.cancel(me)
        if report["ended"] or report.get("waiting") == "host":
            return report["run"]
        time.sleep(1)


def start(session: Session, q: StartRequest) -> StartReport:
    """Asks until the agent works. An earlier turn that is being ended is waited for."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            report = session.start(q)
            if report["state"] == "ready":
                return report
        except Refused as e:
            if e.code not in ("thread-busy", "writer-conflict") or time.monotonic() > until:
                raise
        time.sleep(1)


def told(**what: Any) -> None:
    print(json.dumps({k: v for k, v in what.items() if v is not None}), file=sys.stderr)


def of(run: RunView) -> dict[str, Any]:
    return {"status": run["status"], "exitCode": run.get("exitCode"), "checkpoint": run.get("checkpointId")}


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--function", default=os.environ.get("SANDKEEPER_SESSION_FUNCTION"), help="the session function: its name, with an alias where tenants have one")
    p.add_argument("--tenant", default="-")
    p.add_argument("--thread", default="thread-" + secrets.token_hex(8))
    p.add_argument("--run", default="run-" + secrets.token_hex(8))
    p.add_argument("--host", default="host-" + secrets.token_hex(16), help="this host's name: whoever knows it has the run")
    p.add_argument("--parent", help="the paused run that this one goes on for")
    p.add_argument("--definition", help="a file, or the name of one that the installation keeps")
    p.add_argument("--shell", help="what the agent is")
    p.add_argument("--input", help="the agent's stdin")
    p.add_argument("--from", type=int, default=0, dest="position", help="byte position of the output to go on from")
    p.add_argument("--attach", action="store_true", help="come back to --run")
    p.add_argument("--takeover", action="store_true", help="although another host has it")
    p.add_argument("--detach", action="store_true", help="leave as soon as the agent works")
    p.add_argument("--cancel", action="store_true", help="end --run")
    p.add_argument("--pause", action="store_true", help="pause --run for a human; a run with it as --parent goes on")
    a = p.parse_args()
    if not a.function:
        p.error("want --function or SANDKEEPER_SESSION_FUNCTION")
    if not (a.attach or a.cancel or a.pause) and not (a.definition and a.shell):
        p.error("want --definition and --shell, or --attach, or --cancel, or --pause")
    return a


def plan(a: argparse.Namespace, me: HostRequest) -> StartRequest:
    agent = AgentPlan(shell=a.shell)
    if a.input is not None:
        agent["input"] = a.input
    q = StartRequest(tenant=me["tenant"], run=me["run"], host=me["host"], thread=a.thread, agent=agent)
    if a.parent is not None:
        q["parent"] = a.parent
    if os.path.exists(a.definition):
        with open(a.definition, encoding="utf-8") as f:
            try:
                q["definition"] = cast(Definition, json.load(f))
            except ValueError as e:
                raise OSError(f"{a.definition}: want a definition in JSON: {e}") from e
    else:
        q["definitionName"] = a.definition
    return q


def drive(a: argparse.Namespace, session: Session, me: HostRequest) -> int:
    """Does what was asked for, and returns the exit status."""
    names = {"run": a.run, "host": a.host}
    position: int = a.position
    if a.cancel:
        told(**names, **of(cancel(session, me)))
        return 0
    if a.pause:
        told(**names, **of(session.interrupt(me)["run"]))
        return 0
    try:
        if a.attach:
            session.attach(AttachRequest(**me, takeover=a.takeover))
        else:
            start(session, plan(a, me))
    except KeyboardInterrupt:
        session.detach(me)
        told(**names, left=True, position=position)
        return 130
    run = Attachment(session, me)
    try:
        if a.detach:
            raise Gone("detach")
        for data, position in run.output(position):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        ended = run.finish()
    except (KeyboardInterrupt, BrokenPipeError, Gone) as e:
        run.close()
        why = e.why if isinstance(e, Gone) else "interrupt"
        if why == "cancelled":
            told(**names, cancelled=True, **of(cancel(session, me)))
            return 1
        if why in ("detach", "interrupt", "task-stopped"):
            session.detach(me)
        told(**names, left=True, why=why, position=position)
        return {"detach": 0, "interrupt": 130}.get(why, 3)
    run.close()
    told(**names, position=position, **of(ended["run"]), checkpointFailed=ended.get("checkpointFailed"))
    return 0 if ended["run"]["status"] == "completed" else 1


def main() -> int:
    a = arguments()
    me = HostRequest(tenant=a.tenant, run=a.run, host=a.host)
    try:
        session = Session(a.function)
        return drive(a, session, me)
    except Refused as e:
        if e.code == "cancel-requested":  # while its sandbox came up
            told(run=a.run, host=a.host, cancelled=True, **of(cancel(session, me)))
            return 1
        told(run=a.run, host=a.host, refused=e.code, message=str(e))
        return 3
    except (BotoCoreError, ClientError, OSError) as e:  # no answer, no way to the function
        told(run=a.run, host=a.host, message=str(e))
        return 1


if __name__ == "__main__":
    sys.exit(main())
