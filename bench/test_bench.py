"""The harness itself: its arithmetic, its verdicts, and what it does with children that fail."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bars
import rival
import rows
import run
from children import Child, ChildFailed
from pairs import Effort, Rate, Shape, rate_of
from stats import fit_line, median, percentile

BUILD = Path(__file__).resolve().parent.parent / "build" / "release"
PROGRAM = BUILD / "bench" / "moonpool_bench"
PATIENCE = float(os.environ.get("MOONPOOL_PATIENCE", "1"))

# Section E of the issue that asked for the figures, sentence by sentence, with a row of each.
DEMANDS = {
    "raw sockets without crc": "c++ tcp write 16 x 1024 KiB",
    "raw sockets with crc": "c++ tcp read crc 16 x 4096 KiB",
    "16 x 64 KiB of large": "c++ tcp write crc 16 x 64 KiB",
    "128 x 64 KiB of large": "c++ tcp read crc 128 x 64 KiB",
    "128 x 4 KiB of large": "c++ tcp write crc 128 x 4 KiB",
    "40,960 x 4 KiB of large": "c++ tcp write crc 40960 x 4 KiB",
    "8,192 x 256 B descriptors": "c++ tcp write crc 8192 x 256 B",
    "single 64 B": "c++ tcp write crc 1 x 64 B",
    "single 4 KiB": "c++ tcp write crc 1 x 4 KiB",
    "memfd read": "c++ local read memfd 1 x 1 MiB",
    "memfd written": "c++ local write memfd 1 x 16 MiB",
    "other memory read": "c++ local read heap 1 x 4 MiB",
    "other memory written": "c++ local write heap 16 x 1 MiB",
    "local 4 KiB": "c++ local read memfd 128 x 4 KiB",
    "mooncake 16 x 64 KiB": "vs mooncake tcp write 16 x 64 KiB",
    "mooncake 128 x 64 KiB": "vs mooncake tcp read 128 x 64 KiB",
    "mooncake 1 MiB": "vs mooncake tcp write 16 x 1024 KiB",
    "mooncake 4 MiB": "vs mooncake tcp read 16 x 4096 KiB",
    "mooncake 128 x 4 KiB": "vs mooncake tcp write 128 x 4 KiB",
    "mooncake 1,500 x 256 B": "vs mooncake tcp write 1500 x 256 B",
    "mooncake's failing sizes": "vs mooncake tcp write 40960 x 4 KiB",
    "mooncake same host": "vs mooncake same host read 16 x 1024 KiB",
    "nixl large": "vs nixl's best same host heap read 64 x 1024 KiB",
    "nixl small": "vs nixl's best same host memfd write 4096 x 4 KiB",
    "nixl tcp": "vs nixl tcp write 64 x 1024 KiB",
    "python, moonpool": "moonpool tcp write crc 128 x 64 KiB",
    "python, shim": "shim tcp read crc 8192 x 256 B",
    "python, local": "shim local read heap 16 x 1 MiB",
    "cost of a call": "moonpool call, lists",
    "list descriptors": "shim descriptor, lists",
    "numpy descriptors": "moonpool descriptor, numpy",
    "region": "memory of a region",
    "rest": "engine at rest",
    "growth": "growth over 1,000,000 transfers",
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


def child(log: Path, source: str) -> Child:
    return Child("child", [sys.executable, "-u", "-c", source], log)


# --- Arithmetic.


def test_median_and_percentile():
    assert median([]) == 0
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    assert percentile(range(100), 0.99) == 99
    assert percentile([7], 0.99) == 7


def test_fit_finds_the_line_that_made_the_points():
    call, descriptor = fit_line([(n, 3e-6 + n * 50e-9) for n in rows.CALL_COUNTS])
    assert call == pytest.approx(3e-6)
    assert descriptor == pytest.approx(50e-9)


def test_fit_keeps_the_cost_of_a_call_when_the_large_points_are_noisy():
    points = [(n, 3e-6 + n * 50e-9) for n in rows.CALL_COUNTS]
    points[-1] = (4096, points[-1][1] * 1.2)
    call, _ = fit_line(points)
    assert call == pytest.approx(3e-6, rel=0.2)


@pytest.mark.parametrize("points", [[], [(1, 1.0)], [(1, 1.0), (1, 2.0)], [(1, 0.0), (2, 1.0)]])
def test_fit_refuses_what_is_no_line(points):
    with pytest.raises(ValueError):
        fit_line(points)


def test_rows_of_calls_have_units_of_the_bars():
    points = [(n, 4e-6 + n * 10e-9) for n in rows.CALL_COUNTS]
    call, descriptor = rows.rows_of_calls("moonpool", "numpy", points)
    assert (call["value"], call["unit"]) == (pytest.approx(4.0), "us")
    assert (descriptor["value"], descriptor["unit"]) == (pytest.approx(10.0), "ns")


def test_rate_is_the_median_of_the_rounds_and_compares_round_by_round():
    runs = [{"batches": n, "seconds": 1.0, "times": [1.0 / n] * n} for n in (10, 30, 20)]
    rate = rate_of(runs, Shape(1000, 5), [1e-5, 3e-5, 2e-5])
    assert rate.gbps == pytest.approx(20 * 5000 / 1e9)
    assert rate.descriptors_per_second == pytest.approx(100)
    assert rate.over([r / 4 for r in rate.rates]) == pytest.approx(4)
    assert rate.over([]) is None


# --- Bars.


@pytest.mark.parametrize("demand", DEMANDS)
def test_every_demand_has_a_bar(demand):
    assert bars.bar_of(DEMANDS[demand]) is not None


def test_every_bar_belongs_to_a_row_that_is_measured():
    names = {f"c++ {name}" for name in DEMANDS.values()} | set(DEMANDS.values())
    names |= {
        rowset.name(shape, write)
        for rowset in rows.python_sets("python")
        for shape in rowset.shapes
        for write in rowset.writes
    }
    names.add("registering 100,000 regions")
    used = {bars.bar_of(name) for name in names}
    assert [bar.demand for bar in bars.BARS if bar not in used] == []


def test_every_rival_and_python_row_has_a_bar():
    names = [
        name
        for case in [*rival._mooncake_cases(), *rival._nixl_cases()]
        for name in rival._names(*case)
    ]
    for rowset in rows.python_sets("python"):
        names += [rowset.name(shape, True) for shape in rowset.shapes]
    assert [name for name in names if bars.bar_of(name) is None] == []


def test_bars_read_as_the_issue_wrote_them():
    shown = {bar.demand: str(bar) for bar in bars.BARS}
    assert shown["tcp 256 B descriptors/s"] == "≥ 1,500,000"
    assert shown["tcp single 64 B"] == "≤ 1.5 ×"
    assert shown["tcp 64 KiB of large"] == "≥ 0.8 × large"
    assert shown["mooncake's failing sizes"] == "works"


def test_only_one_bar_matches_a_row():
    for name in DEMANDS.values():
        assert sum(bool(bars.re.fullmatch(bar.pattern, name)) for bar in bars.BARS) == 1, name


def verdict(**row) -> str:
    bars.judge([row])
    return row["verdict"]


def test_verdicts():
    name = "c++ tcp write 16 x 1024 KiB"
    assert verdict(name=name, ratio=0.95) == bars.PASS
    assert verdict(name=name, ratio=0.94) == bars.MISS
    assert verdict(name=name, failed="it died") == bars.FAILED
    assert verdict(name="c++ tcp write crc 1 x 64 B", ratio=1.6) == bars.MISS
    assert verdict(name="c++ tcp write crc 1 x 64 B", ratio=1.5) == bars.PASS
    assert verdict(name="vs nixl tcp write 64 x 1024 KiB", rival_failed="hung") == bars.NO_RIVAL
    assert verdict(name="allocator, 10,000 alive", value=50.0) == ""


def test_sizes_that_fail_at_the_rival_pass_when_ours_work():
    name = "vs mooncake tcp write 8192 x 256 B"
    assert verdict(name=name, value=0.4, rival_failed="returned -1") == bars.PASS
    assert verdict(name=name, failed="ours died") == bars.FAILED


def test_share_is_of_the_rate_of_large_blocks():
    small = {"name": "shim tcp read crc 128 x 4 KiB", "gbps": 2.25}
    large = {"name": "shim tcp read crc 16 x 1024 KiB", "gbps": 4.5}
    other = {"name": "shim tcp write crc 16 x 1024 KiB", "gbps": 0.1}
    bars.judge([small, large, other])
    assert small["share"] == pytest.approx(0.5)
    assert small["verdict"] == bars.PASS


def test_share_without_the_large_row_has_no_verdict():
    assert verdict(name="shim tcp read crc 128 x 4 KiB", gbps=0.45) == ""


# --- Rows.


def native(**changes: object) -> dict[str, object]:
    line = (
        '{"row": "tcp write crc 1 x 64 B", "gbps": 0.0004, "descriptors_per_second": 5679, '
        '"batch_us_median": 62.22, "batch_us_p99": 5067.78, "floor": "raw ping-pong", '
        '"floor_value": 108.0420, "ratio": 0.5759}'
    )
    return {**json.loads(line), **changes}


def test_native_row_of_a_single_transfer_is_a_time():
    row = rows.row_of_native(native())
    assert (row["name"], row["value"], row["unit"]) == ("c++ tcp write crc 1 x 64 B", 62.22, "us")


def test_native_row_of_many_small_ones_is_descriptors():
    row = rows.row_of_native(native(row="tcp read crc 8192 x 256 B", floor="2 raw sockets"))
    assert (row["value"], row["unit"]) == (5679, "desc/s")


def test_program_that_cannot_list_its_rows_is_a_failed_row(tmp_path):
    plan = rows.Plan(tmp_path, Effort(1, 0.05), lambda name: True)
    (row,) = rows.native_rows(plan)
    assert "failed" in row


def test_native_row_that_failed_says_so():
    assert "failed" in rows.row_of_native({"row": "tcp write 16 x 256 KiB", "error": True})


def test_rival_row_compares_with_the_best_and_names_failures():
    def rate(gbps: float) -> Rate:
        return Rate(gbps, 0.0, 0.0, 0.0, rates=(gbps * 1e9,))

    shape = Shape(1 << 20, 64)
    rivals = [rate(1.0), ChildFailed("nixl sm hung"), rate(2.0)]
    found = list(
        rival.rows_of("nixl same host", shape, True, [rate(3.0), ChildFailed("x")], rivals)
    )
    assert found[1]["rival_failed"] == "nixl sm hung"
    assert found[3]["ratio"] == pytest.approx(1.5)
    assert found[4]["failed"] == "x"


def test_rival_that_always_fails_leaves_a_row_without_ratio():
    ours = Rate(1.0, 0.0, 0.0, 0.0, rates=(1e9,))
    (row,) = rival.rows_of("mooncake tcp", Shape(65536, 16), True, [ours], [ChildFailed("hung")])
    assert "ratio" not in row
    assert row["rival_failed"] == "hung"


def test_table_shows_value_floor_ratio_bar_verdict_and_reasons():
    name = "c++ tcp write 16 x 1024 KiB"
    shown = [
        {"name": name, "value": 2.5, "unit": "GB/s", "reference": "2 raw sockets",
         "reference_value": 2.6, "ratio": 0.96, "batch_us_p99": 812.0},
        {"name": "shim call", "failed": "it died"},
    ]  # fmt: skip
    bars.judge(shown)
    text = run.table(shown)
    for word in ("2.500 GB/s", "2 raw sockets 2.600 GB/s", "0.96", "≥ 0.95 ×", "PASS", "812 us"):
        assert word in text
    assert "shim call: it died" in text
    assert run.summary(shown) == "1 PASS, 0 MISS, 1 FAILED, 0 NO RIVAL"


# --- Children.


def test_child_answers_a_line_with_a_line(log):
    echo = "import sys\nfor line in sys.stdin: print(line, end='')"
    with child(log, echo) as process:
        assert process.ask({"a": 1}, 30 * PATIENCE) == {"a": 1}
        assert process.ask({"b": 2}, 30 * PATIENCE) == {"b": 2}


def test_child_that_says_it_failed_goes_on(log):
    source = 'print(\'{"ok": false, "error": "no"}\'); print(\'{"ok": true}\'); input(); input()'
    with child(log, source) as process:
        with pytest.raises(ChildFailed, match="no"):
            process.ask({}, 30 * PATIENCE)
        assert process.ask({}, 30 * PATIENCE) == {"ok": True}


def test_dead_child_is_reported_with_its_last_words(log):
    source = "import sys; input(); print('out of luck', file=sys.stderr); sys.exit(3)"
    with child(log, source) as process, pytest.raises(ChildFailed, match=r"status 3.*out of luck"):
        process.ask({}, 30 * PATIENCE)


def test_killed_child_is_reported_with_its_signal(log):
    source = "import os; input(); os.kill(os.getpid(), 9)"
    with child(log, source) as process, pytest.raises(ChildFailed, match="SIGKILL"):
        process.ask({}, 30 * PATIENCE)


def test_hanging_child_is_killed_with_its_group(log):
    # It has a child of its own, and neither listens to anything.
    source = (
        "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); p = os.fork()\n"
        "if p: print('{\"grandchild\": %d}' % p, flush=True)\n"
        "while True: signal.pause()"
    )
    with child(log, source) as process:
        grandchild = process.hear(30 * PATIENCE)["grandchild"]
        with pytest.raises(ChildFailed, match="did not answer"):
            process.ask({}, 0.2)
        assert ended(process.pid)
        assert ended(grandchild)


def ended(pid: int) -> bool:
    """Gone, or a zombie that whoever adopted it has not yet buried."""
    deadline = time.monotonic() + 10 * PATIENCE
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        os.sched_yield()
    return False


def test_nonsense_is_a_failure(log):
    with child(log, "print('hello')") as process, pytest.raises(ChildFailed, match="not JSON"):
        process.hear(30 * PATIENCE)


def test_stopped_child_can_still_be_closed(log):
    with child(log, "input()") as process:
        process.pause()
    assert ended(process.pid)


def test_child_that_cannot_start_gives_an_error(log):
    with pytest.raises(OSError):
        Child("nothing", ["/nonexistent/program"], log)


# --- For real.


@pytest.mark.skipif(not PROGRAM.exists(), reason="moonpool_bench is not built")
def test_one_real_row():
    name = "c++ tcp write crc 1 x 64 B"
    plan = rows.Plan(BUILD, Effort(1, 0.05), lambda other: other == name)
    (row,) = rows.native_rows(plan)
    bars.judge([row])
    assert row.get("failed") is None, row
    assert row["value"] > 0
    assert row["ratio"] > 0
    assert row["verdict"] in (bars.PASS, bars.MISS)
