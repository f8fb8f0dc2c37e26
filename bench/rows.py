"""The rows of our own: C++ from moonpool_bench, Python from both APIs, calls, memory, allocator.

Each function yields rows (see bars.py) as they are measured. A row that could not be measured has
`failed`: the reason. `wanted(name)` says whether a row was asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bars import Row
from children import Child, ChildFailed
from pairs import LOGS, Contender, Effort, Floors, Pair, Rate, Shape, Turns
from stats import fit_line, median

MIB = 1 << 20
FAILURES_MAX = 3  # of one engine; each may take a minute
CALL_COUNTS = (1, 16, 64, 256, 1024, 4096)
FLOOR_NAMES = {
    "streams": "2 raw sockets",
    "memcpy": "memcpy",
    "process_read": "process_vm_readv",
}


@dataclass(frozen=True)
class Plan:
    """What to measure, and how long."""

    build: Path  # a build folder with the programs
    effort: Effort
    wanted: Callable[[str], bool]
    python: str = sys.executable
    transfers: int = 1_000_000

    @property
    def program(self) -> Path:
        return self.build / "bench" / "moonpool_bench"


def failed(name: str, reason: object) -> Row:
    return {"name": name, "failed": str(reason)}


# --- C++.


def row_of_native(line: dict[str, object]) -> Row:
    """What moonpool_bench --json says about a row, as a row of ours."""
    name = f"c++ {line['row']}"
    if "error" in line:
        return failed(name, "see build/bench-logs/rows.log")
    single = line["floor"] == "raw ping-pong"
    row: Row = {
        "name": name,
        "value": line["batch_us_median"] if single else line["gbps"],
        "unit": "us" if single else "GB/s",
        "reference": line["floor"],
        "reference_value": line["floor_value"],
        "ratio": line["ratio"],
    }
    for key in ("gbps", "descriptors_per_second", "batch_us_median", "batch_us_p99"):
        row[key] = line[key]
    return _small(row)


def _small(row: Row) -> Row:
    """Of many small blocks what counts is descriptors."""
    if row["name"].endswith("8192 x 256 B"):
        row["value"], row["unit"] = row["descriptors_per_second"], "desc/s"
    return row


def native_rows(plan: Plan) -> Iterator[Row]:
    argv = [plan.program, "--list"]
    try:
        listed = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        yield failed("c++", error)
        return
    effort = plan.effort
    for name in listed.splitlines():
        if not plan.wanted(f"c++ {name}"):
            continue
        # One process for each row: one that hangs or dies takes no other with it.
        argv = [
            str(plan.program), "--json", "--match", name, "--rounds", str(effort.rounds),
            "--seconds", str(effort.seconds),
        ]  # fmt: skip
        try:
            yield _native_row(argv, name, 60 + 4 * effort.rounds * effort.seconds)
        except ChildFailed as failure:
            yield failed(f"c++ {name}", failure)


def _native_row(argv: Sequence[str], name: str, timeout: float) -> Row:
    with Child("moonpool_bench", argv, LOGS / "rows.log") as child:
        while (line := child.hear(timeout)) is not None:
            if line["row"] == name:  # --match finds parts of names
                return row_of_native(line)
    raise ChildFailed("moonpool_bench did not measure it")


# --- Python.


@dataclass(frozen=True)
class PythonSet:
    """Rows of one contender over one floor."""

    prefix: str
    contender: Contender
    floor: str
    shapes: Sequence[Shape]
    writes: Sequence[bool] = (True, False)
    suffix: str = ""

    def name(self, shape: Shape, write: bool) -> str:
        label = str(shape)
        if self.prefix.endswith("local") and shape.block >= MIB:
            label = f"{shape.count} x {shape.block >> 20} MiB"
        return f"{self.prefix} {'write' if write else 'read'}{self.suffix} {label}"


LARGE = tuple(Shape(block, 16) for block in (256 << 10, MIB, 4 * MIB))
TCP_CRC = (
    *LARGE,
    Shape(64 << 10, 16),
    Shape(64 << 10, 128),
    Shape(4 << 10, 128),
    Shape(4 << 10, 40960),
    Shape(256, 8192),
)


def python_sets(python: str) -> list[PythonSet]:
    def shim(name: str, **env: str) -> Contender:
        return Contender(name, "shim", python, env)

    def moonpool(name: str, memory: str, **options: object) -> Contender:
        return Contender(name, "moonpool", python, options=options, memory=memory)

    bare = moonpool("moonpool tcp", "engine", transports=["tcp"], checksum=False)
    crc = moonpool("moonpool tcp crc", "engine", transports=["tcp"], checksum=True)
    memfd = moonpool("moonpool local memfd", "engine", transports=["local"])
    heap = moonpool("moonpool local heap", "heap", transports=["local"])
    shim_bare = shim("shim tcp", MC_FORCE_TCP="1", MOONPOOL_CHECKSUM="0")
    shim_crc = shim("shim tcp crc", MC_FORCE_TCP="1", MOONPOOL_CHECKSUM="1")
    large, small = [Shape(MIB, 16)], [Shape(4 << 10, 128)]
    local = "moonpool local"
    return [
        PythonSet("moonpool tcp", bare, "streams", LARGE),
        PythonSet("moonpool tcp", crc, "streams", TCP_CRC, suffix=" crc"),
        PythonSet("shim tcp", shim_bare, "streams", LARGE),
        PythonSet("shim tcp", shim_crc, "streams", TCP_CRC, suffix=" crc"),
        PythonSet(local, memfd, "memcpy", large, suffix=" memfd"),
        PythonSet(local, memfd, "process_read", small, suffix=" memfd"),
        PythonSet(local, heap, "process_read", large + small, suffix=" heap"),
        PythonSet(
            "shim local", shim("shim local"), "process_read", large + small, suffix=" heap"
        ),
    ]  # fmt: skip


def row_of_rate(name: str, rate: Rate, floor: str) -> Row:
    return _small(
        {
            "name": name,
            "value": rate.gbps,
            "unit": "GB/s",
            "reference": FLOOR_NAMES[floor],
            "reference_value": rate.floor,
            "ratio": rate.over([gbps * 1e9 for gbps in rate.floors]),
            **figures(rate),
        }
    )


def figures(rate: Rate) -> Row:
    return {
        "gbps": rate.gbps,
        "descriptors_per_second": rate.descriptors_per_second,
        "batch_us_median": rate.median_us,
        "batch_us_p99": rate.p99_us,
    }


def python_rows(plan: Plan) -> Iterator[Row]:
    for rows in python_sets(plan.python):
        cases = [
            (rows.name(shape, write), shape, write)
            for write in rows.writes
            for shape in rows.shapes
            if plan.wanted(rows.name(shape, write))
        ]
        if cases:
            yield from _python_set(plan, rows, cases)


def _python_set(
    plan: Plan, rows: PythonSet, cases: Sequence[tuple[str, Shape, bool]]
) -> Iterator[Row]:
    size = max(shape.span for _, shape, _ in cases)
    turns = Turns(plan.effort)
    left = list(cases)
    failures = 0
    while left:  # A failure ends the pair, not the rows after it.
        if failures == FAILURES_MAX:
            yield from (failed(name, f"not tried after {failures} failures") for name, _, _ in left)
            return
        try:
            with ExitStack() as stack:
                floors = stack.enter_context(Floors(plan.program))
                pair = stack.enter_context(Pair(rows.contender, max(size, 64 * MIB)))
                pair.check()
                while left:
                    name, shape, write = left[0]
                    floor_shape = Shape(MIB, 1) if rows.floor == "streams" else shape

                    def floor(seconds: float, of: Shape = floor_shape) -> float:
                        return floors.gbps(rows.floor, of, seconds)  # noqa: B023

                    (rate,) = turns.measure([pair], shape, write, floor)
                    if isinstance(rate, ChildFailed):
                        raise rate
                    left.pop(0)
                    yield row_of_rate(name, rate, rows.floor)
        except ChildFailed as failure:
            failures += 1
            yield failed(left.pop(0)[0], failure)


# --- What the floor could be.


def floor_rows(plan: Plan) -> Iterator[Row]:
    """Raw sockets with our socket options over raw sockets as the kernel sets them up. Divide a
    ratio to "2 raw sockets" by this one to see what our own work costs beside the options."""
    for shape in LARGE:
        span = Shape(shape.block * shape.count, 2)
        name = f"2 raw sockets tuned alike, {span.block * 2 >> 20} MiB"
        if not plan.wanted(name):
            continue
        try:
            with Floors(plan.program) as floors:
                rounds = [
                    (
                        floors.gbps("streams", span, plan.effort.seconds),
                        floors.gbps("alike", span, plan.effort.seconds),
                    )
                    for _ in range(plan.effort.rounds)
                ]
        except ChildFailed as failure:
            yield failed(name, failure)
            continue
        yield {
            "name": name,
            "value": median([alike for _, alike in rounds]),
            "unit": "GB/s",
            "reference": FLOOR_NAMES["streams"],
            "reference_value": median([plain for plain, _ in rounds]),
            "ratio": median([alike / plain for plain, alike in rounds]),
        }


# --- What a call costs.


def call_rows(plan: Plan) -> Iterator[Row]:
    for engine in ("moonpool", "shim"):
        forms = [
            form
            for form in ("lists", "numpy")
            if plan.wanted(f"{engine} call, {form}") or plan.wanted(f"{engine} descriptor, {form}")
        ]
        if not forms:
            continue
        options = {"transports": ["tcp"]} if engine == "moonpool" else {}
        env = {"MC_FORCE_TCP": "1"} if engine == "shim" else {}
        contender = Contender(f"{engine} calls", engine, plan.python, env, options)
        try:
            with Pair(contender, 64 * MIB) as pair:
                for form in forms:
                    points = [
                        (count, pair.calls(count, form, plan.effort.seconds))
                        for count in CALL_COUNTS
                        for _ in range(plan.effort.rounds)
                    ]
                    yield from rows_of_calls(engine, form, points)
        except ChildFailed as failure:
            yield failed(f"{engine} call", failure)


def rows_of_calls(engine: str, form: str, points: Sequence[tuple[float, float]]) -> tuple[Row, Row]:
    """The line through (descriptors, seconds of the submission)."""
    call, descriptor = fit_line(points)
    measured = [[count, seconds * 1e6] for count, seconds in points]
    return (
        {"name": f"{engine} call, {form}", "value": call * 1e6, "unit": "us", "points": measured},
        {"name": f"{engine} descriptor, {form}", "value": descriptor * 1e9, "unit": "ns"},
    )


# --- Memory, and the allocator.


def memory_rows(plan: Plan) -> Iterator[Row]:
    regions = 100_000
    growth = f"growth over {plan.transfers:,} transfers"
    names = ("engine at rest", "memory of a region", "registering 100,000 regions", growth)
    if not any(plan.wanted(name) for name in names):
        return
    argv = [str(plan.program), "memory", str(regions), str(plan.transfers)]
    try:
        with Child("moonpool_bench memory", argv, LOGS / "memory.log") as child:
            cost = child.hear(60 + plan.transfers / 2000)
        if cost is None:
            raise ChildFailed("moonpool_bench memory said nothing")
    except ChildFailed as failure:
        yield failed(names[0], failure)
        return
    values = (
        (cost["rest_bytes"] / MIB, "MiB"),
        (cost["region_bytes"], "B"),
        (cost["register_seconds"], "s"),
        (cost["growth_bytes"] / MIB, "MiB"),
    )
    for name, (value, unit) in zip(names, values):
        if plan.wanted(name):
            yield {"name": name, "value": value, "unit": unit}


def allocator_rows(plan: Plan) -> Iterator[Row]:
    name = "allocator, 10,000 alive"
    if not plan.wanted(name):
        return
    program = plan.build / "src" / "memory" / "memory_bench"
    argv = [
        program, "--benchmark_format=json", "--benchmark_filter=BM_Churn/10000$",
        f"--benchmark_min_time={plan.effort.seconds}",
    ]  # fmt: skip
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
        result = json.loads(done.stdout)["benchmarks"][0]
        nanoseconds = 1e9 / result["items_per_second"]
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError) as error:
        yield failed(name, error)
        return
    yield {"name": name, "value": nanoseconds, "unit": "ns"}
