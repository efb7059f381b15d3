"""Command lines in forks of one process that has loaded little: how each ended, and what it loaded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[3] / "src"
PROGRAM = """
import contextlib, io, json, os, sys
from dear.cli.main import main

ends = []
for words in json.load(sys.stdin):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main(words)
        with os.fdopen(write, "w") as file:
            json.dump([code, output.getvalue(), [*sys.modules]], file)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        content = file.read()
    os.waitpid(child, 0)
    assert content, f"{words} ended the process"
    ends.append(json.loads(content))
json.dump(ends, sys.stdout)
"""


class End(NamedTuple):
    """The exit code of a command, its output on both streams, and the modules of its process."""

    code: int
    output: str
    modules: frozenset[str]


def run_each(commands: list[list[str]]) -> list[End]:
    """Run each command line in a fork of its own."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(commands),
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        check=True,
    )
    return [End(code, output, frozenset(modules)) for code, output, modules in json.loads(process.stdout)]
