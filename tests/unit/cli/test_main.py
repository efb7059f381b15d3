"""The frame of the command line: names, exit codes, errors, help without torch."""

import errno
import io
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dear import __version__
from dear.cli import main as frame
from dear.cli import models
from dear.cli.main import dispatch, main, split_name
from dear.cli.registry import COMMANDS, Command
from dear.errors import DataError
from dear.reading.files import expanded
from tests.unit.cli.sample import python, sample


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Command]:
    """Commands of our own: each ends in a way of its own."""

    def fails() -> None:
        """Fail."""
        raise DataError("no class has 16 images; ask for fewer shots")

    def interrupted() -> None:
        """Be interrupted."""
        raise KeyboardInterrupt

    def tells() -> None:
        """Tell something."""
        warnings.warn("the data has no split", stacklevel=1)

    def breaks() -> None:
        """Break."""
        raise RuntimeError("a bug")

    def allocates() -> None:
        """Ask for more than there is."""
        torch.zeros(2**50)

    def reads(file: Path) -> None:
        """Read."""
        expanded(file).read_bytes()

    def fills(number: int) -> None:
        """Write to a disk in some state."""
        raise OSError(number, os.strerror(number), "out/weights")

    def ends() -> None:
        """Be told to end."""
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            print("cleared up", file=sys.stderr)

    def lists() -> dict[str, object]:
        """List what stdin lists."""
        return {"mask": sys.stdin.read()}

    table_of = {"run sample": sample, "run fails": fails, "interrupted": interrupted}
    table_of |= {
        "tells": tells,
        "breaks": breaks,
        "allocates": allocates,
        "reads": reads,
        "lists": lists,
        "fills": fills,
        "ends": ends,
    }
    made = {}
    for name, function in table_of.items():
        module = ModuleType("sample_" + name.replace(" ", "_"))
        module.command = function  # type: ignore[attr-defined]
        module.render = lambda result, console: console.print(f"rendered {result['mask']}")  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        made[name] = Command(module.__name__, f"{name} something.")
    monkeypatch.setattr(frame, "COMMANDS", made)
    return made


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dear {__version__}\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_overview_lists_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and command.summary in shown for name, command in COMMANDS.items())


def test_info_as_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["dear"] == __version__
    assert info["packages"]["torch"]
    assert info["devices"][0] == "cpu"
    assert info["threads"] >= 1


def test_info_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    assert "open_clip_torch" in capsys.readouterr().out


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inof"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "dear: error: unknown command 'inof'. Did you mean 'info'? `dear --help` lists the commands.\n"
    )


@pytest.mark.usefixtures("commands")
def test_unknown_nested_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "simple", "x"]) == 2
    assert "unknown command 'run simple'. Did you mean 'run sample'?" in capsys.readouterr().err


def test_a_group_alone_lists_its_commands(
    commands: dict[str, Command], capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch(["run"], commands) == 0
    shown = capsys.readouterr().out
    assert "run sample" in shown
    assert "interrupted" not in shown


def test_the_name_ends_where_options_or_positionals_begin(commands: dict[str, Command]) -> None:
    assert split_name(["run", "sample", "somewhere", "--seed", "1"], commands) == (
        "run sample",
        ["somewhere", "--seed", "1"],
    )
    assert split_name(["run", "--help"], commands) == ("run", ["--help"])
    assert split_name(["--version"], commands) == ("", ["--version"])
    assert split_name(["nothing", "here"], commands) == ("nothing", ["here"])


@pytest.mark.usefixtures("commands")
def test_result_is_rendered_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "sample", "d", "--mask", "mixed"]) == 0
    assert capsys.readouterr().out == "rendered mixed\n"
    assert main(["run", "sample", "d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mask"] == "roles"


@pytest.mark.usefixtures("commands")
def test_errors_go_to_stderr_and_with_json_to_stdout_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "fails"]) == 2
    assert capsys.readouterr() == ("", "dear: error: no class has 16 images; ask for fewer shots\n")
    assert main(["run", "fails", "--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "error": "no class has 16 images; ask for fewer shots",
        "kind": "DataError",
    }
    assert printed.err.startswith("dear: error: no class")


@pytest.mark.usefixtures("commands")
def test_a_warning_for_people_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tells", "--json"]) == 0
    assert capsys.readouterr().err == "dear: note: the data has no split\n"


@pytest.mark.usefixtures("commands")
def test_interruption_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["interrupted"]) == 130
    assert capsys.readouterr().err == "dear: interrupted\n"


def test_what_an_interrupted_command_keeps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_words: object, _commands: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("dear.cli.main.dispatch", interrupted)
    for words, hint in {
        "fit photos --out b": ": give the same command to continue",
        "run few-shot": ": give the same command to continue",
        "index build b photos": ": give the same command to continue",
        "index query i a.jpg": "",
        "predict b a.jpg": "",
    }.items():
        assert main(words.split()) == 130
        assert capsys.readouterr().err == f"dear: interrupted{hint}\n"


@pytest.mark.usefixtures("commands")
def test_sigterm_clears_up_and_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert main(["ends", "--json"]) == 143
    told = capsys.readouterr()
    assert told.err == "cleared up\ndear: terminated\n"
    assert json.loads(told.out) == {"error": "terminated", "kind": "Terminated"}
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.usefixtures("commands")
def test_sigterm_is_left_to_a_program_that_has_its_own_way(capsys: pytest.CaptureFixture[str]) -> None:
    def own(_number: int, _frame: object) -> None:
        raise DataError("our own")

    before = signal.signal(signal.SIGTERM, own)
    try:
        assert main(["ends"]) == 2
        assert capsys.readouterr().err == "cleared up\ndear: error: our own\n"
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO])
def test_a_full_disk_is_one_line(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fills", str(number)]) == 2
    said = f"cannot write out/weights: {os.strerror(number)}. Free some space or use another place."
    assert capsys.readouterr().err == f"dear: error: {said}\n"
    with pytest.raises(OSError, match="Invalid argument"):
        main(["fills", str(errno.EINVAL)])


@pytest.mark.usefixtures("commands")
def test_too_little_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["allocates"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("dear: error: there is not enough memory (")
    assert said.count("\n") == 1


@pytest.mark.usefixtures("commands")
def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        main(["breaks"])


@pytest.mark.usefixtures("commands")
def test_names_that_no_file_can_have_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in (
        ("x" * 300, "xxx... is too long"),
        ("~no-one/b", "dear: error: ~no-one/b: no user has the name after ~"),
    ):
        assert main(["reads", name]) == 2
        assert message in (line := capsys.readouterr().err)
        assert line.count("\n") == 1
    with pytest.raises(FileNotFoundError):
        main(["reads", "nowhere"])


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "ol\xe9, \\udcff"), ("ascii", "ol\\xe9, \\udcff")])
def test_names_in_any_bytes(monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str) -> None:
    listed = b"ol\xc3\xa9, \xff"  # a file system holds names of any bytes
    for words in (["lists", "--json"], ["lists"]):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding, "strict")
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(listed), "utf-8", "strict"))
        monkeypatch.setattr("sys.stdout", stdout)
        assert main(words) == 0
        written = stdout.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
        if "--json" in words:
            assert json.loads(written) == {"mask": "ol\xe9, \udcff"}
        else:
            assert written == f"rendered {shown}\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = (
        "import os, sys; read, write = os.pipe(); os.close(read); os.dup2(write, 1);"
        "from dear.cli.main import main; sys.exit(main(['--help']))"
    )
    done = python(code=code)
    assert (done.returncode, done.stderr) == (141, "")


def test_models_that_are_refused_are_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their number is a result like any other."""
    found = models.Tried("3.3.0", 1, 2, [], {})
    monkeypatch.setattr(models, "command_models", lambda: found)
    assert main(["models"]) == 0
    assert "1 work, 2 are refused" in capsys.readouterr().out
