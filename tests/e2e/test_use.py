"""From a folder of pictures to predictions, through the command line; bad input."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import dear
from dear.adapters.bundle_config import config_hash
from dear.cli.main import main
from dear.data.world.tasks import load_task
from tests.e2e.conftest import write_signs

CALTECH = Path(__file__).parents[2] / "../shared/data/caltech-101"
FRESH = """
import sys, torch, dear
torch.set_num_threads(1)
predictor = dear.Predictor(sys.argv[1])
pixels = torch.stack([predictor.preprocess(path) for path in sys.argv[3:]])
torch.save(predictor.logits(pixels), sys.argv[2])
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of three classes of a world task as a folder: two each to train on, three to test on."""
    return write_signs(tmp_path_factory.mktemp("world") / "signs", train=2, test=3)


@pytest.fixture(scope="module")
def bundle(world: Path) -> Path:
    out = world.parent / "bundle"
    words = ["fit", "--data", str(world), "--model", "tiny", "--out", str(out), "--train.epochs", "2"]
    words += ["--method", "dear", "--dear.beta", "0.8"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main([*words, "--json"]) == 0
    return out


def run(words: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> tuple[str, str]:
    """What a command prints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert main(words) == code
    printed = capsys.readouterr()
    return printed.out, printed.err


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that must end with code 2."""
    out, err = run(words, capsys, 2)
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_fresh_process_gives_the_same_bits(world: Path, bundle: Path, tmp_path: Path) -> None:
    paths = sorted(map(str, (world / "test").rglob("*.png")))
    predictor = dear.Predictor(bundle)
    want = predictor.logits(torch.stack([predictor.preprocess(path) for path in paths]))
    source = {"PYTHONPATH": str(Path(dear.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", FRESH, str(bundle), str(tmp_path / "logits.pt"), *paths],
        check=True,
        env=os.environ | source,
        timeout=600,
    )
    assert torch.equal(torch.load(tmp_path / "logits.pt"), want)
    assert want.shape == (9, 3)


def test_predict_in_three_forms(
    world: Path,
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (place,) = [path for path in (world / "test").iterdir() if "arrow" in path.name][:1]
    words = ["predict", str(bundle), str(place), str(world / "test")]
    found = json.loads(run([*words, "--json"], capsys)[0])
    assert [len(one["top"]) for one in found["predictions"]] == [3] * 12  # of three classes
    for one in found["predictions"]:
        for candidate in one["top"]:
            assert sum(candidate["evidence"].values()) == pytest.approx(candidate["logit"], abs=1e-4)
    assert found["predictions"][0]["image"] == str(place / "0.png")
    lines = run([*words, "--format", "jsonl", "--top", "1"], capsys)[0].splitlines()
    assert [json.loads(line)["top"][0]["name"] for line in lines] == [
        one["top"][0]["name"] for one in found["predictions"]
    ]
    rows = [*csv.DictReader(io.StringIO(run([*words, "--format", "csv", "--top", "2"], capsys)[0]))]
    assert len(rows) == 24
    assert rows[0]["class"] == found["predictions"][0]["top"][0]["name"]
    assert float(rows[1]["evidence.class"]) == found["predictions"][0]["top"][1]["evidence"]["class"]
    (marked := tmp_path / "[b]").mkdir()
    (marked / "0.png").write_bytes((place / "0.png").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert r"\[" not in (shown := run(["predict", str(bundle), "[b]"], capsys)[0])
    assert "[b]/0.png" in shown
    shown = run(["predict", str(bundle), str(place / "0.png")], capsys)[0]
    assert "class +" in shown or "class -" in shown  # evidence has signs
    assert "the parts sum to the logit" in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80  # but for the image's path
    assert rows[0]["class"] in shown


def test_predict_into_a_file(
    world: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.jpg").write_text("words")
    words = ["predict", str(bundle), str(world / "test")]
    out, err = run([*words, str(tmp_path), "--out", str(tmp_path / "p.csv"), "--batch", "2"], capsys, 1)
    assert "9 images in" in out
    assert "1 could not be read" in out
    assert "bad.jpg: it is not an image" in err
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 10
    refused([*words, "--out", str(tmp_path / "p.csv"), "--format", "csv"], capsys)
    refused([*words, "--out", str(tmp_path / "p.xls")], capsys)


def test_unreadable_images_are_reported_and_the_rest_done(
    world: Path,
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = next((world / "test").rglob("0.png"))
    (tmp_path / "bad.jpg").write_text("words")
    listed = f"\ufeff{good}\r\n{tmp_path / 'bad.jpg'}\n\r\n{tmp_path / 'nowhere.png'}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(listed))
    out, err = run(["predict", str(bundle), "-", "--json"], capsys, 1)
    found = json.loads(out)
    assert [one["image"] for one in found["predictions"]] == [str(good)]
    assert [Path(one["image"]).name for one in found["unreadable"]] == ["bad.jpg", "nowhere.png"]
    assert "bad.jpg: it is not an image" in err
    bad, long = str(tmp_path / "bad.jpg"), str(tmp_path / ("x" * 300))
    assert refused(["predict", str(bundle), bad], capsys).count("bad.jpg: it is not an image") == 1
    assert "File name too long" in refused(["predict", str(bundle), long], capsys)
    err = run(["predict", str(bundle), bad, long], capsys, 2)[1]
    assert f"none of 2 images can be read; the first: cannot read the image {bad}" in err
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert "the list on stdin is empty" in refused(["predict", str(bundle), "-"], capsys)


def test_classes_by_name(
    world: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(next((world / "test").rglob("0.png")))
    names = tmp_path / "classes.txt"
    names.write_text("a red thing\n\na blue thing\n")
    words = ["predict", str(bundle), picture, "--json"]
    found = json.loads(run([*words, "--classes-file", str(names), "--add-classes", "sea"], capsys)[0])
    assert {one["name"] for one in found["predictions"][0]["top"]} == {"a red thing", "a blue thing", "sea"}
    found = json.loads(run([*words, "--add-classes", "sea,sand"], capsys)[0])
    assert len(found["predictions"][0]["top"]) == 5
    names.write_text("oak\nbirch\nOak\n")
    line = refused(["predict", str(bundle), picture, "--classes-file", str(names)], capsys)
    assert "'oak' and 'Oak' have the same name" in line
    both = ["--classes", "a,b", "--classes-file", str(names)]
    assert "give only one of them" in refused(["predict", str(bundle), picture, *both], capsys)
    gone = ["--classes-file", str(tmp_path / "none.txt")]
    assert "none.txt: No such file" in refused(["predict", str(bundle), picture, *gone], capsys)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("predict BUNDLE EMPTY", "no files with an image suffix"),
        (["predict", "BUNDLE", ""], "the path of an image is empty"),
        ("predict ~no-one/b PICTURE", "no user has the name"),
        (f"predict {'x' * 300} PICTURE", "is too long"),
        ("predict EMPTY PICTURE", "is not a bundle"),
        ("eval nowhere WORLD", "there is no bundle at"),
        ("export BUNDLE --out EMPTY", "is a folder"),
        ("export BUNDLE --out m.onnx --most -1", "most"),
        ("fit WORLD --model tiny --out WORLD", "files that are not a bundle's"),
        ("fit EMPTY --model tiny --out b", "has no folders of classes"),
        ("fit WORLD --model tiny --out b --shots 9", "fewer than 9 shots"),
        ("fit WORLD --model tiny --out b --method deer", "unknown method"),
        ("predict OTHER PICTURE", "was fitted on tiny/world"),
        ("export OTHER --out m.onnx", "was fitted on tiny/world"),
    ],
)
def test_bad_input(
    words: str | list[str],
    key: str,
    world: Path,
    bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"WORLD": world, "BUNDLE": bundle, "PICTURE": next((world / "test").rglob("0.png"))}
    names |= {"EMPTY": tmp_path / "empty", "OTHER": tmp_path / "other"}
    names["EMPTY"].mkdir()
    shutil.copytree(bundle, names["OTHER"])
    config = json.loads((bundle / "config.json").read_text())
    config["backbone"]["weights"]["sha256"] = "ab" * 32
    (tmp_path / "other/config.json").write_text(json.dumps(config | {"sha256": config_hash(config)}))
    line = words.split() if isinstance(words, str) else words
    assert key in refused([str(names.get(word, word)) for word in line], capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "other"]


@pytest.mark.long
def test_onnx_on_two_hundred_world_images(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript", reason="the extra export is not installed")
    images = load_task("street-signs").test
    for number, picture in enumerate(images.load(torch.arange(0, 600, 3))):
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(tmp_path / f"{number}.png")
    words = ["export", str(bundle), "--out", str(tmp_path / "m.onnx"), "--with-classes", "--json"]
    found = json.loads(run([*words, "--images", str(tmp_path)], capsys)[0])
    assert (found["checked"], found["same_best"]) == (206, 206)
    assert found["difference"] < 1e-3


@pytest.mark.long
@pytest.mark.skipif(not CALTECH.is_dir(), reason="the shared Caltech-101 subset is not here")
def test_photographs_of_caltech(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real photographs in CoOp's layout; the tiny CLIP knows nothing of them: accuracy is not looked at."""
    out = tmp_path / "bundle"
    words = [
        "fit",
        "--data",
        str(CALTECH),
        "--model",
        "tiny",
        "--out",
        str(out),
        "--shots",
        "1",
        "--train.epochs",
        "1",
        "--train.warmup-epochs",
        "0",
    ]
    fitted: Any = json.loads(run([*words, "--calibrate", "--json"], capsys)[0])
    assert (fitted["classes"], fitted["test_images"]) == (100, 600)
    assert fitted["temperature"] != 1
    listed = json.loads((CALTECH / "split_zhou_Caltech101.json").read_text())["test"][:3]
    paths = [str(CALTECH / "101_ObjectCategories" / path) for path, _, _ in listed]
    found = json.loads(run(["predict", str(out), *paths, "--json"], capsys)[0])
    assert [one["image"] for one in found["predictions"]] == paths
    predictor = dear.Predictor(out)
    logits = predictor.logits(torch.stack([predictor.preprocess(path) for path in paths]))
    best = [one["top"][0]["logit"] for one in found["predictions"]]
    assert best == pytest.approx(logits.max(dim=1).values.tolist(), abs=1e-4)


def test_a_fit_skips_broken_images_and_takes_corrections(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is what `dear predict` wrote, with one class corrected."""
    folder = tmp_path / "signs"
    shutil.copytree(world, folder)
    broken, wrong = sorted((folder / "test").rglob("*.png"))[:2]
    broken.write_bytes(broken.read_bytes()[:200])
    name = next(path.name for path in (folder / "test").iterdir() if path.name != wrong.parent.name)
    table = tmp_path / "p.csv"
    table.write_text(f"file,class,probability,predicted,checked\n{wrong},{name},0.5,{wrong.parent.name},\n")
    words = ["fit", str(folder), str(table), "--model", "tiny", "--method", "zero-shot"]
    assert main([*words, "--out", str(tmp_path / "bundle"), "--json"]) == 0
    told = capsys.readouterr().err
    assert "cannot be read and are skipped" in told
    assert "changes the class of 1" in told
    strict = [*words, "--dataset.broken", "stop", "--out", str(tmp_path / "other")]
    assert broken.name in refused(strict, capsys)
