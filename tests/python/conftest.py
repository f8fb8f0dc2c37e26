"""The vocabulary of the Python tests: engines, a peer in a process of its own, patience."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import moonpool

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = float(os.environ.get("MOONPOOL_PATIENCE", "1"))
LONG = 30.0 * PATIENCE  # For what takes a moment on an idle machine.


@pytest.fixture
def engine() -> Iterator[moonpool.Engine]:
    with moonpool.Engine(listen="127.0.0.1:0", timeout=LONG) as one:
        yield one


@pytest.fixture
def other() -> Iterator[moonpool.Engine]:
    with moonpool.Engine(listen="127.0.0.1:0", timeout=LONG) as one:
        yield one


class Pair:
    """Two engines of this process, each with 1 MiB: `local` here, `remote` at the other."""

    SIZE = 1 << 20

    def __init__(self, engine: moonpool.Engine, other: moonpool.Engine) -> None:
        self.engine = engine
        self.other = other
        self.local = engine.allocate(self.SIZE)
        self.remote = other.allocate(self.SIZE)
        self.segment = engine.open(other.address)

    @property
    def here(self) -> memoryview:
        return memoryview(self.local)

    @property
    def there(self) -> memoryview:
        return memoryview(self.remote)


@pytest.fixture
def pair(engine: moonpool.Engine, other: moonpool.Engine) -> Pair:
    return Pair(engine, other)


_PEER = """
import json, sys
import moonpool

options, size = json.loads(sys.argv[1]), int(sys.argv[2])
with moonpool.Engine(**options) as engine:
    region = engine.allocate(size)
    view = memoryview(region)
    view[:] = b"\\x2a" * size
    print(json.dumps({"address": engine.address, "memory": region.address}), flush=True)
    for line in sys.stdin:
        offset, length = json.loads(line)
        print(json.dumps(view[offset:offset + length].hex()), flush=True)
    view.release()
"""


class Peer:
    """An engine with memory, all bytes 0x2a, in a process of its own."""

    def __init__(self, size: int = 1 << 20, **options: Any) -> None:
        options = {"listen": "127.0.0.1:0", "timeout": LONG, **options}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PEER, json.dumps(options), str(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        told = json.loads(self._line())
        self.address: str = told["address"]
        self.memory: int = told["memory"]

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the peer process ended"
        return line

    def bytes(self, offset: int, length: int) -> bytes:
        """What is in its memory now."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([offset, length]) + "\n")
        self.process.stdin.flush()
        return bytes.fromhex(json.loads(self._line()))

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.thaw()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def make_peer() -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def make(**options: Any) -> Peer:
        peers.append(Peer(**options))
        return peers[-1]

    yield make
    for peer in peers:
        peer.end()


def run_python(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program of ours, which may hang: it is ended after a while."""
    environment = {**os.environ, **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * LONG,
        env=environment,
        **options,
    )


def find_program() -> str:
    """The program `moonpool`: of the environment that moonpool is installed in, else of the build."""
    build = Path(os.environ.get("MOONPOOL_BUILD", ROOT / "build" / "release"))
    for folder in (Path(sysconfig.get_path("scripts")), build / "bin"):
        if (folder / "moonpool").exists():
            return str(folder / "moonpool")
    pytest.skip("the program is neither installed nor built")


class Meanwhile:
    """A thread that counts while the main thread is inside a call: it can, if the GIL is free."""

    def __init__(self) -> None:
        self.count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            self.count += 1

    def __enter__(self) -> Meanwhile:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
