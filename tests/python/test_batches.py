"""Batches: writing, reading, waiting, failing, telling."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from conftest import LONG, Pair, Peer

import moonpool

MakePeer = Callable[..., Peer]


def test_a_write_arrives(pair: Pair) -> None:
    pair.here[:11] = b"hello world"
    batch = pair.engine.write(pair.segment, pair.local.address, pair.remote.address + 7, 11)
    assert batch.wait(LONG) is batch
    assert bytes(pair.there[6:19]) == b"\0hello world\0"
    assert (batch.done(), batch.bytes, batch.transport) == (True, 11, pair.segment.transport)


def test_a_read_arrives(pair: Pair) -> None:
    pair.there[:11] = b"hello world"
    pair.engine.read(pair.segment, pair.local.address + 1, pair.remote.address, 11).wait(LONG)
    assert bytes(pair.here[:13]) == b"\0hello world\0"


def test_status_tells_all(pair: Pair) -> None:
    batch = pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 4096).wait()
    status = batch.status()
    assert (status.done, status.ok, status.code) == (True, True, "ok")
    assert (status.bytes_total, status.bytes_done, status.retries) == (4096, 4096, 0)
    assert status.transport == batch.transport
    assert (status.message, status.peer, status.failed_transport, status.phase) == (None,) * 4
    assert "4096 of 4096" in repr(status)
    assert "done" in repr(batch)


def test_scatter_and_gather(pair: Pair) -> None:
    pair.here[:] = np.random.default_rng(1).bytes(Pair.SIZE)
    local = [pair.local.address + 1000 * i for i in range(100)]
    remote = [pair.remote.address + 2000 * (99 - i) for i in range(100)]
    lengths = [1 + 9 * i for i in range(100)]
    pair.engine.write(pair.segment, local, remote, lengths).wait(LONG)
    for i in range(100):
        there = 2000 * (99 - i)
        assert pair.there[there : there + lengths[i]] == pair.here[1000 * i : 1000 * i + lengths[i]]


def test_groups_go_to_several_segments_in_both_directions(pair: Pair) -> None:
    with moonpool.Engine(timeout=LONG) as third:
        memory = third.allocate(4096)
        segment = pair.engine.open(third.address)
        memoryview(memory)[:4] = b"data"
        pair.here[100:104] = b"away"
        batch = pair.engine.submit(
            [
                moonpool.Transfer(segment, "read", pair.local.address, memory.address, 4),
                moonpool.Transfer(
                    pair.segment, "write", [pair.local.address + 100], (pair.remote.address,), [4]
                ),
            ],
            notify=b"both",
        )
        batch.wait(LONG)
        assert bytes(pair.here[:4]) == b"data"
        assert bytes(pair.there[:4]) == b"away"
        assert batch.bytes == 8
        assert [one.payload for one in third.notifications(timeout=LONG)] == [b"both"]
        assert [one.payload for one in pair.other.notifications(timeout=LONG)] == [b"both"]


def test_notification_comes_after_the_data_and_once(pair: Pair) -> None:
    pair.here[:3] = b"new"
    first = pair.engine.write(
        pair.segment, pair.local.address, pair.remote.address, 3, notify=b"\0any\xffbytes"
    )
    (got,) = pair.other.notifications(timeout=LONG, max=1)
    assert got == moonpool.Notification(pair.engine.name, b"\0any\xffbytes")
    assert bytes(pair.there[:3]) == b"new"
    second = pair.engine.write(
        pair.segment, pair.local.address, pair.remote.address, 3, notify=b"", priority="latency"
    )
    first.wait(LONG)
    second.wait(LONG)
    assert [one.payload for one in pair.other.notifications(timeout=LONG)] == [b""]
    assert pair.other.notifications() == []


def test_notify_alone(pair: Pair) -> None:
    pair.engine.notify(pair.segment, b"x" * 65536)
    (got,) = pair.other.notifications(timeout=LONG)
    assert got == (pair.engine.name, b"x" * 65536)
    with pytest.raises(moonpool.InvalidArgument, match="65536"):
        pair.engine.notify(pair.segment, b"x" * 65537)
    with pytest.raises(TypeError):
        pair.engine.notify(pair.segment, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        pair.engine.write(
            pair.segment,
            pair.local.address,
            pair.remote.address,
            1,
            notify="text",  # type: ignore[arg-type]
        )


def test_wrong_arguments_are_named_and_nothing_moves(pair: Pair) -> None:
    here, there = pair.local.address, pair.remote.address
    pair.here[:] = b"\xaa" * Pair.SIZE
    wrong = [
        (here, there, 0, "length"),
        ([here, here], [there], [1], "remote"),
        ([], [], [], "descriptor"),
        (here + Pair.SIZE - 1, there, 2, "local"),
        (0, there, 1, "local"),
        ([here, 5], [there, there], [1, 1], "1"),
        (here, there, 1 << 40, ""),
        (here, there, -1, "lengths"),
        (here, 1 << 64, 1, "remote"),
    ]
    for local, remote, lengths, named in wrong:
        with pytest.raises(moonpool.InvalidArgument) as caught:
            pair.engine.write(pair.segment, local, remote, lengths)
        assert named in str(caught.value)
        assert isinstance(caught.value, ValueError)
    with pytest.raises(moonpool.InvalidArgument, match="priority"):
        pair.engine.write(pair.segment, here, there, 1, priority="urgent")  # type: ignore[arg-type]
    with pytest.raises(moonpool.InvalidArgument, match="op"):
        pair.engine.submit([moonpool.Transfer(pair.segment, "copy", here, there, 1)])  # type: ignore[arg-type]
    for timeout in (-1, float("nan")):
        with pytest.raises(moonpool.InvalidArgument, match="timeout"):
            pair.engine.write(pair.segment, here, there, 1, timeout=timeout)
    assert bytes(pair.there) == bytes(Pair.SIZE)


@pytest.mark.parametrize("offset", [-1, -(1 << 20), (1 << 20) - 1, 1 << 20, 1 << 45])
def test_memory_outside_the_peers_regions_is_refused(pair: Pair, offset: int) -> None:
    for start in (pair.engine.write, pair.engine.read):
        with pytest.raises(moonpool.Error) as caught:
            start(pair.segment, pair.local.address, pair.remote.address + offset, 2).wait(LONG)
        assert caught.value.code in ("invalid_argument", "stale")


def test_a_failure_has_its_fields(pair: Pair) -> None:
    batch = pair.engine.write(pair.segment, pair.local.address, 4096, 10)
    with pytest.raises(moonpool.Error) as caught:
        batch.wait(LONG)
    error = caught.value
    assert error.peer == pair.other.address
    assert error.cause
    assert pair.other.address in str(error)
    status = batch.status()
    assert (status.done, status.ok, status.code, status.peer) == (
        True,
        False,
        error.code,
        error.peer,
    )
    with pytest.raises(type(error)):
        batch.wait()
    assert "failed" in repr(batch)


def test_a_frozen_peer_costs_no_more_than_the_deadline(pair: Pair, make_peer: MakePeer) -> None:
    peer = make_peer(transports=["tcp"])
    segment = pair.engine.open(peer.address)
    peer.freeze()
    before = time.monotonic()
    batch = pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=0.5)
    with pytest.raises(moonpool.TimedOut) as caught:
        batch.wait()
    assert 0.4 < time.monotonic() - before < LONG
    assert caught.value.peer == peer.address
    assert batch.done()
    peer.thaw()
    pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=LONG).wait()
    assert bytes(pair.here[:4096]) == b"\x2a" * 4096


def test_waiting_for_less_than_it_takes(pair: Pair, make_peer: MakePeer) -> None:
    peer = make_peer()
    segment = pair.engine.open(peer.address)
    peer.freeze()
    batch = pair.engine.write(segment, pair.local.address, peer.memory, 4096, timeout=LONG)
    assert not batch.done()
    with pytest.raises(moonpool.TimedOut, match="still running"):
        batch.wait(timeout=0.05)
    with pytest.raises(moonpool.TimedOut, match="still running"):
        batch.wait(timeout=0)
    assert not batch.status().ok
    assert "running" in repr(batch)
    peer.thaw()
    batch.wait(timeout=LONG)


def test_cancel(pair: Pair, make_peer: MakePeer) -> None:
    peer = make_peer(transports=["tcp"])
    segment = pair.engine.open(peer.address)
    peer.freeze()
    batch = pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=2)
    batch.cancel()
    with pytest.raises(moonpool.Cancelled):
        batch.wait()
    batch.cancel()


def test_close_ends_waiting_calls(pair: Pair, make_peer: MakePeer) -> None:
    peer = make_peer()
    segment = pair.engine.open(peer.address)
    peer.freeze()
    batch = pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=LONG)
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            batch.wait()
        except moonpool.Error as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    pair.engine.close()
    thread.join(LONG)
    assert not thread.is_alive()
    assert [type(error) for error in caught] == [moonpool.Cancelled]


def test_a_killed_peer_is_an_error_and_others_go_on(pair: Pair, make_peer: MakePeer) -> None:
    peer = make_peer()
    segment = pair.engine.open(peer.address)
    peer.kill()
    with pytest.raises(moonpool.Error) as caught:
        pair.engine.write(segment, pair.local.address, peer.memory, 1 << 20, timeout=5).wait()
    assert caught.value.code in ("unavailable", "timed_out")
    assert caught.value.peer == peer.address
    pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 4096).wait()


def test_completed_gives_each_batch_once(pair: Pair) -> None:
    batches = [
        pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 1 + i, queue=True)
        for i in range(20)
    ]
    batches.append(
        pair.engine.submit(
            [moonpool.Transfer(pair.segment, "read", pair.local.address, 4096, 8)], queue=True
        )
    )
    quiet = pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 8)
    got: list[moonpool.Batch] = []
    while len(got) < len(batches):
        some = pair.engine.completed(max=7, timeout=LONG)
        assert 1 <= len(some) <= 7
        got += some
    assert {id(batch) for batch in got} == {id(batch) for batch in batches}
    assert sum(batch.status().ok for batch in got) == 20
    assert pair.engine.completed(timeout=LONG) == []
    quiet.wait()
    assert pair.engine.completed() == []


def test_queued_batches_live_without_their_objects(pair: Pair) -> None:
    for _ in range(10):
        pair.engine.write(
            pair.segment, pair.local.address, pair.remote.address, 100_000, queue=True
        )
    gc.collect()
    got: list[moonpool.Batch] = []
    while len(got) < 10:
        got += pair.engine.completed(timeout=LONG)
    assert all(batch.status().ok for batch in got)


def test_dropped_batches_leave_nothing_behind(pair: Pair) -> None:
    for _ in range(3000):
        pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 8)
    gc.collect()
    deadline = time.monotonic() + LONG
    while pair.engine.info()["batches_live"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert pair.engine.info()["batches_live"] == 0


def test_finished_batches_cost_the_engine_nothing(pair: Pair) -> None:
    kept = [
        pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 8).wait()
        for _ in range(100)
    ]
    assert pair.engine.info()["batches_live"] == 0
    assert {batch.bytes for batch in kept} == {8}


def test_too_many_live_batches_are_refused(make_peer: MakePeer) -> None:
    peer = make_peer(transports=["tcp"])
    with moonpool.Engine(batches_max=3, timeout=1) as engine:
        region = engine.allocate(4096)
        segment = engine.open(peer.address, timeout=LONG)
        peer.freeze()
        kept = [engine.read(segment, region.address, peer.memory, 8) for _ in range(3)]
        with pytest.raises(moonpool.Exhausted):
            engine.read(segment, region.address, peer.memory, 8)
        for batch in kept:
            with pytest.raises(moonpool.TimedOut):
                batch.wait()


def test_a_batch_keeps_engine_and_memory(make_peer: MakePeer) -> None:
    peer = make_peer()
    owner = np.zeros(4096, dtype=np.uint8)
    alive = weakref.ref(owner)

    def start(memory: np.ndarray) -> moonpool.Batch:
        engine = moonpool.Engine(timeout=LONG)
        region = engine.register(memory)
        return engine.read(engine.open(peer.address), region.address, peer.memory, 4096)

    batch = start(owner)
    del owner
    gc.collect()
    batch.wait()
    held = alive()
    assert held is not None
    assert held.tobytes() == b"\x2a" * 4096
    del held, batch
    gc.collect()
    assert alive() is None


def test_many_threads_share_an_engine(pair: Pair) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        base = number * 65536
        try:
            for round_ in range(30):
                data = bytes([number * 16 + round_ % 16]) * 4096
                pair.here[base : base + 4096] = data
                pair.engine.write(
                    pair.segment, pair.local.address + base, pair.remote.address + base, 4096
                ).wait()
                assert bytes(pair.there[base : base + 4096]) == data
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_one_batch_can_be_waited_for_by_several_threads(pair: Pair, make_peer: MakePeer) -> None:
    peer = make_peer()
    segment = pair.engine.open(peer.address)
    peer.freeze()
    batch = pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=LONG)
    done: list[moonpool.Batch] = []
    threads = [threading.Thread(target=lambda: done.append(batch.wait())) for _ in range(5)]
    for thread in threads:
        thread.start()
    peer.thaw()
    for thread in threads:
        thread.join(LONG)
    assert done == [batch] * 5
