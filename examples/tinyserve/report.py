"""The results: one record for JSON, one table for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .channel import Message
from .coordinator import Request, State, summary


@dataclass(frozen=True)
class Outcome:
    """One prompt's two runs, their texts, and its transfer once more."""

    split: Request
    monolithic: Request
    text_split: str
    text_monolithic: str
    transfer_alone: Message  # The same transfer while nothing else ran; {} if there was none.

    @property
    def same(self) -> bool:
        """Both runs ended and agree token for token."""
        ended = self.split.state is State.DONE and self.monolithic.state is State.DONE
        return ended and self.split.output == self.monolithic.output


def record(outcome: Outcome) -> dict[str, Any]:
    """One outcome as JSON. Times in seconds; `transfer_gbps` in 10^9 bytes per second."""
    transfer = outcome.split.transfer
    seconds = transfer.get("in_flight_seconds")
    alone_seconds = outcome.transfer_alone.get("in_flight_seconds")
    size = transfer.get("size_bytes", 0)
    split, monolithic = summary(outcome.split), summary(outcome.monolithic)
    return {
        "transport": "+".join(transfer.get("transports", [])) or None,
        "prompt_tokens": split["prompt_tokens"],
        "new_tokens": split["new_tokens"],
        "kv_bytes": size,
        "transfer_seconds": seconds,
        "transfer_exposed_seconds": transfer.get("exposed_seconds"),
        "transfer_batches": transfer.get("batches"),
        "transfer_gbps": size / seconds / 1e9 if seconds else None,
        "transfer_alone_seconds": alone_seconds,
        "transfer_alone_gbps": size / alone_seconds / 1e9 if alone_seconds else None,
        "ttft_split_seconds": split["ttft_seconds"],
        "ttft_monolithic_seconds": monolithic["ttft_seconds"],
        "text_split": outcome.text_split,
        "text_monolithic": outcome.text_monolithic,
        "same_text": outcome.same,
        "split": split,
        "monolithic": monolithic,
    }


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The JSON line: the first request's figures, then all of them under "requests"."""
    records = [record(outcome) for outcome in outcomes]
    first = {key: value for key, value in records[0].items() if key not in ("split", "monolithic")}
    first["same_text"] = all(outcome.same for outcome in outcomes)
    return {**first, "requests": records}


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1e3:.2f} ms" if value < 0.1 else f"{value:.2f} s"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each request, and what the columns mean."""
    header = ["request", "prompt", "KV cache", "transfer", "GB/s", "exposed", "alone", "GB/s"]
    header += ["TTFT split", "TTFT one", "transport", "same text"]
    rows = [header]
    for outcome in outcomes:
        entry = record(outcome)
        rows.append(
            [
                entry["split"]["name"],
                f"{entry['prompt_tokens']} tokens",
                f"{entry['kv_bytes'] / 1e6:.2f} MB",
                _seconds(entry["transfer_seconds"]),
                _rate(entry["transfer_gbps"]),
                _seconds(entry["transfer_exposed_seconds"]),
                _seconds(entry["transfer_alone_seconds"]),
                _rate(entry["transfer_alone_gbps"]),
                _seconds(entry["ttft_split_seconds"]),
                _seconds(entry["ttft_monolithic_seconds"]),
                entry["transport"] or "-",
                "yes" if outcome.same else "NO",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    lines += [
        "",
        "transfer: time with KV cache under way, mostly while later layers are computed",
        "exposed:  what of it the first token had to wait for, after the last layer",
        "alone:    the same transfer again, all layers at once, while nothing else runs",
        "TTFT:     time to first token, prefill and decode split over two processes, or in one",
    ]
    return "\n".join(lines)
