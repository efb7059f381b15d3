"""What a command loads: help and errors without torch, a prediction with little besides; and the overview."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import dear
from dear.cli.main import main
from dear.cli.registry import COMMANDS

SOURCE = Path(dear.__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
FORKS = """
import contextlib, io, json, os, sys
from dear.cli.main import main
from dear.cli.registry import COMMANDS

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
HEAVY = {
    "cv2", "fastapi", "httpx", "matplotlib", "open_clip", "pandas", "ray", "scipy",
    "sklearn", "sympy", "timm", "torch._dynamo", "torch.onnx", "torchvision", "transformers",
}  # fmt: skip


class End(NamedTuple):
    """The exit code of a command, its output on both streams, and the modules of its process."""

    code: int
    output: str
    modules: frozenset[str]


def run_each(commands: list[list[str]]) -> list[End]:
    """Run each command line in a fork of one process that has loaded little."""
    process = subprocess.run(
        [sys.executable, "-c", FORKS],
        input=json.dumps(commands), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT, check=True,
    )  # fmt: skip
    return [End(code, output, frozenset(modules)) for code, output, modules in json.loads(process.stdout)]


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_overview_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    overview = capsys.readouterr().out
    assert all(word in overview for name in COMMANDS for word in name.split())


def test_a_group_alone_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ("run", "data", "roles", "index"):
        assert main([group]) == 0
        listed = capsys.readouterr().out
        assert all(name.split()[1] in listed for name in COMMANDS if name.startswith(f"{group} "))
        assert "predict" not in listed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Also of the package as a program, whose exit code is that of the command."""
    assert main(["--version"]) == 0
    assert dear.__version__ in capsys.readouterr().out
    for word, code in (("--version", 0), ("fi", 2)):
        words = [sys.executable, "-m", "dear", word]
        ended = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=False)
        assert (ended.returncode, dear.__version__ in ended.stdout) == (code, code == 0)


def test_help_fits_a_screen_and_loads_no_torch() -> None:
    """docs/cli.md has its text, which `make check` compares."""
    commands = [[], *([*name.split(), "--help"] for name in COMMANDS)]
    for words, end in zip(commands, run_each(commands), strict=True):
        assert (end.code, "Usage: " in end.output) == (0, True), (words, end.output)
        assert max(map(len, end.output.splitlines())) <= 100, words
        assert not {"torch", "numpy", *HEAVY} & end.modules, words


def test_help_has_the_settings_of_the_chosen_method(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["fit", "--method", "maple", "--help"],
        ["run", "few-shot", "--methods=maple,mmrl++", "--help"],
    ):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert "--maple.depth" in shown
        assert "--coop.tokens" not in shown
    assert "--mmrlpp.beta" in shown


ERRORS = [
    (["fit", "nowhere", "--out", "b"], "nowhere"),
    (["run", "recipe", "nowhere.yaml"], "nowhere.yaml"),
    (["predict", "./nowhere", "image.png"], "nowhere"),
    (["predict", "~no-one/bundle", "image.png"], "no-one"),
    (["index", "query", "./nowhere", "a striped thing"], "a striped thing"),
    (["eval", "./nowhere", "mixed-paints"], "nowhere"),
    (["export", "./nowhere", "--out", "model.onnx"], "nowhere"),
    (["serve", "./nowhere"], "nowhere"),
    (["index", "build", "photos", "--features", "heads", "--model", "ViT-C-16"], "ViT-C-16"),
    (["fit", "mixed-paints", "--out", "b", "--model", "ViT-C-16"], "ViT-C-16"),
    (["roles", "discover", "--data", "nowhere"], "nowhere"),
    (["roles", "ablate", "--data", "nowhere"], "nowhere"),
    (["roles", "show", "nowhere.json"], "nowhere.json"),
    (["roles", "assign", "nowhere.txt"], "nowhere.txt"),
]
"""Command lines with an error in their words, and what the message names."""


def test_an_error_is_told_without_torch_and_a_prediction_loads_little_else(
    untrained_bundle: Path, tmp_path: Path
) -> None:
    predict = ["predict", str(untrained_bundle), str(untrained_bundle.parent / "red.png")]
    errors = [*ERRORS, ([*predict[:2], "no.png"], "no.png"), ([*predict[:2], str(tmp_path)], str(tmp_path))]
    errors += [([*predict, "--out", "p.xls"], "p.xls")]
    *ends, predicted = run_each([*(words for words, _ in errors), predict])
    for (words, name), end in zip(errors, ends, strict=True):
        assert (end.code, name in end.output) == (2, True), (words, end.output)
        assert not {"torch", "numpy"} & end.modules, words
    assert (predicted.code, "red circle" in predicted.output) == (0, True), predicted.output
    assert "torch" in predicted.modules
    assert not HEAVY & predicted.modules
