"""Region: registered and allocated memory."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import LONG, Pair

import moonpool


def test_allocated_memory_is_zeroed_and_writable(engine: moonpool.Engine) -> None:
    region = engine.allocate(10_000)
    view = memoryview(region)
    assert (len(view), view.readonly, view.format) == (10_000, False, "B")
    assert bytes(view) == bytes(10_000)
    assert region.address % 4096 == 0
    assert (region.size, len(region), region.rights) == (10_000, 10_000, "rw")
    numbers = np.frombuffer(region, dtype=np.uint16)
    numbers[0] = 0x1234
    assert view[0] == 0x34
    assert numbers.ctypes.data == region.address


def test_huge_pages_on_request_or_plain_ones(engine: moonpool.Engine) -> None:
    region = engine.allocate(1 << 21, huge_pages=True)
    memoryview(region)[-1] = 1


@pytest.mark.parametrize("size", [0, 1 << 62])
def test_impossible_sizes_are_refused(engine: moonpool.Engine, size: int) -> None:
    with pytest.raises((moonpool.InvalidArgument, moonpool.Exhausted)):
        engine.allocate(size)


def test_wrong_rights_are_refused(engine: moonpool.Engine) -> None:
    with pytest.raises(moonpool.InvalidArgument, match="rights"):
        engine.allocate(64, rights="x")


def test_dropped_memory_is_freed(engine: moonpool.Engine) -> None:
    for _ in range(50):
        engine.allocate(1 << 30)
    gc.collect()
    assert engine.info()["regions"] == 0


def test_a_buffer_keeps_allocated_memory(engine: moonpool.Engine) -> None:
    numbers = np.frombuffer(engine.allocate(4096), dtype=np.uint8)
    gc.collect()
    numbers[:] = 7
    assert engine.info()["regions"] == 1
    del numbers
    gc.collect()
    assert engine.info()["regions"] == 0


def test_close_is_refused_while_a_buffer_exists(engine: moonpool.Engine) -> None:
    region = engine.allocate(4096)
    view = memoryview(region)
    with pytest.raises(BufferError):
        region.close()
    assert not region.closed
    view.release()
    region.close()
    region.close()
    assert region.closed
    assert "closed" in repr(region)
    with pytest.raises(BufferError):
        memoryview(region)


def test_a_region_is_a_context_manager(engine: moonpool.Engine) -> None:
    with engine.allocate(64) as region:
        assert not region.closed
    assert region.closed


def dlpack_only(values: Any) -> Any:
    """A tensor as torch gives it: DLPack, no buffer protocol."""

    class Tensor:
        def __dlpack__(self, **options: Any) -> Any:
            return values.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return values.__dlpack_device__()

    return Tensor()


OWNERS = {
    "bytearray": lambda: bytearray(4096),
    "array": lambda: array.array("d", bytes(4096)),
    "mmap": lambda: mmap.mmap(-1, 4096),
    "numpy": lambda: np.zeros((8, 64), dtype=np.float64),
    "fortran": lambda: np.zeros((8, 64), dtype=np.float64, order="F"),
    "slice": lambda: np.zeros(1024, dtype=np.float64)[1:513],
    "ctypes": lambda: (ctypes.c_double * 512)(),
    "dlpack": lambda: dlpack_only(np.zeros(512, dtype=np.float64)),
}


@pytest.mark.parametrize("kind", OWNERS)
def test_objects_can_be_registered(pair: Pair, kind: str) -> None:
    owner = OWNERS[kind]()
    region = pair.engine.register(owner)
    assert region.size == 4096
    pair.here[:4096] = bytes(range(256)) * 16
    pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 4096).wait()
    pair.engine.read(pair.segment, region.address, pair.remote.address, 4096).wait()
    assert bytes(memoryview(region)) == bytes(range(256)) * 16
    region.close()


def test_a_registration_keeps_its_object(engine: moonpool.Engine) -> None:
    owner = np.zeros(100, dtype=np.uint8)
    alive = weakref.ref(owner)
    region = engine.register(owner)
    address = region.address
    del owner, region
    gc.collect()
    assert alive() is not None
    assert engine.info()["regions"] == 1
    with pytest.raises(moonpool.AlreadyExists):
        engine.register(address, 10)
    engine.close()
    gc.collect()
    assert alive() is None


def test_closing_lets_go_of_the_object(engine: moonpool.Engine) -> None:
    owner = np.zeros(100, dtype=np.uint8)
    alive = weakref.ref(owner)
    region = engine.register(owner)
    del owner
    region.close()
    gc.collect()
    assert alive() is None


def test_a_registered_bytearray_cannot_move(engine: moonpool.Engine) -> None:
    owner = bytearray(100)
    region = engine.register(owner)
    with pytest.raises(BufferError):
        owner.extend(bytes(1 << 20))
    region.close()
    owner.extend(bytes(1 << 20))


def test_an_address_needs_a_size(engine: moonpool.Engine) -> None:
    memory = bytearray(4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with pytest.raises(moonpool.InvalidArgument, match="size"):
        engine.register(address)
    region = engine.register(np.uint64(address), 4096)
    assert (region.address, region.size) == (address, 4096)


def test_part_of_an_object_can_be_registered(engine: moonpool.Engine) -> None:
    owner = bytearray(4096)
    assert engine.register(owner, 100).size == 100
    with pytest.raises(moonpool.InvalidArgument, match="4096"):
        engine.register(owner, 4097)


@pytest.mark.parametrize(
    ("address", "size"),
    [(0, 10), (64, 1 << 63), ((1 << 64) - 10, 20), (0x10, 4096), (1 << 63, 8), (-1, 8)],
)
def test_addresses_without_memory_are_refused(
    engine: moonpool.Engine, address: int, size: int
) -> None:
    with pytest.raises(moonpool.InvalidArgument):
        engine.register(address, size)
    assert engine.info()["regions"] == 0


@pytest.mark.parametrize("wrong", [1.5, "text", None, object(), [1, 2]])
def test_what_is_no_memory_is_refused(engine: moonpool.Engine, wrong: object) -> None:
    with pytest.raises((TypeError, moonpool.InvalidArgument)):
        engine.register(wrong, 8)


def test_scattered_and_empty_arrays_are_refused(engine: moonpool.Engine) -> None:
    for wrong in (np.zeros(100)[::2], np.zeros((4, 4))[:, 1], np.zeros(0)):
        with pytest.raises(moonpool.InvalidArgument):
            engine.register(wrong)
        with pytest.raises(moonpool.InvalidArgument):
            engine.register(dlpack_only(wrong))


def test_read_only_objects_serve_readers_and_are_never_written(pair: Pair) -> None:
    frozen = bytes(range(100))
    for rights in ("rw", "w"):
        with pytest.raises(moonpool.InvalidArgument, match="read-only"):
            pair.engine.register(frozen, rights=rights)
    region = pair.engine.register(frozen, rights="r")
    assert memoryview(region).readonly
    pair.engine.write(pair.segment, region.address, pair.remote.address, 100).wait()
    assert bytes(pair.there[:100]) == frozen
    for at in (0, 50, 99):
        with pytest.raises(moonpool.InvalidArgument, match="read-only"):
            pair.engine.read(pair.segment, region.address + at, pair.remote.address, 1)
    assert frozen == bytes(range(100))


def test_a_read_only_dlpack_tensor_is_never_written(engine: moonpool.Engine) -> None:
    values = np.arange(64)
    values.flags.writeable = False
    with pytest.raises(moonpool.InvalidArgument):
        engine.register(dlpack_only(values))


def test_rights_are_what_peers_may_do(pair: Pair) -> None:
    closed, readable = pair.other.allocate(64, rights=""), pair.other.allocate(64, rights="r")
    assert [region.rights for region in pair.segment.refresh() if region.size == 64].count("r") == 1
    pair.engine.read(pair.segment, pair.local.address, readable.address, 64).wait()
    for start, region in ((pair.engine.write, readable), (pair.engine.read, closed)):
        with pytest.raises(moonpool.Error):
            start(pair.segment, pair.local.address, region.address, 64).wait()
    assert bytes(memoryview(readable)) == bytes(64)


def test_overlapping_registration_is_refused(engine: moonpool.Engine) -> None:
    region = engine.allocate(4096)
    for address, size in ((region.address, 4096), (region.address + 4095, 1)):
        with pytest.raises(moonpool.AlreadyExists):
            engine.register(address, size)


def test_many_regions_at_once(pair: Pair) -> None:
    memory = np.zeros(100 * 64, dtype=np.uint8)
    addresses = memory.ctypes.data + np.arange(100, dtype=np.uint64) * np.uint64(64)
    sizes = [64] * 100
    regions = pair.engine.register_many(addresses, sizes, "r")
    assert [region.address for region in regions] == addresses.tolist()
    assert {region.rights for region in regions} == {"r"}
    assert pair.engine.info()["regions"] == 101
    pair.engine.deregister_many(regions[:50])
    assert pair.engine.info()["regions"] == 51
    assert all(region.closed for region in regions[:50])
    pair.engine.deregister_many(regions)
    assert pair.engine.info()["regions"] == 1


def test_many_regions_or_none(engine: moonpool.Engine) -> None:
    memory = np.zeros(4096, dtype=np.uint8)
    base = memory.ctypes.data
    with pytest.raises(moonpool.AlreadyExists, match="item 2"):
        engine.register_many([base, base + 100, base + 50], [100, 100, 10])
    with pytest.raises(moonpool.InvalidArgument, match="sizes"):
        engine.register_many([base], [1, 2])
    assert engine.info()["regions"] == 0


def test_a_region_object_is_small(engine: moonpool.Engine) -> None:
    import sys

    memory = np.zeros(64, dtype=np.uint8)
    (region,) = engine.register_many([memory.ctypes.data], [64])
    assert sys.getsizeof(region) < 200
    assert not hasattr(region, "__dict__")


def test_a_region_in_use_is_not_given_away(pair: Pair, make_peer: Any) -> None:
    peer = make_peer(transports=["tcp"])
    segment = pair.engine.open(peer.address)
    region = pair.engine.allocate(4096)
    peer.freeze()
    batch = pair.engine.read(segment, region.address, peer.memory, 4096, timeout=2)
    with pytest.raises(moonpool.TimedOut):
        region.close(timeout=0.05)
    with pytest.raises(moonpool.TimedOut):
        batch.wait()
    region.close(timeout=LONG)
