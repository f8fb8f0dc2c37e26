"""The process around a worker: ``python -m tinyserve.process``, started by the coordinator only.

It ends when told, when the coordinator's end of the channel closes, and, through the kernel's
parent-death signal, when the coordinator is killed while this process is stopped or deep in a call.

Threads: main (the worker itself), control-reader (messages to the inbox), notification-reader
(decode only: notifications to the inbox), heartbeat (an event twice a second, so that a frozen
process can be told from a busy one).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import queue
import signal
import socket
import sys
import threading
from typing import Any

from . import weights
from .cache import CacheLayout, PagedCache
from .channel import Channel, ChannelClosedError, Message
from .model import Model
from .worker import DecodeWorker, EngineParts, PrefillWorker, warm_up

HEARTBEAT_SECONDS = 0.5
_NOTIFICATION_WAIT_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1

_STOP: Message = {"op": "stop"}


def die_with_parent(parent: int) -> None:
    """Asks the kernel to kill this process when the process `parent` ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # It ended before the call above.


def read_control(channel: Channel, inbox: queue.SimpleQueue[Any]) -> None:
    """Puts every message into `inbox`; ends the process when the coordinator is gone."""
    try:
        while True:
            inbox.put(channel.receive())
    except ChannelClosedError:
        os._exit(1)


def read_notifications(engine: Any, inbox: queue.SimpleQueue[Any], stop: threading.Event) -> None:
    try:
        while not stop.is_set():
            for notification in engine.notifications(timeout=_NOTIFICATION_WAIT_SECONDS):
                inbox.put(bytes(notification.payload))
    except Exception as error:
        inbox.put(error)  # The main thread raises it.


def beat(channel: Channel, stop: threading.Event) -> None:
    try:
        while not stop.wait(HEARTBEAT_SECONDS):
            channel.send({"event": "beat"})
    except ChannelClosedError:
        os._exit(1)


def run_prefill(worker: PrefillWorker, inbox: queue.SimpleQueue[Any]) -> None:
    while (message := inbox.get()) != _STOP:
        worker.handle(message)


def run_decode(worker: DecodeWorker, inbox: queue.SimpleQueue[Any]) -> None:
    """Messages and notifications go first; between them, one token at a time."""
    while True:
        try:
            item = inbox.get(block=not worker.active)
        except queue.Empty:
            worker.step()
            continue
        if item == _STOP:
            return
        if isinstance(item, Exception):
            raise item
        if isinstance(item, bytes):
            worker.notified(item)
        else:
            worker.handle(item)


def serve(role: str, channel: Channel, weights_fd: int) -> None:
    """Sets everything up as the first message says, then works until told to stop."""
    import moonpool  # Not at the top: the worker classes are tested without it.

    setup = channel.receive()
    config = weights.ModelConfig.from_json(setup["config"])
    layout = CacheLayout(config.layers, setup["pages"], config.kv_heads, config.head_size)
    stop = threading.Event()
    engine = moonpool.Engine(listen="127.0.0.1:0", transports=setup["transports"])
    try:
        region = engine.allocate(layout.size_bytes)
        parts = EngineParts(
            model=Model(weights.attach(weights_fd, config)),
            cache=PagedCache(layout, region),
            engine=engine,
            errors=moonpool.Error,
            transfer_timeout_seconds=setup["transfer_timeout_seconds"],
        )
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(
            target=read_control, args=(channel, inbox), name="control-reader", daemon=True
        ).start()
        warm_up(parts)
        channel.send({"event": "ready", "address": engine.address})
        heart = threading.Thread(target=beat, args=(channel, stop), name="heartbeat", daemon=True)
        heart.start()
        if role == "prefill":
            run_prefill(PrefillWorker(parts, channel.send), inbox)
        else:
            reader = threading.Thread(
                target=read_notifications, args=(engine, inbox, stop), name="notification-reader"
            )
            reader.start()
            try:
                run_decode(DecodeWorker(parts, channel.send), inbox)
            finally:
                stop.set()
                reader.join()
    finally:
        stop.set()
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="a tinyserve worker; started by the coordinator")
    parser.add_argument("--role", choices=["prefill", "decode"], required=True)
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--weights-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    arguments = parser.parse_args()
    die_with_parent(arguments.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to handle.
    channel = Channel(socket.socket(fileno=arguments.control_fd))
    try:
        serve(arguments.role, channel, arguments.weights_fd)
    except ChannelClosedError:
        sys.exit(1)
    except Exception as error:
        channel.send({"event": "crashed", "reason": f"{type(error).__name__}: {error}"})
        raise


if __name__ == "__main__":
    main()
