"""A method from outside the package: in every command, and never imported because a file names it."""

import json
import sys
from pathlib import Path

import pytest

from dear.cli.main import main
from dear.methods import registry
from tests.e2e.conftest import Run

FOLDER = Path(__file__).parents[2] / "examples"
SPEC = "add_a_method:Adapter"
SHORT = ["--model", "tiny", "--device", "cpu", "--shots", "1", "--train.epochs", "2"]


@pytest.fixture(autouse=True)
def beside_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    monkeypatch.syspath_prepend(str(FOLDER))


def test_it_runs_with_its_settings(photos: Path, tmp_path: Path, run: Run) -> None:
    words = ["run", "few-shot", "--data", str(photos), *SHORT, "--methods", f"zero-shot,{SPEC}"]
    assert SPEC in run([*words, "--adapter.share", "0.5", "--out", str(tmp_path / "out")])[0]
    (path,) = (tmp_path / "out").glob("*Adapter*.json")
    record = json.loads(path.read_text())
    assert (record["method"], record["settings"]["method"]) == (SPEC, {"share": 0.5, "hidden": 16})
    assert record["trainable_parameters"] > 0
    assert "--adapter.share" in run(["run", "few-shot", "--methods", SPEC, "--help"])[0]


def test_a_bundle_of_it_is_only_read_where_it_is_known(
    photos: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, data = str(tmp_path / "bundle"), str(photos)
    run(["fit", data, "--method", SPEC, *SHORT, "--out", bundle])
    image, index = str(next(photos.rglob("*.png"))), str(tmp_path / "index")
    commands = [
        ["info", bundle],
        ["eval", bundle, data],
        ["compare", bundle, bundle, data],
        ["predict", bundle, image],
        ["suggest", bundle, data, "--out", str(tmp_path / "next.csv")],
        ["index", "build", bundle, data, "--out", index],
        ["index", "query", index, image],
    ]
    for words in commands:
        registry._methods.pop(SPEC)
        told = run([*words, "--method", "coop"], 2)[1]
        assert "coop is no class outside the package" in told
        run([*words, "--method", SPEC])
    registry._methods.pop(SPEC)
    monkeypatch.setattr(registry, "import_module", None)
    for words in commands:
        assert f"--method {SPEC} in other commands" in run(words, 2)[1]


@pytest.mark.long
def test_an_edited_method_is_run_again_and_not_reported_as_one(
    photos: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records of the code before stay, and a report of both is refused."""
    file, out = tmp_path / "edited_method.py", tmp_path / "out"
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["run", "few-shot", "--data", str(photos), *SHORT, "--methods", "zero-shot,edited_method:Adapter"]
    code = (FOLDER / "add_a_method.py").read_text()
    for text, records in ((code, 2), (code, 2), (f"{code}# edited\n", 3)):
        file.write_text(text)
        sys.modules.pop("edited_method", None)
        registry._methods.pop("edited_method:Adapter", None)
        run([*words, "--out", str(out)])
        assert len([*out.glob("*.json")]) == records
    assert "2 versions" in run(["report", str(out)], 2)[1]


EVIL = "evilmeth:Evil"
RECIPE = "protocol: few-shot\nout: runs\ndata: mixed-paints\nmethods: [zero-shot, '{}']\n"


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the current one, with a module that leaves a file when it is imported."""
    (tmp_path / "evilmeth.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(EVIL))
    setting = RECIPE.replace("'{}'", f"{{method: {EVIL!r}, settings: {{a: 1}}}}")
    (tmp_path / "setting.yaml").write_text(setting)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "run recipe recipe.yaml --dry-run",
        "run recipe setting.yaml --dry-run",
        "run recipe recipe.yaml --methods all --dry-run",
    ],
)
def test_a_class_that_only_a_file_names_is_not_imported(evil: Path, words: str, run: Run) -> None:
    told = run(words.split(), 2)[1]
    assert not (evil / "imported").exists()
    assert all(way in told for way in (f"--methods {EVIL}", "dear.register"))


def test_a_class_that_is_not_chosen_need_not_be_imported(evil: Path, run: Run) -> None:
    planned = run(["run", "recipe", "recipe.yaml", "--methods", "zero-shot", "--dry-run"])[0]
    assert "zero-shot" in planned
    assert EVIL not in planned
    assert not (evil / "imported").exists()


@pytest.mark.parametrize(
    "words",
    [
        "fit --out out -- --method=evilmeth:Evil",
        "data check --method=evilmeth:Evil",
        "predict bundle a.png -- --method=evilmeth:Evil",
    ],
)
def test_a_class_that_is_no_value_of_the_option_is_not_imported(evil: Path, words: str) -> None:
    assert main(words.split()) == 2
    assert not (evil / "imported").exists()


def test_a_class_that_the_command_line_names_too_is_run(tmp_path: Path, run: Run) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(SPEC) + "shots: 1\n")
    words = ["run", "recipe", str(tmp_path / "recipe.yaml"), "--dry-run"]
    registry._methods.pop(SPEC, None)
    run(words, 2)
    for named in (f"zero-shot,{SPEC}", SPEC):  # alone, it leaves the others in
        planned = run([*words, "--methods", named])[0]
        assert SPEC in planned
        assert "zero-shot" in planned


@pytest.mark.parametrize(
    "spec", ["no_such_module:Adapter", "add_a_method:Adaptor", "add_a_method:AdapterSettings"]
)
def test_what_is_no_method(spec: str, run: Run) -> None:
    assert spec in run(["run", "few-shot", "--methods", spec], 2)[1]
