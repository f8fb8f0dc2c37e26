"""Byte-level BPE from the GGUF file's own metadata (pre-tokenizer "smollm"), and its chat format.

Text is cut into pieces (each digit alone, then GPT-2's pattern), each piece's UTF-8 bytes are
written as printable characters, and the best-ranked neighbouring pair is merged until none is left.
Special tokens such as ``<|im_end|>`` are never recognised inside a user's text.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from .weights import ModelError, metadata

_CONTRACTION = re.compile(r"'(?:s|t|re|ve|m|ll|d)")
# Over one class letter per character: L letter, N number, _ space, S other white space, P the rest.
_PIECE = re.compile(r"_?L+|_?N+|_?P+|[_S]+(?![LNP])|[_S]+")
_DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system\n(.*?)<\|im_end\|>", re.DOTALL)
# What this file's `chat` writes by hand, instead of depending on a template language.
_CHAT_BODY = (
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def _printable_bytes() -> dict[int, str]:
    """GPT-2's table: each byte as one printable character."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in plain}
    for byte in range(256):
        if byte not in table:
            table[byte] = chr(256 + len(table) - len(plain))
    return table


def _class_of(character: str) -> str:
    if character == " ":
        return "_"
    category = unicodedata.category(character)[0]
    if category in "LN":
        return category
    # The four information separators are white space to Python only.
    return "S" if character.isspace() and not "\x1c" <= character <= "\x1f" else "P"


def split_pieces(text: str) -> list[str]:
    """The pieces that are merged independently; joined they are `text` again."""
    classes = "".join(map(_class_of, text))
    pieces: list[str] = []
    for run in re.finditer(r"N|[^N]+", classes):  # Each digit alone, and all between digits.
        at = run.start()
        while at < run.end():
            match = _CONTRACTION.match(text, at, run.end()) or _PIECE.match(classes, at, run.end())
            assert match is not None
            pieces.append(text[at : match.end()])
            at = match.end()
    return pieces


class Tokenizer:
    """Text to token ids and back. Constant after creation (but for a memo of pieces)."""

    def __init__(self, reader: Any) -> None:
        """`reader`: gguf.GGUFReader. Raises ModelError for another kind of tokenizer."""
        kind = metadata(reader, "tokenizer.ggml.model"), metadata(reader, "tokenizer.ggml.pre")
        if kind != ("gpt2", "smollm"):
            raise ModelError(f"unsupported tokenizer {kind}; allowed: ('gpt2', 'smollm')")
        self._texts: list[str] = metadata(reader, "tokenizer.ggml.tokens")
        self._ids = {text: number for number, text in enumerate(self._texts)}
        types = metadata(reader, "tokenizer.ggml.token_type")
        self._special = {number for number, kind in enumerate(types) if kind == 3}
        merges = metadata(reader, "tokenizer.ggml.merges")
        self._ranks = {tuple(pair.split(" ")): rank for rank, pair in enumerate(merges)}
        self._byte_to_char = _printable_bytes()
        self._char_to_byte = {char: byte for byte, char in self._byte_to_char.items()}
        self.end_of_turn: int = metadata(reader, "tokenizer.ggml.eos_token_id")
        template = metadata(reader, "tokenizer.chat_template")
        system = _DEFAULT_SYSTEM.search(template)
        if _CHAT_BODY not in template or system is None:
            raise ModelError("the GGUF file's chat template is not the ChatML form known here")
        self._default_system = system.group(1)
        self._merge = functools.lru_cache(maxsize=65536)(self._merge_piece)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text; special tokens are not recognised in it."""
        return [token for piece in split_pieces(text) for token in self._merge(piece)]

    def decode(self, tokens: Sequence[int], *, keep_special: bool = False) -> str:
        """Text of `tokens`; bytes that are no UTF-8 become U+FFFD. Special tokens are dropped."""
        data = bytearray()
        for token in tokens:
            if token in self._special:
                data += self._texts[token].encode() if keep_special else b""
            else:
                data += bytes(self._char_to_byte[char] for char in self._texts[token])
        return data.decode("utf-8", errors="replace")

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of a conversation, (role, content) each, ready for the assistant's answer."""
        turns = list(messages)
        if not turns or turns[0][0] != "system":
            turns.insert(0, ("system", self._default_system))
        begin, end = self._ids["<|im_start|>"], self._ids["<|im_end|>"]
        tokens: list[int] = []
        for role, content in turns:
            tokens += [begin, *self.encode(f"{role}\n{content}"), end, *self.encode("\n")]
        return [*tokens, begin, *self.encode("assistant\n")]

    def _merge_piece(self, piece: str) -> tuple[int, ...]:
        parts = [self._byte_to_char[byte] for byte in piece.encode("utf-8")]
        worst = len(self._ranks)
        while len(parts) > 1:
            pairs = [self._ranks.get(pair, worst) for pair in zip(parts, parts[1:])]
            best = min(pairs)
            if best == worst:
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        # This vocabulary lacks a few control bytes (0x04 and the like): they are dropped, as in llama.cpp.
        return tuple(self._ids[part] for part in parts if part in self._ids)
