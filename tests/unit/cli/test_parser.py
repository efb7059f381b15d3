"""Options: their sorts, files of them, what is refused, and their help."""

from pathlib import Path
from time import process_time
from typing import Any

import pytest

from dear.cli.help import help_text
from dear.cli.parsing import CommandParser, UsageError, build_parser
from dear.cli.registry import COMMANDS
from dear.errors import DearError
from dear.methods.registry import METHODS
from tests.unit.cli.sample import Training, sample


@pytest.fixture(scope="module")
def parser() -> CommandParser:
    return build_parser("sample", sample)


def parsed(command: str, *words: str) -> dict[str, Any]:
    return build_parser(command, COMMANDS[command].load()[0]).parse(words)[0]


def test_options_of_every_sort(parser: CommandParser) -> None:
    options, frame = parser.parse(["d"])
    assert options == {
        "data": Path("d"),
        "tasks": None,
        "shots": None,
        "mask": "roles",
        "dry_run": False,
        "keep_all": True,
        "training": Training(),
    }
    assert not frame.json
    words = ["d", "--tasks", "a,b", "--dry-run", "--no-keep-all", "--training.epochs", "3", "--json"]
    options, frame = parser.parse(words)
    assert frame.json
    assert options["tasks"] == ["a", "b"]
    assert (options["dry_run"], options["keep_all"]) == (True, False)
    assert options["training"] == Training(3)
    assert parser.parse(["--shots=1", "d", "--shots=2"])[0]["shots"] == 2
    assert parser.parse(["--training.rate", "-1e-3", "--", "-d"])[0]["data"] == Path("-d")


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
        ("[x],{y}", ["[x]", "{y}"]),
        ("ol\xe9,\U0001f600", ["ol\xe9", "\U0001f600"]),
    ],
)
def test_texts_between_commas_are_texts(value: str, texts: list[str], parser: CommandParser) -> None:
    assert parser.parse(["d", "--tasks", value])[0]["tasks"] == texts
    assert parser.parse(["d", f"--tasks={value}"])[0]["tasks"] == texts
    assert parser.parse(["d", "--tasks", value, "--tasks", "z"])[0]["tasks"] == [*texts, "z"]


def test_lists_of_a_group_of_options_are_written_with_commas(parser: CommandParser) -> None:
    words = ["d", "--training.stages", "yes,two", "--training.sizes=4,5"]
    assert parser.parse(words)[0]["training"] == Training(stages=("yes", "two"), sizes=(4, 5))


def test_a_positional_list_takes_words_as_they_are() -> None:
    words = ["bundle", "a,b.png", "--top", "2", "-", "c.png"]
    assert parsed("predict", *words)["images"] == ["a,b.png", "-", "c.png"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_every_command_can_be_built(name: str) -> None:
    parser = build_parser(name, COMMANDS[name].load()[0])
    assert max(map(len, help_text(parser, METHODS, everything=True).splitlines())) <= 100


def test_methods_have_their_settings_as_options() -> None:
    options = parsed(
        "run base-to-novel", "--mmrl++.beta", "0.5", "--mmrlpp.scale=null", "--tip-adapter.tuned"
    )
    assert (options["mmrlpp"].beta, options["mmrlpp"].scale) == (0.5, None)
    assert options["tip_adapter"].tuned
    assert {METHODS[name].folder for name in METHODS} & {*options} >= {"dear", "coop", "mmrlpp"}
    assert options["dear"] == METHODS["dear"].settings()


def options_in(file: Path, content: str | bytes, parser: CommandParser, *words: str) -> dict[str, Any]:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return parser.parse(["--config", str(file), *words])[0]


def test_options_from_a_file(tmp_path: Path, parser: CommandParser) -> None:
    content = "data: d\nmask: mixed\ndry-run: true\nkeep_all: no\n"
    content += "training:\n  epochs: 5\n  rate: 1e-3\n  sizes: []\n"
    options = options_in(tmp_path / "options.yaml", content, parser, "--training.epochs", "6")
    assert (options["data"], options["mask"]) == (Path("d"), "mixed")
    assert (options["dry_run"], options["keep_all"]) == (True, False)
    assert options["training"] == Training(6, rate=0.001, sizes=())
    content = "tasks: [007, yes, 'null', 'a, b']\nshots: null\ntraining: {rate: null, sizes: [1, 2]}"
    options = options_in(tmp_path / "options.yaml", content, parser, "d")
    assert options["tasks"] == ["007", "yes", "null", "a, b"]
    assert options["training"] == Training(rate=None, sizes=(1, 2))
    assert options_in(tmp_path / "options.yaml", "tasks: [a, b]", parser, "d", "--tasks", "c")["tasks"] == [
        "c"
    ]


def test_a_file_of_options_with_a_long_list_is_read_at_once(tmp_path: Path, parser: CommandParser) -> None:
    """Each entry was compared with all before it: 30,000 took more than a minute."""
    words = [f"w{number}" for number in range(30_000)]
    (tmp_path / "options.yaml").write_text(f"tasks: [{', '.join(words)}]")
    before = process_time()
    options, _ = parser.parse(["d", "--config", str(tmp_path / "options.yaml")])
    assert options["tasks"] == words
    assert process_time() - before < 10


def test_a_file_of_options_names_no_other_file(tmp_path: Path, parser: CommandParser) -> None:
    with pytest.raises(UsageError, match=r"options\.yaml: unknown option --config\."):
        options_in(tmp_path / "options.yaml", "config: nowhere.yaml\ndata: d\n", parser)


def test_of_two_files_the_last_wins(tmp_path: Path, parser: CommandParser) -> None:
    (tmp_path / "first.yaml").write_text("shots: 1\nmask: mixed\n", encoding="utf-8")
    words = ["d", "--config", str(tmp_path / "first.yaml")]
    options = options_in(tmp_path / "second.yaml", "shots: 2", parser, *words)
    assert (options["shots"], options["mask"]) == (1, "mixed")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("predict", ["bundle", "a.png", "b.png", "--classes", "007,yes,null", "--out", "x.csv"]),
        (
            "run base-to-novel",
            ["--jobs", "2", "--train.lr", "1e-05", "--dear.no-learn-fusion", "--threads=3"],
        ),
    ],
)
def test_printed_options_are_a_file_of_them(name: str, words: list[str], tmp_path: Path) -> None:
    parser = build_parser(name, COMMANDS[name].load()[0])
    options, frame = parser.parse([*words, "--print-config"])
    assert frame.print_config
    assert options_in(tmp_path / "options.yaml", parser.as_yaml(options), parser) == options


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["d", "--dry-rum"], r"--dry-rum\. Did you mean --dry-run\?"),
        (["d", "--mask", "role"], '--mask.*"roles", "mixed"'),
        (["d", "--training.epochs", "many"], r'--training\.epochs: .*"many"'),
        (["d", "--training.epochs", "1.5"], r'--training\.epochs: .*"1.5"'),
        (["d", "--training.rate", "nan"], r'--training\.rate: .*"nan"'),
        (["d", "--training.rate=-inf"], r'--training\.rate: .*"-inf"'),
        (["d", "--training", "5"], "--training: it is a group"),
        (["d", '--training={"epochs": 5}'], "--training: it is a group"),
        (["d", "--shots", "abc"], '--shots: .*"abc"'),
        (["d", "--shots"], "--shots requires"),
        (["d", "e"], "unexpected: e"),
        (["d", "--dry-run", "true"], "unexpected: true"),
        ([], "DATA is not given"),
        (["d", "--tasks", "a,,b"], "--tasks: an entry of 'a,,b' is empty"),
        (["d", "--tasks="], "--tasks: an entry of '' is empty"),
        (["d", "--tasks", '"a,b'], "--tasks: '\"a,b' is not a comma-separated list"),
        (["d", "--tasks", "ol\udce9"], "not in UTF-8"),
        (["ol\udce9"], "not in UTF-8"),
        (["d", "--config", "nowhere.yaml"], "nowhere.yaml: No such file"),
        (["d", "--config", "/dev/zero"], "/dev/zero: it is not a regular file"),
        (["d", "--shots", "9" * 5000], "--shots: "),
    ],
)
def test_bad_options_say_which_in_one_line(words: list[str], message: str, parser: CommandParser) -> None:
    with pytest.raises(DearError, match=message) as caught:
        parser.parse(words)
    if isinstance(caught.value, UsageError):
        assert str(caught.value).endswith("See 'dear sample --help'.")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("training: 5\n", "--training.* it is a group"),
        ("tasks: [a\nmask: {", "line 2"),
        ("- a\n- b\n", "it holds no lines of NAME: VALUE"),
        (b"\xff\xfe\x00", "it is not in UTF-8"),
        ("dry-rum: true", r"unknown option --dry-rum\. Did you mean --dry-run\?"),
        ("training: {epoch: 1}", r"unknown option --training.epoch\. Did you mean --training.epochs\?"),
        ("no-dry-run: true", "unknown option --no-dry-run"),
        ("shots: [1, 2]", r"--shots cannot be \['1', '2'\]"),
        ("shots: {a: 1}", "--shots"),
        ("shots: 1.0", '--shots.*"1.0"'),
        ("dry-run: 2", '--dry-run.*"2"'),
        ("mask: null", "--mask"),
        ("training: null", "--training"),
        ("training: {rate: .nan}", '--training.rate.*".nan"'),
        ("tasks: [[a]]", "--tasks"),
        ("tasks: [null]", "--tasks"),
        ("1: 2", "unknown option --1"),
        ("dry_run: true\ndry-run: false", "it gives --dry-run twice, in other letters or as --dry-run"),
        ('training: {epochs: 1}\n"training.epochs": 2', "it gives --training.epochs twice"),
    ],
)
def test_bad_files_of_options_are_one_line(
    tmp_path: Path, content: str | bytes, message: str, parser: CommandParser
) -> None:
    with pytest.raises(DearError, match=message) as caught:
        options_in(tmp_path / "options.yaml", content, parser, "d")
    assert "\n" not in str(caught.value)


def test_help_shows_dashes_descriptions_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    text = help_text(build_parser("run sample", sample))
    lines = text.splitlines()
    assert lines[0] == "usage: dear run sample DATA [options]"
    assert "  --dry-run                     Change nothing." in lines
    assert "  --keep-all, --no-keep-all     Keep every file. (default: yes)" in lines
    assert "  --mask {roles,mixed}          Which heads are isolated. (default: roles)" in lines
    assert "  --tasks TEXT,...              Names of tasks." in lines
    assert text.count("--config") == 1
    assert "--training.epochs" not in text
    assert "  --json" not in text
    assert "more options, which 'dear run sample --help-all' explains:" in lines
    assert "  --config, --print-config, --json, --training.*" in lines
    complete = help_text(build_parser("run sample", sample), everything=True).splitlines()
    assert "How to train:" in complete
    assert "  --json                        Print one JSON object, for programs." in complete
    assert "  --training.epochs INT         Passes over the shots. (default: 7)" in complete
    monkeypatch.setenv("COLUMNS", "40")
    assert help_text(build_parser("run sample", sample)) == text
