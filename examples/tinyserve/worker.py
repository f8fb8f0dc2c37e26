"""The two kinds of worker: what each does with a message. The process around them is in process.py.

Both speak only to the coordinator (`handle` takes its messages, `emit` sends events) and to each
other's memory through the engine. Messages are listed in README.md. Threads: thread-bound.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable

from .cache import CacheFullError, PagedCache, Sequence, pages_for
from .channel import Message
from .kv_transfer import (
    Destination,
    KvSender,
    SendFailedError,
    decode_notification,
    describe,
)
from .model import Model, greedy

Emit = Callable[[Message], None]


@dataclass(frozen=True)
class EngineParts:
    """What a worker works with; all borrowed."""

    model: Model
    cache: PagedCache
    engine: Any  # moonpool.Engine
    errors: type[Exception]  # moonpool.Error
    transfer_timeout_seconds: float


def warm_up(parts: EngineParts) -> None:
    """Touches the cache's memory and runs the model once, so that the first request is typical."""
    parts.cache.array[...] = 0
    sequence = Sequence(parts.cache, 160)
    parts.model.forward([1] * 150, sequence)
    parts.model.forward([1], sequence, 150)
    sequence.close()


@dataclass
class _Prompt:
    """A prompt whose keys and values are kept until the coordinator releases them."""

    sequence: Sequence
    tokens: int
    first_token: int


class PrefillWorker:
    """Computes prompts and sends their keys and values; also runs the monolithic comparison."""

    def __init__(self, parts: EngineParts, emit: Emit) -> None:
        self._parts = parts
        self._emit = emit
        self._held: dict[str, _Prompt] = {}

    def handle(self, message: Message) -> None:
        """Carries out one message to its end (a prefill takes seconds)."""
        operation = message["op"]
        request = message["request"]
        try:
            if operation == "prefill":
                self._prefill(request, message["tokens"], message["destination"])
            elif operation == "resend":
                self._resend(request, message["destination"])
            elif operation == "release":
                if request in self._held:
                    self._held.pop(request).sequence.close()
            elif operation == "monolithic":
                self._monolithic(request, message)
            else:
                raise ValueError(f"unknown operation {operation}")
        except CacheFullError as error:
            self._emit({"event": "refused", "request": request, "reason": str(error)})

    def _sender(self, sequence: Sequence, destination: Message) -> KvSender:
        parts = self._parts
        return KvSender(
            parts.engine,
            parts.cache,
            sequence.pages,
            Destination.from_json(destination),
            errors=parts.errors,
            timeout_seconds=parts.transfer_timeout_seconds,
        )

    def _prefill(self, request: str, tokens: list[int], destination: Message) -> None:
        sequence = Sequence(self._parts.cache, len(tokens))
        sender = self._sender(sequence, destination)
        report_at = self._parts.model.config.layers // 3

        def on_layer(layer: int) -> None:
            sender.on_layer(layer)
            if layer == report_at:
                self._emit({"event": "progress", "request": request, "layer": layer})

        started = time.monotonic()
        first_token = greedy(self._parts.model.forward(tokens, sequence, on_layer=on_layer))
        seconds = time.monotonic() - started
        self._held[request] = _Prompt(sequence, len(tokens), first_token)
        self._finish(request, sender, first_token, seconds)

    def _resend(self, request: str, destination: Message) -> None:
        """Sends a held prompt again, to another decode worker: nothing is computed twice."""
        prompt = self._held[request]
        sender = self._sender(prompt.sequence, destination)
        for layer in range(self._parts.model.config.layers):
            sender.on_layer(layer)
        self._finish(request, sender, prompt.first_token, 0.0)

    def _finish(self, request: str, sender: KvSender, first_token: int, seconds: float) -> None:
        try:
            record = sender.finish(first_token)
        except SendFailedError as error:
            details = describe(error.cause)
            self._emit({"event": "send_failed", "request": request, "error": details})
            return
        self._emit(
            {
                "event": "sent",
                "request": request,
                "compute_seconds": seconds,
                "transfer": record.to_json(),
            }
        )

    def _monolithic(self, request: str, message: Message) -> None:
        """Prefill and decode in this one process, over the same cache."""
        tokens, count = message["tokens"], message["new_tokens"]
        sequence = Sequence(self._parts.cache, len(tokens) + count)
        generation = Generation(request, sequence, len(tokens), count, message["stop"])
        first = greedy(self._parts.model.forward(tokens, sequence))
        generation.accept(first, self._emit)
        while not generation.finished:
            generation.step(self._parts.model, self._emit)
        sequence.close()


class Generation:
    """One request being decoded: emits an event for every token, and one at the end."""

    def __init__(
        self, request: str, sequence: Sequence, prompt_tokens: int, count: int, stop: int
    ) -> None:
        """At most `count` tokens are generated; `stop` ends it earlier."""
        self.request = request
        self.sequence = sequence
        self.finished = False
        self._length = prompt_tokens  # Tokens whose keys and values are in the cache.
        self._left = count
        self._stop = stop
        self._token = -1

    def accept(self, token: int, emit: Emit) -> None:
        """Takes the next token of the answer."""
        self._token = token
        self._left -= 1
        emit({"event": "token", "request": self.request, "token": token})
        if token == self._stop or self._left == 0:
            self.finished = True
            emit({"event": "finished", "request": self.request})

    def step(self, model: Model, emit: Emit) -> None:
        """Decodes one token. Requires: accepted a first one, not finished."""
        logits = model.forward([self._token], self.sequence, self._length)
        self._length += 1
        self.accept(greedy(logits), emit)


class DecodeWorker:
    """Reserves pages, waits for notifications, and decodes all active requests in turn."""

    def __init__(self, parts: EngineParts, emit: Emit) -> None:
        self._parts = parts
        self._emit = emit
        self._base = parts.cache.array.ctypes.data
        self._waiting: dict[str, Generation] = {}
        self._active: deque[Generation] = deque()

    @property
    def active(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._active)

    def handle(self, message: Message) -> None:
        operation, reservation = message["op"], message["request"]
        if operation == "reserve":
            self._reserve(reservation, message)
        elif operation == "release":
            # Only when the sender has reported the end of its transfer: nothing writes any more.
            if reservation in self._waiting:
                self._waiting.pop(reservation).sequence.close()
        elif operation == "abandon":
            # The sender died in mid-transfer. What it had sent may still be on its way to these
            # pages, so they are never used again.
            self._waiting.pop(reservation, None)
        else:
            raise ValueError(f"unknown operation {operation}")

    def _reserve(self, reservation: str, message: Message) -> None:
        prompt, count = message["prompt_tokens"], message["new_tokens"]
        try:
            sequence = Sequence(self._parts.cache, prompt + count)
        except CacheFullError as error:
            self._emit({"event": "refused", "request": reservation, "reason": str(error)})
            return
        generation = Generation(reservation, sequence, prompt, count, message["stop"])
        self._waiting[reservation] = generation
        destination = Destination(
            reservation=reservation,
            address=self._parts.engine.address,
            base=self._base,
            layout=self._parts.cache.layout,
            pages=sequence.pages[: pages_for(prompt)],
        )
        self._emit(
            {
                "event": "reserved",
                "request": reservation,
                "destination": destination.to_json(),
            }
        )

    def notified(self, payload: bytes) -> None:
        """A prompt's keys and values are all here; unknown or malformed ones are ignored."""
        try:
            reservation, first_token = decode_notification(payload)
        except ValueError:
            return
        generation = self._waiting.pop(reservation, None)
        if generation is not None:
            generation.accept(first_token, self._emit)
            self._keep(generation)

    def step(self) -> None:
        """Decodes one token of the request whose turn it is."""
        generation = self._active.popleft()
        generation.step(self._parts.model, self._emit)
        self._keep(generation)

    def _keep(self, generation: Generation) -> None:
        if generation.finished:
            generation.sequence.close()
        else:
            self._active.append(generation)
