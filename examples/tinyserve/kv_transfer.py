"""Moves a prompt's keys and values from a prefill worker to a decode worker with Moonpool.

The decode worker reserves pages and describes them as a `Destination`. The prefill worker writes
each layer straight into those pages as soon as the layer is there (`KvSender.on_layer`), without
waiting between layers. The last layer goes out once all others have arrived; its batch carries the
notification with the first token, so whoever sees the notification may read everything.

Threads: a KvSender starts one thread, which waits for batches in order and takes their times.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cache import CacheLayout, PagedCache


@dataclass(frozen=True)
class Destination:
    """Pages at a decode worker, for one attempt at one request. A value."""

    reservation: str  # Names the attempt; comes back in the notification.
    address: str  # Where the worker's engine is found, "127.0.0.1:41234".
    base: int  # Address of its cache's first byte, in its process.
    layout: CacheLayout
    pages: list[int]

    def to_json(self) -> dict[str, Any]:
        return {
            "reservation": self.reservation,
            "address": self.address,
            "base": self.base,
            "layout": self.layout.to_json(),
            "pages": self.pages,
        }

    @staticmethod
    def from_json(record: dict[str, Any]) -> Destination:
        return Destination(
            reservation=record["reservation"],
            address=record["address"],
            base=record["base"],
            layout=CacheLayout.from_json(record["layout"]),
            pages=record["pages"],
        )


def encode_notification(reservation: str, first_token: int) -> bytes:
    return json.dumps({"reservation": reservation, "first_token": first_token}).encode()


def decode_notification(payload: bytes) -> tuple[str, int]:
    """(reservation, first token). Raises ValueError: the payload comes from a peer."""
    record = json.loads(payload)
    if (
        not isinstance(record, dict)
        or not isinstance(record.get("reservation"), str)
        or not isinstance(record.get("first_token"), int)
    ):
        raise ValueError("malformed notification")
    return record["reservation"], record["first_token"]


def describe(error: Exception) -> dict[str, Any]:
    """A Moonpool error (or any other) as JSON: message, code, peer, transport, phase, cause."""
    record: dict[str, Any] = {"message": str(error) or type(error).__name__}
    for name in ("code", "peer", "transport", "phase", "cause"):
        value = getattr(error, name, None)
        if value is not None:
            record[name] = str(value)
    return record


class SendFailedError(Exception):
    """The pages did not all arrive; nothing of the transfer touches memory any more.

    `cause`: the engine's first error.
    """

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class TransferRecord:
    """What one transfer did. Times are in seconds."""

    size_bytes: int
    batches: int
    in_flight_seconds: float  # At least one batch was under way: also while layers were computed.
    exposed_seconds: float  # From the end of the computation to the last byte's arrival.
    transports: list[str]

    def to_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


class _Waiter:
    """Waits for batches in the order of submission, in a thread, and keeps the first error.

    Once an error is seen, later batches are cancelled; each is still waited for, because only
    then is the memory it reads free. Guarded by the queue: results are read after `finish`.
    """

    def __init__(self, errors: type[Exception]) -> None:
        self._errors = errors
        self._batches: queue.SimpleQueue[tuple[float, Any] | None] = queue.SimpleQueue()
        self.error: Exception | None = None
        self.in_flight_seconds = 0.0
        self.batches = 0
        self.transports: set[str] = set()
        self._busy_until = 0.0
        self._thread: threading.Thread | None = None

    def add(self, submitted: float, batch: Any) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="kv-waiter", daemon=True)
            self._thread.start()
        self._batches.put((submitted, batch))

    def finish(self) -> None:
        """Returns when every batch added so far has ended; more may be added afterwards."""
        if self._thread is not None:
            self._batches.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (item := self._batches.get()) is not None:
            submitted, batch = item
            if self.error is not None:
                batch.cancel()
            try:
                batch.wait()
                self.transports.update(batch.transport.split("+"))  # As in "local+tcp".
            except self._errors as error:
                self.error = self.error or error
            ended = time.monotonic()
            self.in_flight_seconds += ended - max(submitted, self._busy_until)
            self._busy_until = ended
            self.batches += 1


class KvSender:
    """Sends one sequence's prompt pages to one destination, once. Thread-bound.

    Borrows engine and cache; `pages` must stay allocated until `finish` has returned or raised.
    """

    def __init__(
        self,
        engine: Any,
        cache: PagedCache,
        pages: list[int],
        destination: Destination,
        *,
        errors: type[Exception],
        timeout_seconds: float,
    ) -> None:
        """`errors`: the engine's error type (moonpool.Error). Failures show in `finish`."""
        self._engine = engine
        self._layout = cache.layout
        self._base = cache.array.ctypes.data
        self._pages = pages[: len(destination.pages)]
        self._destination = destination
        self._errors = errors
        self._timeout = timeout_seconds
        self._waiter = _Waiter(errors)
        self._error: Exception | None = None
        self._last = cache.layout.layers - 1
        self._last_ready = False
        try:
            self._check()
            self._segment = engine.open(destination.address, timeout=timeout_seconds)
        except (errors, ValueError) as error:
            self._error = error

    def _check(self) -> None:
        ours, theirs = self._layout, self._destination.layout
        same = (ours.layers, ours.kv_heads, ours.head_size)
        if same != (theirs.layers, theirs.kv_heads, theirs.head_size):
            raise ValueError(f"the decode worker's cache is for another model: {theirs}")
        if len(self._pages) != len(self._destination.pages):
            raise ValueError("the decode worker reserved more pages than the prompt has")

    @property
    def size_bytes(self) -> int:
        """Bytes of all layers: what the whole transfer moves."""
        return self._layout.layers * 2 * len(self._pages) * self._layout.page_bytes

    def on_layer(self, layer: int) -> None:
        """Submits `layer`'s pages and returns at once; the last layer waits for `finish`."""
        if layer == self._last:
            self._last_ready = True
        else:
            self._submit(layer)

    def _submit(self, layer: int, notification: bytes | None = None) -> None:
        if self._error is not None or self._waiter.error is not None:
            return
        to = self._destination
        local = self._layout.addresses(self._base, layer, self._pages)
        remote = to.layout.addresses(to.base, layer, to.pages)
        lengths = np.full(len(local), self._layout.page_bytes, dtype=np.uint64)
        submitted = time.monotonic()
        try:
            batch = self._engine.write(
                self._segment,
                local,
                remote,
                lengths,
                timeout=self._timeout,
                priority="latency",
                notify=notification,
            )
        except self._errors as error:
            self._error = error
            return
        self._waiter.add(submitted, batch)

    def finish(self, first_token: int) -> TransferRecord:
        """Sends the last layer with the notification and waits for the end of everything.

        Requires: `on_layer` was called for every layer. Raises SendFailedError.
        """
        assert self._last_ready, "finish before the last layer"
        computed = time.monotonic()
        self._waiter.finish()  # The engine gives no order between batches.
        self._submit(self._last, encode_notification(self._destination.reservation, first_token))
        self._waiter.finish()
        error = self._error or self._waiter.error
        if error is not None:
            raise SendFailedError(error) from error
        return TransferRecord(
            size_bytes=self.size_bytes,
            batches=self._waiter.batches,
            in_flight_seconds=self._waiter.in_flight_seconds,
            exposed_seconds=time.monotonic() - computed,
            transports=sorted(self._waiter.transports),
        )
