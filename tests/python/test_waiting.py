"""Waiting: without the GIL, until Ctrl-C, in event loops."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from conftest import LONG, Meanwhile, Pair, Peer, run_python

import moonpool

MakePeer = Callable[..., Peer]


@pytest.fixture
def stuck(pair: Pair, make_peer: MakePeer) -> moonpool.Batch:
    """A batch that will not end soon."""
    peer = make_peer()
    segment = pair.engine.open(peer.address)
    peer.freeze()
    return pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=4 * LONG)


def calls_that_wait(pair: Pair, batch: moonpool.Batch) -> dict[str, Callable[[float], object]]:
    return {
        "wait": lambda seconds: batch.wait(seconds),
        "notifications": lambda seconds: pair.engine.notifications(timeout=seconds),
        "completed": lambda seconds: pair.engine.completed(timeout=seconds),
        "open": lambda seconds: pair.engine.open("127.0.0.1:1", timeout=seconds),
    }


def test_waiting_lets_other_threads_run(pair: Pair, stuck: moonpool.Batch) -> None:
    for call in (
        lambda: stuck.wait(0.3),
        lambda: pair.engine.notifications(timeout=0.3),
    ):
        with Meanwhile() as meanwhile:
            try:
                call()
            except moonpool.TimedOut:
                pass
        assert meanwhile.count >= 3


def silent_listener() -> Any:
    import socket

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


def test_opening_lets_other_threads_run(engine: moonpool.Engine) -> None:
    with silent_listener() as silent, Meanwhile() as meanwhile, pytest.raises(moonpool.TimedOut):
        engine.open(f"127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)
    assert meanwhile.count >= 3


class Interrupt(Exception):
    pass


def interrupted(call: Callable[[], object]) -> None:
    """Runs a call that waits for long, and sends a signal whose handler raises, as Ctrl-C does."""

    def handle(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    sender.start()
    started = time.monotonic()
    try:
        with pytest.raises(Interrupt):
            call()
        assert time.monotonic() - started < LONG
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_ends_a_wait_for_a_batch(stuck: moonpool.Batch) -> None:
    interrupted(stuck.wait)
    assert not stuck.done()
    stuck.cancel()


def test_ctrl_c_ends_a_wait_for_notifications(pair: Pair) -> None:
    interrupted(lambda: pair.engine.notifications(timeout=4 * LONG))


def test_ctrl_c_ends_a_wait_for_completions(pair: Pair, make_peer: MakePeer) -> None:
    peer = make_peer()
    segment = pair.engine.open(peer.address)
    peer.freeze()
    pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=4 * LONG, queue=True)
    interrupted(lambda: pair.engine.completed(timeout=4 * LONG))


def test_ctrl_c_ends_an_open(pair: Pair) -> None:
    with silent_listener() as silent:
        name = f"127.0.0.1:{silent.getsockname()[1]}"
        interrupted(lambda: pair.engine.open(name, timeout=4 * LONG))
    pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 8).wait()


def test_a_real_ctrl_c_ends_a_program() -> None:
    code = """
import os, signal, threading
import moonpool
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored
engine = moonpool.Engine()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    engine.notifications(timeout=None)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = run_python(code)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 4 * LONG))


def test_await_gives_the_batch(pair: Pair) -> None:
    async def main() -> None:
        pair.here[:4] = b"loop"
        batch = await pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 4)
        assert batch.done()
        assert batch.bytes == 4
        assert await batch is batch

    run(main())
    assert bytes(pair.there[:4]) == b"loop"


def test_many_tasks_await_at_once(pair: Pair) -> None:
    async def one(i: int) -> int:
        offset = 1000 * i
        batch = await pair.engine.read(
            pair.segment, pair.local.address + offset, pair.remote.address + offset, 1000
        )
        return batch.bytes

    async def main() -> None:
        for _ in range(3):
            assert await asyncio.gather(*(one(i) for i in range(200))) == [1000] * 200

    run(main())
    assert pair.engine.info()["batches_live"] == 0


def test_await_raises_the_batchs_error(pair: Pair) -> None:
    async def main() -> None:
        with pytest.raises(moonpool.Error) as caught:
            await pair.engine.write(pair.segment, pair.local.address, 4096, 10)
        assert caught.value.peer == pair.other.address

    run(main())


def test_the_loop_runs_while_a_batch_is_awaited_and_without_spinning(
    pair: Pair, make_peer: MakePeer
) -> None:
    async def main() -> None:
        peer = make_peer()
        segment = pair.engine.open(peer.address)
        # Nobody takes these: the descriptor stays readable all the time.
        pair.other.notify(pair.other.open(pair.engine.address), b"untaken")
        peer.freeze()
        batch = pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=LONG)
        waiting = asyncio.ensure_future(batch)  # type: ignore[call-overload]
        cpu = time.process_time()
        started = time.monotonic()
        ticks = 0
        while time.monotonic() - started < 0.5:
            await asyncio.sleep(0.01)
            ticks += 1
        assert ticks >= 3
        assert time.process_time() - cpu < 0.4
        peer.thaw()
        assert (await waiting).bytes == 4096

    run(main())


def test_a_batch_from_elsewhere_can_be_awaited(pair: Pair) -> None:
    batch = pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 100_000)

    async def main() -> int:
        return int((await batch).bytes)

    assert run(main()) == 100_000


def test_cancelling_the_task_cancels_the_batch(pair: Pair, make_peer: MakePeer) -> None:
    async def main() -> None:
        peer = make_peer(transports=["tcp"])
        segment = pair.engine.open(peer.address)
        peer.freeze()
        batch = pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=3)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(batch, 0.1)  # type: ignore[arg-type]
        with pytest.raises(moonpool.Cancelled):
            await batch

    run(main())


def test_closing_ends_awaiting(pair: Pair, make_peer: MakePeer) -> None:
    async def main() -> None:
        peer = make_peer()
        segment = pair.engine.open(peer.address)
        peer.freeze()
        batch = pair.engine.read(segment, pair.local.address, peer.memory, 4096, timeout=LONG)
        waiting = asyncio.ensure_future(batch)  # type: ignore[call-overload]
        await asyncio.sleep(0.05)
        pair.engine.close()
        with pytest.raises(moonpool.Cancelled):
            await waiting

    run(main())


def test_several_loops_in_several_threads(pair: Pair) -> None:
    failures: list[BaseException] = []

    async def main(base: int) -> None:
        for i in range(30):
            await pair.engine.write(
                pair.segment, pair.local.address + base + i, pair.remote.address + base + i, 1
            )

    def work(base: int) -> None:
        try:
            run(main(base))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_awaiting_beside_completed(pair: Pair) -> None:
    got: list[moonpool.Batch] = []

    def collect() -> None:
        while len(got) < 50:
            got.extend(pair.engine.completed(timeout=LONG))

    async def main() -> None:
        for i in range(50):
            pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 1, queue=True)
            if i == 0:
                thread.start()
            await pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 2)

    thread = threading.Thread(target=collect)
    run(main())
    thread.join(LONG)
    assert [batch.bytes for batch in got] == [1] * 50


def test_the_descriptor_is_readable_when_something_is_there(pair: Pair) -> None:
    look = select.poll()
    look.register(pair.engine, select.POLLIN)
    assert look.poll(0) == []
    pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 1, queue=True)
    assert look.poll(LONG * 1000)
    assert len(pair.engine.completed(timeout=LONG)) == 1
    assert look.poll(0) == []


def test_an_unawaited_batch_in_a_loop_leaves_nothing(pair: Pair) -> None:
    async def main() -> None:
        for _ in range(3000):
            pair.engine.write(pair.segment, pair.local.address, pair.remote.address, 8).wait()

    run(main())
    assert pair.engine.info()["batches_live"] == 0
    assert pair.engine.completed() == []


def test_importing_moonpool_does_not_import_asyncio_or_numpy() -> None:
    code = """
import sys, moonpool
moonpool.Engine().close()
print([name for name in ("asyncio", "numpy") if name in sys.modules])
"""
    assert run_python(code).stdout == "[]\n"
