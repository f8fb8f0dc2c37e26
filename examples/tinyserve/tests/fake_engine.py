"""A stand-in for moonpool.Engine, within one process: the calls tinyserve makes, and faults.

Memory is moved when a batch is waited for, not when it is submitted, so a test notices whoever
reads too early or reuses pages too soon. Tests only; the program always uses moonpool.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class FakeError(Exception):
    """As moonpool.Error."""

    def __init__(self, message: str, **attributes: str) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


class FakeRegion(mmap.mmap):
    """Engine-owned memory; `address` and `size` as in moonpool.Region."""

    @property
    def address(self) -> int:
        return int(np.frombuffer(self, dtype=np.uint8).ctypes.data)

    @property
    def size(self) -> int:  # type: ignore[override]
        return len(self)


@dataclass(frozen=True)
class FakeNotification:
    sender: str
    payload: bytes


@dataclass
class FakeNetwork:
    """Engines by address. `unreachable`: addresses whose transfers fail when waited for."""

    engines: dict[str, FakeEngineForTests] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)


class FakeBatch:
    transport = "fake"

    def __init__(self, target: FakeEngineForTests, copies: list[tuple[int, int, int]]) -> None:
        self.target = target
        self.copies = copies
        self.notification: FakeNotification | None = None
        self.waited = False
        self.cancelled = False

    def done(self) -> bool:
        return self.waited

    def cancel(self) -> None:
        self.cancelled = True

    def wait(self) -> None:
        assert not self.waited, "waited for twice"
        self.waited = True
        if self.cancelled or self.target.address in self.target.network.unreachable:
            code = "cancelled" if self.cancelled else "unavailable"
            raise FakeError("cannot write", code=code, peer=self.target.address, phase="data")
        for local, remote, length in self.copies:
            self.target.check(remote, length)
            ctypes.memmove(remote, local, length)
        if self.notification is not None:
            self.target.arrived.append(self.notification)


class FakeEngineForTests:
    """One engine in `network`; keeps every batch it submitted in `batches`."""

    def __init__(self, network: FakeNetwork) -> None:
        self.network = network
        self.address = f"127.0.0.1:{40000 + len(network.engines)}"
        self.arrived: list[FakeNotification] = []
        self.batches: list[FakeBatch] = []
        self._regions: list[FakeRegion] = []
        network.engines[self.address] = self

    def allocate(self, size: int) -> FakeRegion:
        region = FakeRegion(-1, size)
        self._regions.append(region)
        return region

    def check(self, address: int, length: int) -> None:
        """Whether a peer may write there."""
        inside = any(
            region.address <= address and address + length <= region.address + region.size
            for region in self._regions
        )
        assert inside, "write outside of the region"

    def open(self, address: str, timeout: float) -> FakeEngineForTests:
        if address not in self.network.engines:
            raise FakeError("no such peer", code="unavailable", peer=address, phase="connect")
        return self.network.engines[address]

    def write(
        self,
        segment: FakeEngineForTests,
        local_addresses: Any,
        remote_addresses: Any,
        lengths: Any,
        *,
        timeout: float = 5.0,
        priority: str = "bulk",
        notify: bytes | None = None,
    ) -> FakeBatch:
        assert timeout > 0 and priority in ("latency", "bulk")
        assert len(local_addresses) == len(remote_addresses) == len(lengths)
        copies = [
            (int(local), int(remote), int(length))
            for local, remote, length in zip(local_addresses, remote_addresses, lengths)
        ]
        batch = FakeBatch(segment, copies)
        if notify is not None:
            batch.notification = FakeNotification(self.address, notify)
        self.batches.append(batch)
        return batch

    def notifications(self, timeout: float = 0.0) -> list[FakeNotification]:
        arrived, self.arrived = self.arrived, []
        return arrived
