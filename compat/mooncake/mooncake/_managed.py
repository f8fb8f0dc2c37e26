"""Managed buffers: memory that the engine allocates, in power-of-two classes from 8 KiB to 1 MiB cut
from slabs, and larger ones each for themselves. Freed buffers are used again for their class.

Threads: thread-safe.
"""

from __future__ import annotations

import threading

import moonpool

_SMALLEST = 8 << 10
_LARGEST = 1 << 20
_SLAB = 32 << 20


class ManagedBuffers:
    def __init__(self, engine: moonpool.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._slabs: list[moonpool.Region] = []
        self._next = 0  # offset in the last slab
        self._free: dict[int, list[int]] = {}  # class -> addresses
        self._class_of: dict[int, int] = {}  # address in use -> class
        self._large: dict[int, moonpool.Region] = {}

    def allocate(self, length: int) -> int:
        """The address of `length` bytes, aligned to 4 KiB. Raises moonpool.Error."""
        size = max(_SMALLEST, 1 << (length - 1).bit_length())
        if size > _LARGEST:
            region = self._engine.allocate(length)
            with self._lock:
                self._large[region.address] = region
            return region.address
        with self._lock:
            free = self._free.get(size)
            address = free.pop() if free else self._cut(size)
            self._class_of[address] = size
            return address

    def _cut(self, size: int) -> int:
        offset = -(-self._next // size) * size
        if not self._slabs or offset + size > _SLAB:
            self._slabs.append(self._engine.allocate(_SLAB))
            offset = 0
        self._next = offset + size
        return self._slabs[-1].address + offset

    def free(self, address: int) -> bool:
        """False: no such buffer. Raises moonpool.Error when transfers still use it."""
        with self._lock:
            size = self._class_of.pop(address, None)
            if size is not None:
                self._free.setdefault(size, []).append(address)
                return True
            region = self._large.pop(address, None)
        if region is None:
            return False
        region.close()
        return True
