"""The program `moonpool`: from the environment that moonpool is installed in, else from the build."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest
from conftest import LONG, Pair, find_program

import moonpool


@pytest.fixture(scope="module")
def program() -> str:
    return find_program()


def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * LONG,
        env={**os.environ, **environment},
    )  # fmt: skip


def answer(*argv: str) -> Any:
    done = run(*argv)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", ["", "info", "topo", "probe", "registry"])
def test_help_everywhere(program: str, command: str) -> None:
    done = run(program, *([command] if command else []), "--help")
    assert done.returncode == 0
    assert "--help" in done.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["fly"], ["info", "--fast"], ["probe"], ["probe", "a:1", "--timeout", "-1"]]
)
def test_wrong_usage_is_two(program: str, arguments: list[str]) -> None:
    done = run(program, *arguments)
    assert done.returncode == 2
    assert done.stderr
    assert not done.stdout


def test_version(program: str) -> None:
    assert run(program, "--version").stdout.strip() == moonpool.__version__


def test_info(program: str) -> None:
    told = answer(program, "info", "--json")
    assert told["version"] == moonpool.__version__
    assert isinstance(told["fence_exact"], bool)
    assert {one["name"] for one in told["transports"]} >= {"tcp", "local"}
    text = run(program, "info").stdout
    for word in ("fence", "crc32c", "tcp", "local", "usable"):
        assert word in text


def test_info_of_a_list_of_transports_says_why_not_the_others(program: str) -> None:
    told = answer(program, "info", "--json", "--transports", "tcp")
    usable = {one["name"]: one for one in told["transports"]}
    assert usable["tcp"]["usable"]
    assert not usable["local"]["usable"]
    assert usable["local"]["reason"]
    done = run(program, "info", MOONPOOL_TRANSPORTS="carrier-pigeon")
    assert done.returncode == 1
    assert "carrier-pigeon" in done.stderr


def test_options_table_is_the_engines(program: str) -> None:
    rows = {row["name"]: row for row in answer(program, "info", "--options", "--json")}
    import inspect

    assert set(rows) == set(inspect.signature(moonpool.Engine).parameters)
    assert all(row["help"] for row in rows.values())
    assert rows["timeout"]["default"] == "30"
    text = run(program, "info", "--options").stdout
    assert all(name in text for name in rows)


def test_topo(program: str) -> None:
    told = answer(program, "topo", "--json")
    assert told["nodes"]
    assert {nic["kind"] for nic in told["nics"]} <= {"network", "rdma"}
    matrix = answer(program, "topo", "--mooncake")
    assert matrix == told["matrix"]
    for near, others in matrix.values():
        assert not set(near) & set(others)
    assert run(program, "topo").stdout.startswith("node")


def test_probe_of_a_peer(program: str, pair: Pair) -> None:
    told = answer(program, "probe", pair.other.address, "--json")
    assert (told["ok"], told["regions"], told["address"]) == (True, 1, pair.other.address)
    assert told["transport"] in ("tcp", "local")
    assert told["data"] == "64 bytes read"
    over_tcp = answer(program, "probe", pair.other.address, "--json", "--transports", "tcp")
    assert over_tcp["transport"] == "tcp"
    text = run(program, "probe", pair.other.address).stdout
    for word in ("resolve", "connect", "transport", "regions", "data"):
        assert word in text


def test_probe_of_nobody_says_how_far_it_came(program: str) -> None:
    done = run(program, "probe", "127.0.0.1:1", "--timeout", "2")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "connect" in done.stderr
    told = run(program, "probe", "127.0.0.1:1", "--timeout", "2", "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout)["code"] in ("unavailable", "timed_out")


def test_registry_serves_names_until_it_is_told_to_stop(program: str) -> None:
    process = subprocess.Popen(
        [program, "registry", "--listen", "127.0.0.1:0", "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with (
            moonpool.Engine(registry=url, name="decode-1", timeout=LONG) as owner,
            moonpool.Engine(registry=url, timeout=LONG) as engine,
        ):
            memory = owner.allocate(4096)
            segment = engine.open("decode-1")
            assert segment.address == owner.address
            assert segment.regions[0].address == memory.address
            told = answer(program, "probe", "decode-1", "--registry", url, "--json")
            assert told["ok"]
            with pytest.raises(moonpool.NotFound):
                engine.open("decode-2")
        with (
            moonpool.Engine(registry=url, timeout=LONG) as engine,
            pytest.raises(moonpool.NotFound),
        ):
            engine.open("decode-1")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
    finally:
        process.kill()
        process.communicate()


def test_registry_on_a_taken_port_fails(program: str, engine: moonpool.Engine) -> None:
    done = run(program, "registry", "--listen", engine.address)
    assert done.returncode == 1
    assert engine.address.rpartition(":")[2] in done.stderr
