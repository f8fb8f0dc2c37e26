"""Routes requests through prefill and decode workers, and moves them when a worker is lost.

A request's life: RESERVING (a decode worker reserves pages) -> SENDING (a prefill worker computes
and writes) -> DECODING -> DONE, or FAILED with a reason. When its decode worker is lost, the request
goes back to RESERVING at another one; the prefill worker still holds the keys and values and sends
them again. Decoding is greedy, so the second attempt says the same from its first token on.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import Any, Callable

from .channel import Message
from .fleet import Fleet, WorkerProcess

ATTEMPTS_MAX = 4
# A token later than the first, so that the fault "decode" comes in the middle of the answer.
_FAULT_TOKEN = 3


class State(enum.Enum):
    RESERVING = "reserving"
    SENDING = "sending"
    DECODING = "decoding"
    DONE = "done"
    FAILED = "failed"


@dataclass
class Request:
    """One prompt on its way. Times are of time.monotonic(), in seconds."""

    name: str
    tokens: list[int]
    new_tokens: int
    state: State = State.RESERVING
    attempt: int = 0
    prefill: WorkerProcess | None = None
    decode: WorkerProcess | None = None
    prefilled: bool = False  # The prefill worker holds keys and values.
    sent: bool = False  # The prefill worker says that everything has arrived.
    hold: bool = False  # The prefill worker keeps the prompt when the request is done.
    answered: bool = False  # The decode worker has said its last token; may be seen before `sent`.
    output: list[int] = field(default_factory=list)
    submitted_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0
    compute_seconds: float = 0.0
    transfer: Message = field(default_factory=dict)
    moves: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def reservation(self) -> str:
        """Names this attempt; events of earlier attempts carry another name."""
        return f"{self.name}.{self.attempt}"

    @property
    def over(self) -> bool:
        return self.state in (State.DONE, State.FAILED)


@dataclass(frozen=True)
class Fault:
    """Do `kind` ("kill", "freeze") to the first request's decode worker during `phase`."""

    kind: str
    phase: str  # "transfer" or "decode"


class Coordinator:
    """Drives requests over a fleet, which it borrows. Thread-bound."""

    def __init__(self, fleet: Fleet, stop_token: int, say: Callable[[str], None]) -> None:
        """`say` takes one line about each change of course."""
        self._fleet = fleet
        self._stop_token = stop_token
        self._say = say
        self._requests: list[Request] = []
        self._fault: Fault | None = None

    def wait_until_ready(self, timeout_seconds: float) -> None:
        """Raises RuntimeError when a worker is lost or slow before it is ready."""
        deadline = time.monotonic() + timeout_seconds
        while not all(worker.ready for worker in self._fleet.workers):
            for worker, message in self._fleet.poll(0.2):
                if message["event"] == "lost":
                    raise RuntimeError(f"{worker.name} did not start: {worker.loss}")
            if time.monotonic() > deadline:
                slow = [worker.name for worker in self._fleet.workers if not worker.ready]
                raise RuntimeError(f"not ready after {timeout_seconds:g} s: {', '.join(slow)}")

    def run(self, requests: list[Request], fault: Fault | None = None) -> None:
        """Runs all requests through separate workers; returns when each is DONE or FAILED."""
        self._requests, self._fault = requests, fault
        for request in requests:
            request.submitted_at = time.monotonic()
            self._start(request)
        while not all(request.over for request in requests):
            for worker, message in self._fleet.poll(0.2):
                self._dispatch(worker, message)

    def run_transfer(self, held: Request) -> Message:
        """Sends a held prompt once more while nothing else runs; what that transfer did, or {}.

        Ends the hold. Requires: `held` is DONE.
        """
        worker = held.prefill
        if worker is None or not worker.alive:
            return {}
        again = Request(held.name, held.tokens, 1, attempt=held.attempt, prefilled=True)
        again.prefill = worker
        worker.requests += 1
        self.run([again])
        return again.transfer if again.state is State.DONE else {}

    def run_monolithic(self, request: Request) -> None:
        """Runs one request within one prefill worker, for comparison."""
        workers = self._fleet.alive("prefill")
        if not workers:
            self._fail(request, "no prefill worker is left")
            return
        request.prefill = worker = workers[0]
        request.state, request.sent = State.DECODING, True  # Nothing is to be sent.
        worker.requests += 1
        self._requests = [request]
        request.submitted_at = time.monotonic()
        self._fleet.send(
            worker,
            {
                "op": "monolithic",
                "request": request.reservation,
                "tokens": request.tokens,
                "new_tokens": request.new_tokens,
                "stop": self._stop_token,
            },
        )
        while not request.over:
            for sender, message in self._fleet.poll(0.2):
                if message["event"] == "lost" and sender is worker:
                    self._fail(request, f"{sender.name} was lost: {sender.loss}")
                elif message.get("request") == request.reservation:
                    self._on_output(request, message)

    # One attempt.

    def _start(self, request: Request, avoid: WorkerProcess | None = None) -> None:
        """Begins an attempt: chooses workers, not `avoid` if possible, and reserves pages."""
        request.decode = None
        if len(request.moves) >= ATTEMPTS_MAX:
            self._fail(request, f"gave up after {ATTEMPTS_MAX} attempts; {request.moves[-1]}")
            return
        decoders = self._fleet.alive("decode")
        others = [worker for worker in decoders if worker is not avoid] or decoders
        if request.prefill is None:
            prefillers = self._fleet.alive("prefill")
            if not prefillers:
                self._fail(request, "no prefill worker is left")
                return
            request.prefill = prefillers[0]
            request.prefill.requests += 1
        if not others:
            self._fail(request, "no decode worker is left")
            return
        request.attempt += 1
        request.state = State.RESERVING
        request.output, request.sent, request.answered = [], False, False
        request.decode = others[0]
        request.decode.requests += 1
        self._fleet.send(
            request.decode,
            {
                "op": "reserve",
                "request": request.reservation,
                "prompt_tokens": len(request.tokens),
                "new_tokens": request.new_tokens,
                "stop": self._stop_token,
            },
        )

    def _move(self, request: Request, reason: str) -> None:
        """Gives up this attempt and begins another one."""
        request.moves.append(reason)
        self._say(f"{request.name}: {reason}; moving to another decode worker")
        if request.decode is not None:
            request.decode.requests -= 1
        self._start(request, avoid=request.decode)

    def _finish(self, request: Request, state: State) -> None:
        request.state = state
        request.finished_at = time.monotonic()
        for worker in (request.prefill, request.decode):
            if worker is not None:
                worker.requests -= 1
        if request.prefill is not None and not (request.hold and state is State.DONE):
            self._fleet.send(request.prefill, {"op": "release", "request": request.name})

    def _fail(self, request: Request, reason: str) -> None:
        request.failure = reason
        self._say(f"{request.name}: failed: {reason}")
        self._finish(request, State.FAILED)

    # Events.

    def _dispatch(self, worker: WorkerProcess, message: Message) -> None:
        if message["event"] == "lost":
            self._on_lost(worker)
            return
        for request in self._requests:
            if not request.over and message["request"] in (request.name, request.reservation):
                self._on_event(request, message)

    def _on_event(self, request: Request, message: Message) -> None:
        event = message["event"]
        if event == "reserved" and request.state is State.RESERVING:
            self._send_prompt(request, message["destination"])
        elif event == "progress":
            self._inject(request, "transfer")
        elif event == "sent":
            request.prefilled = True
            request.compute_seconds = request.compute_seconds or message["compute_seconds"]
            request.transfer = message["transfer"]
            self._on_sent(request)
        elif event == "send_failed":
            request.prefilled = True
            self._on_send_failed(request, message["error"])
        elif event == "refused":
            self._fail(request, message["reason"])
        elif event in ("token", "finished"):
            self._on_output(request, message)

    def _send_prompt(self, request: Request, destination: Message) -> None:
        assert request.prefill is not None
        request.state = State.SENDING
        message: Message = {"request": request.name, "destination": destination}
        if request.prefilled:
            message["op"] = "resend"
        else:
            message.update(op="prefill", tokens=request.tokens)
        self._fleet.send(request.prefill, message)

    def _on_sent(self, request: Request) -> None:
        if request.decode is None or not request.decode.alive:
            self._move(request, f"{self._name(request)} was lost after the transfer")
            return
        request.state, request.sent = State.DECODING, True
        if request.answered:
            self._finish(request, State.DONE)

    def _on_send_failed(self, request: Request, error: Message) -> None:
        message = error["message"]  # Moonpool's own messages name all of these.
        details = [error[key] for key in ("code", "peer", "transport", "phase") if key in error]
        missing = [detail for detail in details if detail not in message]
        reason = f"transfer to {self._name(request)} failed: {', '.join([message, *missing])}"
        if request.decode is not None:  # It lives: the transfer has ended, so its pages are free.
            self._fleet.send(request.decode, {"op": "release", "request": request.reservation})
        self._move(request, reason)

    def _on_output(self, request: Request, message: Message) -> None:
        if message["event"] == "finished":
            request.answered = True
            if request.sent:
                self._finish(request, State.DONE)
            return
        request.first_token_at = request.first_token_at or time.monotonic()
        request.output.append(message["token"])
        if len(request.output) == _FAULT_TOKEN:
            self._inject(request, "decode")

    def _on_lost(self, worker: WorkerProcess) -> None:
        self._say(f"{worker.name} is lost ({worker.loss}); it is fenced")
        for request in self._requests:
            if request.over:
                continue
            if request.decode is worker and request.state is not State.SENDING:
                self._move(request, f"{worker.name} was lost while {request.state.value}")
            elif request.prefill is worker:
                self._on_prefill_lost(request)
            # SENDING: the prefill worker will report how its transfer ended; then it moves.

    def _on_prefill_lost(self, request: Request) -> None:
        request.prefill, request.prefilled = None, False
        if request.state is State.DECODING:
            return  # Everything has arrived; only a later loss of the decode worker costs more.
        if request.decode is not None:
            self._fleet.send(request.decode, {"op": "abandon", "request": request.reservation})
        self._move(request, "its prefill worker was lost")

    def _inject(self, request: Request, phase: str) -> None:
        fault = self._fault
        if fault is None or fault.phase != phase or request is not self._requests[0]:
            return
        if request.decode is None:
            return
        self._fault = None
        self._say(f"fault: {fault.kind} {request.decode.name} during {phase}")
        self._fleet.harm(request.decode, fault.kind)

    @staticmethod
    def _name(request: Request) -> str:
        return request.decode.name if request.decode is not None else "the decode worker"


def seconds_between(begin: float, end: float) -> float | None:
    """end - begin, or None when either did not happen."""
    return end - begin if begin and end else None


def summary(request: Request) -> dict[str, Any]:
    """The figures of one request, for JSON."""
    return {
        "name": request.name,
        "state": request.state.value,
        "failure": request.failure,
        "prompt_tokens": len(request.tokens),
        "new_tokens": len(request.output),
        "attempts": request.attempt,
        "moves": request.moves,
        "prefill_worker": request.prefill.name if request.prefill else None,
        "decode_worker": request.decode.name if request.decode else None,
        "compute_seconds": request.compute_seconds,
        "ttft_seconds": seconds_between(request.submitted_at, request.first_token_at),
        "total_seconds": seconds_between(request.submitted_at, request.finished_at),
    }
