"""The wheels that `script/build --wheels DIR` writes: what is in them, and that they work in a fresh
environment. Needs MOONPOOL_WHEELS=DIR."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import LONG

USE = """
import moonpool, mooncake.engine
with moonpool.Engine() as a, moonpool.Engine() as b:
    here, there = a.allocate(64), b.allocate(64)
    a.write(a.open(b.address), here.address, there.address, 64).wait()
engine = mooncake.engine.TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
assert engine.get_rpc_port() > 0
print(moonpool.__version__)
"""


@pytest.fixture(scope="module")
def wheels() -> dict[str, Path]:
    folder = os.environ.get("MOONPOOL_WHEELS")
    if not folder:
        pytest.skip("MOONPOOL_WHEELS names no folder of wheels")
    found = {path.name.partition("-")[0]: path for path in Path(folder).glob("*.whl")}
    assert {"moonpool", "moonpool_mooncake"} <= set(found)
    return found


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_the_package_and_the_program_only(wheels: dict[str, Path]) -> None:
    names = names_in(wheels["moonpool"])
    package = {name for name in names if name.startswith("moonpool/")}
    expected = {"__init__.py", "_engine.py", "_native.pyi", "errors.py", "py.typed"}
    assert {f"moonpool/{name}" for name in expected} <= package
    extensions = [name for name in package if name.endswith(".so")]
    assert len(extensions) == 1
    rest = {name for name in names - package if ".dist-info/" not in name}
    assert {Path(name).name for name in rest} == {"moonpool"}
    assert all("/scripts/" in name for name in rest)
    assert "linux" in wheels["moonpool"].name


def test_the_shim_is_pure_python(wheels: dict[str, Path]) -> None:
    assert wheels["moonpool_mooncake"].name.endswith("-none-any.whl")
    names = names_in(wheels["moonpool_mooncake"])
    assert {"mooncake/__init__.py", "mooncake/engine.py", "mooncake/py.typed"} <= names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"mooncake"}


def test_a_fresh_environment_works(wheels: dict[str, Path], tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=False)
    scripts = tmp_path / "venv" / "bin"
    python = str(scripts / "python")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }

    def run(*argv: str) -> str:
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, text=True,
            capture_output=True, timeout=10 * LONG,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(python, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check",
        str(wheels["moonpool"]), str(wheels["moonpool_mooncake"]))  # fmt: skip
    version = run(python, "-c", USE).strip()
    assert run(str(scripts / "moonpool"), "--version").strip() == version
    run(python, "-m", "pip", "check")
    assert sys.version_info[:2] >= (3, 9)
