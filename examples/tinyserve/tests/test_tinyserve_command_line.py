"""Wrong arguments give one clear message that names the field and what is allowed."""

from __future__ import annotations

import importlib.util
import io

import pytest

from tinyserve.__main__ import main, parse_arguments
from tinyserve.progress import Progress


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--transport", "rdma"], ["--transport", "'rdma'", "auto", "tcp", "local"]),
        (["--prefill", "0"], ["--prefill", "'0'", "1 to 16"]),
        (["--decode", "two"], ["--decode", "'two'", "1 to 16"]),
        (["--tokens", "-3"], ["--tokens", "'-3'", "1 to 2048"]),
        (["--pages", "1"], ["--pages", "'1'", "16 to 65536"]),
        (["--requests", "0"], ["--requests", "'0'", "1 to 256"]),
        (["--prompt", "  "], ["--prompt", "empty"]),
        (["--fault", "burn"], ["--fault", "'burn'", "kill", "freeze"]),
        (["--fault", "kill", "--decode", "1"], ["--fault", "--decode 2"]),
        (["--fault", "kill", "--fault-at", "dawn"], ["--fault-at", "transfer", "decode"]),
        (["--stall-timeout", "0"], ["--stall-timeout", "'0'", "0.1 to 3600"]),
        (["--transfer-timeout", "nan"], ["--transfer-timeout", "0.1 to 3600"]),
        (["--speed", "11"], ["--speed"]),
    ],
)
def test_wrong_arguments(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse_arguments(arguments)
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message


def test_defaults() -> None:
    options = parse_arguments([])
    assert (options.prefill, options.decode, options.requests) == (1, 1, 1)
    assert parse_arguments(["--fault", "kill"]).decode == 2
    assert parse_arguments(["--prefill", "3"]).requests == 3
    assert parse_arguments(["--prompt", "a", "--prompt", "b"]).requests == 2


def test_a_missing_moonpool_is_said_plainly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "moonpool is not installed" in capsys.readouterr().err


def test_progress_is_drawn_only_for_people() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        progress = Progress("work", 4, stream)
        progress.advance(2)
        progress.close()
        assert ("work [###############...............]  50 %" in stream.getvalue()) is drawn
