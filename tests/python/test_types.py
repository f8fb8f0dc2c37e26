"""What type checkers see."""

from __future__ import annotations

import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import moonpool

PACKAGE = Path(moonpool.__file__).resolve().parent

GOOD = """
import numpy as np
import moonpool

async def use(engine: moonpool.Engine) -> int:
    batch = await engine.write(engine.open("a:1"), 1, [2], (3,))
    return batch.bytes

with moonpool.Engine(listen=":0", transports=["tcp"]) as engine:
    region: moonpool.Region = engine.register(bytearray(10), rights="r")
    memory = memoryview(engine.allocate(10))
    segment: moonpool.Segment = engine.open("a:1", timeout=1.5)
    remote: int = segment.regions[0].address
    batch: moonpool.Batch = engine.read(segment, np.arange(3), [1], 1, priority="latency")
    same: moonpool.Batch = batch.wait()
    phase: str | None = batch.status().phase
    group = moonpool.Transfer(segment, "write", 1, 2, 3)
    engine.submit([group], notify=b"x", queue=True)
    for done in engine.completed(timeout=None):
        done.cancel()
    for notification in engine.notifications():
        payload: bytes = notification.payload
    name: str = engine.info()["transports"][0]["name"]
try:
    pass
except moonpool.TimedOut as error:
    peer: str | None = error.peer
"""

BAD = {
    'moonpool.Engine(workers="two")': "arg-type",
    'moonpool.Engine().open("a:1").regions[0].where': "attr-defined",
    'moonpool.Engine().notify(moonpool.Engine().open("a:1"), "text")': "arg-type",
    'moonpool.Engine().write(moonpool.Engine().open("a:1"), 1, 2, 3, priority="high")': "arg-type",
    "moonpool.Engine().allocate(10).nothing": "attr-defined",
    'moonpool.Transfer(moonpool.Engine().open("a:1"), "copy", 1, 2, 3)': "arg-type",
}


def check(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    sample = tmp_path / "sample.py"
    sample.write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--python-executable",
         sys.executable, "--config-file", "", str(sample)],
        cwd=tmp_path,
        env={"MYPYPATH": "", "PATH": "", "PYTHONPATH": ":".join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
    )  # fmt: skip


def test_right_code_is_right(tmp_path: Path) -> None:
    done = check(tmp_path, GOOD)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_code_is_wrong(tmp_path: Path) -> None:
    code = "import moonpool\n" + "\n".join(BAD) + "\n"
    done = check(tmp_path, code)
    for number, (line, kind) in enumerate(BAD.items(), 2):
        assert any(
            f"sample.py:{number}: error" in said and f"[{kind}]" in said
            for said in done.stdout.splitlines()
        ), f"{line}: {done.stdout}"


def test_the_stub_is_what_the_extension_says(tmp_path: Path) -> None:
    if importlib.util.find_spec("nanobind") is None:
        pytest.skip("nanobind is not installed")
    made = tmp_path / "_native.pyi"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "nanobind.stubgen",
            "-q",
            "-P",
            "-m",
            "moonpool._native",
            "-o",
            str(made),
        ],
        check=True,
    )
    assert made.read_text() == (PACKAGE / "_native.pyi").read_text(), (
        "regenerate it: python -m nanobind.stubgen -P -m moonpool._native "
        "-o src/python/moonpool/_native.pyi"
    )


def test_everything_public_says_what_it_does() -> None:
    for name in moonpool.__all__:
        thing = getattr(moonpool, name)
        if not inspect.isclass(thing) or issubclass(thing, dict):
            continue
        assert thing.__doc__, name
        for method, value in vars(thing).items():
            if not method.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{method}"


def test_the_package_is_typed_and_has_a_version() -> None:
    assert (PACKAGE / "py.typed").exists()
    assert moonpool.__version__.count(".") == 2
