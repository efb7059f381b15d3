"""kill -9 just before a file or folder takes its place: the same command, given again, ends as if nothing had
been. Runs: tests/unit/evaluation/test_killed.py.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dear.cli.main import main
from tests.unit.evaluation.children import server, write_noise

TIMES = ("seconds", "peak_memory", "environment")
CPU = "--device cpu"
FIT = (
    "fit photos --model tiny --method dear --train.epochs 2 --no-review --refuse 0 --out out --overwrite "
    f"{CPU}"
)
RECORDS = f"run few-shot --data photos --model tiny --methods zero-shot --shots 1 --out records {CPU}"


def bundle(out: Path) -> dict[str, Any]:
    """The files of a bundle, without what the clock says and, thus, its hash and card."""
    files: dict[str, Any] = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    config = json.loads(files.pop("config.json"))
    config["training"] = {key: value for key, value in config["training"].items() if key not in TIMES}
    return {name: files[name] for name in files if name != "README.md"} | {"config": config | {"sha256": ""}}


def report(out: Path) -> dict[str, Any]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


REPORT = "report records --out out"
SCENES = {
    "fit": ([FIT.replace("--method dear --train.epochs 2", "--method zero-shot")], FIT, bundle),
    "report": ([RECORDS, f"{REPORT} --title Older"], REPORT, report),
}
"""Commands that are run before, the one that is killed, and what of its result must be the same."""


def run(words: str, folder: Path, killed_at: int = 0) -> None:
    """Run a command in this process, which is killed before its so-manieth renaming."""
    import torch

    torch.set_num_threads(1)
    os.chdir(folder)
    passed = 0

    def kill(event: str, _arguments: Any) -> None:
        nonlocal passed
        passed += event == "os.rename"
        if event == "os.rename" and passed == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    sys.exit(main(words.split()))


def exit_code(words: str, folder: Path, killed_at: int = 0) -> int | None:
    process = server().Process(target=run, args=(words, folder, killed_at))
    process.start()
    process.join(timeout=120)
    return process.exitcode


@pytest.mark.parametrize("name", SCENES)
def test_nothing_is_lost(name: str, tmp_path: Path) -> None:
    before, words, result = SCENES[name]
    write_noise(tmp_path / "photos")
    for command in before:
        assert exit_code(command, tmp_path) == 0
    out = tmp_path / "out"
    old = result(out) if out.exists() else None
    for killed_at in (2, 1):
        assert exit_code(words, tmp_path, killed_at) == -signal.SIGKILL
    assert exit_code(words, tmp_path) == 0
    after_kills = result(out)
    assert after_kills != old
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".dear.part")]
    out.rename(tmp_path / "moved")
    assert exit_code(words, tmp_path) == 0
    assert result(out) == after_kills
