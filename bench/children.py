"""Child processes that speak one JSON line for each line they are given, and never outlive us.

Every answer has a time limit. A child that dies, hangs or talks nonsense is killed with its whole
process group, and ChildFailed says what its last words were.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

_LINE_BYTES_MAX = 1 << 20


class ChildFailed(Exception):
    """A child died, hung, answered nonsense, or said that it failed."""


class Child:
    """One process. `log` receives its standard error. A context manager that ends it."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                bufsize=0,
            )
        self._pending = b""

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        """Gives it one line."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except OSError:
            self._fail("ended")

    def hear(self, timeout: float) -> dict[str, Any] | None:
        """Its next JSON line within `timeout` seconds; None when it has ended well."""
        line = self._line(timeout)
        if line is None:
            status = self._ended()
            if status != 0:
                self._fail(f"ended with {_explain(status)}")
            return None
        try:
            answer = json.loads(line)
        except ValueError:
            self._fail(f"said {line[:80]!r}, which is not JSON")
        if not isinstance(answer, dict):
            self._fail(f"said {line[:80]!r}, which is no object")
        return answer

    def ask(self, command: Mapping[str, Any] | str, timeout: float) -> dict[str, Any]:
        """Gives it a command and returns its answer. Raises ChildFailed; a child that only said
        `"ok": false` goes on."""
        self.tell(command if isinstance(command, str) else json.dumps(command))
        answer = self.hear(timeout)
        if answer is None:
            raise ChildFailed(f"{self.name} ended without an answer{self._last_words()}")
        if answer.get("ok") is False:
            raise ChildFailed(f"{self.name}: {answer.get('error', 'failed')}")
        return answer

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self, patience: float = 3.0) -> None:
        """Its input ends, which asks it to end; then it is killed with its group. Idempotent."""
        self._signal(signal.SIGCONT)
        for pipe in (self._process.stdin,):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        self._signal(signal.SIGKILL)  # whatever is left of the group
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _line(self, timeout: float) -> bytes | None:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self._fail(f"did not answer within {timeout:.0f} s")
                piece = os.read(self._process.stdout.fileno(), 65536)
                if not piece:
                    return None
                self._pending += piece
                if len(self._pending) > _LINE_BYTES_MAX:
                    self._fail("said a line without an end")
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _ended(self) -> int:
        try:
            return self._process.wait(3.0)
        except subprocess.TimeoutExpired:
            self._fail("closed its output and did not end")

    def _fail(self, what: str) -> Any:
        self.close(patience=0.2)
        raise ChildFailed(f"{self.name} {what}{self._last_words()}") from None

    def _last_words(self) -> str:
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f" ({_tidy(lines[-1])})" if lines else ""

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has ended


def _tidy(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line).strip()[:160]


def _explain(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
