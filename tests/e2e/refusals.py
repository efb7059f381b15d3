"""A run in few words, what a refused command must look like, and what a command answers as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from dear.cli.main import main

RUN = ["run", "base-to-novel"]
SHORT = ["--shots", "2", "--train.epochs", "2", "--dear.first", "8"]


def refused(words: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must end with code 2, one line on stderr after notes, and nothing written; return
    the line.
    """
    assert main([*words, "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = [line for line in printed.err.splitlines() if not line.startswith("dear: note: ")]
    assert line.startswith("dear: error: ")
    assert not out.exists() or [*out.iterdir()] == []
    return line


def ask(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> Any:
    """The JSON that a command prints with --json."""
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)
