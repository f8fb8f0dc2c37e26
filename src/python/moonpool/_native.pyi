"""What moonpool needs from C++. Use the package moonpool instead."""

from collections.abc import Generator, Sequence
from typing import Any

from typing_extensions import Buffer


class Region(Buffer):
    """
    Memory that takes part in transfers, from Engine.register or Engine.allocate.

    Offers the buffer protocol (memoryview(region), numpy.frombuffer(region)). A
    registration lasts until close() or Engine.close(), also when this object is dropped;
    memory from Engine.allocate is freed when the object and all its buffers are gone.
    Thread-safe; a context manager that closes.
    """

    @property
    def address(self) -> int:
        """Address of the first byte in this process."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def rights(self) -> str:
        """What peers may do: "r", "w", "rw" or ""."""

    @property
    def closed(self) -> bool:
        """True after close() or Engine.close()."""

    def close(self, timeout: float | None = None) -> None:
        """
        Ends the registration, or frees the memory. Waits for batches that use it for up to
        `timeout` seconds (None: the engine's timeout), then raises TimedOut. Raises BufferError
        while a buffer of it is in use. Idempotent.
        """

    def __len__(self) -> int: ...

    def __enter__(self) -> Region: ...

    def __exit__(self, *args: object) -> None: ...

    def __repr__(self) -> str: ...

class BatchStatus:
    """What a batch has done so far, or how it ended. A value."""

    @property
    def done(self) -> bool:
        """Nothing of the batch touches memory any more."""

    @property
    def ok(self) -> bool:
        """Done, and every byte is there."""

    @property
    def code(self) -> str:
        """"ok", or what failed first, e.g. "timed_out"."""

    @property
    def message(self) -> str | None:
        """Of the first failure, or None."""

    @property
    def bytes_total(self) -> int:
        """Bytes to move."""

    @property
    def bytes_done(self) -> int:
        """Bytes moved so far."""

    @property
    def retries(self) -> int:
        """Slices sent again."""

    @property
    def transport(self) -> str:
        """The transports used, joined by "+"."""

    @property
    def peer(self) -> str | None:
        """Of the first failure, or None."""

    @property
    def failed_transport(self) -> str | None:
        """Of the first failure, or None."""

    @property
    def phase(self) -> str | None:
        """
        resolve, connect, handshake, data or commit, of the first failure; or None.
        """

    def __repr__(self) -> str: ...

class Batch:
    """
    Transfers under way, from Engine.write, Engine.read or Engine.submit.

    Once it is done, ok or not, nothing of it touches memory on either side. Dropping a
    batch that still runs cancels it. Thread-safe. `await batch` waits in an asyncio event
    loop, without a thread, and gives the batch; cancelling the awaiting task cancels it.
    """

    def wait(self, timeout: float | None = None) -> Batch:
        """
        Waits until the batch is done and returns it; raises its error if it failed. None: as
        long as its own deadline lets it run. After `timeout` seconds raises TimedOut; the batch
        then goes on (see done()). Signal handlers run at least every 0.1 s.
        """

    def done(self) -> bool:
        """True once the batch has ended, ok or not. Never waits."""

    def cancel(self) -> None:
        """
        Asks the batch to end; it does so soon, and by its deadline at the latest, with
        Cancelled unless it was quicker. Never waits.
        """

    def status(self) -> BatchStatus:
        """A snapshot. Never waits."""

    @property
    def transport(self) -> str:
        """The transports used so far, joined by "+"."""

    @property
    def bytes(self) -> int:
        """Bytes moved so far."""

    @property
    def _queued(self) -> bool: ...

    @property
    def _handle(self) -> int: ...

    @property
    def _engine(self) -> Any: ...

    def __await__(self) -> Generator[Any, None, Batch]: ...

    def __repr__(self) -> str: ...

class Engine:
    def __init__(self, settings: dict[str, Any]) -> None: ...

    def name(self) -> str: ...

    def address(self) -> str: ...

    def info(self) -> dict[str, Any]: ...

    def event_fd(self) -> int: ...

    def closed(self) -> bool: ...

    def here(self) -> bool: ...

    def close(self) -> None: ...

    def register(self, memory: object, size: int | None, rights: str) -> Region: ...

    def allocate(self, size: int, rights: str, huge_pages: bool) -> Region: ...

    def register_many(self, addresses: object, sizes: object, rights: str) -> list[Region]: ...

    def deregister_many(self, regions: Sequence[Region], timeout: float | None) -> None: ...

    def open(self, arg0: str, arg1: float | None, /) -> int: ...

    def close_segment(self, arg: int, /) -> None: ...

    def segment(self, segment: int, refresh: bool, timeout: float | None, name: str) -> dict[str, Any]: ...

    def notify(self, arg0: int, arg1: bytes, arg2: float | None, arg3: str, /) -> None: ...

    def notifications(self, max: int, timeout: float | None) -> list[tuple[str, bytes]]: ...

    def count_descriptors(self, arg0: object, arg1: object, arg2: object, /) -> int: ...

    def measure(self, lengths: object) -> tuple[int, int]: ...

    def transfer(self, keeper: object, op: int, segment: int, local: object, remote: object, lengths: object, timeout: float | None, priority: str, notify: bytes | None, to_queue: bool, wait_follows: bool) -> Batch: ...

    def submit(self, keeper: object, transfers: list[tuple[int, int, object, object, object]], timeout: float | None, priority: str, notify: bytes | None, to_queue: bool) -> Batch: ...

    def next_completed(self, max: int, timeout: float | None) -> list[int]: ...

def crc32c_implementation() -> str: ...

def local_topology() -> str: ...

def fence_is_exact() -> bool: ...
