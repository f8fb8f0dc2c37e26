"""Shared fixtures: the model is loaded once for all tests; BLAS runs on one thread."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before numpy is imported: one thread, so that equal inputs give equal bits (see README.md).
os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tinyserve import weights
from tinyserve.cache import CacheLayout, PagedCache
from tinyserve.model import Model
from tinyserve.tokenizer import Tokenizer


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs_moonpool: starts real worker processes; needs the moonpool package"
    )


@pytest.fixture(scope="session")
def reader() -> Any:
    try:
        return weights.open_gguf()
    except weights.ModelError as error:
        pytest.skip(f"no model: {error}")


@pytest.fixture(scope="session")
def tokenizer(reader: Any) -> Tokenizer:
    return Tokenizer(reader)


@pytest.fixture(scope="session")
def model(reader: Any) -> Iterator[Model]:
    shared = weights.SharedWeights(reader)
    yield Model(weights.attach(shared.fd, shared.config))
    shared.close()


@pytest.fixture(scope="session")
def reference() -> dict[str, Any]:
    """What llama.cpp answered; made by make_reference.py."""
    text = (Path(__file__).parent / "reference.json").read_text()
    record: dict[str, Any] = json.loads(text)
    return record


@pytest.fixture
def cache(model: Model) -> PagedCache:
    """64 pages: 1,024 tokens."""
    config = model.config
    layout = CacheLayout(config.layers, 64, config.kv_heads, config.head_size)
    return PagedCache(layout, bytearray(layout.size_bytes))
