"""A method from outside the package: in every command, and never imported because a file names it."""

import json
from pathlib import Path

import pytest

from dear.cli.main import main
from dear.methods import registry

FOLDER = Path(__file__).parents[2] / "examples"
SPEC = "add_a_method:Adapter"
DATA = ["--data", "mixed-paints", "--train.epochs", "2"]


@pytest.fixture(autouse=True)
def beside_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.syspath_prepend(str(FOLDER))


def test_it_runs_with_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "few-shot", *DATA, "--shots", "1", "--methods", f"zero-shot,{SPEC}"]
    assert main([*words, "--adapter.share", "0.5", "--out", str(tmp_path)]) == 0
    assert f"Fine shades: {SPEC}" in capsys.readouterr().out
    (path,) = tmp_path.glob("*Adapter*.json")
    record = json.loads(path.read_text())
    assert (record["method"], record["settings"]["method"]) == (SPEC, {"share": 0.5, "hidden": 16})
    assert record["trainable_parameters"] > 0


def test_its_options_stand_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "few-shot", "--methods", SPEC, "--help"]) == 0
    assert "--adapter.share" in capsys.readouterr().out


def test_a_bundle_of_it_is_only_read_where_it_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bundle"
    words = ["fit", *DATA, "--method", SPEC, "--shots", "1", "--out", str(out), "--device", "cpu"]
    assert main(words) == 0
    assert main(["eval", str(out), "--data", "mixed-paints", "--device", "cpu"]) == 0
    del registry._known[SPEC]
    monkeypatch.setattr(registry, "import_module", None)
    capsys.readouterr()
    assert main(["eval", str(out), "--data", "mixed-paints", "--device", "cpu"]) == 2
    assert f"its method {SPEC} is not in this package" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:Adapter", "cannot be imported: No module named 'no_such_module'"),
        ("add_a_method:Adaptor", "cannot be imported: module 'add_a_method' has no attribute 'Adaptor'"),
        ("add_a_method:AdapterSettings", "is no subclass of dear.methods.base.Method"),
    ],
)
def test_what_is_no_method(spec: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "few-shot", "--methods", spec]) == 2
    assert message in capsys.readouterr().err
