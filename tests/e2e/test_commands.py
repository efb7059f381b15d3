"""What people and scripts rely on in every command: exit codes, JSON, options, suggestions, warnings."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dear
from dear.cli.main import main
from tests.e2e.conftest import Ask, Run

SOURCE = Path(dear.__file__).parents[1]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


CheckDoes = Callable[[Callable[[], object]], None]


@pytest.fixture
def check_does(monkeypatch: pytest.MonkeyPatch) -> CheckDoes:
    """Lets `dear data check` do something else."""
    return lambda act: monkeypatch.setattr("dear.data.check.check_dataset", lambda *_, **__: act())


@pytest.mark.parametrize(
    ("words", "kind", "name"),
    [
        (["inof"], "UnknownNameError", "info"),
        (["data", "chekk"], "UnknownNameError", "check"),
        (["fit", "photos", "--out", "b", "--shoots", "1"], "UsageError", "--shots"),
        (["fit", "photos", "--out", "b", "--select", "vla"], "UsageError", "val"),
        (["fit", "photos", "--out", "b", "--method", "deer"], "UnknownNameError", "dear"),
        (["fit", "a", "--out", "b", "--method", "coop", "--coop.tokns", "4"], "UsageError", "--coop.tokens"),
        (["run", "few-shot", "--data", "mixed-piants"], "UnknownNameError", "mixed-paints"),
        (["fit", "mixed-paints", "--out", "b", "--model", "ViT-B-61"], "UnknownNameError", "ViT-B-16"),
    ],
)  # fmt: skip
def test_a_misspelt_name_suggests_the_nearest(words: list[str], kind: str, name: str, ask: Ask) -> None:
    error = ask(words, 2)
    assert {*error} == {"error", "kind"}
    assert error["kind"] == kind
    assert name in error["error"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["fit", "photos"], "--out"),
        (["data", "check"], "NAME"),
        (["fit", "photos", "--out", "b", "--select", "lats"], "--select"),
        (["fit", "photos", "--out", "b", '--train={"epochs": 5}'], "--train"),
        (["fit", "photos", "--out", "b", "--train.lr=-inf"], "--train.lr"),
        (["fit", "photos", "--out", "b", "--add-classes=a,,b"], "--add-classes"),
        (["fit", "photos", "--out", "b", "--add-classes="], "--add-classes"),
        (["fit", "photos", "--out", "b", '--add-classes="a,b'], "--add-classes"),
        (["data", "check", "a", "b"], "b"),
        (["fit", "photos", "--out", "b", "--shots", "abc"], "--shots"),
        (["fit", "photos", "--out", "b", "--shots", "1.5"], "--shots"),
        (["fit", "photos", "--out", "b", "--shots"], "--shots"),
        (["run", "few-shot", "--dry-run", "true"], "true"),
        (["data", "check", "ol\udce9"], "UTF-8"),
        (["info", "--jsno"], "--json"),
        (["data", "check", "x", "--decod"], "--decode"),
        (["suggest", "b", "nowhere/"], "the folder nowhere does not exist"),
        (["suggest", "b", "nowhere.csv"], "the file nowhere.csv does not exist"),
        (["fit", "photos", "--out", "b", "--precision", "95"], "give 0.95"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(words: list[str], name: str, run: Run) -> None:
    [line] = run(words, 2)[1].splitlines()
    assert name.lower() in line.lower()


def test_the_result_as_json(ask: Ask, run: Run) -> None:
    info = ask(["info"])
    assert info["dear"] == dear.__version__
    assert info["packages"]["torch"]
    assert info["devices"][0] == "cpu"
    assert dear.__version__ in run(["info"])[0]


def test_a_word_without_a_dash_is_no_suggestion(run: Run) -> None:
    """`data check NAME MORE...` has no option --more, which is near to --model."""
    assert "--more" not in run(["data", "check", "x", "--model", "tiny"], 2)[1]


def test_the_error_as_json_and_on_stderr(run: Run) -> None:
    printed, told = run(["data", "check", "nowhere", "--json"], 2)
    error = json.loads(printed)
    assert error["kind"] == "UnknownNameError"
    assert told == f"dear: error: {error['error']}\n"


def test_a_warning_is_one_line(check_does: CheckDoes, run: Run) -> None:
    def act() -> None:
        warnings.warn("no split found", stacklevel=1)
        raise KeyboardInterrupt

    check_does(act)
    assert run(["data", "check", "photos"], 130)[1].splitlines()[0] == "dear: note: no split found"


def raising(error: BaseException) -> Callable[..., None]:
    def act(*_: object, **__: object) -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (KeyboardInterrupt(), 130, "Interrupted"),
        (MemoryError(), 2, "UsageError"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), 2, "UsageError"),
        (OSError(errno.ENOSPC, "No space left on device", "out/weights"), 2, "OutputError"),
        (OSError(errno.EROFS, "Read-only file system", "out/weights"), 2, "OutputError"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300), 2, "UsageError"),
    ],
)
def test_how_a_command_ends(
    error: BaseException, code: int, kind: str, check_does: CheckDoes, run: Run
) -> None:
    check_does(raising(error))
    printed, told = run(["data", "check", "photos", "--json"], code)
    assert json.loads(printed)["kind"] == kind
    assert told.count("\n") == 1
    assert (getattr(error, "filename", None) or "")[:20] in told


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError(errno.EINVAL, "Invalid argument")])
def test_a_bug_keeps_its_traceback(error: Exception, check_does: CheckDoes) -> None:
    check_does(raising(error))
    with pytest.raises(type(error)) as caught:
        main(["data", "check", "photos"])
    assert caught.value is error


def test_an_interrupted_fit_says_how_to_continue(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr("dear.adapters.fit.fit", raising(KeyboardInterrupt()))
    assert "same command" in run(["fit", "mixed-paints", "--out", "b"], 130)[1]


SCRIPT = """
import importlib, signal, sys

class CtrlC:
    def find_spec(self, name, path, target=None):
        if name == "{name}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
sys.exit(getattr(importlib.import_module("{module}"), "{function}")())
"""
TWICE = """
import atexit, os, signal, sys
import dear.cli
import dear.data.check

def work(*_, **__):
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.raise_signal(signal.SIGINT)
        print("cleared up", flush=True)

dear.data.check.check_dataset = work
atexit.register(signal.raise_signal, signal.SIGINT)
sys.exit(dear.cli.start())
"""


def run_script(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script with the name of the installed one."""
    script = folder / "dear"
    script.write_text(text)
    command = [sys.executable, str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)


@pytest.mark.parametrize("name", ["lazy_loader", "dear.cli.main", "cyclopts"])
def test_ctrl_c_while_modules_are_imported_is_one_line(name: str, tmp_path: Path) -> None:
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["dear"].split(":")
    text = SCRIPT.format(name=name, module=module, function=function)
    done = run_script(tmp_path, text, "data", "list", "--json")
    assert (done.returncode, done.stderr) == (130, "dear: interrupted\n")
    assert json.loads(done.stdout)["kind"] == "Interrupted"


def test_a_second_ctrl_c_leaves_what_the_first_clears_up(tmp_path: Path) -> None:
    done = run_script(tmp_path, TWICE, "data", "check", str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleared up\n", "dear: interrupted\n")


def test_sigterm_clears_up(check_does: CheckDoes, ask: Ask) -> None:
    cleared = list[bool]()

    def act() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            cleared.append(True)

    check_does(act)
    assert ask(["data", "check", "photos"], 143)["kind"] == "Terminated"
    assert cleared == [True]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_is_left_to_a_program_that_handles_it(
    check_does: CheckDoes,
) -> None:
    before = signal.signal(signal.SIGTERM, raising(KeyboardInterrupt()))
    try:
        check_does(lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert main(["data", "check", "photos"]) == 130
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def start(words: list[str], stdout: Any = subprocess.PIPE, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dear.cli.main", *words],
        stdout=stdout, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT | more, check=False,
    )  # fmt: skip


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    done = start(["data", "list", "--json"], write)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(os.name == "nt", reason="needs a shell")
@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("<&-", 0), (">&- <&- 2>&-", 0)])
def test_closed_streams_are_no_error(closed: str, code: int) -> None:
    words = [sys.executable, "-m", "dear.cli.main", "data", "list"]
    command = ["sh", "-c", f'"$@" {closed}', "sh", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    assert bool(done.stdout) == (">" not in closed)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["data", "list"]])
def test_a_full_stdout_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = start(words, full)
    assert done.returncode == 2
    assert done.stderr.startswith("dear: error: ")
    assert done.stderr.count("\n") == 1


def test_names_in_any_bytes_on_stdin_and_in_ascii(
    untrained_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`dear predict BUNDLE -` takes names that are not in UTF-8, and prints them, escaped."""
    names = [b"ol\xc3\xa9.png", b"\xff.png"]
    for name in names:
        Image.new("RGB", (64, 64), "red").save(os.path.join(os.fsencode(tmp_path), name), "PNG")
    listed = b"".join(os.path.join(os.fsencode(tmp_path), name) + b"\n" for name in [*names, b"no.png"])
    for words in (["--json"], []):
        stdout = io.TextIOWrapper(io.BytesIO(), "ascii", "strict")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(listed), "utf-8", "strict"))
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(["predict", str(untrained_bundle), "-", *words]) == 1
        written = stdout.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
        if words:
            images = [row["image"] for row in json.loads(written)["predictions"]]
            assert images == [str(tmp_path / os.fsdecode(name)) for name in names]
        else:
            assert r"ol\xe9.png" in written
            assert r"\udcff.png" in written
    assert "no.png" in capsys.readouterr().err
