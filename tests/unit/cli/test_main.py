"""The frame of the command line: names, exit codes, JSON, help, the generated page."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
from rich.console import Console

from dear import __version__
from dear.cli import main as frame
from dear.cli.document import page
from dear.cli.main import dispatch, main, split_name
from dear.cli.output import PrintableConsole, json_text, table, to_jsonable
from dear.cli.parsing import UsageError, build_parser
from dear.cli.registry import COMMANDS, Command
from dear.errors import DataError

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src"


@dataclass(frozen=True)
class Training:
    """How to train.

    Args:
        epochs: Passes over the shots.
        rate: How fast, if not as usual.
    """

    epochs: int = 7
    rate: float | None = None


def sample(
    data: Path,
    *,
    tasks: list[str] | None = None,
    shots: int | None = None,
    mask: Literal["roles", "mixed"] = "roles",
    dry_run: bool = False,
    keep_all: bool = True,
    training: Training = Training(),
) -> dict[str, object]:
    """Do something.

    Args:
        data: Where the data is.
        tasks: Names of tasks.
        shots: Images a class.
        mask: Which heads are isolated.
        dry_run: Change nothing.
        keep_all: Keep every file.
        training: How to train.
    """
    return {
        "data": data,
        "tasks": tasks,
        "shots": shots,
        "mask": mask,
        "epochs": training.epochs,
        "flags": [dry_run, keep_all],
    }


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

    def reads(file: Path) -> None:
        """Read."""
        file.expanduser().read_bytes()

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


def python(*words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "dear.cli.main"]
    return subprocess.run(
        [sys.executable, *start, *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(SOURCE)},
        check=False,
    )


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
    assert printed.err.startswith(
        "dear: error: unknown command 'inof'. Did you mean 'info'? Known commands: info"
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
def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        main(["breaks"])


@pytest.mark.usefixtures("commands")
def test_names_that_no_file_can_have_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in (("x" * 300, "x is too long"), ("~no-one/b", "dear: error: ~no-one/b: there is no")):
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


def test_options_of_every_sort() -> None:
    parser = build_parser("sample", sample)
    assert parser.parse(["d"]) == (
        {
            "data": Path("d"),
            "tasks": None,
            "shots": None,
            "mask": "roles",
            "dry_run": False,
            "keep_all": True,
            "training": Training(),
        },
        False,
    )
    words = ["d", "--tasks", "a,b", "--dry-run", "--no-keep-all", "--training.epochs", "3", "--json"]
    keywords, as_json = parser.parse(words)
    assert as_json
    assert keywords["tasks"] == ["a", "b"]
    assert (keywords["dry_run"], keywords["keep_all"]) == (True, False)
    assert keywords["training"] == Training(3)
    assert parser.parse(["d", "--tasks=[a]"])[0]["tasks"] == ["a"]


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("1,2", ["1", "2"]),
        ("yes,no", ["yes", "no"]),
        ("007,8", ["007", "8"]),
        ("12:30, x", ["12:30", "x"]),
        ("a #1,b: c", ["a #1", "b: c"]),
        ("@home,'t Hooft", ["@home", "'t Hooft"]),
        ("null,~", ["null", "~"]),
        ('"a, b",c', ["a, b", "c"]),
        ("[x],y", ["[x]", "y"]),
        ("ol\xe9,\U0001f600", ["ol\xe9", "\U0001f600"]),
        ('["1", b]', ["1", "b"]),
    ],
)
def test_texts_between_commas_are_texts(value: str, texts: list[str]) -> None:
    parser = build_parser("sample", sample)
    assert parser.parse(["d", "--tasks", value])[0]["tasks"] == texts
    assert parser.parse(["d", f"--tasks={value}"])[0]["tasks"] == texts


def test_options_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("data: d\nmask: mixed\ntraining:\n  epochs: 5\n", encoding="utf-8")
    keywords, _ = build_parser("sample", sample).parse(["--config", str(file), "--training.epochs", "6"])
    assert (keywords["data"], keywords["mask"]) == (Path("d"), "mixed")
    assert keywords["training"] == Training(6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["d", "--dry-rum"], r"--dry-rum\. Did you mean --dry-run\?"),
        (["d", "--mask", "role"], r"--mask: Expected one of 'roles', 'mixed'\."),
        (["d", "--training.epochs", "many"], r"--training\.epochs: Expected an int\. Got value: many\."),
        ([], "data"),
        (["d", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["d", "--shots", "abc"], r"--shots: Expected an int\. Got value: abc\."),
        (["d", "--training.rate", "nan"], r"--training\.rate: Expected a float\. Got value: nan\."),
        (["d", "--training", "5"], "--training: "),
        (["d", "--tasks", "a,,b"], "--tasks: an entry of 'a,,b' is empty"),
        (["d", "--tasks="], "--tasks: an entry of '' is empty"),
        (["d", "--tasks", '"a,b'], "--tasks: '\"a,b' is not a comma-separated list"),
        (["d", "--tasks", "ol\udce9"], r"--tasks: 'ol\\udce9' is not a comma-separated list .*not in UTF-8"),
        (["ol\udce9"], "--data: the name is not in UTF-8"),
    ],
)
def test_bad_options_say_which_and_where_to_look(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build_parser("sample", sample).parse(words)
    assert str(caught.value).endswith("See 'dear sample --help'.")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"tasks: [a, 1]\n", "--tasks: Expected a str. Got value: 1 (in YAML, such a text needs quotes)"),
        (b"training: 5\n", "--training: Expected lines of NAME: VALUE. Got value: 5"),
        (b"tasks: [a\nmask: {", "--config: while parsing a flow sequence in line 1, column 8 "),
        (b"- a\n- b\n", "--config: the file holds no lines of NAME: VALUE"),
        (b"\xff\xfe\x00", "--config: the file is not in UTF-8"),
    ],
)
def test_bad_files_of_options_are_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "options.yaml").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        build_parser("sample", sample).parse(["d", "--config", str(tmp_path / "options.yaml")])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_help_shows_dashes_descriptions_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = build_parser("run sample", sample).help()
    assert "usage: dear run sample [options] data" in shown
    assert "--dry-run, --no-dry-run" in shown
    assert "Change nothing. (type: bool, default: False)" in shown
    assert "--training.epochs EPOCHS" in shown
    assert "_run" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    monkeypatch.setenv("COLUMNS", "40")
    assert build_parser("run sample", sample).help() == shown


@pytest.mark.parametrize("words", [["--help"], *[[*name.split(), "--help"] for name in COMMANDS]])
def test_help_does_not_import_torch(words: list[str]) -> None:
    code = (
        "import sys; from dear.cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {'torch', 'open_clip', 'matplotlib', 'lightning_fabric'} & set(sys.modules);"
        "sys.exit(f'imports {heavy}' if heavy else code)"
    )
    done = python(*words, code=code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_page_of_the_commands_is_current() -> None:
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == page(COMMANDS), "run `make docs`"


def test_what_a_result_may_hold() -> None:
    value = {"a": Training(3), "b": (1, float("nan")), "c": {"z", "y"}, "d": Path("x/y"), "e": None}
    assert to_jsonable(value) == {
        "a": {"epochs": 3, "rate": None},
        "b": [1, None],
        "c": ["y", "z"],
        "d": "x/y",
        "e": None,
    }
    with pytest.raises(TypeError, match="object cannot be written as JSON"):
        to_jsonable([object()])


def test_tables_show_two_decimals_and_dashes() -> None:
    console = Console(width=80, record=True, quiet=True)
    console.print(table("Accuracy", ("task", "base"), [("badges", 51.234), ("tools", float("nan"))]))
    with console.capture() as captured:
        console.quiet = False
        console.print(table("Accuracy", ("task", "base"), [("badges", 51.234), ("tools", float("nan"))]))
    lines = [line.split() for line in captured.get().splitlines()]
    assert ["badges", "51.23"] in lines
    assert ["tools", "–"] in lines


@pytest.mark.parametrize("options", [{}, {"markup": False}])
def test_nothing_in_a_table_is_markup(options: dict[str, bool]) -> None:
    console = Console(width=80)
    with console.capture() as captured:
        shown = table("in a[/b]c", ("[red]image", "base"), [("[red]/:cat:.png", 1.0)])
        console.print(shown, **options)
    assert [line.split() for line in captured.get().splitlines() if "[" in line] == [
        ["in", "a[/b]c"],
        ["[red]image", "base"],
        ["[red]/:cat:.png", "1.00"],
    ]


def test_a_console_keeps_its_colours_and_shows_the_controls_of_texts() -> None:
    stream = io.StringIO()
    console = PrintableConsole(file=stream, force_terminal=True, highlight=False, width=99)
    console.print("[bold]ours[/bold]")
    assert stream.getvalue() == "\x1b[1mours\x1b[0m\n"
    for shown in ("x\x1b[2Jy", table("x\x1b[2Jy", ["x\x1b[2Jy"], [["x\x1b[2Jy"]])):
        console.print(shown, markup=False)
    assert "\x1b[2J" not in stream.getvalue()
    assert stream.getvalue().count(r"x\x1b[2Jy") == 4


def test_json_escapes_every_control() -> None:
    value = "\x1b\x07\n\x7f\x9b\u202e\u2028"
    assert json.loads(json_text(value)) == value
    assert json_text(value).isprintable()
