"""One side of a measurement through Python: owns memory, or moves it. Started by pairs.py.

    worker.py moonpool|shim|mooncake|nixl

Speaks one JSON line for each JSON line it is given. Needs only numpy and the engine it is asked
for, so that it also runs in the rivals' environment. `shim` and `mooncake` run the same code, on
whichever package `mooncake` is installed.

    {"op": "start", "bytes": N, "memory": "heap" | "engine", "options": {...}}  -> address, base
    {"op": "connect", "address": ..., "base": ...}
    {"op": "run", "block": B, "count": N, "write": bool, "seconds": S}  -> batches, their times
    {"op": "calls", "count": N, "form": "lists" | "numpy", "seconds": S}  -> seconds of a submission
    {"op": "peek", "offset": N}  -> one byte
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Batch = Callable[[], None]


def offsets(block: int, count: int, size: int) -> Any:
    """Every other block of the memory."""
    step = 2 * block if count > 1 else block
    if count * step > size + block:
        raise ValueError(f"{count} x {block} B do not fit into {size} B")
    return np.arange(count, dtype=np.uint64) * np.uint64(step)


class Engine:
    """What the engines have in common: memory of our own, and blocks in it."""

    size = 0
    base = 0
    far_base = 0

    def allocate(self, size: int) -> None:
        self._memory = np.empty(size, dtype=np.uint8)
        self.size = size
        self.base = self._memory.ctypes.data

    def fill(self, value: int) -> None:
        ctypes.memset(self.base, value, self.size)

    def blocks(self, block: int, count: int) -> tuple[Any, Any, Any]:
        at = offsets(block, count, self.size)
        return (
            at + np.uint64(self.base),
            at + np.uint64(self.far_base),
            np.full(count, block, dtype=np.uint64),
        )

    def start(self, size: int, memory: str, options: dict[str, Any]) -> str:
        raise NotImplementedError

    def connect(self, address: str) -> None:
        raise NotImplementedError

    def batch(self, block: int, count: int, write: bool) -> Batch:
        """Moves one batch and returns when it is done; raises when it fails."""
        raise NotImplementedError

    def call(self, count: int, form: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """Submits 8-byte descriptors; waits for what it gave."""
        raise NotImplementedError


def in_form(arrays: tuple[Any, Any, Any], form: str) -> tuple[Any, Any, Any]:
    return arrays if form == "numpy" else tuple(array.tolist() for array in arrays)  # type: ignore


class Moonpool(Engine):
    def start(self, size: int, memory: str, options: dict[str, Any]) -> str:
        import moonpool

        self._engine = moonpool.Engine(listen="127.0.0.1:0", timeout=20.0, **options)
        if memory == "engine":
            self._region = self._engine.allocate(size)
            self.size, self.base = size, self._region.address
        else:
            self.allocate(size)
            self._engine.register(self.base, size)
        return self._engine.address

    def connect(self, address: str) -> None:
        self._segment = self._engine.open(address, 10.0)

    def batch(self, block: int, count: int, write: bool) -> Batch:
        local, remote, lengths = self.blocks(block, count)
        move = self._engine.write if write else self._engine.read

        def one() -> None:
            move(self._segment, local, remote, lengths).wait()

        return one

    def call(self, count: int, form: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        local, remote, lengths = in_form(self.blocks(8, count), form)
        write, segment = self._engine.write, self._segment
        return lambda: write(segment, local, remote, lengths), lambda batch: batch.wait()


class Mooncake(Engine):
    def start(self, size: int, memory: str, options: dict[str, Any]) -> str:
        from mooncake.engine import TransferEngine

        self._engine = TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("initialize failed")
        self.allocate(size)
        result = self._engine.register_memory(self.base, size)
        if result != 0:
            raise RuntimeError(f"register_memory returned {result}")
        return f"127.0.0.1:{self._engine.get_rpc_port()}"

    def connect(self, address: str) -> None:
        self._address = address

    def batch(self, block: int, count: int, write: bool) -> Batch:
        local, remote, lengths = in_form(self.blocks(block, count), "lists")
        engine, address = self._engine, self._address
        move = engine.batch_transfer_sync_write if write else engine.batch_transfer_sync_read

        def one() -> None:
            result = move(address, local, remote, lengths)
            if result != 0:
                raise RuntimeError(f"the transfer returned {result}")

        return one

    def call(self, count: int, form: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        local, remote, lengths = in_form(self.blocks(8, count), form)
        engine, address = self._engine, self._address

        def wait(number: int) -> None:
            if number == 0 or engine.get_batch_transfer_status([number]) != 0:
                raise RuntimeError(f"batch {number} failed")

        submit = engine.batch_transfer_async_write
        return lambda: submit(address, local, remote, lengths), wait


class Nixl(Engine):
    def start(self, size: int, memory: str, options: dict[str, Any]) -> str:
        from nixl_cu13._api import nixl_agent, nixl_agent_config

        self._agent = nixl_agent(f"bench-{os.getpid()}", nixl_agent_config(backends=["UCX"]))
        self.allocate(size)
        self._agent.register_memory([(self.base, size, 0, "")], "DRAM")
        return base64.b64encode(self._agent.get_agent_metadata()).decode()

    def connect(self, address: str) -> None:
        name = self._agent.add_remote_agent(base64.b64decode(address))
        self._peer = name.decode() if isinstance(name, bytes) else name

    def batch(self, block: int, count: int, write: bool) -> Batch:
        """The request is prepared once and posted again and again, the fastest way it has."""
        local, remote, lengths = in_form(self.blocks(block, count), "lists")
        agent = self._agent
        here = agent.get_xfer_descs([(a, n, 0) for a, n in zip(local, lengths)], "DRAM")
        there = agent.get_xfer_descs([(a, n, 0) for a, n in zip(remote, lengths)], "DRAM")
        handle = agent.initialize_xfer("WRITE" if write else "READ", here, there, self._peer)

        def one() -> None:
            state = agent.transfer(handle)
            while state == "PROC":
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise RuntimeError(f"the transfer ended as {state}")

        return one


ENGINES: dict[str, type[Engine]] = {
    "moonpool": Moonpool,
    "shim": Mooncake,
    "mooncake": Mooncake,
    "nixl": Nixl,
}


class Worker:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batches: dict[tuple[int, int, bool], Batch] = {}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        operation = {
            "start": self._start,
            "connect": self._connect,
            "run": self._run,
            "calls": self._calls,
            "peek": self._peek,
        }[command.pop("op")]
        return operation(**command)

    def _start(
        self, bytes: int, memory: str, options: dict[str, Any], value: int
    ) -> dict[str, Any]:
        address = self._engine.start(bytes, memory, options)
        self._engine.fill(value)
        return {"address": address, "base": self._engine.base}

    def _connect(self, address: str, base: int) -> dict[str, Any]:
        self._engine.far_base = base
        self._engine.connect(address)
        return {}

    def _run(self, block: int, count: int, write: bool, seconds: float) -> dict[str, Any]:
        """At least two batches: the first is warm-up."""
        key = (block, count, write)
        if key not in self._batches:
            self._batches[key] = self._engine.batch(block, count, write)
        batch = self._batches[key]
        batch()
        times = []
        start = now = time.perf_counter()
        while now < start + seconds or not times:
            batch()
            before, now = now, time.perf_counter()
            times.append(now - before)
        return {"seconds": now - start, "batches": len(times), "times": times[:20000]}

    def _calls(self, count: int, form: str, seconds: float) -> dict[str, Any]:
        submit, wait = self._engine.call(count, form)
        wait(submit())
        times = []
        start = time.perf_counter()
        while time.perf_counter() < start + seconds or len(times) < 5:
            before = time.perf_counter()
            batch = submit()
            times.append(time.perf_counter() - before)
            wait(batch)
        times.sort()
        return {"count": count, "submit_seconds": times[len(times) // 2]}

    def _peek(self, offset: int) -> dict[str, Any]:
        return {"byte": ctypes.string_at(self._engine.base + offset, 1)[0]}


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1] not in ENGINES:
        print(__doc__, file=sys.stderr)
        return 2
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    # Libraries print to standard output; what is ours goes where only we write.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(ENGINES[sys.argv[1]]())
    for line in sys.stdin:
        try:
            answer = {"ok": True, **worker.answer(json.loads(line))}
        except Exception as error:
            answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)
    os._exit(0)  # Nothing of a library's own end is measured, or waited for.


if __name__ == "__main__":
    sys.exit(main())
