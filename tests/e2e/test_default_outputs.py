"""Commands in a stranger's folder write to no place that the user did not choose: links are not followed."""

import os
from pathlib import Path

import pytest

from dear.cli.main import main
from dear.errors import OutputError
from dear.evaluation.experiment import Experiment
from dear.evaluation.plan import Plan
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.recipe import RecipeError, load_recipe
from dear.writing import default_output

RUN = "run base-to-novel --data tilted-badges --methods zero-shot --shots 1"
ABLATION = "run ablation --data tilted-badges --of mask --shots 1"
RECIPE = "protocol: few-shot\nout: runs/few\ndata: tilted-badges\nmethods: [zero-shot]\nshots: 1\n"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of the user with a file, beside the stranger's folder."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("thesis")
    (tmp_path / "mine" / "table.json").write_text("{}")
    return tmp_path / "mine"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's folder, the current one."""
    (tmp_path / "stranger").mkdir()
    monkeypatch.chdir(tmp_path / "stranger")
    return tmp_path / "stranger"


def require_untouched(mine: Path) -> None:
    assert sorted(os.listdir(mine)) == ["report.html", "table.json"]
    assert (mine / "report.html").read_text() == "thesis"
    assert (mine / "table.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ("demo-out", "demo --tasks tilted-badges"),
        ("runs", RUN),
        ("runs/base-to-novel", RUN),
        ("runs", f"{RUN} --dry-run"),
        ("runs", ABLATION),
        ("runs/ablation", ABLATION),
        ("index", "index build --features heads --model tiny photos"),
        ("index", "index merge shards"),
        ("roles.json", "roles discover --model tiny --images 8"),
        ("roles.html", "roles discover --model tiny --images 8"),
        ("roles.json", "roles assign spans.txt"),
        ("roles.html", "roles assign spans.txt"),
    ],
)
def test_a_default_place_is_no_link(
    link: str, words: str, mine: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = mine / "table.json" if link.startswith("roles") else mine
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(target)
    assert main(words.split()) == 2
    assert capsys.readouterr().err == (
        f"dear: error: {link} is a link, which is not followed: name the place yourself, with --out (in "
        "Python out=).\n"
    )
    require_untouched(mine)


def test_a_place_that_the_user_names_may_be_a_link(
    mine: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "runs").symlink_to(mine)
    assert main([*RUN.split(), "--out", "runs"]) == 0
    assert len([*mine.glob("*.json")]) == 2
    capsys.readouterr()


def test_what_lies_in_a_named_place_leads_nowhere_else(
    mine: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "records").symlink_to(mine)
    assert main(["demo", "--tasks", "tilted-badges", "--out", "out"]) == 2
    assert "out/records is a link, which is not followed" in capsys.readouterr().err
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "out" / "few").symlink_to(mine)
    with pytest.raises(RecipeError, match=r"recipe\.yaml: out/few is a link, which is not followed"):
        load_recipe(folder / "recipe.yaml", Path("out"))
    (folder / "caltech-101").symlink_to(mine)
    assert main(["data", "get", "Caltech101", "--root", "."]) == 2
    told = capsys.readouterr().err
    assert "caltech-101 is a link, which is not followed: remove it, or choose another --root." in told
    require_untouched(mine)


def test_an_experiment_in_python(mine: Path, folder: Path) -> None:
    experiment = Experiment(protocol=BaseToNovel(), plans=(Plan("zero-shot"),), data=("tilted-badges",))
    assert experiment.out == Path("runs/base-to-novel")
    (folder / "runs").symlink_to(mine)
    with pytest.raises(OutputError, match=r"^runs is a link, which is not followed: .* \(in Python out=\)"):
        Experiment(protocol=BaseToNovel(), plans=(Plan("zero-shot"),), data=("tilted-badges",))
    with pytest.raises(OutputError, match="runs is a link"):
        default_output("runs/x/y")
