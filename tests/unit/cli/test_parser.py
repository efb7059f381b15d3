"""Options: their sorts, files of them, what is refused, and their help."""

from pathlib import Path

import pytest

from dear.cli.parsing import UsageError, build_parser
from dear.cli.registry import COMMANDS
from tests.unit.cli.sample import Training, sample


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


def test_lists_of_a_group_of_options_are_written_with_commas() -> None:
    parser = build_parser("sample", sample)
    words = ["d", "--training.stages", "yes,two", "--training.sizes=4,5"]
    assert parser.parse(words)[0]["training"] == Training(stages=("yes", "two"), sizes=(4, 5))
    words = ["d", "--training.stages", "[]", "--training.sizes", "6"]
    assert parser.parse(words)[0]["training"] == Training(sizes=(6,))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_every_command_can_be_built(name: str) -> None:
    assert build_parser(name, COMMANDS[name].load()[0]).help()


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
