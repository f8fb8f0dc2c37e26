"""Random batches against a model, and random nonsense: memory is as expected, always."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import LONG
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import moonpool

SIZE = 64 * 1024
GUARD = 4096  # Registered by nobody, before and after.

PROPERTY = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


class Worlds:
    """Two engines for each transport, and memory with guards around it on both sides."""

    def __init__(self, transport: str) -> None:
        self.engine = moonpool.Engine(transports=[transport], timeout=LONG)
        self.other = moonpool.Engine(transports=[transport], timeout=LONG)
        self.here = np.zeros(SIZE + 2 * GUARD, dtype=np.uint8)
        self.there = np.zeros(SIZE + 2 * GUARD, dtype=np.uint8)
        self.engine.register(self.here[GUARD : GUARD + SIZE])
        self.other.register(self.there[GUARD : GUARD + SIZE])
        self.local = self.here.ctypes.data + GUARD
        self.remote = self.there.ctypes.data + GUARD
        self.segment = self.engine.open(self.other.address)

    def refill(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.here[:] = random.integers(0, 256, len(self.here), dtype=np.uint8)
        self.there[:] = random.integers(0, 256, len(self.there), dtype=np.uint8)

    def close(self) -> None:
        self.engine.close()
        self.other.close()


@pytest.fixture(scope="module", params=["tcp", "local"])
def worlds(request: pytest.FixtureRequest) -> Iterator[Worlds]:
    made = Worlds(request.param)
    yield made
    made.close()


@st.composite
def disjoint_ranges(draw: st.DrawFn, count: int, longest: int) -> list[int]:
    """Offsets of `count` ranges of `longest` bytes each, in any order, none over another."""
    places = draw(st.permutations(range(SIZE // longest)))
    shifts = draw(st.lists(st.integers(0, longest), min_size=count, max_size=count))
    # Each place is twice as wide as a range: a shift stays inside.
    return [place // 2 * 2 * longest + shift for place, shift in zip(places[::1], shifts)]


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """(op, local offset, remote offset, length), with nothing overlapping: order does not matter."""
    longest = draw(st.sampled_from([1, 7, 64, 300, 2000]))
    slots = SIZE // (2 * longest)
    count = draw(st.integers(1, min(slots, 40)))
    here = draw(st.lists(st.integers(0, slots - 1), min_size=count, max_size=count, unique=True))
    there = draw(st.lists(st.integers(0, slots - 1), min_size=count, max_size=count, unique=True))
    rows = []
    for i in range(count):
        op = draw(st.sampled_from(["read", "write"]))
        length = draw(st.integers(1, longest))
        shift = draw(st.integers(0, longest))
        rows.append((op, here[i] * 2 * longest + shift, there[i] * 2 * longest + shift, length))
    return rows


@PROPERTY
@given(rows=batches(), seed=st.integers(0, 2**32), as_array=st.booleans())
def test_batches_do_what_a_copy_does(
    worlds: Worlds, rows: list[tuple[str, int, int, int]], seed: int, as_array: bool
) -> None:
    worlds.refill(seed)
    here, there = worlds.here.copy(), worlds.there.copy()
    for op, local, remote, length in rows:
        a = slice(GUARD + local, GUARD + local + length)
        b = slice(GUARD + remote, GUARD + remote + length)
        if op == "read":
            here[a] = there[b]
        else:
            there[b] = here[a]
    transfers = []
    for op in ("read", "write"):
        mine = [row for row in rows if row[0] == op]
        if not mine:
            continue
        columns: list[Any] = [
            [worlds.local + row[1] for row in mine],
            [worlds.remote + row[2] for row in mine],
            [row[3] for row in mine],
        ]
        if as_array:
            columns = [np.array(column, dtype=np.uint64) for column in columns]
        transfers.append(moonpool.Transfer(worlds.segment, op, *columns))  # type: ignore[arg-type]
    batch = worlds.engine.submit(transfers).wait(LONG)
    assert batch.bytes == sum(row[3] for row in rows)
    assert (worlds.here == here).all()
    assert (worlds.there == there).all()


numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(0, 10),
    st.sampled_from([2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1, 2**64]),
)


@st.composite
def wrong_ranges(draw: st.DrawFn) -> tuple[int, int]:
    """(offset, length) of which some byte lies outside 0 .. SIZE."""
    length = draw(st.one_of(st.integers(1, SIZE * 2), st.sampled_from([2**40, 2**63])))
    if length > SIZE:
        return draw(st.integers(-length, SIZE)), length
    before = st.integers(-length - 100, -1)
    after = st.integers(SIZE - length + 1, SIZE + 100)
    return draw(st.one_of(before, after)), length


@PROPERTY
@given(
    where=wrong_ranges(),
    local_is_wrong=st.booleans(),
    op=st.sampled_from(["read", "write"]),
    good=st.integers(0, 5),
)
def test_ranges_outside_move_nothing_outside(
    worlds: Worlds, where: tuple[int, int], local_is_wrong: bool, op: str, good: int
) -> None:
    """A batch with one wrong range fails, and touches nothing that is not registered."""
    worlds.refill(good)
    here, there = worlds.here.copy(), worlds.there.copy()
    offset, length = where
    local = [worlds.local + 10 * i for i in range(good)]
    remote = [worlds.remote + 10 * i for i in range(good)]
    local.append(worlds.local + (offset if local_is_wrong else 0))
    remote.append(worlds.remote + (0 if local_is_wrong else offset))
    start = worlds.engine.read if op == "read" else worlds.engine.write
    with pytest.raises(moonpool.Error):
        start(worlds.segment, local, remote, [1] * good + [length]).wait(LONG)
    inside = slice(GUARD, GUARD + SIZE)
    for now, then in ((worlds.here, here), (worlds.there, there)):
        changed = now != then
        assert not changed[:GUARD].any()
        assert not changed[GUARD + SIZE :].any()
        # Nothing of the wrong range was moved, and of the others one byte each at most.
        assert changed[inside].sum() <= good


@PROPERTY
@given(
    local=st.one_of(numbers, st.lists(numbers, max_size=4)),
    remote=st.one_of(numbers, st.lists(numbers, max_size=4)),
    lengths=st.one_of(numbers, st.lists(numbers, max_size=4)),
    op=st.sampled_from(["read", "write"]),
)
def test_nonsense_is_refused(
    worlds: Worlds, local: Any, remote: Any, lengths: Any, op: str
) -> None:
    worlds.refill(0)
    here, there = worlds.here.copy(), worlds.there.copy()
    start = worlds.engine.read if op == "read" else worlds.engine.write
    with pytest.raises(moonpool.Error):
        start(worlds.segment, local, remote, lengths).wait(LONG)
    assert (worlds.here == here).all()
    assert (worlds.there == there).all()


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(-5, 5), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.builds(object),
)
CALLS = (
    "write", "read", "submit", "register", "register_many", "deregister_many", "allocate", "open",
    "notify", "notifications", "completed",
)  # fmt: skip


@PROPERTY
@given(
    name=st.sampled_from(CALLS),
    arguments=st.lists(anything, max_size=5),
    with_segment=st.booleans(),
)
def test_arguments_of_any_type_are_an_exception_or_fine(
    worlds: Worlds, name: str, arguments: list[Any], with_segment: bool
) -> None:
    if name in ("notifications", "completed", "open", "allocate"):
        # Times would be waited for, and sizes would be allocated: only what cannot be either.
        arguments = [one for one in arguments if not isinstance(one, (int, float, type(None)))] or [
            object()
        ]
    if with_segment:
        arguments = [worlds.segment, *arguments]
    worlds.refill(1)
    here, there = worlds.here.copy(), worlds.there.copy()
    try:
        got = getattr(worlds.engine, name)(*arguments)
        if isinstance(got, moonpool.Batch):
            got.wait(LONG)
        elif isinstance(got, moonpool.Region):
            got.close()
    except (moonpool.Error, TypeError, ValueError, AttributeError, OverflowError, BufferError):
        pass
    assert (worlds.here == here).all()
    assert (worlds.there == there).all()
