"""What is demanded of the figures: the bars, and the verdict on each row.

A row is a dict as run.py writes it. `name` says what was measured; `value` and `unit` are what was
reached; `reference`, `reference_value` and `ratio` compare it with a floor or another engine. A
row that is compared with the large-block rate of its kind gets that share in `share`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]

PASS, MISS, FAILED, NO_RIVAL = "PASS", "MISS", "FAILED", "NO RIVAL"

# A block that counts as large: what smaller ones are compared with.
LARGE = "16 x 1024 KiB"


@dataclass(frozen=True)
class Bar:
    """Rows whose whole name matches `pattern` must reach `limit`."""

    demand: str  # the sentence of the issue, in short
    pattern: str
    measure: str  # ratio, value or share
    limit: float
    at_most: bool = False

    def __str__(self) -> str:
        if self.measure == "value" and self.limit == 0:
            return "works"
        sign = "≤" if self.at_most else "≥"
        unit = {"ratio": "×", "share": "× large", "value": ""}[self.measure]
        limit = f"{self.limit:,.0f}" if self.limit >= 100 else f"{self.limit:g}"
        return f"{sign} {limit} {unit}".rstrip()

    def holds(self, measured: float) -> bool:
        return measured <= self.limit if self.at_most else measured >= self.limit


# "Through Python the same figures hold for batches of 16 and more".
_ANY = r"(c\+\+|moonpool|shim) "
_ANY_CRC = _ANY + r"tcp (write|read) crc "
_NATIVE = r"c\+\+ "

BARS = (
    Bar("tcp large without crc", _ANY + r"tcp (write|read) 16 x (256|1024|4096) KiB", "ratio", 0.95),
    Bar("tcp large with crc", _ANY_CRC + r"16 x (256|1024|4096) KiB", "ratio", 0.88),
    Bar("tcp 64 KiB of large", _ANY_CRC + r"(16|128) x 64 KiB", "share", 0.80),
    Bar("tcp 4 KiB of large", _ANY_CRC + r"128 x 4 KiB", "share", 0.50),
    Bar("tcp 40,960 x 4 KiB of large", _ANY_CRC + r"40960 x 4 KiB", "share", 0.70),
    Bar("tcp 256 B descriptors/s", _ANY_CRC + r"8192 x 256 B", "value", 1.5e6),
    Bar("tcp single 64 B", _NATIVE + r"tcp write crc 1 x 64 B", "ratio", 1.5, at_most=True),
    Bar("tcp single 4 KiB", _NATIVE + r"tcp write crc 1 x 4 KiB", "ratio", 2.0, at_most=True),
    Bar("local memfd read", _ANY + r"local read memfd \d+ x \d+ MiB", "ratio", 0.90),
    Bar("local memfd written", _ANY + r"local write memfd \d+ x \d+ MiB", "ratio", 0.80),
    Bar("local other memory", _ANY + r"local (read|write) heap \d+ x \d+ MiB", "ratio", 0.90),
    Bar("local 4 KiB", _ANY + r"local (read|write) (memfd|heap) 128 x 4 KiB", "value", 1.5),
    Bar("call", r"(moonpool|shim) call, (lists|numpy)", "value", 5.0, at_most=True),
    Bar("descriptor in a list", r"(moonpool|shim) descriptor, lists", "value", 200.0, at_most=True),
    Bar("descriptor in numpy", r"(moonpool|shim) descriptor, numpy", "value", 20.0, at_most=True),
    Bar("region", r"memory of a region", "value", 200.0, at_most=True),
    Bar("100,000 regions in 2 s", r"registering 100,000 regions", "value", 2.0, at_most=True),
    Bar("engine at rest", r"engine at rest", "value", 30.0, at_most=True),
    Bar("no growth", r"growth over [\d,]+ transfers", "value", 1.0, at_most=True),
    Bar("mooncake 16 x 64 KiB", r"vs mooncake tcp \w+ 16 x 64 KiB", "ratio", 2.2),
    Bar("mooncake 128 x 64 KiB", r"vs mooncake tcp \w+ 128 x 64 KiB", "ratio", 2.5),
    Bar("mooncake 1 and 4 MiB", r"vs mooncake tcp \w+ 16 x (1024|4096) KiB", "ratio", 1.6),
    Bar("mooncake 128 x 4 KiB", r"vs mooncake tcp \w+ 128 x 4 KiB", "ratio", 15.0),
    Bar("mooncake 1,500 x 256 B", r"vs mooncake tcp \w+ 1500 x 256 B", "ratio", 50.0),
    Bar("mooncake's failing sizes", r"vs mooncake tcp \w+ (8192 x 256 B|40960 x 4 KiB)", "value", 0.0),
    Bar("mooncake, same host", r"vs mooncake same host \w+ 16 x (1024|4096) KiB", "ratio", 2.0),
    Bar("nixl, same host", r"vs nixl's best same host (heap|memfd) .*", "ratio", 1.0),
    Bar("nixl, tcp", r"vs nixl tcp .*", "ratio", 1.5),
)  # fmt: skip


def bar_of(name: str) -> Bar | None:
    """The bar for a row of this name, or None: it is shown for information."""
    for bar in BARS:
        if re.fullmatch(bar.pattern, name):
            return bar
    return None


def add_shares(rows: Sequence[Row]) -> None:
    """Gives rows of the smaller shapes their share of the large-block rate of the same run."""
    rates = {row["name"]: row.get("gbps") for row in rows}
    for row in rows:
        bar = bar_of(row["name"])
        if bar is None or bar.measure != "share" or not row.get("gbps"):
            continue
        large = rates.get(re.sub(r"\d+ x \d+ (KiB|B)$", LARGE, row["name"]))
        if large:
            row["share"] = row["gbps"] / large


def judge(rows: Sequence[Row]) -> None:
    """Adds `bar`, `demand` and `verdict` to every row; verdict is empty where nothing is asked,
    or what is asked could not be measured (a --match that left the large blocks out)."""
    add_shares(rows)
    for row in rows:
        bar = bar_of(row["name"])
        row["bar"] = str(bar) if bar else ""
        row["demand"] = bar.demand if bar else ""
        row["verdict"] = _verdict(row, bar)


def _verdict(row: Row, bar: Bar | None) -> str:
    if row.get("failed"):
        return FAILED
    if bar is None:
        return ""
    measured = row.get(bar.measure)
    if measured is None:
        return NO_RIVAL if row.get("rival_failed") else ""
    return PASS if bar.holds(measured) else MISS
