"""The whole program, with real processes and the real moonpool package.

Time limits are generous and multiplied by the environment's MOONPOOL_PATIENCE (default 1).
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PATIENCE = float(os.environ.get("MOONPOOL_PATIENCE", "1"))
RUN_SECONDS = 90 * PATIENCE
PROMPT = "Write one sentence about the sea, and one about the mountains. " * 6

pytestmark = [
    pytest.mark.needs_moonpool,
    pytest.mark.skipif(
        importlib.util.find_spec("moonpool") is None,
        reason="python package moonpool is not installed; run script/install-venv",
    ),
]


def command(*arguments: str) -> list[str]:
    timeouts = ["--stall-timeout", str(5 * PATIENCE), "--transfer-timeout", str(4 * PATIENCE)]
    return [sys.executable, "-m", "tinyserve", "--prompt", PROMPT, *timeouts, *arguments]


def environment() -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root}


def run(*arguments: str) -> tuple[dict[str, Any], str]:
    """The JSON of a run that must succeed, and what it said on standard error."""
    done = subprocess.run(
        command("--json", "--tokens", "12", *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert record["text_split"] == record["text_monolithic"] != ""
    assert record["same_text"] is True
    return record, done.stderr


def check_figures(record: dict[str, Any]) -> None:
    pages = -(-record["prompt_tokens"] // 16)
    assert record["kv_bytes"] == pages * 16 * 30 * 2 * 3 * 64 * 2
    assert record["transfer_seconds"] > 0 and record["transfer_gbps"] > 0
    assert record["transfer_exposed_seconds"] > 0 and record["transfer_alone_seconds"] > 0
    assert record["ttft_split_seconds"] > 0 and record["ttft_monolithic_seconds"] > 0
    assert len(record["requests"]) >= 1


@pytest.mark.parametrize("transport", ["tcp", "local"])
def test_the_text_is_the_same_over(transport: str) -> None:
    record, _ = run("--transport", transport)
    assert record["transport"] == transport
    check_figures(record)


def test_several_workers_of_each_kind() -> None:
    record, _ = run("--prefill", "2", "--decode", "2", "--requests", "3")
    check_figures(record)
    workers = {entry["split"]["decode_worker"] for entry in record["requests"]}
    assert workers == {"decode0", "decode1"}


@pytest.mark.parametrize(
    ("fault", "phase", "transport"),
    [("kill", "transfer", "tcp"), ("freeze", "transfer", "local"), ("freeze", "decode", "tcp")],
)
def test_a_request_survives_a_worker(fault: str, phase: str, transport: str) -> None:
    arguments = ["--decode", "2", "--fault", fault, "--fault-at", phase]
    record, said = run("--transport", transport, *arguments)
    split = record["requests"][0]["split"]
    assert f"fault: {fault} decode0 during {phase}" in said
    assert split["decode_worker"] == "decode1" and split["attempts"] == 2
    check_figures(record)


def workers_of(parent: int) -> list[int]:
    """Process ids of the coordinator's workers."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # It ended meanwhile.
            if int(fields[1]) == parent and b"tinyserve.process" in words:
                found.append(int(folder.name))
    return found


def gone(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_coordinator(number: signal.Signals) -> None:
    arguments = command("--tokens", "500", "--decode", "2")
    coordinator = subprocess.Popen(
        arguments, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert coordinator.stderr is not None
    for line in coordinator.stderr:
        if line.startswith("running"):
            break
    workers = workers_of(coordinator.pid)
    assert len(workers) == 3
    os.kill(workers[-1], signal.SIGSTOP)  # Even one that cannot run ends.
    coordinator.send_signal(number)
    coordinator.stderr.read()
    expected = 130 if number == signal.SIGINT else -signal.SIGKILL
    assert coordinator.wait(20 * PATIENCE) == expected
    deadline = time.monotonic() + 20 * PATIENCE
    while not all(gone(worker) for worker in workers):
        assert time.monotonic() < deadline, "a worker is still there"
        time.sleep(0.05)
