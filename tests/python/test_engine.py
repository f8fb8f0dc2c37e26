"""Engine: options, environment, descriptions, the end."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time

import pytest
from conftest import LONG, Pair, run_python

import moonpool


def test_address_is_where_peers_find_it(engine: moonpool.Engine) -> None:
    host, _, port = engine.address.rpartition(":")
    assert host == "127.0.0.1"
    with socket.create_connection((host, int(port)), timeout=LONG):
        pass


def test_name_is_the_address_unless_given(engine: moonpool.Engine) -> None:
    assert engine.name == engine.address
    with moonpool.Engine(name="prefill-3") as named:
        assert named.name == "prefill-3"


def test_the_port_asked_for_is_the_port_bound(engine: moonpool.Engine) -> None:
    with pytest.raises((moonpool.AlreadyExists, moonpool.Unavailable)) as caught:
        moonpool.Engine(listen=engine.address)
    assert engine.address in str(caught.value)
    address = engine.address
    engine.close()
    with moonpool.Engine(listen=address) as again:
        assert again.address == address


def test_advertised_host_is_what_peers_are_told() -> None:
    with moonpool.Engine(listen=":0", advertise_host="localhost") as engine:
        assert engine.address.startswith("localhost:")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("no port", "no port here"),
        ("workers", 0),
        ("workers", 17),
        ("workers", -1),
        ("workers", 1.5),
        ("serving_threads", 65),
        ("timeout", 0),
        ("timeout", -1.0),
        ("timeout", float("nan")),
        ("spin_us", -1),
        ("log_level", "loud"),
        ("transports", ["carrier-pigeon"]),
        ("transports", "tcp"),
        ("registry", "ftp://host"),
    ],
)
def test_a_wrong_option_is_named(option: str, value: object) -> None:
    with pytest.raises(moonpool.InvalidArgument) as caught:
        moonpool.Engine(**{"listen" if option == "no port" else option: value})  # type: ignore[arg-type]
    assert option.removesuffix("_us")[:4] in str(caught.value)


def test_unknown_transport_message_lists_those_there_are() -> None:
    with pytest.raises(moonpool.InvalidArgument, match="carrier-pigeon") as caught:
        moonpool.Engine(transports=["carrier-pigeon"])
    assert "tcp" in str(caught.value)


def test_a_list_of_transports_is_binding() -> None:
    with (
        moonpool.Engine(transports=["tcp"]) as engine,
        moonpool.Engine(timeout=LONG) as other,
    ):
        usable = [one["name"] for one in engine.info()["transports"] if one["usable"]]
        assert usable == ["tcp"]
        segment = engine.open(other.address)
        assert segment.transport == "tcp"


def test_environment_fills_what_is_not_given() -> None:
    code = """
import json, moonpool
with moonpool.Engine() as engine:
    usable = [one["name"] for one in engine.info()["transports"] if one["usable"]]
    print(json.dumps([engine.name, engine.address, usable]))
"""
    environment = {
        "MOONPOOL_NAME": "from-environment",
        "MOONPOOL_TRANSPORTS": " tcp ,",
        "MOONPOOL_ADVERTISE_HOST": "localhost",
        "MOONPOOL_LOG_LEVEL": "off",
        "MOONPOOL_CHECKSUM": "0",
    }
    done = run_python(code, env=environment)
    assert done.returncode == 0, done.stderr
    name, address, usable = json.loads(done.stdout)
    assert name == "from-environment"
    assert address.startswith("localhost:")
    assert usable == ["tcp"]


def test_an_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONPOOL_NAME", "from-environment")
    monkeypatch.setenv("MOONPOOL_TRANSPORTS", "carrier-pigeon")
    with moonpool.Engine(name="from-argument", transports=["tcp"]) as engine:
        assert engine.name == "from-argument"


@pytest.mark.parametrize(
    ("variable", "value"), [("MOONPOOL_CHECKSUM", "maybe"), ("MOONPOOL_TIMEOUT", "soon")]
)
def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(moonpool.InvalidArgument, match=variable):
        moonpool.Engine()


def test_info_is_plain_and_counts(pair: Pair) -> None:
    pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 4096).wait()
    info = pair.engine.info()
    assert json.loads(json.dumps(info)) == info
    assert info["bytes_written"] == 4096
    assert info["batches_completed"] == 1
    assert info["regions"] == 1
    assert [segment["name"] for segment in info["segments"]] == [pair.other.address]
    assert info["segments"][0]["transport"] == pair.segment.transport
    assert {one["name"] for one in info["transports"]} >= {"tcp", "local"}
    for transport in info["transports"]:
        assert transport["usable"] or transport["reason"]


def test_close_is_idempotent_and_quick(pair: Pair) -> None:
    before = time.monotonic()
    pair.engine.close()
    pair.engine.close()
    assert time.monotonic() - before < LONG
    assert pair.engine.closed
    assert "closed" in repr(pair.engine)


def test_calls_after_close_say_so(pair: Pair) -> None:
    pair.engine.close()
    with pytest.raises(moonpool.Error):
        pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 1)
    with pytest.raises(moonpool.Cancelled):
        pair.engine.open(pair.other.address)
    with pytest.raises(moonpool.Cancelled):
        pair.engine.allocate(4096)
    assert pair.engine.notifications(timeout=LONG) == []
    assert pair.engine.completed(timeout=LONG) == []
    pair.segment.close()
    pair.local.close()


def test_memory_of_a_closed_engine_stays_while_a_view_of_it_exists(pair: Pair) -> None:
    view = pair.here
    view[:5] = b"still"
    pair.engine.close()
    assert bytes(view[:5]) == b"still"
    view[0] = 1


def test_a_program_that_forgets_to_close_ends() -> None:
    code = """
import moonpool
engine = moonpool.Engine()
other = moonpool.Engine()
region, remote = engine.allocate(1 << 20), other.allocate(1 << 20)
segment = engine.open(other.address)
batch = engine.write(segment, region.address, remote.address, 1 << 20)
print("end")
"""
    done = run_python(code)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr
    assert "leak" not in done.stderr


def test_open_finds_the_peer_and_lists_its_regions(pair: Pair) -> None:
    assert pair.segment.name == pair.other.address
    assert pair.segment.address == pair.other.address
    assert pair.segment.transport in ("tcp", "local")
    assert pair.segment.reason
    assert pair.segment.regions == [(pair.remote.address, Pair.SIZE, "rw")]
    more = pair.other.allocate(4096, rights="r")
    assert (more.address, 4096, "r") in pair.segment.regions
    more.close()
    assert [region.size for region in pair.segment.refresh()] == [Pair.SIZE]


def test_a_closed_segment_is_refused(pair: Pair) -> None:
    with pair.engine.open(pair.other.address) as segment:
        pass
    segment.close()
    with pytest.raises(moonpool.InvalidArgument):
        pair.engine.write(segment, pair.local.address, pair.remote.address, 1)


@pytest.mark.parametrize("name", ["", "x" * 5000, "no-port", "bad host:1", "127.0.0.1:99999"])
def test_open_refuses_a_wrong_name(engine: moonpool.Engine, name: str) -> None:
    with pytest.raises(moonpool.InvalidArgument):
        engine.open(name, timeout=LONG)


def test_open_of_nobody_names_peer_phase_and_cause(engine: moonpool.Engine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound, not listening: refused.
        name = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(moonpool.Unavailable) as caught:
            engine.open(name, timeout=LONG)
    error = caught.value
    assert isinstance(error, ConnectionError)
    assert (error.code, error.peer, error.phase) == ("unavailable", name, "connect")
    assert name in str(error)
    assert error.cause


def test_open_of_a_silent_peer_ends_by_its_timeout(engine: moonpool.Engine) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        name = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(moonpool.TimedOut) as caught:
            engine.open(name, timeout=0.2)
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.peer == name


def test_errors_survive_pickling_and_have_their_fields() -> None:
    import pickle

    error = moonpool.Unavailable("refused", peer="a:1", transport="tcp", phase="connect")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is moonpool.Unavailable
    assert vars(again) == vars(error)
    assert str(again) == "unavailable: peer a:1, transport tcp, phase connect: refused"


def test_every_code_has_its_class() -> None:
    from moonpool.errors import from_status

    classes = {
        "invalid_argument": moonpool.InvalidArgument,
        "not_found": moonpool.NotFound,
        "already_exists": moonpool.AlreadyExists,
        "again": moonpool.Again,
        "unavailable": moonpool.Unavailable,
        "timed_out": moonpool.TimedOut,
        "cancelled": moonpool.Cancelled,
        "exhausted": moonpool.Exhausted,
        "stale": moonpool.Stale,
        "corrupt": moonpool.Corrupt,
        "unsupported": moonpool.Unsupported,
        "internal": moonpool.InternalError,
        "from the future": moonpool.InternalError,
    }
    for code, kind in classes.items():
        error = from_status(code, "why", None, None, None)
        assert type(error) is kind
        assert error.code == code
        assert isinstance(error, moonpool.Error)


def test_transfer_is_a_value(pair: Pair) -> None:
    transfer = moonpool.Transfer(pair.segment, "write", 1, 2, 3)
    assert dataclasses.replace(transfer, op="read").op == "read"
    with pytest.raises(dataclasses.FrozenInstanceError):
        transfer.op = "read"  # type: ignore[misc]


def test_using_it_in_a_forked_child_raises(pair: Pair) -> None:
    view = pair.here
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 1)
        except moonpool.Unsupported as error:
            status = 0 if "fork" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    view.release()
    pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 1).wait()


def test_a_forked_child_can_end_normally_and_make_its_own_engine() -> None:
    code = """
import os, sys
import moonpool
engine = moonpool.Engine()
region = engine.allocate(4096)
segment = engine.open(engine.address)
batch = engine.write(segment, region.address, region.address, 64)
child = os.fork()
if child == 0:
    del batch, segment, region, engine
    with moonpool.Engine() as own:
        memory = own.allocate(64)
        own.read(own.open(own.address), memory.address, memory.address, 64).wait()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
batch.wait()
print("fine")
"""
    done = run_python(code)
    assert done.stdout == "fine\n", done.stderr
