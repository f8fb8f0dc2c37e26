"""The forward pass against llama.cpp, and the paged cache against a contiguous one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinyserve.cache import PAGE_TOKENS, CacheFullError, CacheLayout, PagedCache, Sequence
from tinyserve.model import KeyValueStore, Model, greedy

# The arithmetic alone, keys and values kept in float32 as in the reference. Measured: 0.0002.
FLOAT32_TOLERANCE = 0.001
# With keys and values rounded to float16. Measured: 0.023, on tokens of probability below 1e-4.
FLOAT16_TOLERANCE = 0.06


class ContiguousStore:
    """Keys and values as plain arrays [tokens, kv_heads, head_size] for each layer, of `dtype`."""

    def __init__(self, dtype: type = np.float32) -> None:
        self._dtype = dtype
        self._layers: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def write(self, layer: int, start: int, keys: np.ndarray, values: np.ndarray) -> None:
        if start > 0:
            old = self._layers[layer]
            keys = np.concatenate([old[0][:start], keys])
            values = np.concatenate([old[1][:start], values])
        self._layers[layer] = keys.astype(self._dtype), values.astype(self._dtype)

    def read(self, layer: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        keys, values = self._layers[layer]
        return keys[:count].astype(np.float32), values[:count].astype(np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def largest_error(model: Model, store: KeyValueStore, case: dict[str, Any]) -> float:
    """Largest difference of any log-probability the reference lists for `case`."""
    generated = [step["id"] for step in case["steps"]]
    tokens = case["ids"] + generated[:-1]
    logits = model.forward(tokens, store, all_positions=True)[len(case["ids"]) - 1 :]
    ours = log_softmax(logits)
    return max(
        abs(float(ours[row, token]) - float(expected))
        for row, step in enumerate(case["steps"])
        for token, expected in step["top"]
    )


def generate(model: Model, store: KeyValueStore, prompt: list[int], count: int) -> list[int]:
    tokens = [greedy(model.forward(prompt, store))]
    while len(tokens) < count:
        tokens.append(greedy(model.forward(tokens[-1:], store, len(prompt) + len(tokens) - 1)))
    return tokens


def test_logits_equal_the_reference_in_float32(model: Model, reference: dict[str, Any]) -> None:
    for case in reference["chats"]:
        assert largest_error(model, ContiguousStore(), case) < FLOAT32_TOLERANCE


def test_logits_equal_the_reference_with_the_paged_cache(
    model: Model, cache: PagedCache, reference: dict[str, Any]
) -> None:
    for case in reference["chats"]:
        sequence = Sequence(cache, len(case["ids"]) + len(case["steps"]))
        assert largest_error(model, sequence, case) < FLOAT16_TOLERANCE
        sequence.close()


def test_greedy_tokens_equal_the_reference(
    model: Model, cache: PagedCache, reference: dict[str, Any]
) -> None:
    case = reference["chats"][2]
    expected = [step["id"] for step in case["steps"]]
    sequence = Sequence(cache, len(case["ids"]) + len(expected))
    assert generate(model, sequence, case["ids"], len(expected)) == expected


def test_paged_cache_equals_a_contiguous_one_bit_for_bit(
    model: Model, cache: PagedCache, reference: dict[str, Any]
) -> None:
    tokens = reference["chats"][3]["ids"]
    scattered = cache.allocate(5)
    cache.release(scattered[::2])  # The free list is no longer in order.
    sequence = Sequence(cache, len(tokens))
    assert sequence.pages != sorted(sequence.pages)
    paged = model.forward(tokens, sequence)
    contiguous = model.forward(tokens, ContiguousStore(np.float16))
    assert np.array_equal(paged, contiguous)


def test_chunk_size_does_not_change_the_answer(
    model: Model, cache: PagedCache, reference: dict[str, Any]
) -> None:
    tokens = reference["chats"][3]["ids"]
    whole = model.forward(tokens, Sequence(cache, len(tokens)))
    chunked = Model(model.weights, chunk_tokens=7).forward(tokens, Sequence(cache, len(tokens)))
    assert np.abs(whole - chunked).max() < 0.05
    assert greedy(whole) == greedy(chunked)


def test_on_layer_sees_the_finished_keys_and_values(
    model: Model, cache: PagedCache, reference: dict[str, Any]
) -> None:
    tokens = reference["chats"][0]["ids"]
    sequence = Sequence(cache, len(tokens))
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    model.forward(tokens, sequence, on_layer=lambda i: seen.append(sequence.read(i, len(tokens))))
    assert len(seen) == model.config.layers
    for layer, (keys, values) in enumerate(seen):
        later = sequence.read(layer, len(tokens))
        assert np.array_equal(keys, later[0]) and np.array_equal(values, later[1])
        assert np.abs(keys).max() > 0


def test_a_longer_prompt_does_not_change_earlier_positions(
    model: Model, cache: PagedCache, reference: dict[str, Any]
) -> None:
    tokens = reference["chats"][0]["ids"]
    short = model.forward(tokens[:20], Sequence(cache, 20), all_positions=True)
    long = model.forward(tokens, Sequence(cache, len(tokens)), all_positions=True)[:20]
    assert np.abs(short - long).max() < 0.05


def test_addresses_name_the_pages_of_a_layer() -> None:
    layout = CacheLayout(layers=3, pages=4, kv_heads=2, head_size=8)
    cache = PagedCache(layout, bytearray(layout.size_bytes))
    base = cache.array.ctypes.data
    addresses = layout.addresses(base, layer=2, pages=[3, 1])
    expected = [cache.array[2, kind, page].ctypes.data for kind in (0, 1) for page in (3, 1)]
    assert addresses.dtype == np.uint64 and addresses.tolist() == expected
    assert layout.page_bytes == PAGE_TOKENS * 2 * 8 * 2


def test_the_allocator_says_when_it_is_full_and_reuses_what_was_freed() -> None:
    layout = CacheLayout(layers=1, pages=4, kv_heads=1, head_size=2)
    cache = PagedCache(layout, bytearray(layout.size_bytes))
    sequence = Sequence(cache, 3 * PAGE_TOKENS)
    with pytest.raises(CacheFullError, match="2 pages needed, 1 of 4 free"):
        Sequence(cache, PAGE_TOKENS + 1)
    assert cache.free_pages == 1
    sequence.close()
    sequence.close()
    assert sorted(cache.allocate(4)) == [0, 1, 2, 3]
