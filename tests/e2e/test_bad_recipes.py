"""Recipes and reports through the command line: one that works, and bad ones, each with one clear line."""

import json
import shutil
from pathlib import Path

import pytest

from dear.cli.main import main
from tests.e2e.refusals import refused

RECIPE = """
protocol: base-to-novel
out: runs/{name}
data: [{data}]
methods: [zero-shot]
roles: {roles}
"""


def recipe(tmp_path: Path, photos: Path, roles: Path, text: str = RECIPE, name: str = "one") -> Path:
    path = tmp_path / "recipes" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    shutil.copy(roles, path.with_name("roles.json"))
    path.write_text(text.format(name=name, data=photos, roles="roles.json"))
    return path


def test_a_recipe_runs_and_is_reported(
    small: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, photos, small)
    assert main(["run", "recipe", str(path), "--out", str(tmp_path / "out"), "--dry-run", "--json"]) == 0
    (planned,) = json.loads(capsys.readouterr().out)["planned"]
    assert planned["method"] == "zero-shot"
    assert not (tmp_path / "out").exists()
    assert main(["run", "recipe", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "1 run, records in" in capsys.readouterr().out
    assert main(["run", "recipe", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "1 run (1 made before, not repeated), records in" in capsys.readouterr().out
    assert main(["run", "recipe", str(path), "--out", str(tmp_path / "out"), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["planned"][0]["done"]
    assert main(["report", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["records"] == 1
    assert Path(found["html"]).is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RECIPE + "seads: 1\n", "unknown key 'seads'. Did you mean 'seeds'?"),
        (RECIPE.replace("zero-shot", "zero-shut"), "unknown method 'zero-shut'. Did you mean 'zero-shot'?"),
        (
            RECIPE.replace("{data}", "far-stikers"),
            "unknown data set 'far-stikers'. Did you mean 'album-stickers'?",
        ),
    ],
)
def test_a_wrong_recipe(
    text: str, message: str, small: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, photos, small, text)
    line = refused(["run", "recipe", str(path), "--out", str(tmp_path / "out")], tmp_path / "out", capsys)
    assert message in line


def test_no_data_set_in_common_and_one_place_for_two(
    small: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe(tmp_path, photos, small)
    words = ["run", "recipe", str(path), "--out", str(tmp_path / "out"), "--data", "album-stickers"]
    assert "no recipe to run has the data set 'album-stickers': available are" in refused(
        words, tmp_path / "out", capsys
    )
    recipe(tmp_path, photos, small, RECIPE.replace("{name}", "one"), "two")
    assert main(["run", "recipe", str(path.parent), "--out", str(tmp_path / "out")]) == 2
    assert "one and two both write to" in capsys.readouterr().err
    assert not (tmp_path / "out" / "one").exists()


def test_a_report_of_nothing_or_of_another_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (([], "there is no run record"), (["--weights", "ab"], "there is no run record")):
        assert main(["report", str(tmp_path), *words]) == 2
        assert message in capsys.readouterr().err
    (tmp_path / "old.json").write_text('{"schema": 1, "protocol": "base-to-novel"}')
    assert main(["report", str(tmp_path)]) == 2
    printed = capsys.readouterr().err
    assert "schema 1, this version reads schema 2" in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "report").exists()
