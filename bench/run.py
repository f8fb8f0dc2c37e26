"""Measures, and prints a table: what was reached, the floor or the rival beside it, and the bar.

    script/bench [--rival] [--json FILE] [--match TEXT] [--quick]

--rival also measures Mooncake's wheel and NIXL, in turns with ours (installs them into build/rival);
--json writes the rows, the commit and the machine; --match measures only rows whose name contains
TEXT; --quick takes a fifth of the time and proves nothing. A MISS is shown and is no error: the
status is 1 only when something of ours failed to run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bars import FAILED, MISS, NO_RIVAL, PASS, Row, judge
from pairs import Effort
from rival import rival_rows
from rows import Plan, allocator_rows, call_rows, floor_rows, memory_rows, native_rows, python_rows

ROOT = Path(__file__).resolve().parent.parent


def machine() -> dict[str, object]:
    """Facts that a reader of the figures needs."""
    model = ""
    memory = 0
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            memory = int(line.split()[1]) * 1024
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "congestion_control": "".join(_lines("/proc/sys/net/ipv4/tcp_congestion_control")),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def commit() -> str:
    """The commit, with + when the checkout differs from it."""
    try:
        name = _git("rev-parse", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*arguments: str) -> str:
    argv = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=30, check=True
    ).stdout.strip()


def measure(plan: Plan, rival: bool) -> Iterator[Row]:
    yield from floor_rows(plan)
    yield from native_rows(plan)
    yield from python_rows(plan)
    yield from call_rows(plan)
    yield from memory_rows(plan)
    yield from allocator_rows(plan)
    if rival:
        yield from rival_rows(plan)


# --- Showing.


def number(value: float | None, unit: str = "") -> str:
    """Three or more significant figures, and the unit."""
    if value is None:
        return ""
    size = abs(value)
    text = f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3f}"
    return f"{text} {unit}".strip()


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table."""
    reference = row.get("reference", "")
    if row.get("reference_value") is not None:
        unit = "us" if row.get("unit") == "us" else "GB/s"
        reference = f"{reference} {number(row['reference_value'], unit)}"
    if row.get("rival_failed"):
        reference = f"{reference} failed".strip()
    share = f", {row['share']:.2f} large" if "share" in row else ""
    ratio = f"{row['ratio']:.2f}{share}" if row.get("ratio") is not None else ""
    p99 = number(row["batch_us_p99"], "us") if "batch_us_p99" in row else ""
    value = number(row.get("value"), row.get("unit", ""))
    return (row["name"], value, p99, reference, ratio, row["bar"], row["verdict"])


def table(rows: Sequence[Row]) -> str:
    """Columns padded to their widest cell; the reasons of failures below."""
    head = ("row", "value", "p99", "floor or rival", "ratio", "bar", "")
    lines = [head, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = []
    for line in lines:
        padded = [
            cell.ljust(width) if i in (0, 3, 5, 6) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ]
        text.append("  ".join(padded).rstrip())
    text.insert(1, "-" * max(map(len, text)))
    for row in rows:
        reason = row.get("failed") or row.get("rival_failed")
        if reason:
            text.append(f"{row['name']}: {reason}")
    return "\n".join(text)


def summary(rows: Sequence[Row]) -> str:
    count = Counter(row["verdict"] for row in rows)
    named = [f"{count[verdict]} {verdict}" for verdict in (PASS, MISS, FAILED, NO_RIVAL)]
    return ", ".join(named)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="script/bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rival", action="store_true", help="measure other engines too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    parser.add_argument("--match", default="", metavar="TEXT", help="only rows with it in the name")
    parser.add_argument("--quick", action="store_true", help="a fifth of the time")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", metavar="DIR")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    flags = parse(argv)
    plan = Plan(
        build=flags.build.resolve(),
        effort=Effort(2, 0.1) if flags.quick else Effort(5, 0.3),
        wanted=lambda name: flags.match in name,
        transfers=100_000 if flags.quick else 1_000_000,
    )
    if not plan.program.exists():
        print(f"bench: {plan.program} is not there; script/bench builds it", file=sys.stderr)
        return 1
    facts = {"commit": commit(), "machine": machine(), "quick": flags.quick}
    facts["started"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    rows = []
    for row in measure(plan, flags.rival):
        rows.append(row)
        what = row.get("failed") or number(row.get("value"), row.get("unit", "")) or "no figure"
        print(f"bench: {row['name']}: {what}", file=sys.stderr, flush=True)
    if not rows:
        print(f"bench: no row has {flags.match!r} in its name", file=sys.stderr)
        return 1
    judge(rows)
    print(table(rows))
    print(f"{len(rows)} rows: {summary(rows)}")
    if flags.json:
        flags.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    return 1 if any(row["verdict"] == FAILED for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
