"""Control messages between coordinator and workers: length-prefixed JSON over a socket pair.

Frame: 4 bytes length, big-endian, then that many bytes of UTF-8 JSON (an object). The pair is
inherited at the worker's start, so no port is opened, and its end tells each side of the other's.
Threads: `send` is thread-safe; receiving is for one thread.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from typing import Any

Message = dict[str, Any]

_HEADER = struct.Struct(">I")
_FRAME_BYTES_MAX = 16 << 20


class ChannelClosedError(ConnectionError):
    """The other side is gone, or sent what is no message."""


class Channel:
    """One end of a socket pair; owns the socket."""

    def __init__(self, sock: socket.socket, send_timeout_seconds: float | None = None) -> None:
        self._socket = sock
        self._socket.settimeout(send_timeout_seconds)
        self._send_lock = threading.Lock()
        self._received = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Raises ChannelClosedError, also when the other side does not read in time."""
        body = json.dumps(message, separators=(",", ":")).encode()
        assert len(body) <= _FRAME_BYTES_MAX
        try:
            with self._send_lock:
                self._socket.sendall(_HEADER.pack(len(body)) + body)
        except OSError as error:
            raise ChannelClosedError(f"cannot send: {error}") from error

    def receive(self) -> Message:
        """Waits for one message. Raises ChannelClosedError."""
        while (message := self._take()) is None:
            self._fill()
        return message

    def receive_ready(self) -> list[Message]:
        """Reads once (call when the socket is readable); the complete messages, maybe none."""
        self._fill()
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        return messages

    def close(self) -> None:
        self._socket.close()

    def _fill(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except OSError as error:
            raise ChannelClosedError(f"cannot receive: {error}") from error
        if not data:
            raise ChannelClosedError("closed by the other side")
        self._received += data

    def _take(self) -> Message | None:
        if len(self._received) < _HEADER.size:
            return None
        (size,) = _HEADER.unpack_from(self._received)
        if size > _FRAME_BYTES_MAX:
            raise ChannelClosedError(f"frame of {size} bytes is too long")
        end = _HEADER.size + size
        if len(self._received) < end:
            return None
        message: Message = json.loads(self._received[_HEADER.size : end])
        del self._received[:end]
        return message
