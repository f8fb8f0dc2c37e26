"""The C API: what it exports, and the example that uses it. Needs a build in build/release, or in
MOONPOOL_BUILD."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import LONG, ROOT, Pair

HEADER = ROOT / "include" / "moonpool" / "moonpool.h"
BUILD = Path(os.environ.get("MOONPOOL_BUILD", ROOT / "build" / "release"))


@pytest.fixture(scope="module")
def library() -> Path:
    path = BUILD / "lib" / "libmoonpool.so"
    if not path.exists():
        pytest.skip(f"{path} is not built")
    return path


def declared() -> set[str]:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    return set(re.findall(r"\b(moonpool_\w+)\(", text))


def test_it_exports_what_the_header_declares_and_nothing_else(library: Path) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True
    ).stdout
    exported = {
        line.split()[-1].partition("@")[0] for line in listing.splitlines() if " A " not in line
    }
    assert exported == declared()
    assert 20 <= len(exported) <= 30


def test_it_needs_glibc_and_nothing_else(library: Path) -> None:
    from test_extension import GLIBC, needed

    assert needed(library) <= GLIBC


def test_the_header_is_plain_c_and_cxx() -> None:
    for compiler, language, standard in (("cc", "c", "c11"), ("c++", "c++", "c++11")):
        subprocess.run(
            [compiler, "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic",
             "-Werror", "-fsyntax-only", str(HEADER)],
            check=True,
        )  # fmt: skip


def test_the_example_moves_a_text(library: Path) -> None:
    program = BUILD / "examples" / "c" / "moonpool_c_transfer"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run(
        [str(program)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 0, done.stderr
    assert "the cache has moved" in done.stdout
    assert "20 bytes" in done.stdout


def test_the_example_reaches_a_python_engine(library: Path, pair: Pair) -> None:
    program = BUILD / "examples" / "c" / "moonpool_c_transfer"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    done = subprocess.run(
        [str(program), pair.other.address],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert bytes(pair.there[:19]) == b"the cache has moved"
    (told,) = pair.other.notifications(timeout=LONG)
    assert told.payload == b"sent"


class Failure(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_int),
        ("message", ctypes.c_char_p),
        ("peer", ctypes.c_char_p),
        ("transport", ctypes.c_char_p),
        ("phase", ctypes.c_char_p),
    )


@pytest.fixture
def c(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    loaded.moonpool_last_error.restype = ctypes.POINTER(Failure)
    loaded.moonpool_version.restype = ctypes.c_char_p
    loaded.moonpool_code_name.restype = ctypes.c_char_p
    loaded.moonpool_engine_address.restype = ctypes.c_char_p
    loaded.moonpool_engine_address.argtypes = (ctypes.c_void_p,)
    for name in ("moonpool_engine_destroy", "moonpool_engine_close"):
        getattr(loaded, name).argtypes = (ctypes.c_void_p,)
    return loaded


def test_failures_say_what_and_who(c: ctypes.CDLL) -> None:
    engine = ctypes.c_void_p()
    assert c.moonpool_engine_create(None, ctypes.byref(engine)) == 0
    segment = ctypes.c_uint64()
    limit = ctypes.c_double(LONG)
    assert c.moonpool_open(engine, b"127.0.0.1:1", limit, ctypes.byref(segment)) == 5
    error = c.moonpool_last_error().contents
    assert (error.code, error.peer) == (5, b"127.0.0.1:1")
    assert b"connect" in error.message
    for code in (
        c.moonpool_open(engine, None, limit, ctypes.byref(segment)),
        c.moonpool_open(
            engine, b"127.0.0.1:1", ctypes.c_double(float("nan")), ctypes.byref(segment)
        ),
        c.moonpool_register(engine, None, ctypes.c_uint64(1), 3),
        c.moonpool_register(engine, ctypes.byref(segment), ctypes.c_uint64(8), 4),
        c.moonpool_submit(engine, None, ctypes.byref(segment)),
        c.moonpool_engine_create(None, None),
    ):
        assert code == 1
        assert c.moonpool_last_error().contents.message
    assert c.moonpool_wait(engine, ctypes.c_uint64(12345), ctypes.c_double(0)) == 2
    assert c.moonpool_release(engine, ctypes.c_uint64(12345)) == 2
    c.moonpool_engine_close(engine)
    c.moonpool_engine_close(engine)
    c.moonpool_engine_destroy(engine)
    c.moonpool_engine_destroy(None)


def test_names_and_version(c: ctypes.CDLL) -> None:
    import moonpool

    assert c.moonpool_version().decode() == moonpool.__version__
    assert c.moonpool_code_name(6) == b"timed_out"
    assert c.moonpool_code_name(99) == b"unknown"
    assert c.moonpool_code_name(-1) == b"unknown"
