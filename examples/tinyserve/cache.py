"""The paged key/value cache: pages of 16 tokens, float16, in one buffer.

Layout ``[layers, 2, pages, PAGE_TOKENS, kv_heads, head_size]``; index 0 of the second axis is K,
index 1 is V. A page number names the same slot in every layer, so a sequence needs one page table,
and one page of one layer is two contiguous runs of `page_bytes` bytes: what a transfer moves.

Not responsible for who owns the buffer: it is borrowed from the engine and must outlive the cache.
Threads: thread-compatible; each worker uses it from one thread.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

PAGE_TOKENS = 16
_ELEMENT_BYTES = 2  # float16


class CacheFullError(RuntimeError):
    """Not enough free pages; free some or start with more (--pages)."""


@dataclass(frozen=True)
class CacheLayout:
    """Sizes of a cache, and the arithmetic from pages to addresses. A value."""

    layers: int
    pages: int
    kv_heads: int
    head_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.layers, 2, self.pages, PAGE_TOKENS, self.kv_heads, self.head_size)

    @property
    def page_bytes(self) -> int:
        """Bytes of K (or of V) of one page in one layer."""
        return PAGE_TOKENS * self.kv_heads * self.head_size * _ELEMENT_BYTES

    @property
    def size_bytes(self) -> int:
        return self.layers * 2 * self.pages * self.page_bytes

    def addresses(self, base: int, layer: int, pages: SequenceOf[int]) -> np.ndarray:
        """Addresses of all K runs, then all V runs of `pages` in `layer`.

        `base` is the address of the buffer's first byte, here or at a peer.
        Returns uint64 [2 * len(pages)].
        """
        numbers = np.asarray(pages, dtype=np.uint64)
        first = np.uint64(2 * layer * self.pages)
        runs = np.concatenate([first + numbers, first + np.uint64(self.pages) + numbers])
        result: np.ndarray = np.uint64(base) + runs * np.uint64(self.page_bytes)
        return result

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> CacheLayout:
        return CacheLayout(**record)


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_TOKENS)


class PagedCache:
    """The buffer as an array, and the allocator of its pages."""

    def __init__(self, layout: CacheLayout, buffer: Any) -> None:
        """`buffer`: writable, buffer protocol, at least `layout.size_bytes` bytes; borrowed."""
        self.layout = layout
        flat = np.frombuffer(buffer, dtype=np.float16, count=layout.size_bytes // _ELEMENT_BYTES)
        self.array = flat.reshape(layout.shape)
        self._free = list(range(layout.pages - 1, -1, -1))  # A stack: page 0 goes first.
        self._allocated: set[int] = set()

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` pages. Raises CacheFullError and takes none when there are fewer."""
        if count > len(self._free):
            raise CacheFullError(
                f"{count} pages needed, {len(self._free)} of {self.layout.pages} free"
            )
        taken = [self._free.pop() for _ in range(count)]
        self._allocated.update(taken)
        return taken

    def release(self, pages: SequenceOf[int]) -> None:
        """Gives pages back. Requires: each is allocated, and nothing writes to it any more."""
        for page in pages:
            self._allocated.remove(page)  # KeyError: freed twice, a mistake of ours.
            self._free.append(page)


class Sequence:
    """One request's tokens in the cache: a page table over `cache`. Owns its pages until `close`."""

    def __init__(self, cache: PagedCache, tokens_max: int) -> None:
        """Takes the pages for `tokens_max` tokens at once. Raises CacheFullError."""
        self._cache = cache
        self.tokens_max = tokens_max
        self.pages = cache.allocate(pages_for(tokens_max))
        self._table = np.asarray(self.pages, dtype=np.intp)

    def write(self, layer: int, start: int, keys: np.ndarray, values: np.ndarray) -> None:
        """Stores K and V of tokens start..start+n, each [n, kv_heads, head_size], as float16."""
        assert start + len(keys) <= self.tokens_max, "sequence grew past its reservation"
        positions = np.arange(start, start + len(keys))
        pages, slots = self._table[positions // PAGE_TOKENS], positions % PAGE_TOKENS
        self._cache.array[layer, 0, pages, slots] = keys
        self._cache.array[layer, 1, pages, slots] = values

    def read(self, layer: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """K and V of the first `count` tokens, each float32 [count, kv_heads, head_size]."""
        pages = self._table[: pages_for(count)]
        shape = (-1, self._cache.layout.kv_heads, self._cache.layout.head_size)
        keys = self._cache.array[layer, 0, pages].reshape(shape)[:count]
        values = self._cache.array[layer, 1, pages].reshape(shape)[:count]
        return keys.astype(np.float32), values.astype(np.float32)

    def close(self) -> None:
        """Releases the pages; idempotent."""
        pages, self.pages = self.pages, []
        self._cache.release(pages)
