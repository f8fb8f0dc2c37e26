"""Where requests go, and what happens to them when a worker is lost: without processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tinyserve.coordinator import ATTEMPTS_MAX, Coordinator, Fault, Request, State

STOP_TOKEN = 2


@dataclass
class FakeWorker:
    name: str
    role: str
    alive: bool = True
    ready: bool = True
    loss: str = ""
    requests: int = 0


@dataclass
class FakeFleet:
    """Workers that answer at once, as `answers` (by operation) say; `lose` ends one."""

    workers: list[FakeWorker]
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    harmed: list[tuple[str, str]] = field(default_factory=list)
    queue: list[tuple[FakeWorker, dict[str, Any]]] = field(default_factory=list)
    send_fails: set[str] = field(default_factory=set)  # Decode workers that cannot be written to.
    dies_after_tokens: set[str] = field(default_factory=set)
    dies_before_sent: set[str] = field(default_factory=set)
    decode_first: bool = False  # The decode worker's events overtake the prefill worker's.

    def alive(self, role: str) -> list[FakeWorker]:
        found = [worker for worker in self.workers if worker.role == role and worker.alive]
        return sorted(found, key=lambda worker: worker.requests)

    def named(self, name: str) -> FakeWorker:
        return next(worker for worker in self.workers if worker.name == name)

    def lose(self, worker: FakeWorker) -> None:
        worker.alive, worker.loss = False, "killed"
        self.queue.append((worker, {"event": "lost", "reason": worker.loss}))

    def harm(self, worker: FakeWorker, fault: str) -> None:
        self.harmed.append((worker.name, fault))

    def poll(self, timeout_seconds: float) -> list[tuple[FakeWorker, dict[str, Any]]]:
        assert self.queue, "nothing more will ever happen"
        return [self.queue.pop(0)]

    def send(self, worker: FakeWorker, message: dict[str, Any]) -> None:
        if not worker.alive:
            return
        self.sent.append((worker.name, message))
        operation, request = message["op"], message["request"]
        if operation == "reserve":
            destination = {"reservation": request, "worker": worker.name}
            event = {"event": "reserved", "request": request, "destination": destination}
            self.queue.append((worker, event))
        elif operation in ("prefill", "resend"):
            self._send_prompt(worker, request, message["destination"])

    def _send_prompt(self, worker: FakeWorker, request: str, to: dict[str, str]) -> None:
        target = self.named(to["worker"])
        if worker.name in self.dies_before_sent:
            self.lose(worker)
            return
        self.queue.append((worker, {"event": "progress", "request": request, "layer": 10}))
        if target.name in self.send_fails:
            error = {"message": "no answer", "code": "timed out", "peer": "127.0.0.1:1"}
            self.queue.append(
                (worker, {"event": "send_failed", "request": request, "error": error})
            )
            return
        sent = {"event": "sent", "request": request, "compute_seconds": 1.0, "transfer": {}}
        answer = [(target, {"event": "token", "request": to["reservation"], "token": 7})]
        if target.name in self.dies_after_tokens:
            self.queue += [(worker, sent), *answer]
            self.lose(target)
            return
        answer.append((target, {"event": "finished", "request": to["reservation"]}))
        self.queue += [*answer, (worker, sent)] if self.decode_first else [(worker, sent), *answer]


def fleet_of(prefill: int, decode: int, **behaviour: Any) -> FakeFleet:
    workers = [FakeWorker(f"prefill{i}", "prefill") for i in range(prefill)]
    workers += [FakeWorker(f"decode{i}", "decode") for i in range(decode)]
    return FakeFleet(workers, **behaviour)


def run(fleet: FakeFleet, count: int = 1, fault: Fault | None = None) -> list[Request]:
    requests = [Request(f"r{number}", [1, 2, 3], 1) for number in range(count)]
    coordinator = Coordinator(fleet, STOP_TOKEN, lambda line: None)  # type: ignore[arg-type]
    coordinator.run(requests, fault)
    assert all(worker.requests == 0 for worker in fleet.workers if worker.alive)
    return requests


def operations(fleet: FakeFleet, name: str) -> list[str]:
    return [message["op"] for worker, message in fleet.sent if worker == name]


@pytest.mark.parametrize("decode_first", [False, True])
def test_a_request_is_done_when_sent_and_answered(decode_first: bool) -> None:
    fleet = fleet_of(1, 1, decode_first=decode_first)
    (request,) = run(fleet)
    assert request.state is State.DONE and request.output == [7] and request.sent
    assert operations(fleet, "prefill0") == ["prefill", "release"]


def test_requests_are_spread_over_the_workers() -> None:
    fleet = fleet_of(2, 2)
    run(fleet, 4)
    for name in ("prefill0", "prefill1"):
        assert operations(fleet, name).count("prefill") == 2
    for name in ("decode0", "decode1"):
        assert operations(fleet, name).count("reserve") == 2


def test_a_failed_transfer_moves_without_computing_again() -> None:
    fleet = fleet_of(1, 2, send_fails={"decode0"})
    (request,) = run(fleet)
    assert request.state is State.DONE and request.attempt == 2
    assert operations(fleet, "prefill0") == ["prefill", "resend", "release"]
    assert operations(fleet, "decode0") == ["reserve", "release"]
    assert "no answer" in request.moves[0] and "timed out" in request.moves[0]


def test_a_worker_lost_while_decoding_is_replaced_and_the_answer_starts_again() -> None:
    fleet = fleet_of(1, 2, dies_after_tokens={"decode0"})
    (request,) = run(fleet)
    assert request.state is State.DONE and request.output == [7]
    assert request.decode is not None and request.decode.name == "decode1"


def test_a_lost_prefill_worker_is_replaced_and_its_reservation_abandoned() -> None:
    fleet = fleet_of(2, 1, dies_before_sent={"prefill0"})
    (request,) = run(fleet)
    assert request.state is State.DONE
    assert operations(fleet, "decode0") == ["reserve", "abandon", "reserve"]
    assert operations(fleet, "prefill1") == ["prefill", "release"]


def test_a_request_fails_with_a_reason_when_no_worker_is_left() -> None:
    (request,) = run(fleet_of(1, 1, dies_after_tokens={"decode0"}))
    assert request.state is State.FAILED and request.failure == "no decode worker is left"
    (request,) = run(fleet_of(1, 1, dies_before_sent={"prefill0"}))
    assert request.state is State.FAILED and request.failure == "no prefill worker is left"


def test_attempts_are_limited() -> None:
    (request,) = run(fleet_of(1, 2, send_fails={"decode0", "decode1"}))
    assert request.state is State.FAILED and request.attempt == ATTEMPTS_MAX
    assert f"gave up after {ATTEMPTS_MAX} attempts" in request.failure


def test_one_lost_worker_does_not_disturb_requests_at_others() -> None:
    fleet = fleet_of(2, 2, dies_after_tokens={"decode0"})
    first, second = run(fleet, 2)
    assert first.attempt == 2 and second.attempt == 1
    assert first.state is State.DONE and second.state is State.DONE


def test_a_fault_hits_the_first_requests_decode_worker_once() -> None:
    fleet = fleet_of(2, 2)
    run(fleet, 2, Fault("freeze", "transfer"))
    assert fleet.harmed == [("decode0", "freeze")]


def test_a_held_prompt_can_be_sent_again_and_is_then_released() -> None:
    fleet = fleet_of(1, 1)
    coordinator = Coordinator(fleet, STOP_TOKEN, lambda line: None)  # type: ignore[arg-type]
    request = Request("r0", [1, 2, 3], 1, hold=True)
    coordinator.run([request])
    assert operations(fleet, "prefill0") == ["prefill"]
    coordinator.run_transfer(request)
    assert operations(fleet, "prefill0") == ["prefill", "resend", "release"]
    assert all(worker.requests == 0 for worker in fleet.workers)


def test_a_prompt_held_by_a_lost_worker_is_not_sent_again() -> None:
    fleet = fleet_of(1, 1)
    coordinator = Coordinator(fleet, STOP_TOKEN, lambda line: None)  # type: ignore[arg-type]
    request = Request("r0", [1, 2, 3], 1, hold=True)
    coordinator.run([request])
    fleet.workers[0].alive = False
    assert coordinator.run_transfer(request) == {}
