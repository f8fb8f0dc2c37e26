"""The kinds of numbers that name addresses and lengths."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import LONG, Pair

import moonpool


class Indexed:
    """Not an int, but as good as one."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "uint64": lambda values: np.array(values, dtype=np.uint64),
    "int64": lambda values: np.array(values, dtype=np.int64),
    "strided": lambda values: np.array([values, values], dtype=np.uint64).T[:, 0],
    "reversed": lambda values: np.array(values[::-1], dtype=np.int64)[::-1],
    "array": lambda values: array.array("Q", values),
    "memoryview": lambda values: memoryview(array.array("q", values)),
    "numpy scalars": lambda values: [np.uint64(value) for value in values],
    "indexed": lambda values: tuple(Indexed(value) for value in values),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_numbers(pair: Pair, kind: str) -> None:
    make = KINDS[kind]
    pair.here[:] = np.random.default_rng(2).bytes(Pair.SIZE)
    offsets = [0, 5000, 10_000]
    lengths = [1, 100, 3000]
    pair.engine.write(
        pair.segment,
        make([pair.local.address + offset for offset in offsets]),
        make([pair.remote.address + offset for offset in offsets]),
        make(lengths),
    ).wait(LONG)
    for offset, length in zip(offsets, lengths):
        assert pair.there[offset : offset + length] == pair.here[offset : offset + length]
        assert pair.there[offset + length] == 0


@pytest.mark.parametrize("dtype", [np.int16, np.uint16, np.int32, np.uint32])
def test_small_integers_serve_as_lengths(pair: Pair, dtype: Any) -> None:
    pair.here[:300] = b"z" * 300
    local = np.array([pair.local.address, pair.local.address + 100], dtype=np.uint64)
    remote = np.array([pair.remote.address, pair.remote.address + 100], dtype=np.uint64)
    pair.engine.write(pair.segment, local, remote, np.array([100, 200], dtype=dtype)).wait(LONG)
    assert bytes(pair.there[:301]) == b"z" * 300 + b"\0"


@pytest.mark.parametrize("one", [int, np.uint64, np.int64, Indexed])
def test_one_number(pair: Pair, one: Callable[[int], Any]) -> None:
    pair.here[:2] = b"ab"
    pair.engine.write(pair.segment, one(pair.local.address), one(pair.remote.address), one(2)).wait(
        LONG
    )
    assert bytes(pair.there[:2]) == b"ab"


@pytest.mark.parametrize(
    "wrong",
    [
        1.0,
        None,
        "12",
        b"12345678",
        [1.5],
        ["1"],
        [None],
        (object(),),
        np.array([1.0]),
        np.array([[1]], dtype=np.uint64),
        np.array([1], dtype=np.uint8),
        np.array([True]),
        {1: 2},
        {1},
        iter([1]),
    ],
    ids=repr,
)
def test_what_is_no_number_is_a_type_error(pair: Pair, wrong: Any) -> None:
    for position in range(3):
        arguments = [pair.local.address, pair.remote.address, 1]
        arguments[position] = wrong
        with pytest.raises(TypeError):
            pair.engine.write(pair.segment, *arguments)


@pytest.mark.parametrize(
    "wrong",
    [-1, 1 << 64, [-1], [1 << 64], (1 << 100,), np.array([-1]), np.array([-1], dtype=np.int32)],
    ids=repr,
)
def test_a_number_out_of_range_is_named(pair: Pair, wrong: Any) -> None:
    for position, name in enumerate(("local", "remote", "lengths")):
        arguments = [pair.local.address, pair.remote.address, 1]
        arguments[position] = wrong
        with pytest.raises(moonpool.InvalidArgument, match=name):
            pair.engine.write(pair.segment, *arguments)


def test_an_item_that_raises_is_heard(pair: Pair) -> None:
    class Broken:
        def __index__(self) -> int:
            raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        pair.engine.write(pair.segment, [Broken()], [1], [1])


def test_a_list_that_shrinks_while_it_is_read(pair: Pair) -> None:
    class Shrinking:
        def __index__(self) -> int:
            values.clear()
            return 1

    values: list[Any] = [Shrinking(), 2, 3]
    with pytest.raises(moonpool.InvalidArgument, match="changed"):
        pair.engine.write(pair.segment, values, [1, 2, 3], [1, 2, 3])


def test_an_array_is_free_again_afterwards(pair: Pair) -> None:
    local = array.array("Q", [pair.local.address])
    batch = pair.engine.write(pair.segment, local, pair.remote.address, 8)
    local.append(1)  # A BufferError if it were still exported.
    batch.wait(LONG)


def test_hundred_thousand_descriptors(pair: Pair) -> None:
    count = 100_000
    pair.here[:] = np.random.default_rng(3).bytes(Pair.SIZE)
    offsets = np.arange(count, dtype=np.uint64) * np.uint64(10)
    batch = pair.engine.write(
        pair.segment,
        offsets + np.uint64(pair.local.address),
        offsets + np.uint64(pair.remote.address),
        np.full(count, 7, dtype=np.uint64),
    )
    batch.wait(LONG)
    assert batch.bytes == 7 * count
    here = np.frombuffer(pair.here, dtype=np.uint8)[: 10 * count].reshape(count, 10)
    there = np.frombuffer(pair.there, dtype=np.uint8)[: 10 * count].reshape(count, 10)
    assert (there[:, :7] == here[:, :7]).all()
    assert not there[:, 7:].any()
