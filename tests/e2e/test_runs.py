"""`dear run` and `dear report`: a recipe from plan to page, what is refused before anything is made (by a dry
run too), and a run that is interrupted or diverges.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from dear import writing
from dear.backbone.clip import Clip, Identity
from dear.backbone.loading import tiny
from dear.cli.main import main
from dear.evaluation import trial
from dear.evaluation.ablations import ablations
from dear.methods.dear.method import Dear
from dear.roles.table import RoleTable
from tests.e2e.conftest import RUN, SHORT, Ask, Run

RECIPE = "protocol: base-to-novel\nout: runs/one\ndata: [{}]\nmethods: [zero-shot]\nroles: roles.json\n"
Refuse = Callable[..., str]


@pytest.fixture
def refuse(small: Path, photos: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """``refuse(words)``: the error of a run of DeAR on the photos with these words; nothing is written."""
    usual = {"--data": str(photos), "--methods": "dear", "--roles": str(small), "--out": str(out)}
    usual |= dict(zip(SHORT[::2], SHORT[1::2], strict=True))

    def refuse(words: str) -> str:
        given = words.split()
        left = usual.keys() - {*given} - ({"--dear.first"} if "--methods" in given else set())
        common = [word for name in usual if name in left for word in (name, usual[name])]
        capsys.readouterr()
        assert main([*RUN, *common, *given]) == 2
        assert not out.exists() or [*out.iterdir()] == []
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("dear: error: ")
        return line

    return refuse


def test_a_recipe_runs_and_is_reported(small: Path, photos: Path, out: Path, run: Run, ask: Ask) -> None:
    (recipe := small.with_name("one.yaml")).write_text(RECIPE.format(photos))
    words = ["run", "recipe", str(recipe), "--out", str(out)]
    [planned] = ask([*words, "--dry-run"])["planned"]
    assert (planned["method"], planned["done"], out.exists()) == ("zero-shot", False, False)
    assert "1 run, records in" in run(words)[0]
    assert "1 run (1 made before, not repeated), records in" in run(words)[0]
    assert ask([*words, "--dry-run"])["planned"][0]["done"]
    words.append("--keep-weights")
    assert not ask([*words, "--dry-run"])["planned"][0]["done"]
    assert "1 run, records in" in run(words)[0]
    assert "1 run (1 made before, not repeated), records in" in run(words)[0]
    (record,) = out.rglob("*.json")
    told = ask(["info", str(record)])
    accuracy = json.loads(record.read_text())["results"]["base"]["accuracy"]
    assert (told["method"], told["accuracy"]["base"]) == ("zero-shot", f"{100 * accuracy:.1f}%")
    found = ask(["report", str(out)])
    assert found["records"] == 1
    assert Path(found["html"]).is_file()


def test_recipes_that_cannot_be_run(small: Path, photos: Path, out: Path, run: Run) -> None:
    folder = small.parent / "recipes"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.yaml").write_text(RECIPE.format(photos))
    (wrong := small.with_name("wrong.yaml")).write_text(RECIPE.format(photos) + "seads: 1\n")
    for words, key in (
        ([str(wrong)], "'seeds'"),
        ([str(folder)], "one and two both write to"),
        ([str(folder / "one.yaml"), "--data", "album-stickers"], "'album-stickers'"),
    ):
        assert key in run(["run", "recipe", *words, "--out", str(out)], 2)[1]
        assert not out.exists()


def test_a_report_of_nothing_or_of_another_schema(tmp_path: Path, run: Run) -> None:
    for words in ([], ["--weights", "ab"]):
        assert "there is no run record" in run(["report", str(tmp_path), *words], 2)[1]
    (tmp_path / "old.json").write_text('{"schema": 1, "protocol": "base-to-novel"}')
    assert "schema 1, this version reads schema 2" in run(["report", str(tmp_path)], 2)[1]
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("--data far-stikers", "street-signs"),  # all names are listed
        ("--data ./nowhere", "does not exist"),
        ("--data mixed-paints,", "--data"),
        ("--methods zero-shot,deer", "'dear'"),
        ("--methods zero-shot,coop --coop.tokens 100", "100 context tokens"),  # before the first method
        ("--methods coop --coop.class-specific", "not trained on"),
        ("--methods coop --dear.first 9", "--dear.first is a setting of dear; this command runs only coop"),
        (
            "--methods coop --role-variant shuffled",
            "--role-variant is a setting of dear or dear+; this command runs only coop",
        ),
        ("--mmrl++.beta 0.5", "--mmrlpp.beta is a setting of mmrl++; this command runs only dear"),
        ("--dear.alpha-cls 1", "alpha_cls"),
        ("--dear.first 13", "from 1 to 12"),
        ("--roles nothing/there.json", "there.json"),
        ("--out pyproject.toml/out", "pyproject.toml"),
        ("--shots 5", "fewer than 5 shots"),
        ("--mask role", "--mask"),
        ("--seeds one", "--seeds"),
        ("--seeds 99999999999999999999", "seeds[0] is 9999999999999999"),
        ("--jobs 0", "jobs"),
        ("--gpus 1", "--gpus is for runs on a cluster"),
        ("--train.epochs 0", "epochs"),
    ],
)
def test_what_stops_a_run_before_it_begins_stops_a_dry_run(
    words: str, key: str, dry: bool, refuse: Refuse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert key in refuse(f"{words} --dry-run" if dry else words)


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("cross-dataset --data source", "source is both the source and a target"),
        ("ablation --of beta --data mixed-paints --dear.beta 0.5", "the ablation beta varies it"),
        ("few-shot --data mixed-paints --model ViT-B-32 --pretrained laion3b", "laion2b"),
        ("few-shot --data mixed-paints --model nothing/there.pt", "there.pt"),
        pytest.param("few-shot --data mixed-paints --device cuda", "choose auto or cpu", marks=NO_GPU),
    ],
)
def test_protocols_and_backbones_that_cannot_be(
    words: str, key: str, dry: list[str], out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words.split(), *dry, "--out", str(out)]) == 2
    assert key in capsys.readouterr().err.splitlines()[-1]
    assert not out.exists()


def test_a_dry_run_without_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may come: the runs are listed with their work, and all that is missing; a run is refused."""
    monkeypatch.setenv("DEAR_DATA", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    words = [*RUN, *f"--data EuroSAT,dtd --methods zero-shot,dear --json --out {tmp_path}".split()]
    assert main([*words, "--dry-run"]) == 2
    said = capsys.readouterr()
    found = json.loads(said.out)
    # Of the ten classes of EuroSAT five are trained on, of the 47 of DTD 24: ten epochs of 16 images of each.
    assert [(run["done"], run["steps"], run["test_images"]) for run in found["planned"]] == [
        (False, 0, 8100), (False, 10 * 5, 8100), (False, 0, 1692), (False, 10 * 24, 1692),
    ]  # fmt: skip
    keys = "EuroSAT", "DescribableTextures", "laion2b_s34b_b88k"
    assert all(key in line for line, key in zip(found["missing"], keys, strict=True))
    assert f"3 things are missing, the first: {found['missing'][0]}" in said.err
    assert main(words) == 2
    assert json.loads(capsys.readouterr().out)["error"] == found["missing"][0]


def test_parts_of_a_recipe_without_their_source_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: Path, run: Run
) -> None:
    """The others run; without any there is an error."""
    monkeypatch.setenv("DEAR_DATA", str(tmp_path))
    recipe, out = tmp_path / "both.yaml", tmp_path / "out"
    recipe.write_text(
        f"{{data: '{photos}', methods: zero-shot, shots: 1, model: tiny, out: '{out}', each: "
        "{here: {protocol: base-to-novel}, far: {protocol: cross-dataset, source: ImageNet}}}"
    )
    said = run(["run", "recipe", str(recipe)], 0)[1]
    assert sum("left out" in line and "both:far (ImageNet)" in line for line in said.splitlines()) == 1
    assert [path.parent.name for path in tmp_path.rglob("out*/*.json")] == ["out-here"]
    assert "ImageNet is not in" in run(["run", "recipe", f"{recipe}:far"], 2)[1]


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors", tiny.WEIGHTS])
def test_truncated_and_foreign_weights(name: str, photos: Path, out: Path, tmp_path: Path, run: Run) -> None:
    path, words = tmp_path / name, [*RUN, "--data", str(photos), "--shots", "2", "--out", str(out), "--model"]
    if name == tiny.WEIGHTS:
        for part in (tiny.WEIGHTS, tiny.VOCABULARY):
            (tmp_path / part).write_bytes((tiny.FOLDER / part).read_bytes())
        words += ["tiny", "--pretrained", str(tmp_path)]
    else:
        state = {"conv1.weight": torch.zeros(7, 11)}
        torch.save(state, path) if path.suffix == ".pt" else save_file(state, path)
        words += ["ViT-B-32", "--pretrained", str(path)]
        assert "another architecture" in run(words, 2)[1]
    path.write_bytes(path.read_bytes()[:-99])
    assert str(path) in run(words, 2)[1]
    assert not out.exists()


def test_a_role_table_of_other_weights(
    small: Path, small_clip: Clip, photos: Path, out: Path, refuse: Refuse, run: Run
) -> None:
    table = RoleTable.load(small)
    other = Identity("tiny", "elsewhere", "0" * 64)
    RoleTable(table.source, other, table.attributes, table.heads).save(small)
    line = refuse("")
    names = ("tiny/elsewhere", str(small_clip.identity), "--dear.roles-from-other-weights")
    assert all(name in line for name in names)
    # ... and the way out that the message names works.
    words = [*RUN, "--data", str(photos), "--methods", "dear", "--roles", str(small), *SHORT]
    run([*words, "--out", str(out), "--dear.roles-from-other-weights"])
    assert len([*out.glob("*.json")]) == 1


@pytest.mark.parametrize("during", ["training", "test", "the write"])
def test_ctrl_c(
    during: str, small: Path, photos: Path, out: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_args: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    words = [*RUN, "--data", str(photos), "--methods", "dear", "--roles", str(small), *SHORT]
    words += ["--out", str(out)]
    places = {"training": (trial, "train"), "test": (trial, "predict"), "the write": (writing.os, "fsync")}
    with monkeypatch.context() as patch:
        patch.setattr(*places[during], stop)
        printed, told = run(words, 130)
    assert printed == ""
    assert told.splitlines()[-1] == "dear: interrupted: give the same command to continue"
    assert {path.name for path in out.iterdir()} <= {"unfinished"}
    run(words)  # and the same command does it all
    assert {path.suffix for path in out.rglob("*") if path.is_file()} == {".json", ".npz"}
    assert len([*out.glob("*.json")]) == 1


def test_a_run_that_fails_among_others(
    small: Path, photos: Path, out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are made and shown, the exit code says so, and the same command tries it again."""
    words = [*RUN, "--data", str(photos), "--methods", "dear,zero-shot", "--roles", str(small), *SHORT]
    words += ["--out", str(out), "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(Dear, "loss", lambda *_: {"loss": torch.tensor(float("nan"), requires_grad=True)})
        assert main(words) == 2
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert [(run["method"], run["kind"]) for run in found["failed"]] == [("dear", "TrainingDiverged")]
    assert found["tables"]
    assert "1 of 2 runs failed" in said.err.splitlines()[-1]
    assert main(words) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["earlier"], again["failed"]) == (1, [])


def test_nan_in_training(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, nan = Dear.loss, float("nan")
    monkeypatch.setattr(Dear, "loss", lambda *args: {name: nan * v for name, v in loss(*args).items()})
    line = refuse("")
    assert "diverged at step 1" in line
    assert "--train.lr" in line


@pytest.mark.long
def test_the_twin_of_every_ablation_prints_its_table(out: Path, ask: Ask) -> None:
    """With numbers in each row, but of seven attributes, which the world does not have."""
    recipe = Path(__file__).parents[2] / "recipes" / "world" / "ablations.yaml"
    few = ["--data", "street-signs", "--shots", "1", "--train.epochs", "1", "--train.warmup-epochs", "0"]
    tables = ask(["run", "recipe", str(recipe), *few, "--out", str(out)])["tables"]
    by_name = {table["name"]: table for table in tables}
    for name, ablation in ablations().items():
        rows = {row["label"]: row["cells"] for row in by_name[f"ablation-{name}"]["rows"]}
        assert [label for label in rows if label != "chance"] == [row.shown for row in ablation.rows]
        assert [label for label, cells in rows.items() if None in cells[:3]] == ["K = 7"] * (
            name == "attributes"
        )
