"""Engine, and the values that its calls take and give. What needs C++ is in `_native`."""

from __future__ import annotations

import atexit
import dataclasses
import os
import sys
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, Union

from . import _native
from ._completions import Completions
from ._native import Batch, Region
from .errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "Engine",
    "EngineInfo",
    "Notification",
    "RemoteRegion",
    "Segment",
    "SegmentInfo",
    "Transfer",
    "TransportInfo",
    "TransportMetrics",
]

# One address or length, or many: ints, or a one-dimensional array of integers. uint64 and int64
# arrays are used in place, without a copy.
Numbers = Union[int, Sequence[int], Any]
Priority = Literal["bulk", "latency"]

_READ, _WRITE = 0, 1


class RemoteRegion(NamedTuple):
    """Memory that a segment offers."""

    address: int  # In its process.
    size: int  # Bytes.
    rights: str  # What others may do: "r", "w", "rw" or "".


class Notification(NamedTuple):
    """What a peer sent with `notify`."""

    sender: str  # The name of the sender's segment.
    payload: bytes


class TransportMetrics(TypedDict):
    bytes_sent: int
    bytes_received: int
    slices_served: int
    requests_refused: int
    connections_open: int
    connections_rejected: int
    checksum_errors: int


class TransportInfo(TypedDict):
    name: str
    usable: bool
    reason: str  # Why it is not usable.
    metrics: TransportMetrics


class SegmentInfo(TypedDict):
    name: str
    address: str
    transport: str | None
    reason: str  # Why this transport was chosen, or others were not.


class EngineInfo(TypedDict):
    """What `Engine.info` gives; plain values, fit for JSON."""

    name: str
    address: str
    node: int
    incarnation: int
    fence_exact: bool
    transports: list[TransportInfo]
    segments: list[SegmentInfo]
    regions: int
    batches_live: int
    batches_completed: int
    batches_failed: int
    bytes_read: int
    bytes_written: int
    retries: int
    notifications_dropped: int


@dataclasses.dataclass(frozen=True)
class Transfer:
    """One group of a batch: descriptor i moves lengths[i] bytes between local[i] and remote[i]."""

    segment: Segment
    op: Literal["read", "write"]
    local: Numbers
    remote: Numbers
    lengths: Numbers


class Segment:
    """Another process's memory, from `Engine.open`. Thread-safe; a context manager that closes.

    Opening one twice gives two objects for the same thing; closing one closes it for both.
    """

    __slots__ = ("__weakref__", "_engine", "_handle", "_name")

    def __init__(self, engine: Engine, handle: int, name: str) -> None:
        self._engine = engine
        self._handle = handle
        self._name = name

    def __repr__(self) -> str:
        return f"<moonpool.Segment {self._name!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """As it was opened."""
        return self._name

    @property
    def address(self) -> str:
        """host:port of its engine, as last heard."""
        return str(self._ask(False, None)["address"])

    @property
    def transport(self) -> str | None:
        """The transport chosen for it, or None while none is open. Never waits."""
        transport = self._ask(False, None)["transport"]
        return None if transport is None else str(transport)

    @property
    def reason(self) -> str:
        """Why this transport was chosen, or why others were not. Never waits."""
        return str(self._ask(False, None)["reason"])

    @property
    def regions(self) -> list[RemoteRegion]:
        """The memory it offers now, by address. Asks the peer: waits for up to the engine's
        timeout, and raises what `refresh` raises."""
        return self._regions(True, None)

    def refresh(self, timeout: float | None = None) -> list[RemoteRegion]:
        """Asks the peer what it offers now and returns that. Waits for up to `timeout` seconds
        (None: the engine's timeout). Raises Unavailable, TimedOut, NotFound (closed)."""
        return self._regions(True, timeout)

    def close(self) -> None:
        """Forgets the peer. Its batches go on; new ones are refused. Idempotent."""
        if self._handle:
            handle, self._handle = self._handle, 0
            self._engine._native.close_segment(handle)

    def _ask(self, refresh: bool, timeout: float | None) -> dict[str, Any]:
        return self._engine._native.segment(self._handle, refresh, timeout, self._name)

    def _regions(self, refresh: bool, timeout: float | None) -> list[RemoteRegion]:
        return [RemoteRegion(*region) for region in self._ask(refresh, timeout)["regions"]]


class Engine:
    """Moves bytes between this process's registered memory and other processes'.

    Every option that is None is taken from the environment, or has the default given here:

        listen          host:port for peers. Port 0: the kernel picks one. MOONPOOL_LISTEN, else
                        "127.0.0.1:0". ":0" listens on every address of the machine.
        name            the segment's name in the registry. MOONPOOL_NAME, else the address.
        registry        "http://host:port" of a registry, so that peers are found by name.
                        MOONPOOL_REGISTRY, else none: peers are found at host:port.
        transports      names of the transports that may be used; binding: one that does not work
                        here is an error. MOONPOOL_TRANSPORTS ("tcp,local"), else all that work,
                        the best for each peer.
        advertise_host  the host that peers are told. MOONPOOL_ADVERTISE_HOST, else the host
                        listened on when it is specific, else that of the first interface.
        checksum        CRC32C on every slice. MOONPOOL_CHECKSUM (0 or 1), else True.
        workers         posting threads, 1 .. 16. MOONPOOL_WORKERS, else 2.
        timeout         seconds, of every batch and call that names none. MOONPOOL_TIMEOUT, else 30.
        spin_us         longest busy wait in microseconds; 0: always sleep. MOONPOOL_SPIN_US, else
                        50.
        log_level       debug, info, warning, error or off; lines go to standard error.
                        MOONPOOL_LOG_LEVEL, else "warning".
        serving_threads per transport, for peers' requests, 1 .. 64. MOONPOOL_SERVING_THREADS,
                        else 2.
        retry_window    seconds for which an unreachable peer is tried again (1).
        lease           seconds, of the registry's entry (10).
        batches_max     batches that may live at once (65536).
        notifications_max  notifications received and not yet taken (4096).

    Threads: thread-safe. A forked child must make its own engine: using the parent's raises
    Unsupported. A context manager that closes; closed at the interpreter's exit.

    Raises InvalidArgument naming the option; AlreadyExists when the port is taken, Unavailable when
    the address cannot be bound for another reason.
    """

    def __init__(
        self,
        listen: str | None = None,
        name: str | None = None,
        registry: str | None = None,
        transports: Sequence[str] | None = None,
        advertise_host: str | None = None,
        checksum: bool | None = None,
        workers: int | None = None,
        timeout: float | None = None,
        spin_us: float | None = None,
        log_level: str | None = None,
        *,
        serving_threads: int | None = None,
        retry_window: float | None = None,
        lease: float | None = None,
        batches_max: int | None = None,
        notifications_max: int | None = None,
    ) -> None:
        if isinstance(transports, str):
            raise InvalidArgument('transports: must be a list of names, for instance ["tcp"]')
        settings: dict[str, Any] = {
            "listen": _text(listen, "MOONPOOL_LISTEN") or "127.0.0.1:0",
            "name": _text(name, "MOONPOOL_NAME"),
            "registry": _text(registry, "MOONPOOL_REGISTRY"),
            "transports": _names(transports, "MOONPOOL_TRANSPORTS"),
            "advertise_host": _text(advertise_host, "MOONPOOL_ADVERTISE_HOST"),
            "checksum": _flag(checksum, "MOONPOOL_CHECKSUM"),
            "workers": _count(workers, "MOONPOOL_WORKERS", "workers"),
            "timeout": _number(timeout, "MOONPOOL_TIMEOUT", "timeout"),
            "spin_max": _microseconds(_number(spin_us, "MOONPOOL_SPIN_US", "spin_us")),
            "log_level": _text(log_level, "MOONPOOL_LOG_LEVEL"),
            "serving_threads": _count(
                serving_threads, "MOONPOOL_SERVING_THREADS", "serving_threads"
            ),
            "retry_window": _number(retry_window, None, "retry_window"),
            "lease": _number(lease, None, "lease"),
            "batches_max": _count(batches_max, None, "batches_max"),
            "notifications_max": _count(notifications_max, None, "notifications_max"),
        }
        self._native = _native.Engine({k: v for k, v in settings.items() if v is not None})
        self._regions: dict[int, Region] = {}  # With an owner: keeps it alive.
        self._completions = Completions(self._native)
        _live.add(self)

    def __repr__(self) -> str:
        if not self._native.here():
            return "<moonpool.Engine of the parent process>"
        state = " closed" if self._native.closed() else ""
        return f"<moonpool.Engine {self.name!r} at {self.address}{state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- Who this is.

    @property
    def address(self) -> str:
        """host:port that peers use."""
        return self._native.address()

    @property
    def name(self) -> str:
        """The segment's name; the address unless one was given."""
        return self._native.name()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._native.closed()

    def info(self) -> EngineInfo:
        """Transports (and why one is not usable), opened segments with their transport, counters."""
        info: Any = self._native.info()
        return info  # type: ignore[no-any-return]

    def fileno(self) -> int:
        """A descriptor that is readable while `completed` or `notifications` may have something."""
        return self._native.event_fd()

    # --- Memory.

    def allocate(self, nbytes: int, rights: str = "rw", huge_pages: bool = False) -> Region:
        """Zeroed, page-aligned memory that peers of this host can map, registered.

        `nbytes`: at least 1. `rights`: what peers may do, "r", "w", "rw" or "". `huge_pages`:
        2 MiB pages if the kernel has some, plain ones otherwise. The memory is freed by close(),
        or when the Region and every buffer of it are gone. Raises Exhausted, InvalidArgument.
        """
        return self._native.allocate(nbytes, rights, huge_pages)

    def register(self, memory: Any, size: int | None = None, rights: str = "rw") -> Region:
        """Lets memory take part in transfers, until Region.close() or Engine.close().

        `memory`: an object with the buffer protocol (bytearray, numpy array, mmap, …) or DLPack
        (torch tensor, …), contiguous and in host memory, which is kept alive; or the int address of
        `size` bytes, which must stay valid. `rights`: what peers may do, "r", "w", "rw" or ""; with
        "w" the memory must be writable. Raises AlreadyExists when it overlaps a registered region,
        InvalidArgument, TypeError.
        """
        region = self._native.register(memory, size, rights)
        if not isinstance(memory, int):
            self._prune()
            self._regions[region.address] = region
        return region

    def register_many(self, addresses: Numbers, sizes: Numbers, rights: str = "rw") -> list[Region]:
        """Registers addresses[i] .. addresses[i] + sizes[i] for every i, or nothing.

        The memory must stay valid. Raises what register raises, naming the item.
        """
        return self._native.register_many(addresses, sizes, rights)

    def deregister_many(self, regions: Sequence[Region], timeout: float | None = None) -> None:
        """Closes regions like Region.close(), with one `timeout` (seconds) for all. The first
        error is raised after all have been tried."""
        self._native.deregister_many(regions, timeout)
        for region in regions:
            if self._regions.get(region.address) is region:
                del self._regions[region.address]

    # --- Peers.

    def open(self, name: str, timeout: float | None = None) -> Segment:
        """Finds a peer at "host:port", or by its segment name in the registry, and opens a path.

        Waits for up to `timeout` seconds (None: the engine's). Raises NotFound (the name is not in
        the registry), Unavailable (unknown host, connection refused), TimedOut, Unsupported
        (another protocol version, no common transport), Corrupt (something else answers there),
        each naming the peer and how far it came.
        """
        return Segment(self, self._native.open(name, timeout), name)

    # --- Batches.

    def write(
        self,
        segment: Segment,
        local: Numbers,
        remote: Numbers,
        lengths: Numbers,
        *,
        timeout: float | None = None,
        priority: Priority = "bulk",
        notify: bytes | None = None,
        queue: bool = False,
    ) -> Batch:
        """Starts to write lengths[i] bytes from address local[i] here to remote[i] at the peer.

        Each of the three: an int, a list or tuple of ints, or a one-dimensional array of integers
        (uint64 and int64 are used in place). `timeout`: seconds for the whole batch (None: the
        engine's). `priority`: "latency" goes before "bulk". `notify`: up to 64 KiB, delivered to
        the peer once all data is there, exactly once. `queue`: report it through `completed`.

        Returns at once. Raises InvalidArgument naming the descriptor, Exhausted (too many live
        batches), TypeError. Whatever happens to the transfer is raised by Batch.wait.
        """
        return self._start(
            _WRITE, segment, local, remote, lengths, timeout, priority, notify, queue
        )

    def read(
        self,
        segment: Segment,
        local: Numbers,
        remote: Numbers,
        lengths: Numbers,
        *,
        timeout: float | None = None,
        priority: Priority = "bulk",
        notify: bytes | None = None,
        queue: bool = False,
    ) -> Batch:
        """Starts to read lengths[i] bytes from remote[i] at the peer to address local[i] here.

        Otherwise like `write`.
        """
        return self._start(_READ, segment, local, remote, lengths, timeout, priority, notify, queue)

    def _start(
        self,
        op: int,
        segment: Segment,
        local: Numbers,
        remote: Numbers,
        lengths: Numbers,
        timeout: float | None,
        priority: str,
        notify: bytes | None,
        queue: bool,
    ) -> Batch:
        if queue:
            with self._completions.submitting():
                batch = self._native.transfer(
                    self, op, segment._handle, local, remote, lengths, timeout, priority, notify,
                    True, False,
                )  # fmt: skip
                self._completions.add_queued(batch)
                return batch
        in_loop = _in_event_loop()
        if in_loop:
            self._completions.note_awaitable()
        return self._native.transfer(
            self, op, segment._handle, local, remote, lengths, timeout, priority, notify, in_loop,
            False,
        )  # fmt: skip

    def submit(
        self,
        transfers: Iterable[Transfer],
        *,
        timeout: float | None = None,
        priority: Priority = "bulk",
        notify: bytes | None = None,
        queue: bool = False,
    ) -> Batch:
        """Starts transfers with several segments, reads and writes, as one batch.

        Like `write`; `notify` goes to every segment of the batch.
        """
        groups = [
            (transfer.segment._handle, _op(transfer.op), transfer.local, transfer.remote,
             transfer.lengths)
            for transfer in transfers
        ]  # fmt: skip
        if queue:
            with self._completions.submitting():
                batch = self._native.submit(self, groups, timeout, priority, notify, True)
                self._completions.add_queued(batch)
                return batch
        in_loop = _in_event_loop()
        if in_loop:
            self._completions.note_awaitable()
        return self._native.submit(self, groups, timeout, priority, notify, in_loop)

    def completed(self, max: int = 256, timeout: float | None = 0.0) -> list[Batch]:
        """Batches that were submitted with `queue=True` and are done, each once, `max` at most.

        Waits for the first until `timeout` seconds (None: until there is one), unless no such
        batch is under way.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._completions.route()
            ready = self._completions.take_ready(max)
            if ready or not self._completions.pending() or self._native.closed():
                return ready
            # Another thread or event loop may take the news: look again soon.
            left = 0.1 if deadline is None else min(deadline - time.monotonic(), 0.1)
            if left <= 0:
                return []
            self._completions.route(left)

    # --- Notifications.

    def notify(self, segment: Segment, payload: bytes, timeout: float | None = None) -> None:
        """Delivers up to 64 KiB to the peer, exactly once. Waits until it has it, for up to
        `timeout` seconds (None: the engine's). Raises Unavailable, TimedOut, Again (its queue is
        full)."""
        self._native.notify(segment._handle, payload, timeout, segment._name)

    def notifications(self, timeout: float | None = 0.0, max: int = 256) -> list[Notification]:
        """What peers have sent, oldest first, each once, `max` at most. Waits for the first until
        `timeout` seconds (None: until there is one or the engine closes)."""
        return [Notification(*taken) for taken in self._native.notifications(max, timeout)]

    # --- The end.

    def close(self) -> None:
        """Ends everything within 2 s: batches under way fail with Cancelled, waiting calls return,
        peers can no longer reach this memory. Memory from `allocate` stays mapped while buffers of
        it exist. Idempotent."""
        self._native.close()
        if self._native.here():
            self._completions.end()
        self._regions.clear()

    def __del__(self) -> None:
        if "_native" in self.__dict__:  # Otherwise __init__ failed.
            self.close()

    def _prune(self) -> None:
        """Forgets regions that were closed, a few at a time."""
        for address in [a for a, r in _first(self._regions.items(), 4) if r.closed]:
            del self._regions[address]


def _first(items: Iterable[Any], count: int) -> list[Any]:
    return [item for item, _ in zip(items, range(count))]


def _op(op: str) -> int:
    if op == "write":
        return _WRITE
    if op == "read":
        return _READ
    raise InvalidArgument(f'op: must be "read" or "write", not {op!r}')


def _in_event_loop() -> bool:
    """Whether an event loop runs in this thread: then somebody may await the batch."""
    asyncio: Any = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


# --- Options from arguments and the environment -----


def _variable(name: str | None) -> str | None:
    value = None if name is None else os.environ.get(name)
    return value if value else None


def _text(value: str | None, variable: str) -> str | None:
    return _variable(variable) if value is None else str(value)


def _names(value: Sequence[str] | None, variable: str) -> list[str] | None:
    if value is not None:
        return [str(name) for name in value]
    text = _variable(variable)
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _flag(value: bool | None, variable: str) -> bool | None:
    text = _variable(variable)
    if value is not None or text is None:
        return None if value is None else bool(value)
    flags: Mapping[str, bool] = {"1": True, "true": True, "0": False, "false": False}
    if text.lower() not in flags:
        raise InvalidArgument(f"{variable}: must be 0 or 1, not {text!r}")
    return flags[text.lower()]


def _number(value: float | None, variable: str | None, option: str) -> float | None:
    given: Any = _variable(variable) if value is None else value
    if given is None:
        return None
    try:
        return float(given)
    except (TypeError, ValueError):
        what = option if value is not None else variable
        raise InvalidArgument(f"{what}: must be a number, not {given!r}") from None


def _count(value: int | None, variable: str | None, option: str) -> int | None:
    number = _number(value, variable, option)
    if number is None:
        return None
    if not 0 <= number < 2**31 or number != int(number):
        raise InvalidArgument(f"{option}: must be a whole number, 0 or more, not {number:g}")
    return int(number)


def _microseconds(value: float | None) -> float | None:
    return None if value is None else value / 1e6


_live: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for engine in list(_live):
        engine.close()
