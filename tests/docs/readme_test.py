"""What the documents tell a reader to do works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/guides/debug-a-stuck-transfer.md",
    "docs/guides/add-a-transport.md",
)


def code_blocks(path: str, language: str) -> list[str]:
    text = (ROOT / path).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_the_python_of_the_readme_runs() -> None:
    (program,) = code_blocks("README.md", "python")
    result = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "layer 0 is there" in result.stdout


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_script_that_a_document_names_exists(document: str) -> None:
    named = set(re.findall(r"(?<![\w/])(script/[a-z-]+)", (ROOT / document).read_text()))
    missing = [name for name in sorted(named) if not os.access(ROOT / name, os.X_OK)]
    assert not missing
