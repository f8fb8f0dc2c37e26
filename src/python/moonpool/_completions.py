"""Completions of batches: for `Engine.completed`, and for `await batch` in asyncio event loops.

The engine has one queue of completed batches and one descriptor that says when to look. Whoever
looks (an event loop's reader, or a thread inside `Engine.completed`) routes what it finds: to the
future that waits for it, or to the list that `completed` hands out.

Threads: thread-safe; futures are only touched through their own loop.
"""

from __future__ import annotations

import collections
import contextlib
import select
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio  # In `wait` only: programs without an event loop do not pay for it.

    from ._engine import Engine
    from ._native import Batch
    from ._native import Engine as NativeEngine

_AT_ONCE = 1024
# A batch that was submitted outside of any event loop is not in the engine's queue: it is looked
# at, from often to seldom. So is any batch while the descriptor says nothing new. The others are
# looked at seldom, in case somebody else emptied the queue at the wrong moment.
_FIRST_LOOK_SECONDS = 0.0005
_LONGEST_LOOK_SECONDS = 0.02
_SAFETY_LOOK_SECONDS = 0.25


class _Reader:
    """One event loop's watch of the engine's descriptor, while futures wait in it.

    The descriptor stays readable while notifications wait for somebody, so it is watched for
    changes (edge-triggered epoll), not for being readable: the loop must not spin.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, completions: Completions, fd: int) -> None:
        self._loop = loop
        self._completions = completions
        self._epoll = select.epoll()
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)
        self.waiting = 0
        loop.add_reader(self._epoll.fileno(), self._on_change)

    def _on_change(self) -> None:
        self._epoll.poll(0)
        self._completions.route()

    def close(self) -> None:
        with contextlib.suppress(Exception):  # The loop may be closed already.
            self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()


class Completions:
    """Of one engine."""

    def __init__(self, native: NativeEngine) -> None:
        self._native = native
        self._lock = threading.Lock()
        self._queued: dict[int, Batch] = {}  # submitted for `completed`, still running
        self._ready: collections.deque[Batch] = collections.deque()
        self._early: set[int] = set()  # completed before `add_queued` was reached
        self._submitting = 0  # calls between `submitting` and `add_queued`
        self._awaitable = 0  # submitted; approximate, nothing depends on it
        self._futures: dict[int, list[asyncio.Future[None]]] = {}
        self._readers: dict[asyncio.AbstractEventLoop, _Reader] = {}

    # --- Batches for `completed`.

    @contextlib.contextmanager
    def submitting(self) -> Iterator[None]:
        """Around a submission to the queue: it may complete before it is known here."""
        with self._lock:
            self._submitting += 1
        try:
            yield
        finally:
            with self._lock:
                self._submitting -= 1
                if self._submitting == 0:
                    self._early.clear()

    def add_queued(self, batch: Batch) -> None:
        with self._lock:
            if batch._handle in self._early:
                self._early.discard(batch._handle)
                self._ready.append(batch)
            else:
                self._queued[batch._handle] = batch

    def note_awaitable(self) -> None:
        """A batch is about to be submitted that somebody may await, or may not: what nobody awaits
        still goes through the queue, which is emptied now and then."""
        self._awaitable += 1
        if self._awaitable % _AT_ONCE == 0:
            self.route()

    def take_ready(self, maximum: int) -> list[Batch]:
        with self._lock:
            count = min(maximum, len(self._ready))
            return [self._ready.popleft() for _ in range(count)]

    def pending(self) -> bool:
        with self._lock:
            return bool(self._queued or self._ready or self._submitting)

    def end(self) -> None:
        """The engine has closed: whatever was queued is done now."""
        with self._lock:
            self._ready.extend(self._queued.values())
            self._queued.clear()
            waiting = [future for futures in self._futures.values() for future in futures]
            self._futures.clear()
        for future in waiting:
            _resolve(future)

    # --- Routing.

    def route(self, timeout: float = 0.0) -> None:
        """Hands out what has completed; waits for the first until `timeout` seconds."""
        while True:
            handles = self._native.next_completed(_AT_ONCE, timeout)
            self._route(handles)
            if len(handles) < _AT_ONCE:
                return
            timeout = 0.0

    def _route(self, handles: list[int]) -> None:
        waiting: list[asyncio.Future[None]] = []
        with self._lock:
            for handle in handles:
                waiting += self._futures.pop(handle, [])
                batch = self._queued.pop(handle, None)
                if batch is not None:
                    self._ready.append(batch)
                elif self._submitting:
                    self._early.add(handle)
        for future in waiting:
            _resolve(future)

    def crowded(self) -> bool:
        """Whether the descriptor is readable already (notifications that nobody takes): then no
        change of it tells about a completion."""
        look = select.poll()
        look.register(self._native.event_fd(), select.POLLIN)
        return bool(look.poll(0))

    # --- Futures.

    def watch(self, loop: asyncio.AbstractEventLoop, handle: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._futures.setdefault(handle, []).append(future)
            reader = self._readers.get(loop)
            if reader is None:
                reader = _Reader(loop, self, self._native.event_fd())
                self._readers[loop] = reader
            reader.waiting += 1
        return future

    def unwatch(
        self, loop: asyncio.AbstractEventLoop, handle: int, future: asyncio.Future[None]
    ) -> None:
        with self._lock:
            futures = self._futures.get(handle, [])
            if future in futures:
                futures.remove(future)
                if not futures:
                    del self._futures[handle]
            reader = self._readers[loop]
            reader.waiting -= 1
            if reader.waiting == 0:
                del self._readers[loop]
                reader.close()


def _resolve(future: asyncio.Future[None]) -> None:
    def set_result() -> None:
        if not future.done():
            future.set_result(None)

    with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
        future.get_loop().call_soon_threadsafe(set_result)


async def wait(batch: Batch) -> Batch:
    """What `await batch` does."""
    import asyncio

    if batch.done():
        return batch.wait()
    engine: Engine = batch._engine
    completions = engine._completions
    loop = asyncio.get_running_loop()
    future = completions.watch(loop, batch._handle)
    pause = _FIRST_LOOK_SECONDS
    try:
        # It may have completed, and been routed to nobody, before the future was there.
        while not batch.done():
            told = batch._queued and not completions.crowded()
            if future.done():
                await asyncio.sleep(_FIRST_LOOK_SECONDS)
            else:
                await asyncio.wait((future,), timeout=_SAFETY_LOOK_SECONDS if told else pause)
            pause = min(pause * 1.5, _LONGEST_LOOK_SECONDS)
    except asyncio.CancelledError:
        batch.cancel()
        raise
    finally:
        completions.unwatch(loop, batch._handle, future)
    return batch.wait()
