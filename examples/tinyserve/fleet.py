"""Worker processes as the coordinator sees them: start, listen, notice loss, fence, stop.

A worker is lost when its channel closes, or when no heartbeat came for the stall limit. A lost
worker is **fenced**: killed and waited for, so that nothing it was told can still happen, before
its requests move. Threads: thread-bound.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .channel import Channel, ChannelClosedError, Message
from .weights import SharedWeights

_SEND_TIMEOUT_SECONDS = 5.0


def worker_environment() -> dict[str, str]:
    """The environment of a worker: one BLAS thread.

    Several workers share few cores, where BLAS threads of different processes only disturb each
    other; and one thread adds numbers in one order, so every process computes the same bits.
    """
    environment = dict(os.environ)
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment[name] = "1"
    root = str(Path(__file__).resolve().parent.parent)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = root + (os.pathsep + inherited if inherited else "")
    return environment


@dataclass
class WorkerProcess:
    """One worker. `requests`: how many are assigned to it, for choosing the least busy."""

    name: str
    role: str
    process: subprocess.Popen[bytes]
    channel: Channel
    last_heard: float
    ready: bool = False
    alive: bool = True
    address: str = ""
    loss: str = ""  # Why it is not alive.
    requests: int = field(default=0)


class Fleet:
    """Owns all worker processes; `close` ends every one of them."""

    def __init__(self, stall_seconds: float) -> None:
        self.workers: list[WorkerProcess] = []
        self._stall_seconds = stall_seconds
        self._selector = selectors.DefaultSelector()

    def start(self, role: str, count: int, shared: SharedWeights, setup: Message) -> None:
        """Starts `count` workers; they send "ready" when they are."""
        for number in range(count):
            ours, theirs = socket.socketpair()
            command = [sys.executable, "-m", "tinyserve.process", "--role", role]
            command += ["--control-fd", str(theirs.fileno()), "--weights-fd", str(shared.fd)]
            command += ["--parent", str(os.getpid())]
            process = subprocess.Popen(
                command,
                env=worker_environment(),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,  # Standard output is for the results.
                pass_fds=(theirs.fileno(), shared.fd),
            )
            theirs.close()
            channel = Channel(ours, _SEND_TIMEOUT_SECONDS)
            worker = WorkerProcess(f"{role}{number}", role, process, channel, time.monotonic())
            self.workers.append(worker)
            self._selector.register(channel.fileno(), selectors.EVENT_READ, worker)
            self.send(worker, setup)

    def alive(self, role: str) -> list[WorkerProcess]:
        """Ready workers of `role`, the least busy first."""
        found = [w for w in self.workers if w.role == role and w.alive and w.ready]
        return sorted(found, key=lambda worker: worker.requests)

    def send(self, worker: WorkerProcess, message: Message) -> None:
        """Sends if the worker lives; a failure is noticed as a loss by `poll`."""
        if not worker.alive:
            return
        try:
            worker.channel.send(message)
        except ChannelClosedError as error:
            worker.loss = worker.loss or str(error)

    def poll(self, timeout_seconds: float) -> list[tuple[WorkerProcess, Message]]:
        """Waits for messages; heartbeats are consumed, a loss becomes the event "lost"."""
        events: list[tuple[WorkerProcess, Message]] = []
        for key, _ in self._selector.select(timeout_seconds):
            worker: WorkerProcess = key.data
            try:
                messages = worker.channel.receive_ready()
            except ChannelClosedError as error:
                worker.loss = worker.loss or str(error)
                continue
            worker.last_heard = time.monotonic()
            for message in messages:
                if message["event"] == "ready":
                    worker.ready, worker.address = True, message["address"]
                elif message["event"] == "crashed":
                    worker.loss = message["reason"]
                elif message["event"] != "beat":
                    events.append((worker, message))
        now = time.monotonic()
        for worker in self.workers:
            if worker.alive and worker.ready and now - worker.last_heard > self._stall_seconds:
                worker.loss = worker.loss or f"no heartbeat for {self._stall_seconds:g} s"
            if worker.alive and worker.loss:
                self._fence(worker)
                events.append((worker, {"event": "lost", "reason": worker.loss}))
        return events

    def _fence(self, worker: WorkerProcess) -> None:
        worker.alive = False
        self._selector.unregister(worker.channel.fileno())
        worker.channel.close()
        worker.process.kill()
        worker.process.wait()

    def harm(self, worker: WorkerProcess, fault: str) -> None:
        """Injects a fault: "kill" or "freeze"."""
        worker.process.send_signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    def close(self, grace_seconds: float = 5.0) -> None:
        """Asks every worker to stop, kills those that do not in time; idempotent."""
        living = [worker for worker in self.workers if worker.alive]
        for worker in living:
            self.send(worker, {"op": "stop"})
        deadline = time.monotonic() + grace_seconds
        try:
            for worker in living:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # Also when a second Ctrl-C comes.
            for worker in living:
                self._fence(worker)
