"""A progress bar on standard error, drawn only when a person is watching."""

from __future__ import annotations

import sys
from typing import TextIO

_WIDTH = 30


class Progress:
    """Counts `total` units of `what`; call `advance` as they are done, `close` at the end."""

    def __init__(self, what: str, total: int, stream: TextIO | None = None) -> None:
        self._what = what
        self._total = max(total, 1)
        self._done = 0
        self._percent = -1
        self._stream = stream if stream is not None else sys.stderr
        self._visible = self._stream.isatty()

    def advance(self, units: int) -> None:
        """Adds `units` and redraws when the percentage changed."""
        self._done = min(self._done + units, self._total)
        percent = 100 * self._done // self._total
        if not self._visible or percent == self._percent:
            return
        self._percent = percent
        filled = _WIDTH * percent // 100
        bar = "#" * filled + "." * (_WIDTH - filled)
        self._stream.write(f"\r{self._what} [{bar}] {percent:3d} %")
        self._stream.flush()

    def close(self) -> None:
        """Wipes the bar, so that later output starts on a clean line."""
        if self._visible:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
