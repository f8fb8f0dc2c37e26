"""Two processes with one engine, measured in turns with other pairs and with floors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from children import Child, ChildFailed
from stats import median, percentile

START_SECONDS = 60.0
GRACE_SECONDS = 45.0  # beyond the time that a measurement should take
FOLDER = Path(__file__).resolve().parent
LOGS = FOLDER.parent / "build" / "bench-logs"
OWNER_BYTE, CLIENT_BYTE = 1, 2


@dataclass(frozen=True)
class Contender:
    """An engine, how it is set, and the interpreter that has it."""

    name: str
    engine: str  # moonpool, shim, mooncake or nixl
    python: str
    env: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    memory: str = "heap"


@dataclass(frozen=True)
class Shape:
    block: int
    count: int

    def __str__(self) -> str:
        if self.block < 1024:
            return f"{self.count} x {self.block} B"
        return f"{self.count} x {self.block >> 10} KiB"

    @property
    def span(self) -> int:
        """Bytes of memory: every other block."""
        return 2 * self.block * self.count


@dataclass
class Rate:
    """What a contender reached: medians of the rounds, and the times of single batches."""

    gbps: float
    descriptors_per_second: float
    median_us: float
    p99_us: float
    rates: tuple[float, ...] = ()  # bytes per second, of each round
    floors: tuple[float, ...] = ()  # of each round, in GB/s

    @property
    def floor(self) -> float:
        return median(self.floors)

    def over(self, others: Sequence[float]) -> float | None:
        """How many times the other's rate: the median over the rounds, whose two halves were
        measured next to each other. None when there is nothing to compare with."""
        shares = [mine / other for mine, other in zip(self.rates, others) if other > 0]
        return median(shares) if shares else None


@dataclass(frozen=True)
class Effort:
    rounds: int
    seconds: float


class Pair:
    """An owner and a client of one contender. Raises ChildFailed; a context manager."""

    def __init__(self, contender: Contender, size: int) -> None:
        self.contender = contender
        self._children: list[Child] = []
        try:
            self._open(size)
        except ChildFailed:
            self.close()
            raise

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self, size: int) -> None:
        contender = self.contender
        start = {
            "op": "start",
            "bytes": size,
            "memory": contender.memory,
            "options": contender.options,
        }
        answers = []
        for role, value in (("owner", OWNER_BYTE), ("client", CLIENT_BYTE)):
            child = Child(
                f"{contender.name} {role}",
                [contender.python, str(FOLDER / "worker.py"), contender.engine],
                LOGS / f"{contender.name} {role}.log".replace(" ", "-").replace("/", "-"),
                contender.env,
            )
            self._children.append(child)
            answers.append(child.ask({**start, "value": value}, START_SECONDS))
        self._owner, self._client = self._children
        where = {"address": answers[0]["address"], "base": answers[0]["base"]}
        self._client.ask({"op": "connect", **where}, START_SECONDS)

    def check(self) -> None:
        """One write must be seen by the owner: a fast engine that moves nothing is no engine."""
        run = {"op": "run", "block": 4096, "count": 16, "write": True, "seconds": 0.0}
        self._client.ask(run, GRACE_SECONDS)
        if self._owner.ask({"op": "peek", "offset": 100}, GRACE_SECONDS)["byte"] != CLIENT_BYTE:
            raise ChildFailed(f"{self.contender.name}: a write was reported done and is not there")

    def run(self, shape: Shape, write: bool, seconds: float) -> dict[str, Any]:
        command = {
            "op": "run",
            "block": shape.block,
            "count": shape.count,
            "write": write,
            "seconds": seconds,
        }
        return self._client.ask(command, seconds + GRACE_SECONDS)

    def calls(self, count: int, form: str, seconds: float) -> float:
        """Seconds of one submission of `count` descriptors."""
        command = {"op": "calls", "count": count, "form": form, "seconds": seconds}
        return float(self._client.ask(command, seconds + GRACE_SECONDS)["submit_seconds"])

    def pause(self) -> None:
        for child in self._children:
            child.pause()

    def resume(self) -> None:
        for child in self._children:
            child.resume()

    def close(self) -> None:
        for child in reversed(self._children):
            child.close()


class Floors:
    """What the machine does with the same sizes: moonpool_bench floors."""

    def __init__(self, program: Path) -> None:
        self._child = Child("floors", [str(program), "floors"], LOGS / "floors.log")

    def __enter__(self) -> Floors:
        return self

    def __exit__(self, *exception: object) -> None:
        self._child.close()

    def gbps(self, kind: str, shape: Shape, seconds: float) -> float:
        command = f"{kind} {shape.block} {shape.count} {seconds}"
        return float(self._child.ask(command, seconds + GRACE_SECONDS)["gbps"])


class Turns:
    """Measures pairs in turns; whoever is not measured is stopped, so that no busy thread of one
    takes the processor from another."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort

    def measure(
        self,
        pairs: Sequence[Pair],
        shape: Shape,
        write: bool,
        floor: Callable[[float], float] | None = None,
    ) -> list[Rate | ChildFailed]:
        """One result for each pair, a failure for one that failed; the others go on."""
        runs: list[list[dict[str, Any]]] = [[] for _ in pairs]
        failures: dict[int, ChildFailed] = {}
        floors = []
        for _ in range(self._effort.rounds):
            if floor is not None:
                floors.append(floor(self._effort.seconds))
            for index, pair in enumerate(pairs):
                if index in failures:
                    continue
                try:
                    runs[index].append(self._alone(pairs, pair, shape, write))
                except ChildFailed as failure:
                    failures[index] = failure
        return [
            failures[index] if index in failures else rate_of(runs[index], shape, floors)
            for index in range(len(pairs))
        ]

    def _alone(
        self, pairs: Sequence[Pair], pair: Pair, shape: Shape, write: bool
    ) -> dict[str, Any]:
        others = [other for other in pairs if other is not pair]
        for other in others:
            other.pause()
        try:
            return pair.run(shape, write, self._effort.seconds)
        finally:
            for other in others:
                other.resume()


def rate_of(runs: Sequence[dict[str, Any]], shape: Shape, floors: Sequence[float]) -> Rate:
    rates = [shape.block * shape.count * run["batches"] / run["seconds"] for run in runs]
    times = [time for run in runs for time in run["times"]]
    rate = median(rates)
    return Rate(
        gbps=rate / 1e9,
        descriptors_per_second=rate / shape.block,
        median_us=median(times) * 1e6,
        p99_us=percentile(times, 0.99) * 1e6,
        rates=tuple(rates),
        floors=tuple(floors),
    )
