"""`mooncake.engine`: Mooncake's transfer engine interface, on Moonpool.

Names, positions and results are Mooncake's. What is different, on purpose: a call never outlives
its deadline, and nothing is written after it; a batch is "complete" when all of it is; ids are
numbers, not pointers, and a wrong one is an error; a peer that restarts under its old address is
found again; a wrong address is an error with a reason, in the log of `mooncake.engine`; nothing
waits for one peer while it holds what another needs. Calls before initialize fail; they do not
crash. The CUDA-stream calls exist only where CUDA does.

In this interface "tcp" names the network: a process that is proven to be on this host is reached
through shared memory, unless MC_FORCE_TCP=1. Variables: see _settings.py.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
import json
import logging
import os
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any

import moonpool

from . import _memory, _settings
from ._managed import ManagedBuffers

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "InnerTransferEngine",
    "Read",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
]

SUPPORT_EFA = False
SUPPORT_HIP = False
SUPPORT_MNNVL = False
SUPPORT_MUSA = False
SUPPORT_INTRA_NVLINK = False
SUPPORT_CUDA = False

_log = logging.getLogger("mooncake.engine")

# Mooncake's error codes, as far as Python sees them.
_INVALID_ARGUMENT = -1
_ADDRESS_NOT_REGISTERED = -3
_BATCH_BUSY = -4
_DEVICE_NOT_FOUND = -6
_ADDRESS_OVERLAPPED = -7
_DNS = -101
_SOCKET = -102
_METADATA = -200
_MEMORY = -302

_PROBE_SECONDS = 5.0
_SWEEP_EVERY = 1024  # submissions
_ROOM_SECONDS = 0.01
_READ, _WRITE = 0, 1


class TransferOpcode(enum.IntEnum):
    Read = 0
    Write = 1
    READ = 0
    WRITE = 1


_Opcode = TransferOpcode  # Inside TransferEngine the name is an attribute.

Read = TransferOpcode.Read
Write = TransferOpcode.Write


class TransferNotify:
    """A small message that is delivered to the peer after the data."""

    __slots__ = ("msg", "name")

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


_NOTIFY_MAGIC = b"MCN1"


def _encode_notify(notify: TransferNotify) -> bytes:
    name = notify.name.encode()
    return _NOTIFY_MAGIC + struct.pack("<I", len(name)) + name + notify.msg.encode()


def _decode_notify(sender: str, payload: bytes) -> TransferNotify:
    """Anything that is not ours is shown under its sender's name."""
    if payload[:4] == _NOTIFY_MAGIC and len(payload) >= 8:
        (size,) = struct.unpack_from("<I", payload, 4)
        if size <= len(payload) - 8:
            name, msg = payload[8 : 8 + size], payload[8 + size :]
            return TransferNotify(name.decode(errors="replace"), msg.decode(errors="replace"))
    return TransferNotify(sender, payload.decode(errors="replace"))


class InnerTransferEngine:
    """What get_engine gives: lets other parts of this package share one engine. Opaque."""

    __slots__ = ("_owner",)

    def __init__(self, owner: TransferEngine) -> None:
        self._owner = owner


class _Finished:
    """The outcome of a batch that had nothing to move."""

    def wait(self) -> None:
        pass

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        pass


class _State:
    """What exists between a successful initialize and the end."""

    def __init__(self, engine: moonpool.Engine) -> None:
        self.engine = engine
        self.managed = ManagedBuffers(engine)
        self.regions: dict[int, moonpool.Region] = {}
        self._lock = threading.Lock()
        self._segments: dict[str, moonpool.Segment] = {}
        self._opening: dict[str, threading.Lock] = {}

    def segment(self, name: str, timeout: float) -> moonpool.Segment:
        """Opened once. Whoever needs another peer does not wait for this one."""
        segment = self._segments.get(name)
        if segment is not None:
            return segment
        with self._lock:
            opening = self._opening.setdefault(name, threading.Lock())
        if not opening.acquire(timeout=timeout):
            raise moonpool.TimedOut(
                f"{name} was not reached within {timeout:g} s", peer=name, phase="connect"
            )
        try:
            segment = self._segments.get(name)
            if segment is None:
                segment = self.engine.open(name, timeout)
                self._segments[name] = segment
            return segment
        finally:
            opening.release()


class TransferEngine:
    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._timeout = _settings.transfer_timeout_seconds()
        self._state: _State | None = None
        self._inner: InnerTransferEngine | None = None
        self._ids = itertools.count(1)
        self._batches: dict[int, Any] = {}

    def __del__(self) -> None:
        state = self.__dict__.get("_state")
        if state is not None:
            state.engine.close()

    # --- Start.

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, /
    ) -> int:
        return self._initialize(local_hostname, metadata_server, protocol, None)

    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str,
        metadata_type: str,
        /,
    ) -> int:
        return self._initialize(local_hostname, metadata_server, protocol, metadata_type)

    def _initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, metadata_type: str | None
    ) -> int:
        for value in (local_hostname, metadata_server, protocol, metadata_type or ""):
            if not isinstance(value, str):
                raise TypeError(f"initialize takes strings, not {type(value).__name__}")
        if protocol == "xgmi":
            _log.error("initialize failed: protocol 'xgmi' is not available")
            return -1
        try:
            engine = self._create(local_hostname, metadata_server, metadata_type)
        except (moonpool.Error, ValueError) as error:
            _log.error("initialize failed for %s: %s", local_hostname, error)
            return -1
        before, self._state = self._state, _State(engine)
        if before is not None:
            before.engine.close()
        return 0

    def _create(
        self, local_hostname: str, metadata_server: str, metadata_type: str | None
    ) -> moonpool.Engine:
        metadata = _settings.parse_metadata(metadata_server, metadata_type)
        host, port = _settings.split_host_port(local_hostname)
        name = None
        if metadata.registry is not None:
            cluster = os.environ.get("MC_METADATA_CLUSTER_ID")
            name = f"{cluster}/{local_hostname}" if cluster else local_hostname
        failure: Exception = ValueError("no port to listen on")
        for listen in _settings.listen_addresses(port):
            try:
                return moonpool.Engine(
                    listen=listen,
                    name=name,
                    registry=metadata.registry,
                    transports=["tcp"] if _settings.variable_is_on("MC_FORCE_TCP") else None,
                    advertise_host=os.environ.get("MC_TCP_BIND_ADDRESS") or host or None,
                    timeout=self._timeout,
                    log_level=_settings.log_level(),
                )
            except moonpool.AlreadyExists as error:  # The port is taken.
                failure = error
        raise failure

    def get_rpc_port(self) -> int:
        if self._state is None:
            return 0
        return int(self._state.engine.address.rpartition(":")[2])

    def get_engine(self) -> InnerTransferEngine:
        if self._inner is None:
            self._inner = InnerTransferEngine(self)
        return self._inner

    def get_engine_ptr(self) -> int:
        return id(self.get_engine())

    # --- Memory.

    def allocate_managed_buffer(self, length: int, /) -> int:
        state = self._state
        if state is None or length <= 0:
            return 0
        try:
            return state.managed.allocate(length)
        except moonpool.Error as error:
            _log.error("allocate_managed_buffer of %d bytes failed: %s", length, error)
            return 0

    def free_managed_buffer(self, buffer_addr: int, length: int, /) -> int:
        state = self._state
        try:
            if state is None or not state.managed.free(buffer_addr):
                _log.warning("free_managed_buffer: 0x%x is no managed buffer", buffer_addr)
        except moonpool.Error as error:
            _log.error("free_managed_buffer of 0x%x failed: %s", buffer_addr, error)
        return 0

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        return self._register(self._state, buffer_addr, capacity, location)

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """The first error's code; what could be registered is registered."""
        if len(buffer_addresses) != len(capacities):
            _log.error(
                "batch_register_memory: %d addresses, %d capacities",
                len(buffer_addresses), len(capacities),
            )  # fmt: skip
            return _INVALID_ARGUMENT
        results = [
            self._register(self._state, address, capacity, location)
            for address, capacity in zip(buffer_addresses, capacities)
        ]
        return next((result for result in results if result != 0), 0)

    def _register(self, state: _State | None, address: int, size: int, location: str) -> int:
        if state is None:
            return _INVALID_ARGUMENT
        if location != "*" and location.partition(":")[0] != "cpu":
            _log.error("register_memory: location %r: only host memory can be used", location)
            return _DEVICE_NOT_FOUND
        try:
            state.regions[address] = state.engine.register(address, size)
        except moonpool.AlreadyExists as error:
            _log.error("register_memory of 0x%x: %s", address, error)
            return _ADDRESS_OVERLAPPED
        except moonpool.InvalidArgument as error:
            _log.error("register_memory of 0x%x: %s", address, error)
            return _INVALID_ARGUMENT
        except moonpool.Error as error:
            _log.error("register_memory of 0x%x: %s", address, error)
            return _MEMORY
        return 0

    def unregister_memory(self, buffer_addr: int, /) -> int:
        state = self._state
        if state is None:
            return _INVALID_ARGUMENT
        region = state.regions.get(buffer_addr)
        if region is None:
            return _ADDRESS_NOT_REGISTERED
        try:
            region.close()
        except moonpool.TimedOut:
            _log.error("unregister_memory of 0x%x: transfers still use it", buffer_addr)
            return _BATCH_BUSY
        except moonpool.NotFound:
            pass  # Another thread was quicker.
        except moonpool.Error as error:
            _log.error("unregister_memory of 0x%x: %s", buffer_addr, error)
            return _MEMORY
        state.regions.pop(buffer_addr, None)
        return 0

    def batch_unregister_memory(self, buffer_addresses: Sequence[int], /) -> int:
        results = [self.unregister_memory(address) for address in buffer_addresses]
        return next((result for result in results if result != 0), 0)

    def write_bytes_to_buffer(self, dest_address: int, src: bytes | str, length: int, /) -> int:
        data = src.encode() if isinstance(src, str) else bytes(src)
        if not 0 <= length <= len(data):
            _log.error("write_bytes_to_buffer: %d bytes of an object of %d", length, len(data))
            return -1
        try:
            _memory.store(dest_address, data[:length])
        except ValueError as error:
            _log.error("write_bytes_to_buffer: %s", error)
            return -1
        return 0

    def read_bytes_from_buffer(self, source_address: int, length: int, /) -> bytes:
        """Raises ValueError for memory that is not there."""
        if length < 0:
            raise ValueError("length must not be negative")
        return _memory.load(source_address, length)

    # --- Transfers that wait.

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self._sync(_WRITE, target_hostname, [buffer], [peer_buffer_address], [length])

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self._sync(_READ, target_hostname, [buffer], [peer_buffer_address], [length])

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self._sync(_WRITE, target_hostname, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self._sync(_READ, target_hostname, buffers, peer_buffer_addresses, lengths)

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: _Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        return self._sync(
            int(opcode), target_hostname, [buffer], [peer_buffer_address], [length], notify
        )

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: _Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        return self._sync(
            int(opcode), target_hostname, buffers, peer_buffer_addresses, lengths, notify
        )

    def _sync(
        self,
        op: int,
        target: str,
        local: Sequence[int],
        remote: Sequence[int],
        lengths: Sequence[int],
        notify: TransferNotify | None = None,
    ) -> int:
        try:
            self._start(op, target, local, remote, lengths, notify, wait_follows=True).wait()
        except moonpool.Error as error:
            _log.error("transfer with %s failed: %s", target, error)
            return -1
        return 0

    # --- Transfers that go on.

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self._async(_WRITE, target_hostname, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self._async(_READ, target_hostname, buffers, peer_buffer_addresses, lengths)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: _Opcode,
        transport_hint: str = "",
    ) -> int:
        return self._async(int(opcode), target_hostname, buffers, peer_buffer_addresses, lengths)

    def transfer_submit_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self._async(_WRITE, target_hostname, [buffer], [peer_buffer_address], [length])

    def _async(
        self,
        op: int,
        target: str,
        local: Sequence[int],
        remote: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                batch = self._start(op, target, local, remote, lengths, None, wait_follows=False)
                break
            except moonpool.Exhausted as error:
                # Every place in the engine is taken: finished batches give theirs back.
                if time.monotonic() >= deadline:
                    _log.error("transfer with %s failed: %s", target, error)
                    return 0
                self._make_room()
            except moonpool.Error as error:
                _log.error("transfer with %s failed: %s", target, error)
                return 0
        number = next(self._ids)
        self._batches[number] = batch
        if number % _SWEEP_EVERY == 0:
            self._sweep()
        return number

    def _sweep(self) -> list[Any]:
        """The batches that still run. One that is finished and looked at gives its place back."""
        return [batch for batch in list(self._batches.values()) if not batch.done()]

    def _make_room(self) -> None:
        """Gives back the places of finished batches, and waits a moment for one that runs."""
        running = self._sweep()
        if running:
            with contextlib.suppress(moonpool.Error):
                running[0].wait(_ROOM_SECONDS)
        else:
            time.sleep(_ROOM_SECONDS)  # Waiting calls of other threads have the places.

    def get_batch_transfer_status(self, batch_ids: Sequence[int], /) -> int:
        """Waits for all; after the first failure the others are cancelled. Ids are used up."""
        result = 0
        for number in batch_ids:
            batch = self._batches.pop(number, None)
            if batch is None:
                _log.error("get_batch_transfer_status: batch %d is unknown or used up", number)
                result = -1
                continue
            if result != 0:
                batch.cancel()
            try:
                batch.wait()
            except moonpool.Error as error:
                if result == 0:
                    _log.error("batch %d failed: %s", number, error)
                result = -1
        return result

    def transfer_check_status(self, batch_id: int, /) -> int:
        """1 done, 0 in progress, -1 failed, -2 timed out; the id is used up unless 0."""
        batch = self._batches.get(batch_id)
        if batch is None:
            _log.error("transfer_check_status: batch %d is unknown or used up", batch_id)
            return -1
        if not batch.done():
            return 0
        self._batches.pop(batch_id, None)
        try:
            batch.wait()
        except moonpool.Error as error:
            _log.error("batch %d failed: %s", batch_id, error)
            return -2 if isinstance(error, moonpool.TimedOut) else -1
        return 1

    # --- What both do.

    def _start(
        self,
        op: int,
        target: str,
        local: Sequence[int],
        remote: Sequence[int],
        lengths: Sequence[int],
        notify: TransferNotify | None,
        *,
        wait_follows: bool,
    ) -> Any:
        state = self._state
        if state is None:
            raise moonpool.InvalidArgument("initialize was not called, or failed", peer=target)
        if not isinstance(target, str):
            raise TypeError(f"target_hostname must be a str, not {type(target).__name__}")
        if not len(local) == len(remote) == len(lengths):
            raise moonpool.InvalidArgument(
                f"{len(local)} buffers, {len(remote)} peer addresses, {len(lengths)} lengths",
                peer=target,
            )
        # Mooncake's deadline: the timeout, and a nanosecond for each byte.
        total, zeros = state.engine._native.measure(lengths)
        timeout = self._timeout + total * 1e-9
        segment = state.segment(target, timeout)
        if zeros:
            kept = [i for i, length in enumerate(lengths) if length != 0]
            local, remote, lengths = (
                [values[i] for i in kept] for values in (local, remote, lengths)
            )
        payload = None if notify is None else _encode_notify(notify)
        if len(lengths) == 0:
            if payload is not None:
                state.engine.notify(segment, payload, timeout)
            return _Finished()
        return state.engine._native.transfer(
            state.engine, op, segment._handle, local, remote, lengths, timeout, "bulk", payload,
            False, wait_follows,
        )  # fmt: skip

    # --- Peers.

    def get_notifies(self) -> list[TransferNotify]:
        if self._state is None:
            return []
        taken: list[TransferNotify] = []
        while True:
            some = self._state.engine.notifications(timeout=0.0, max=1024)
            taken += [_decode_notify(one.sender, one.payload) for one in some]
            if len(some) < 1024:
                return taken

    def get_first_buffer_address(self, segment_name: str, /) -> int:
        """The lowest address that the peer offers; 0 if it is unknown or offers none."""
        try:
            regions = self._regions_of(segment_name)
        except moonpool.Error as error:
            _log.warning("%s was not reached: %s", segment_name, error)
            return 0
        return regions[0].address if regions else 0

    def send_probe(self, peer_server_name: str) -> int:
        """0 reachable; -200 not in the registry, -101 no such host, -102 it does not answer."""
        if self._state is None:
            return -1
        try:
            self._regions_of(peer_server_name)
        except moonpool.Error as error:
            _log.warning("%s was not reached: %s", peer_server_name, error)
            if isinstance(error, moonpool.NotFound):
                return _METADATA
            no_host = isinstance(error, moonpool.InvalidArgument) or error.phase == "resolve"
            return _DNS if no_host else _SOCKET
        return 0

    def _regions_of(self, name: str) -> list[moonpool.RemoteRegion]:
        if self._state is None:
            return []
        return self._state.segment(name, _PROBE_SECONDS).refresh(_PROBE_SECONDS)

    def warmup_efa_segment(self, segment_name: str) -> int:
        return 0

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Which NICs are near which memory: {"cpu:0": [[near], [others]], ...}."""
        matrix = json.loads(moonpool._native.local_topology())
        if device_name:
            wanted = {name.strip() for name in device_name.split(",")}
            matrix = {
                location: [[name for name in names if name in wanted] for names in rows]
                for location, rows in matrix.items()
            }
        return json.dumps(matrix)
