"""The shim's mooncake.engine: every method, its positions, results and promises."""

from __future__ import annotations

import inspect
import json
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import LONG, Peer, find_program, run_python

import moonpool

engine = pytest.importorskip("mooncake.engine", reason="moonpool-mooncake is not installed")
TransferEngine = engine.TransferEngine
TransferNotify = engine.TransferNotify
TransferOpcode = engine.TransferOpcode

MakePeer = Callable[..., Peer]
UNKNOWN = "127.0.0.1:1"


class Node:
    """An initialised engine with 1 MiB of registered memory."""

    SIZE = 1 << 20

    def __init__(self) -> None:
        self.engine = TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.memory = np.zeros(self.SIZE, dtype=np.uint8)
        self.address: int = self.memory.ctypes.data
        assert self.engine.register_memory(self.address, self.SIZE) == 0
        self.name = f"127.0.0.1:{self.engine.get_rpc_port()}"


@pytest.fixture
def here() -> Node:
    return Node()


@pytest.fixture
def there() -> Node:
    return Node()


def test_module_attributes() -> None:
    for flag in ("EFA", "HIP", "MNNVL", "MUSA", "INTRA_NVLINK", "CUDA"):
        assert getattr(engine, f"SUPPORT_{flag}") is False
    assert (int(TransferOpcode.Read), int(TransferOpcode.Write)) == (0, 1)
    assert (engine.Read, engine.Write) == (TransferOpcode.Read, TransferOpcode.Write)
    assert TransferOpcode.READ is TransferOpcode.Read
    assert TransferEngine.TransferOpcode is TransferOpcode
    assert TransferOpcode.Write == 1
    notify = TransferNotify("a", "b")
    notify.name += "x"
    assert (notify.name, notify.msg, TransferNotify().msg) == ("ax", "b", "")


TARGETS = ["target_hostname", "buffer", "peer_buffer_address", "length"]
BATCHES = ["target_hostname", "buffers", "peer_buffer_addresses", "lengths"]
SIGNATURES = {
    "transfer_sync_write": [*TARGETS, "transport_hint"],
    "transfer_sync_read": [*TARGETS, "transport_hint"],
    "batch_transfer_sync_write": [*BATCHES, "transport_hint"],
    "batch_transfer_sync_read": [*BATCHES, "transport_hint"],
    "batch_transfer_async_write": [*BATCHES, "transport_hint"],
    "batch_transfer_async_read": [*BATCHES, "transport_hint"],
    "transfer_sync": [*TARGETS, "opcode", "notify", "transport_hint"],
    "batch_transfer_sync": [*BATCHES, "opcode", "notify", "transport_hint"],
    "batch_transfer_async": [*BATCHES, "opcode", "transport_hint"],
    "transfer_submit_write": [*TARGETS, "transport_hint"],
    "register_memory": ["buffer_addr", "capacity", "location"],
    "batch_register_memory": ["buffer_addresses", "capacities", "location"],
    "get_local_topology": ["device_name"],
    "warmup_efa_segment": ["segment_name"],
    "send_probe": ["peer_server_name"],
}
POSITIONAL = {
    "initialize": 4,
    "initialize_ext": 5,
    "get_rpc_port": 0,
    "allocate_managed_buffer": 1,
    "free_managed_buffer": 2,
    "get_batch_transfer_status": 1,
    "transfer_check_status": 1,
    "write_bytes_to_buffer": 3,
    "read_bytes_from_buffer": 2,
    "unregister_memory": 1,
    "batch_unregister_memory": 1,
    "get_first_buffer_address": 1,
    "get_notifies": 0,
    "get_engine": 0,
    "get_engine_ptr": 0,
}


def test_every_method_has_its_parameters() -> None:
    for name, parameters in SIGNATURES.items():
        found = list(inspect.signature(getattr(TransferEngine, name)).parameters)[1:]
        assert found == parameters, name
    for name, count in POSITIONAL.items():
        kinds = list(inspect.signature(getattr(TransferEngine, name)).parameters.values())[1:]
        assert len(kinds) == count, name
        assert all(kind.kind is inspect.Parameter.POSITIONAL_ONLY for kind in kinds), name
    public = {name for name in vars(TransferEngine) if not name.startswith("_")}
    assert public == {*SIGNATURES, *POSITIONAL, "TransferOpcode"}


def test_before_initialize_calls_fail_and_do_not_crash() -> None:
    one = TransferEngine()
    assert one.get_rpc_port() == 0
    assert one.register_memory(1, 1) != 0
    assert one.batch_register_memory([1], [1]) != 0
    assert one.unregister_memory(1) != 0
    assert one.batch_unregister_memory([1]) != 0
    assert one.transfer_sync_write(UNKNOWN, 1, 1, 1) == -1
    assert one.batch_transfer_sync_read(UNKNOWN, [1], [1], [1]) == -1
    assert one.batch_transfer_async_write(UNKNOWN, [1], [1], [1]) == 0
    assert one.get_batch_transfer_status([1]) == -1
    assert one.transfer_check_status(1) == -1
    assert one.allocate_managed_buffer(100) == 0
    assert one.free_managed_buffer(100, 100) == 0
    assert one.get_first_buffer_address(UNKNOWN) == 0
    assert one.get_notifies() == []
    assert one.send_probe(UNKNOWN) == -1
    assert one.warmup_efa_segment(UNKNOWN) == 0
    assert isinstance(json.loads(one.get_local_topology()), dict)
    assert one.get_engine() is one.get_engine()
    assert one.get_engine_ptr() != 0


@pytest.mark.parametrize(
    ("name", "metadata", "protocol"),
    [
        ("127.0.0.1", "P2PHANDSHAKE", "xgmi"),
        ("127.0.0.1", "127.0.0.1:2379", "tcp"),
        ("127.0.0.1", "redis://127.0.0.1", "tcp"),
        ("127.0.0.1", "pigeon://127.0.0.1", "tcp"),
        ("127.0.0.1", "http://127.0.0.1:1", "tcp"),
        ("127.0.0.1:many", "P2PHANDSHAKE", "tcp"),
        ("[::1", "P2PHANDSHAKE", "tcp"),
    ],
)
def test_initialize_that_cannot_work_is_minus_one(
    monkeypatch: pytest.MonkeyPatch, name: str, metadata: str, protocol: str
) -> None:
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    one = TransferEngine()
    assert one.initialize(name, metadata, protocol, "") == -1
    assert one.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert one.get_rpc_port() > 0


@pytest.mark.parametrize("name", ["127.0.0.1", "127.0.0.1:12345", "localhost:1", "localhost"])
def test_peers_are_found_at_host_and_rpc_port(name: str, here: Node) -> None:
    one = TransferEngine()
    assert one.initialize(name, "P2PHANDSHAKE", "rdma", "mlx5_0") == 0
    peer = f"{name.partition(':')[0]}:{one.get_rpc_port()}"
    assert here.engine.send_probe(peer) == 0


def test_initialize_ext(here: Node) -> None:
    one = TransferEngine()
    assert one.initialize_ext("127.0.0.1", "P2PHANDSHAKE", "tcp", "", "etcd") == 0
    assert here.engine.send_probe(f"127.0.0.1:{one.get_rpc_port()}") == 0
    assert TransferEngine().initialize_ext("127.0.0.1", "127.0.0.1:1", "tcp", "", "redis") == -1


def test_legacy_port_binding_binds_the_port_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    first = TransferEngine()
    assert first.initialize("127.0.0.1:9", "P2PHANDSHAKE", "tcp", "") == 0
    port = first.get_rpc_port()
    assert port != 9
    monkeypatch.setenv("MC_LEGACY_RPC_PORT_BINDING", "1")
    second = TransferEngine()
    assert second.initialize(f"127.0.0.1:{port}", "P2PHANDSHAKE", "tcp", "") == -1
    del first
    assert second.initialize(f"127.0.0.1:{port}", "P2PHANDSHAKE", "tcp", "") == 0
    assert second.get_rpc_port() == port


def test_a_range_of_ports_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("MC_MIN_RPC_PORT", str(port))
        monkeypatch.setenv("MC_MAX_RPC_PORT", str(port))
        assert TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == -1
    low, high = (port - 200, port) if port > 60000 else (port, port + 200)
    monkeypatch.setenv("MC_MIN_RPC_PORT", str(low))
    monkeypatch.setenv("MC_MAX_RPC_PORT", str(high))
    one = TransferEngine()
    assert one.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert low <= one.get_rpc_port() <= high


def test_the_same_host_is_local_unless_tcp_is_forced(
    here: Node, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert here.engine.transfer_sync_write(there.name, here.address, there.address, 4096) == 0

    def transport_of(node: Any) -> Any:
        return node._state.engine.info()["segments"][0]["transport"]

    usable = {
        one["name"] for one in here.engine._state.engine.info()["transports"] if one["usable"]
    }
    if "local" in usable:
        assert transport_of(here.engine) == "local"
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    forced = TransferEngine()
    assert forced.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    memory = np.zeros(64, dtype=np.uint8)
    assert forced.register_memory(memory.ctypes.data, 64) == 0
    assert forced.transfer_sync_read(there.name, memory.ctypes.data, there.address, 64) == 0
    assert transport_of(forced) == "tcp"


@pytest.mark.parametrize(("text", "seconds"), [("7", 7), ("1", 5), ("", 5), ("12s", 12), ("x", 5)])
def test_transfer_timeout(monkeypatch: pytest.MonkeyPatch, text: str, seconds: int) -> None:
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", text)
    assert TransferEngine()._timeout == seconds
    monkeypatch.delenv("MC_TRANSFER_TIMEOUT")
    assert TransferEngine()._timeout == 30


# --- Memory -----


def test_registration_codes(here: Node) -> None:
    memory = np.zeros(4096, dtype=np.uint8)
    address = memory.ctypes.data
    assert here.engine.register_memory(address, 4096, "cpu:0") == 0
    assert here.engine.register_memory(address, 4096) == -7
    assert here.engine.register_memory(address + 100, 8) == -7
    assert here.engine.unregister_memory(address + 100) == -3
    assert here.engine.unregister_memory(address) == 0
    assert here.engine.unregister_memory(address) == -3
    assert here.engine.register_memory(buffer_addr=address, capacity=0) == -1
    assert here.engine.register_memory(0, 10) == -1
    assert here.engine.register_memory(address, 4096, location="cuda:0") == -6
    assert here.engine.register_memory(address + 1, 7) == 0


def test_batch_registration(here: Node) -> None:
    memory = np.zeros(4096, dtype=np.uint8)
    base = memory.ctypes.data
    addresses = [base, base + 100, base + 1000]
    assert here.engine.batch_register_memory(addresses, [100, 8, 3]) == 0
    assert here.engine.batch_register_memory([base], [100, 2]) == -1
    assert here.engine.batch_register_memory([], []) == 0
    # One overlaps: its code is returned, and the others are registered.
    assert here.engine.batch_register_memory([base + 200, base + 50], [10, 10], "*") == -7
    assert here.engine.unregister_memory(base + 200) == 0
    assert here.engine.batch_unregister_memory(addresses) == 0
    assert here.engine.batch_unregister_memory(addresses) == -3


def test_managed_buffers(here: Node, there: Node) -> None:
    for size in (1, 8192, 8193, 1 << 20, (1 << 20) + 1):
        first = here.engine.allocate_managed_buffer(size)
        second = here.engine.allocate_managed_buffer(size)
        assert first > 0
        assert second > 0
        assert abs(first - second) >= size
        assert here.engine.write_bytes_to_buffer(first, b"x" * size, size) == 0
        assert (
            here.engine.transfer_sync_write(there.name, first, there.address, min(size, 1 << 20))
            == 0
        )
        assert here.engine.free_managed_buffer(first, size) == 0
        assert here.engine.free_managed_buffer(second, size) == 0
    assert here.engine.free_managed_buffer(12345, 1) == 0
    assert here.engine.allocate_managed_buffer(0) == 0
    assert here.engine.allocate_managed_buffer(1 << 60) == 0


def test_managed_buffers_are_used_again(here: Node) -> None:
    first = here.engine.allocate_managed_buffer(5000)
    here.engine.free_managed_buffer(first, 5000)
    assert here.engine.allocate_managed_buffer(8000) == first
    before = here.engine._state.engine.info()["regions"]
    for _ in range(100):
        here.engine.allocate_managed_buffer(100_000)
    assert here.engine._state.engine.info()["regions"] <= before + 1


def test_bytes_to_and_from_buffers(here: Node) -> None:
    write, read = here.engine.write_bytes_to_buffer, here.engine.read_bytes_from_buffer
    assert write(here.address, b"bytes\0more", 10) == 0
    assert read(here.address, 10) == b"bytes\0more"
    assert write(here.address, "tëxt", 5) == 0
    assert read(here.address, 5) == "tëxt".encode()
    assert write(here.address, b"abc", 2) == 0
    assert read(here.address, 3) == b"ab\xab"
    assert write(here.address, b"abc", 4) == -1  # It reads past the object in the original.
    assert write(here.address, b"", 0) == 0
    assert read(here.address, 0) == b""
    assert write(0x10, b"abc", 3) == -1
    with pytest.raises(ValueError, match="0x10"):
        read(0x10, 3)


# --- Transfers -----


def test_sync_transfers(here: Node, there: Node) -> None:
    here.memory[:100] = np.arange(100)
    go = here.engine
    assert go.transfer_sync_write(there.name, here.address, there.address + 5, 100) == 0
    assert (there.memory[5:105] == np.arange(100)).all()
    assert go.transfer_sync_read(there.name, here.address + 200, there.address + 5, 100, "tcp") == 0
    assert (here.memory[200:300] == np.arange(100)).all()
    assert (
        go.transfer_sync_read(
            target_hostname=there.name, buffer=here.address, peer_buffer_address=there.address,
            length=1, transport_hint="anything",
        )
        == 0
    )  # fmt: skip
    assert go.transfer_sync(there.name, here.address, there.address, 8, TransferOpcode.Write) == 0
    assert go.transfer_sync(there.name, here.address, there.address, 8, 0) == 0


def test_batch_sync_transfers(here: Node, there: Node) -> None:
    here.memory[:] = np.random.default_rng(4).integers(0, 256, Node.SIZE, dtype=np.uint8)
    count = 5000  # The original refuses more than about 2,000.
    local = [here.address + 200 * i for i in range(count)]
    remote = [there.address + 200 * i for i in range(count)]
    lengths = [100] * count
    go = here.engine
    assert go.batch_transfer_sync_write(there.name, local, remote, lengths) == 0
    assert (
        there.memory[: 200 * count].reshape(count, 200)[:, :100]
        == here.memory[: 200 * count].reshape(count, 200)[:, :100]
    ).all()
    assert not there.memory[: 200 * count].reshape(count, 200)[:, 100:].any()
    here.memory[:] = 0
    assert go.batch_transfer_sync_read(there.name, local, remote, lengths, "") == 0
    assert here.memory.sum() == there.memory.sum()
    assert go.batch_transfer_sync(there.name, local, remote, lengths, TransferOpcode.Read) == 0


def test_arrays_serve_as_lists(here: Node, there: Node) -> None:
    here.memory[:4] = 9
    offsets = np.arange(4, dtype=np.uint64)
    assert (
        here.engine.batch_transfer_sync_write(
            there.name, offsets + np.uint64(here.address), offsets + np.uint64(there.address),
            np.ones(4, dtype=np.int64),
        )
        == 0
    )  # fmt: skip
    assert there.memory[:5].tolist() == [9, 9, 9, 9, 0]


def test_empty_zero_and_unequal_lists(here: Node, there: Node) -> None:
    go = here.engine
    assert go.batch_transfer_sync_write(there.name, [], [], []) == 0
    number = go.batch_transfer_async_write(there.name, [], [], [])
    assert number != 0
    assert go.get_batch_transfer_status([number]) == 0
    assert go.transfer_sync_write(there.name, here.address, there.address, 0) == 0
    here.memory[:2] = 3
    addresses = [here.address, here.address]
    peers = [there.address, there.address + 10]
    assert go.batch_transfer_sync_write(there.name, addresses, peers, [0, 1]) == 0
    assert there.memory[:11].tolist() == [0] * 10 + [3]
    assert go.batch_transfer_sync_write(there.name, addresses, peers, [1]) == -1
    assert go.batch_transfer_sync_read(there.name, addresses, [], [1, 1]) == -1
    assert go.batch_transfer_async_write(there.name, addresses, peers, [1]) == 0


def test_wrong_addresses_are_answered(here: Node, there: Node) -> None:
    go = here.engine
    for peer in (there.address - 1, there.address + Node.SIZE, 0, 2**63, 2**64 - 1):
        assert go.transfer_sync_write(there.name, here.address, peer, 2) == -1
        assert go.transfer_sync_read(there.name, here.address, peer, 2) == -1
    assert go.transfer_sync_write(there.name, 64, there.address, 2) == -1
    assert go.transfer_sync_write(there.name, -1, there.address, 2) == -1
    assert go.transfer_sync_write(there.name, here.address, there.address, 2**40) == -1
    assert not there.memory.any()


def test_types_are_checked(here: Node, there: Node) -> None:
    with pytest.raises(TypeError):
        here.engine.transfer_sync_write(there.name, "here", there.address, 1)
    with pytest.raises(TypeError):
        here.engine.transfer_sync_write(5, here.address, there.address, 1)
    with pytest.raises(TypeError):
        here.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp")
    with pytest.raises(TypeError):
        TransferEngine("argument")


def test_the_first_failure_is_logged_with_the_peer(
    here: Node, there: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="mooncake.engine"):
        assert here.engine.transfer_sync_write(there.name, here.address, 4096, 2) == -1
        assert here.engine.transfer_sync_write(UNKNOWN, here.address, 4096, 2) == -1
    first, second = (record.getMessage() for record in caplog.records)
    assert there.name in first
    assert UNKNOWN in second
    assert "connect" in second


def test_async_batches(here: Node, there: Node) -> None:
    go = here.engine
    here.memory[:] = 7
    local = [here.address + 1000 * i for i in range(64)]
    remote = [there.address + 1000 * i for i in range(64)]
    write = go.batch_transfer_async_write(there.name, local, remote, [1000] * 64)
    more = go.batch_transfer_async(
        there.name, local, remote, [500] * 64, TransferOpcode.Write, transport_hint="tcp"
    )
    assert write > 0
    assert more > 0
    assert write != more
    assert go.get_batch_transfer_status([write, more]) == 0
    assert there.memory[:64000].all()
    read = go.batch_transfer_async_read(there.name, local, remote, [1000] * 64)
    assert go.get_batch_transfer_status([read]) == 0
    assert go.get_batch_transfer_status([]) == 0


def test_used_up_and_made_up_ids_are_errors(here: Node, there: Node) -> None:
    go = here.engine
    number = go.batch_transfer_async_write(there.name, [here.address], [there.address], [8])
    assert go.get_batch_transfer_status([number]) == 0
    for wrong in (number, 0, 2**64 - 1, 140_000_000_000_000):
        assert go.get_batch_transfer_status([wrong]) == -1
        assert go.transfer_check_status(wrong) == -1


def check_until_done(go: Any, number: int) -> int:
    deadline = time.monotonic() + LONG
    while True:
        answer = int(go.transfer_check_status(number))
        if answer != 0 or time.monotonic() > deadline:
            return answer
        time.sleep(0.001)


def test_submit_and_check(here: Node, there: Node) -> None:
    here.memory[:8] = 5
    number = here.engine.transfer_submit_write(there.name, here.address, there.address, 8)
    assert check_until_done(here.engine, number) == 1
    assert there.memory[:8].tolist() == [5] * 8
    assert here.engine.transfer_check_status(number) == -1
    number = here.engine.transfer_submit_write(there.name, here.address, there.address, 8)
    assert here.engine.get_batch_transfer_status([number]) == 0
    assert here.engine.transfer_submit_write(UNKNOWN, here.address, there.address, 8) == 0
    number = here.engine.transfer_submit_write(there.name, here.address, 4096, 8)
    assert check_until_done(here.engine, number) == -1


def test_complete_means_all_of_it(here: Node, there: Node) -> None:
    """The original answers "complete" while blocks still move."""
    block, count = 16384, 64
    for round_ in range(1, 20):
        there.memory[:] = round_
        number = here.engine.batch_transfer_async_read(
            there.name,
            [here.address + block * i for i in range(count)],
            [there.address + block * i for i in range(count)],
            [block] * count,
        )
        assert check_until_done(here.engine, number) == 1
        assert (here.memory == round_).all()


def test_a_failed_batch_uses_up_the_others(here: Node, there: Node) -> None:
    go = here.engine
    good = [
        go.batch_transfer_async_write(there.name, [here.address], [there.address], [8])
        for _ in range(3)
    ]
    bad = go.batch_transfer_async_write(there.name, [here.address], [4096], [8])
    assert go.get_batch_transfer_status([bad, *good]) == -1
    assert [go.transfer_check_status(number) for number in good] == [-1] * 3


def test_forgotten_batches_do_not_use_up_the_engine(here: Node, there: Node) -> None:
    def submit() -> None:
        assert here.engine.transfer_submit_write(there.name, here.address, there.address, 8) > 0

    for _ in range(5000):
        submit()
    inner = here.engine._state.engine
    deadline = time.monotonic() + LONG
    while inner.info()["batches_completed"] < 5000:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for _ in range(1024):  # A sweep lies among them.
        submit()
    assert inner.info()["batches_live"] <= 1024


def test_more_batches_than_the_engine_holds_wait_for_room(here: Node, there: Node) -> None:
    inner = moonpool.Engine(batches_max=4, timeout=LONG)
    here.engine._state.engine.close()
    here.engine._state = engine._State(inner)
    assert here.engine.register_memory(here.address, Node.SIZE) == 0
    numbers = [
        here.engine.batch_transfer_async_write(
            there.name, [here.address], [there.address], [1 << 16]
        )
        for _ in range(40)
    ]
    assert all(numbers)
    assert here.engine.get_batch_transfer_status(numbers) == 0


# --- Notifications -----


def test_notify_follows_the_data(here: Node, there: Node) -> None:
    go = here.engine
    here.memory[:8] = 6
    note = TransferNotify("request-1", "déjà \0 vu")
    assert go.transfer_sync(there.name, here.address, there.address, 8, 1, note) == 0
    assert there.memory[:8].tolist() == [6] * 8
    assert (
        go.batch_transfer_sync(
            there.name, [here.address], [there.address], [8], TransferOpcode.Read,
            notify=TransferNotify("request-2", "x" * 60000),
        )
        == 0
    )  # fmt: skip
    assert go.transfer_sync(there.name, here.address, 0, 0, 1, TransferNotify("nothing", "")) == 0
    got = there.engine.get_notifies()
    assert [one.name for one in got] == ["request-1", "request-2", "nothing"]
    assert got[0].msg == "déjà \0 vu"
    assert len(got[1].msg) == 60000
    assert there.engine.get_notifies() == []
    huge = TransferNotify("big", "x" * 70000)
    assert go.transfer_sync(there.name, here.address, there.address, 8, 1, huge) == -1


def test_notifications_of_others_are_shown(there: Node) -> None:
    with moonpool.Engine(timeout=LONG) as other:
        segment = other.open(there.name)
        other.notify(segment, b"plain")
        other.notify(segment, b"MCN1\xff\xff\xff\xff-")
        got = there.engine.get_notifies()
        assert [(one.name, one.msg[:5]) for one in got] == [
            (other.name, "plain"),
            (other.name, "MCN1\ufffd"),
        ]


# --- Peers -----


def test_probe_and_first_buffer(here: Node, there: Node) -> None:
    assert here.engine.send_probe(there.name) == 0
    assert here.engine.get_first_buffer_address(there.name) == there.address
    there.engine.unregister_memory(there.address)
    assert here.engine.get_first_buffer_address(there.name) == 0
    assert here.engine.send_probe(UNKNOWN) == -102
    assert here.engine.get_first_buffer_address(UNKNOWN) == 0
    assert here.engine.send_probe(peer_server_name="not an address") == -101
    assert here.engine.send_probe("nowhere.invalid:1") != 0
    assert here.engine.send_probe("") == -101
    assert here.engine.warmup_efa_segment(segment_name=there.name) == 0


def test_a_peer_that_restarts_is_found_again(here: Node, make_peer: MakePeer) -> None:
    peer = make_peer()
    go = here.engine
    assert go.transfer_sync_read(peer.address, here.address, peer.memory, 64) == 0
    peer.kill()
    assert go.send_probe(peer.address) != 0
    again = make_peer(listen=peer.address)
    deadline = time.monotonic() + LONG
    while go.send_probe(peer.address) != 0:
        assert time.monotonic() < deadline
    here.memory[:64] = 0
    assert go.transfer_sync_read(peer.address, here.address, again.memory, 64) == 0
    assert (here.memory[:64] == 0x2A).all()


def test_no_late_write_after_a_timeout(
    monkeypatch: pytest.MonkeyPatch, make_peer: MakePeer
) -> None:
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "5")
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    here = Node()
    peer = make_peer()
    assert here.engine.send_probe(peer.address) == 0
    peer.freeze()
    before = time.monotonic()
    read = here.engine.batch_transfer_async_read(
        peer.address, [here.address], [peer.memory], [1 << 19]
    )
    assert here.engine.transfer_check_status(read) == 0
    assert here.engine.transfer_sync_read(peer.address, here.address, peer.memory, 1 << 19) == -1
    assert here.engine.transfer_check_status(read) == -2
    assert time.monotonic() - before >= 4.9
    here.memory[:] = 1
    peer.thaw()
    assert here.engine.send_probe(peer.address) == 0
    assert (here.memory == 1).all()


def test_a_frozen_peer_does_not_hold_up_others(
    here: Node, there: Node, make_peer: MakePeer
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        name = f"127.0.0.1:{silent.getsockname()[1]}"
        results: list[int] = []
        stuck = threading.Thread(
            target=lambda: results.append(
                here.engine.transfer_sync_write(name, here.address, 4096, 8)
            )
        )
        stuck.start()
        for _ in range(20):
            assert here.engine.transfer_sync_write(there.name, here.address, there.address, 8) == 0
        here.engine._state.engine.close()
        stuck.join(LONG)
        assert results == [-1]


def test_get_engine_is_shared(here: Node) -> None:
    inner = here.engine.get_engine()
    assert type(inner) is engine.InnerTransferEngine
    assert here.engine.get_engine() is inner
    assert isinstance(here.engine.get_engine_ptr(), int)


def test_local_topology_is_json(here: Node) -> None:
    matrix = json.loads(here.engine.get_local_topology())
    for rows in matrix.values():
        assert [type(row) for row in rows] == [list, list]
    for rows in json.loads(TransferEngine().get_local_topology("no-such-nic")).values():
        assert rows == [[], []]


@pytest.fixture
def registry() -> Iterator[str]:
    process = subprocess.Popen(
        [find_program(), "registry", "--listen", "127.0.0.1:0", "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["url"]
    process.kill()
    process.communicate()


@pytest.mark.parametrize("path", ["", "/metadata"])
def test_names_in_an_http_metadata_server(
    registry: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_TCP_BIND_ADDRESS", "127.0.0.1")
    nodes = []
    for name in ("node-a:1", "node-b:2"):
        one = TransferEngine()
        assert one.initialize(name, registry + path, "tcp", "") == 0
        nodes.append(one)
    memory = np.zeros(64, dtype=np.uint8)
    assert nodes[1].register_memory(memory.ctypes.data, 64) == 0
    assert nodes[0].get_first_buffer_address("node-b:2") == memory.ctypes.data
    assert nodes[0].send_probe("node-c:3") == -200


def test_dropping_the_engine_ends_it() -> None:
    code = """
import gc, threading
from mooncake.engine import TransferEngine
for _ in range(3):
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    engine.allocate_managed_buffer(100)
    del engine
    gc.collect()
import os
print(len(os.listdir("/proc/self/task")))
"""
    done = run_python(code)
    assert done.stdout.strip() == "1", done.stderr
