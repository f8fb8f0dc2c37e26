"""The forward pass of a Llama-like model in numpy: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Prefill runs **layer by layer over the whole prompt**, not chunk by chunk over all layers: within a
layer the prompt is cut into chunks (which bounds the attention scores), but all K and V of a layer
are written before the next layer starts. So the first layer's cache is complete, and can leave for
the decode worker, after a thirtieth of the work. Keys and values are read back from the float16
cache, also during prefill: prefill and decode see the same rounded numbers.

Results are the same bit for bit in every process with the same BLAS, one thread and the same chunk.
"""

from __future__ import annotations

from typing import Callable, Protocol

import numpy as np

from .weights import LayerWeights, Weights

CHUNK_TOKENS = 128


class KeyValueStore(Protocol):
    """What the model asks of a cache; `cache.Sequence` is one."""

    def write(self, layer: int, start: int, keys: np.ndarray, values: np.ndarray) -> None: ...

    def read(self, layer: int, count: int) -> tuple[np.ndarray, np.ndarray]: ...


def rms_norm(x: np.ndarray, scale: np.ndarray, epsilon: float) -> np.ndarray:
    """`x` [n, width] over its root mean square, times `scale` [width]."""
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    normed: np.ndarray = x / np.sqrt(mean_square + np.float32(epsilon)) * scale
    return normed


def rotate(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> np.ndarray:
    """RoPE. `x` [n, heads, head_size]; `cosine`, `sine` [n, head_size / 2].

    Neighbours (2i, 2i+1) form a pair: GGUF files store the Llama projections in that order.
    """
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    cosine, sine = cosine[:, None, :], sine[:, None, :]
    turned = np.stack([even * cosine - odd * sine, even * sine + odd * cosine], axis=-1)
    return turned.reshape(x.shape)


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x), element by element; clipped where float32 exp would overflow."""
    gated: np.ndarray = x / (1 + np.exp(-np.maximum(x, np.float32(-80))))
    return gated


def attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, start: int) -> np.ndarray:
    """Causal grouped-query attention of n tokens at positions start..start+n.

    `queries` [n, heads, size]; `keys`, `values` [start + n, kv_heads, size].
    Returns [n, heads * size].
    """
    count, heads, size = queries.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    grouped = queries.reshape(count, kv_heads, group, size).transpose(1, 2, 0, 3)
    grouped = grouped.reshape(kv_heads, group * count, size) * np.float32(size**-0.5)
    scores = grouped @ keys.transpose(1, 2, 0)  # [kv_heads, group * count, start + count]
    scores = scores.reshape(kv_heads, group, count, start + count)
    if count > 1:
        hidden = np.arange(start + count)[None, :] > start + np.arange(count)[:, None]
        scores[:, :, hidden] = -np.inf
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: np.ndarray = scores.reshape(kv_heads, group * count, -1) @ values.transpose(1, 0, 2)
    mixed = mixed.reshape(kv_heads, group, count, size).transpose(2, 0, 1, 3)
    return mixed.reshape(count, heads * size)


class Model:
    """Weights and the forward pass; no state between calls. Borrows `weights`."""

    def __init__(self, weights: Weights, chunk_tokens: int = CHUNK_TOKENS) -> None:
        self.weights = weights
        self.config = weights.config
        self._chunk = chunk_tokens
        half = self.config.head_size // 2
        exponents = np.arange(half, dtype=np.float64) / half
        self._frequencies = self.config.rope_base**-exponents  # [head_size / 2]

    def forward(
        self,
        tokens: list[int],
        sequence: KeyValueStore,
        start: int = 0,
        *,
        on_layer: Callable[[int], None] | None = None,
        all_positions: bool = False,
    ) -> np.ndarray:
        """Runs `tokens` at positions start.. and writes their K and V to `sequence`.

        `on_layer(layer)` is called as soon as that layer's K and V of all `tokens` are written,
        before that layer's attention. Returns the logits of the last token, float32 [vocabulary];
        with `all_positions`, of every token, [n, vocabulary].
        Requires: `sequence` holds positions 0..start already.
        """
        end = start + len(tokens)
        assert tokens and end <= self.config.context_tokens_max
        angles = np.arange(start, end)[:, None] * self._frequencies[None, :]
        turn = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        x = self.weights.embedding[np.asarray(tokens)]  # [n, width], a copy
        for layer, weights in enumerate(self.weights.layers):
            queries = self._project(weights, x, turn, (sequence, layer, start))
            if on_layer is not None:
                on_layer(layer)
            if layer == self.config.layers - 1 and not all_positions:
                x, queries, start = x[-1:], queries[-1:], end - 1  # Only this token's logits count.
            keys, values = sequence.read(layer, end)
            for at in range(0, len(x), self._chunk):
                upto = min(at + self._chunk, len(x))
                seen = start + upto
                mixed = attend(queries[at:upto], keys[:seen], values[:seen], start + at)
                x[at:upto] += mixed @ weights.attention_output.T
                x[at:upto] += self._feed_forward(weights, x[at:upto])
        x = rms_norm(x, self.weights.output_norm, self.config.norm_epsilon)
        logits: np.ndarray = x @ self.weights.embedding.T
        return logits if all_positions else logits[0]

    def _project(
        self,
        weights: LayerWeights,
        x: np.ndarray,
        turn: tuple[np.ndarray, np.ndarray],
        target: tuple[KeyValueStore, int, int],
    ) -> np.ndarray:
        """Writes K and V of `x` [n, width] to `target` (sequence, layer, start).

        Returns the rotated queries [n, heads, head_size].
        """
        sequence, layer, start = target
        config = self.config
        size, heads, kv_heads = config.head_size, config.heads, config.kv_heads
        queries = np.empty((len(x), heads, size), dtype=np.float32)
        for at in range(0, len(x), self._chunk):
            part = slice(at, min(at + self._chunk, len(x)))
            normed = rms_norm(x[part], weights.attention_norm, config.norm_epsilon)
            joined = (normed @ weights.qkv.T).reshape(-1, heads + 2 * kv_heads, size)
            cosine, sine = turn[0][part], turn[1][part]
            queries[part] = rotate(joined[:, :heads], cosine, sine)
            keys = rotate(joined[:, heads : heads + kv_heads], cosine, sine)
            sequence.write(layer, start + at, keys, joined[:, heads + kv_heads :])
        return queries

    def _feed_forward(self, weights: LayerWeights, x: np.ndarray) -> np.ndarray:
        """SwiGLU of `x` [n, width]; returns [n, width]."""
        normed = rms_norm(x, weights.ffn_norm, self.config.norm_epsilon)
        both = normed @ weights.gate_up.T
        gate, up = both[:, : self.config.hidden], both[:, self.config.hidden :]
        down: np.ndarray = (silu(gate) * up) @ weights.ffn_down.T
        return down


def greedy(logits: np.ndarray) -> int:
    """The most likely token of `logits` [vocabulary]."""
    return int(np.argmax(logits))
