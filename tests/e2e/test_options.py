"""Options on the command line and in files: lists, settings of methods, `--config` and `--print-config`."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dear.cli.main import main
from tests.e2e.conftest import Ask, Run


def options_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The options that a command line gives, as --print-config prints them."""
    assert main([*words, "--print-config"]) == 0
    options = yaml.safe_load(capsys.readouterr().out)
    return {name.replace("-", "_"): value for name, value in options.items()}


def test_lists_are_written_with_commas(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ask(["tasks", "--tasks", "tilted-badges,mixed-paints"])["tasks"]
    assert [task["name"] for task in tasks] == ["tilted-badges", "mixed-paints"]
    predict = ["predict", "bundle", "a,b.png", "-", "c.png", "--classes"]
    for words, classes in (
        (["1,yes,007,null"], ["1", "yes", "007", "null"]),
        (["a b: #1", "--classes", "c,d"], ["a b: #1", "c", "d"]),
        (['"a, b",c'], ["a, b", "c"]),
        (["12:30, x", "--classes", "~"], ["12:30", "x", "~"]),
        (["@home,'t Hooft,[x],{y}"], ["@home", "'t Hooft", "[x]", "{y}"]),
        (["ol\xe9,\U0001f600"], ["ol\xe9", "\U0001f600"]),
    ):
        options = options_of([*predict, *words], capsys)
        assert options["classes"] == classes
        assert options["images"] == ["a,b.png", "-", "c.png"]
    options = options_of(["run", "few-shot", "--seeds=1,2", "--dataset.workers", "2"], capsys)
    assert [*options["seeds"]] == [1, 2]
    options = options_of(["roles", "assign", "spans.txt", "--settings.attributes", "color,shape"], capsys)
    assert [*options["settings"]["attributes"]] == ["color", "shape"]


def test_options_of_every_sort(capsys: pytest.CaptureFixture[str]) -> None:
    words = "fit --train.lr 1e-3 --no-calibrate --shots=1 --shots=2 --out b --print-config -- -d"
    assert main(words.split()) == 0
    options = yaml.safe_load(capsys.readouterr().out)
    assert options["data"] == "-d"
    assert (options["shots"], options["calibrate"], options["overwrite"]) == (2, False, False)
    assert options["train"]["lr"] == 0.001
    assert options_of(["data", "check", "x", "--no-decode"], capsys)["decode"] is False


def test_methods_have_settings_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "base-to-novel", "--methods", "coop,mmrl++,tip-adapter"]
    settings = ["--coop.tokens", "4", "--mmrl++.beta", "0.5", "--mmrlpp.scale=null", "--tip-adapter.tuned"]
    options = options_of([*words, *settings], capsys)
    assert options["coop"] == {"tokens": 4}
    assert options["mmrlpp"] == {"beta": 0.5, "scale": None}
    assert options["tip_adapter"] == {"tuned": True}
    assert options_of(["fit", "mixed-paints", "--out", "b", "--method", "auto"], capsys)["method"] == "auto"
    assert main(["fit", "mixed-paints", "--out", "b", "--coop.tokens", "4"]) == 2
    assert "--coop.tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "predict bundle a.png --classes 007,yes,null --out x.csv",
        "run few-shot --jobs 2 --train.lr 1e-05 --methods dear --dear.first 8",
        "fit photos more.csv --out b --method coop --coop.tokens 8",
    ],
)
def test_printed_options_are_a_file_of_them(command: str, tmp_path: Path, run: Run) -> None:
    printed, _ = run([*command.split(), "--print-config"])
    (tmp_path / "options.yaml").write_text(printed, encoding="utf-8")
    name = command.split()[: 2 if command.startswith("run") else 1]
    assert run([*name, "--config", str(tmp_path / "options.yaml"), "--print-config"])[0] == printed


def test_options_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(
        "data: photos\nout: b\nshots: 3\ntrain: {epochs: 5, lr: 1e-3}\nmethod: coop\ncoop:\n  tokens: 8\n"
    )
    options = options_of(["fit", "--config", str(file), "--shots", "4", "--train.epochs", "6"], capsys)
    assert (options["data"], options["out"], options["shots"]) == ("photos", "b", 4)
    assert (options["train"]["epochs"], options["train"]["lr"]) == (6, 0.001)
    assert options["coop"] == {"tokens": 8}
    file.write_text("classes: ['007', 'yes', 'a, b']\nadd-classes: null\ntop: 2\n")
    options = options_of(["predict", "bundle", "a.png", "--config", str(file)], capsys)
    assert (options["classes"], options["add_classes"], options["top"]) == (["007", "yes", "a, b"], None, 2)
    options = options_of(["predict", "bundle", "a.png", "--config", str(file), "--classes", "c"], capsys)
    assert options["classes"] == ["c"]


def test_a_wrong_file_of_options_is_named(tmp_path: Path, run: Run) -> None:
    for content, name in (
        ("shoots: 1", "shoots"),
        ("train: {epoch: 1}", "epoch"),
        ("shots: many", "shots"),
        ("- a\n- b\n", "options.yaml"),
        ("shots: [a\nout: {", "options.yaml"),
    ):
        (tmp_path / "options.yaml").write_text(content)
        words = ["fit", "photos", "--out", "b", "--config", str(tmp_path / "options.yaml")]
        [line] = run(words, 2)[1].splitlines()
        assert name in line
