"""Commands given in a stranger's folder: what its files are called chooses no options, and no code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from dear.cli.parsing import UsageError, build_parser, names_of
from dear.cli.registry import COMMANDS

EVIL = "from pathlib import Path\nPath('ran').touch()\n"
NAME = "--method=evil:Evil"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "evil.py").write_text(EVIL)
    return tmp_path


def told(folder: Path, *words: str) -> str:
    """What the command tells on stderr, in a process that finds modules in the current folder."""
    ended = subprocess.run(
        [sys.executable, "-c", "from dear.cli.main import main; raise SystemExit(main())", *words],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 2, ended.stderr
    return ended.stderr


def test_only_a_value_of_the_option_is_imported(folder: Path) -> None:
    """A class path that stands anywhere else is a text."""
    (folder / "a.png").touch()
    for words in (
        ["predict", "bundle", "--", "a.png", NAME],
        ["fit", "--out", "out", "--", NAME],
        ["data", "check", NAME],
        ["predict", "bundle", "a.png", "--classes", NAME],
        ["run", "few-shot", "--", "--methods", "evil:Evil"],
    ):
        told(folder, *words)
        assert not (folder / "ran").exists(), words
    told(folder, "fit", "photos", "--out", "out", "--method", "evil:Evil")
    assert (folder / "ran").exists()


@pytest.mark.skipif(os.name == "nt", reason="its shell replaces no *")
def test_a_file_whose_name_is_an_option(folder: Path) -> None:
    (folder / NAME).touch()
    assert told(folder, "fit", "--out", "out", *sorted(os.listdir(folder))) == (
        f"dear: error: '{NAME}' is the name of a file in this folder, and would be an option: write ./* for "
        "the files of this folder, or rename it.\n"
    )
    (folder / "-h").touch()
    assert "'-h' is the name of a file in this folder" in told(folder, "predict", "bundle", "-h")
    assert "no bundle at bundle" in told(folder, "predict", "bundle", "--", *sorted(os.listdir(folder)))
    assert not (folder / "ran").exists()


@pytest.mark.skipif(os.name == "nt", reason="its shell replaces no *")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hf:~", "would be one of the hub"),
        ("hf:..", "would be one of the hub"),
        ("hf-hub:someone-model", "would be one of the hub"),
        ('"~"', "would be a list"),
        ("~,~", "would be a list"),
        ('"hf:~"', "would be a list"),
    ],
)
def test_a_file_whose_name_stands_for_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    """The home was read, and what was in it told, by a "*" in a folder of a stranger."""
    home = tmp_path / "home"
    for label in ("private-cat", "private-dog"):
        (home / label).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(home / label / "0.png")
    folder = tmp_path / "stranger"
    folder.mkdir()
    (folder / name).touch()
    monkeypatch.setenv("HOME", str(home))
    options = ["--model", "tiny", "--methods", "zero-shot", "--shots", "1", "--out", str(tmp_path / "out")]
    error = told(folder, "run", "few-shot", *options, "--data", *os.listdir(folder))
    assert f"is the name of a file in this folder, and {reason}" in error
    assert not (tmp_path / "out").exists()
    if "hub" in reason:
        assert reason in told(folder, "data", "check", *os.listdir(folder))


def test_the_commands_that_take_methods() -> None:
    """A command whose option had another name would import nothing."""
    taking = {
        name for name, command in COMMANDS.items() if {"method", "methods"} & names_of(command.load()[0])
    }
    assert {"fit", "run few-shot", "run recipe"} <= taking
    assert not {"predict", "eval", "serve", "data check", "index build"} & taking


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "auto"])
def test_a_file_of_options_names_no_cluster(address: str, tmp_path: Path) -> None:
    """Its machines send pickles."""
    file = tmp_path / "options.yaml"
    file.write_text(f"cluster: {address}\n")
    parser = build_parser("run few-shot", COMMANDS["run few-shot"].load()[0])
    with pytest.raises(UsageError, match=r"--cluster names machines, whose code runs here"):
        parser.parse(["--config", str(file)])
    machines = parser.parse(["--config", str(file), "--cluster", "local"])[0]["machines"]
    assert machines.cluster == "local"
    file.write_text("cluster: local\n")
    assert parser.parse(["--config", str(file)])[0]["machines"].cluster == "local"
