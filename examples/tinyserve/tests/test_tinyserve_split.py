"""Prefill and decode in separate workers over a fake engine, in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngineForTests, FakeError, FakeNetwork

from tinyserve.cache import PAGE_TOKENS, CacheLayout, PagedCache
from tinyserve.kv_transfer import decode_notification, encode_notification
from tinyserve.model import Model
from tinyserve.tokenizer import Tokenizer
from tinyserve.worker import DecodeWorker, EngineParts, PrefillWorker

PAGES = 40
NEW_TOKENS = 16


class Bench:
    """One prefill worker and two decode workers; `run` passes what they say between them."""

    def __init__(self, model: Model, stop: int) -> None:
        self.model = model
        self.stop = stop
        self.network = FakeNetwork()
        self.events: list[dict[str, Any]] = []
        self.prefill_parts = self._parts()
        self.prefill = PrefillWorker(self.prefill_parts, self.events.append)
        self.decode_parts = [self._parts(), self._parts()]
        self.decode = [DecodeWorker(parts, self.events.append) for parts in self.decode_parts]

    def _parts(self) -> EngineParts:
        config = self.model.config
        layout = CacheLayout(config.layers, PAGES, config.kv_heads, config.head_size)
        engine = FakeEngineForTests(self.network)
        cache = PagedCache(layout, engine.allocate(layout.size_bytes))
        return EngineParts(self.model, cache, engine, FakeError, 5.0)

    def take(self, event: str) -> dict[str, Any]:
        """The one event of this kind since the last `take` of it."""
        found = [entry for entry in self.events if entry["event"] == event]
        assert len(found) == 1, self.events
        self.events.remove(found[0])
        return found[0]

    def reserve(self, at: int, name: str, prompt: list[int]) -> dict[str, Any]:
        message = {"op": "reserve", "request": name, "prompt_tokens": len(prompt)}
        self.decode[at].handle({**message, "new_tokens": NEW_TOKENS, "stop": self.stop})
        destination: dict[str, Any] = self.take("reserved")["destination"]
        return destination

    def send(self, name: str, prompt: list[int], destination: dict[str, Any]) -> None:
        message = {"op": "prefill", "request": name, "tokens": prompt}
        self.prefill.handle({**message, "destination": destination})

    def resend(self, name: str, destination: dict[str, Any]) -> None:
        self.prefill.handle({"op": "resend", "request": name, "destination": destination})

    def decode_all(self, at: int) -> None:
        """Delivers notifications, then decodes until nothing is active."""
        for notification in self.decode_parts[at].engine.notifications():
            self.decode[at].notified(notification.payload)
        while self.decode[at].active:
            self.decode[at].step()

    def monolithic(self, prompt: list[int]) -> list[int]:
        message = {"op": "monolithic", "request": "one", "tokens": prompt}
        self.prefill.handle({**message, "new_tokens": NEW_TOKENS, "stop": self.stop})
        return self.tokens("one")

    def tokens(self, name: str) -> list[int]:
        return [
            entry["token"]
            for entry in self.events
            if entry["event"] == "token" and entry["request"] == name
        ]


@pytest.fixture
def bench(model: Model, tokenizer: Tokenizer) -> Bench:
    return Bench(model, tokenizer.end_of_turn)


@pytest.fixture
def prompt(tokenizer: Tokenizer) -> list[int]:
    text = "Explain in one paragraph why the sea is salty and why rivers are not. " * 4
    return tokenizer.chat([("user", text)])


def test_split_equals_monolithic_token_for_token(bench: Bench, prompt: list[int]) -> None:
    bench.send("r0", prompt, bench.reserve(0, "r0.1", prompt))
    bench.decode_all(0)
    assert bench.take("finished")["request"] == "r0.1"
    split = bench.tokens("r0.1")
    assert len(split) == NEW_TOKENS
    assert split == bench.monolithic(prompt)


def test_the_transfer_moves_every_layer_once_and_says_how_much(
    bench: Bench, prompt: list[int]
) -> None:
    bench.send("r0", prompt, bench.reserve(0, "r0.1", prompt))
    layout = bench.prefill_parts.cache.layout
    pages = -(-len(prompt) // PAGE_TOKENS)
    batches = bench.prefill_parts.engine.batches
    assert [len(batch.copies) for batch in batches] == [2 * pages] * layout.layers
    assert [batch.notification is not None for batch in batches] == [False] * 29 + [True]
    transfer = bench.take("sent")["transfer"]
    assert transfer["size_bytes"] == 2 * layout.layers * pages * layout.page_bytes
    assert transfer["size_bytes"] == sum(copy[2] for batch in batches for copy in batch.copies)
    assert transfer["transports"] == ["fake"] and transfer["batches"] == layout.layers


def test_layers_leave_while_later_ones_are_computed(
    bench: Bench, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = bench.reserve(0, "r0.1", prompt)
    submitted: list[int] = []
    forward = bench.model.forward

    def spied(tokens: list[int], sequence: Any, *, on_layer: Any) -> np.ndarray:
        def spy(layer: int) -> None:
            on_layer(layer)
            submitted.append(len(bench.prefill_parts.engine.batches))

        return forward(tokens, sequence, on_layer=spy)

    monkeypatch.setattr(bench.model, "forward", spied)
    bench.send("r0", prompt, destination)
    assert submitted == [*range(1, 30), 29]  # The last one waits for the first token.


def test_a_failed_transfer_is_sent_again_to_another_worker(bench: Bench, prompt: list[int]) -> None:
    first = bench.reserve(0, "r0.1", prompt)
    bench.network.unreachable.add(first["address"])
    bench.send("r0", prompt, first)
    error = bench.take("send_failed")["error"]
    assert error["code"] == "unavailable" and error["peer"] == first["address"]
    assert all(batch.waited for batch in bench.prefill_parts.engine.batches)
    bench.decode[0].handle({"op": "release", "request": "r0.1"})
    assert bench.decode_parts[0].cache.free_pages == PAGES

    bench.resend("r0", bench.reserve(1, "r0.2", prompt))
    bench.decode_all(1)
    assert bench.tokens("r0.1") == []
    assert bench.tokens("r0.2") == bench.monolithic(prompt)


def test_a_peer_that_is_gone_at_the_start_fails_only_the_transfer(
    bench: Bench, prompt: list[int]
) -> None:
    destination = bench.reserve(0, "r0.1", prompt)
    del bench.network.engines[destination["address"]]
    bench.send("r0", prompt, destination)
    assert bench.take("send_failed")["error"]["phase"] == "connect"
    bench.resend("r0", bench.reserve(1, "r0.2", prompt))
    bench.take("sent")


def test_two_requests_are_decoded_in_turn(bench: Bench, prompt: list[int]) -> None:
    short = prompt[:21] + prompt[-3:]
    bench.send("r0", prompt, bench.reserve(0, "r0.1", prompt))
    bench.send("r1", short, bench.reserve(0, "r1.1", short))
    bench.decode_all(0)
    order = [entry["request"] for entry in bench.events if entry["event"] == "token"]
    assert order[:6] == ["r0.1", "r1.1"] * 3
    expected = bench.monolithic(prompt)
    assert bench.tokens("r0.1") == expected
    bench.events.clear()
    assert bench.monolithic(short) != expected


def test_pages_come_back_when_requests_end(bench: Bench, prompt: list[int]) -> None:
    bench.send("r0", prompt, bench.reserve(0, "r0.1", prompt))
    assert bench.prefill_parts.cache.free_pages < PAGES
    bench.decode_all(0)
    bench.prefill.handle({"op": "release", "request": "r0"})
    bench.monolithic(prompt)
    assert bench.prefill_parts.cache.free_pages == PAGES
    assert bench.decode_parts[0].cache.free_pages == PAGES


def test_pages_of_an_abandoned_reservation_are_not_used_again(
    bench: Bench, prompt: list[int]
) -> None:
    reserved = bench.reserve(0, "r0.1", prompt)
    free = bench.decode_parts[0].cache.free_pages
    bench.decode[0].handle({"op": "abandon", "request": "r0.1"})
    again = bench.reserve(0, "r0.2", prompt)
    assert bench.decode_parts[0].cache.free_pages < free
    assert not set(reserved["pages"]) & set(again["pages"])


def test_too_many_tokens_are_refused(bench: Bench) -> None:
    message = {"op": "reserve", "request": "r0.1", "prompt_tokens": PAGES * PAGE_TOKENS}
    bench.decode[0].handle({**message, "new_tokens": 1, "stop": bench.stop})
    assert "41 pages needed, 40 of 40 free" in bench.take("refused")["reason"]


def test_a_cache_of_another_model_is_refused(bench: Bench, prompt: list[int]) -> None:
    destination = bench.reserve(0, "r0.1", prompt)
    destination["layout"]["head_size"] = 128
    bench.send("r0", prompt, destination)
    assert "another model" in bench.take("send_failed")["error"]["message"]
    assert bench.prefill_parts.engine.batches == []


def test_notifications_round_trip_and_strange_ones_are_ignored(bench: Bench) -> None:
    assert decode_notification(encode_notification("r1.2", 77)) == ("r1.2", 77)
    for payload in (b"", b"\xff\xfe", b"[1]", b'{"reservation": 3, "first_token": 4}'):
        bench.decode[0].notified(payload)
    bench.decode[0].notified(encode_notification("unknown", 1))
    assert bench.events == []


def test_the_cache_array_is_the_engines_memory(model: Model) -> None:
    layout = CacheLayout(layers=2, pages=2, kv_heads=1, head_size=4)
    region = FakeEngineForTests(FakeNetwork()).allocate(layout.size_bytes)
    cache = PagedCache(layout, region)
    cache.array[...] = 1
    assert cache.array.ctypes.data == region.address
    assert np.frombuffer(region, dtype=np.float16).min() == 1
