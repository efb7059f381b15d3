"""The life of a bundle through the command line: fit, predict, eval, export; damage and bad input.
Kills: test_kills.py.
"""

import csv
import io
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dear
from dear.backbone.clip import Clip
from dear.cli.main import main
from tests.e2e.conftest import Ask, Run, write_signs
from tests.helpers.bundles import fitted

STORED = Path(__file__).parents[1] / "unit/stored/bundle"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of three classes of a world task as a folder: three each to train on, two to test on."""
    return write_signs(tmp_path_factory.mktemp("photos") / "signs", train=3, test=2)


@pytest.fixture(scope="module")
def tested(photos: Path) -> list[str]:
    """The six pictures to test on, in the order of a folder."""
    return sorted(map(str, (photos / "test").rglob("*.png")))


def fit_words(photos: Path, out: Path) -> list[str]:
    words = ["fit", str(photos), "--out", str(out), "--model", "tiny", "--device", "cpu", "--json"]
    return [*words, "--method", "dear", "--train.epochs", "3"]


@pytest.fixture(scope="module")
def bundle(photos: Path) -> Path:
    out = photos.parent / "bundle"
    assert main(fit_words(photos, out)) == 0
    return out


def test_fit_writes_a_bundle_and_an_existing_one_only_with_overwrite(
    photos: Path, bundle: Path, run: Run
) -> None:
    assert sorted(path.name for path in bundle.iterdir()) == [
        "README.md", "adapter.safetensors", "config.json", "review.csv",
        "review.html",
    ]  # fmt: skip
    before = (bundle / "adapter.safetensors").read_bytes()
    assert "--overwrite" in run(fit_words(photos, bundle), 2)[1]
    fitted = json.loads(run([*fit_words(photos, bundle), "--overwrite"])[0])
    assert (fitted["classes"], fitted["train_images"], fitted["test_images"]) == (3, 9, 6)
    assert fitted["bytes"] == len(before)
    assert (bundle / "adapter.safetensors").read_bytes() == before  # the same seed


def test_a_fit_that_continues_takes_the_place_of_the_old_bundle(
    photos: Path, bundle: Path, tmp_path: Path, run: Run
) -> None:
    grown, old = tmp_path / "photos", tmp_path / "bundle"
    shutil.copytree(photos, grown)
    shutil.copytree(bundle, old)
    (first, second) = sorted((grown / "train").iterdir())[:2]
    next(first.iterdir()).rename(second / "corrected.png")
    words = ["fit", str(grown), "--device", "cpu", "--method", "linear-probe", "--no-review", "--json"]
    assert "--out" in run(words, 2)[1]
    whole = json.loads(run([*words, "--model", "tiny", "--out", str(tmp_path / "whole")])[0])
    again = json.loads(run([*words, "--continue", str(old)])[0])
    assert (again["out"], again["scores"]) == (str(old), whole["scores"])
    assert (old / "adapter.safetensors").read_bytes() == (tmp_path / "whole/adapter.safetensors").read_bytes()


def test_predict_in_every_form(
    photos: Path, bundle: Path, tested: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(photos / "test")
    printed = json.loads(run(["predict", str(bundle), folder, tested[0], "--json"])[0])["predictions"]
    assert [one["image"] for one in printed] == [*tested, tested[0]]
    expected = dear.Predictor(bundle, "cpu").predict_proba(tested)
    for one, row in zip(printed, expected, strict=False):
        assert [part["probability"] for part in one["top"]] == pytest.approx(
            sorted(row, reverse=True), abs=1e-9
        )
        for part in one["top"]:
            assert sum(part["evidence"].values()) == pytest.approx(part["logit"], abs=1e-4)
    best = [one["top"][0]["name"] for one in printed]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(tested[:2])))
    listed = json.loads(run(["predict", str(bundle), "-", "--json", "--top", "1"])[0])["predictions"]
    assert [part["name"] for one in listed for part in one["top"]] == best[:2]
    run(["predict", str(bundle), folder, "--out", str(tmp_path / "p.csv"), "--batch", "2"])
    rows = [*csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text("utf-8-sig")))]
    assert [(row["file"], row["class"]) for row in rows] == [*zip(tested, best[:6], strict=True)]
    assert [float(row["probability"]) for row in rows] == pytest.approx(expected.max(axis=1))
    (tmp_path / "images.csv").write_text("\n".join(["image,date", *(f"{path},May" for path in tested[::-1])]))
    for table, names in (("p.csv", best[:6]), ("images.csv", best[5::-1])):
        listed = json.loads(run(["predict", str(bundle), str(tmp_path / table), "--json"])[0])["predictions"]
        assert [one["top"][0]["name"] for one in listed] == names


def test_predict_for_people(
    bundle: Path, tested: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name is markup, and a screen is wide enough."""
    (tmp_path / "[b]").mkdir()
    shutil.copy(tested[0], tmp_path / "[b]" / "0.png")
    monkeypatch.chdir(tmp_path)
    first, *rest = run(["predict", str(bundle), "[b]"])[0].splitlines()
    assert "[b]/0.png" in first
    assert max(map(len, rest)) <= 80
    assert any("class +" in line or "class -" in line for line in rest)  # evidence has signs
    told = json.loads(run(["predict", str(bundle), "[b]", "--json"])[0])
    assert {*told["features"]} == {*told["predictions"][0]["top"][0]["evidence"]}
    printed = " ".join(" ".join(rest).split())
    assert all(f"{name}: {words}" in printed for name, words in told["features"].items())
    assert not any("\\[" in line for line in (first, *rest))


def test_steering_stands_beside_the_own_weights(
    photos: Path, bundle: Path, tested: list[str], tmp_path: Path, run: Run
) -> None:
    words = ["predict", str(bundle), *tested[:2], "--json"]
    own = json.loads(run(words)[0])
    steered = json.loads(run([*words, "--fusion", "class=1,shape=0"])[0])
    assert [one["unchanged"] for one in steered["predictions"]] == [one["top"] for one in own["predictions"]]
    assert (own["weights"], {*steered["weights"]}) == ({}, {"steered", "own"})
    assert all(part["evidence"]["shape"] == 0 for one in steered["predictions"] for part in one["top"])
    shown = run(["predict", str(bundle), tested[0], "--decoupled"])[0]
    assert "by the bundle's own weights" in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80
    words = ["eval", str(bundle), str(photos), "--fusion", "color=0", "--json"]
    scores = json.loads(run([*words, "--out", str(tmp_path / "page")])[0])
    assert scores["steered"]["weights"]["color"] == 0
    assert run(["eval", str(bundle), str(photos), "--fusion", "colors=0"], 2)[1].count("\n") == 1
    out = tmp_path / "p.jsonl"
    for steering in (["--fusion", "color=0"], ["--fusion", "class=0"]):  # an older file is not continued
        run(["predict", str(bundle), *tested[:2], "--out", str(out), *steering])
        printed = json.loads(run(["predict", str(bundle), *tested[:2], "--json", *steering])[0])
        assert [json.loads(line) for line in out.read_text().splitlines()] == printed["predictions"]


def test_unreadable_images_are_told_and_the_rest_done(
    bundle: Path, tested: list[str], tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, long, good = tmp_path / "bad.jpg", str(tmp_path / ("x" * 300)), tested[0]
    bad.write_bytes(Path(good).read_bytes()[:90])
    listed = f"\ufeff{good}\r\n{bad}\n\r\n{tmp_path / 'nowhere.png'}\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(listed))
    found = json.loads(run(["predict", str(bundle), "-", "--json"], 1)[0])
    assert [one["image"] for one in found["predictions"]] == [good]
    assert [Path(one["image"]).name for one in found["unreadable"]] == ["bad.jpg", "nowhere.png"]
    run(["predict", str(bundle), str(bad), long], 2)
    run(["predict", str(bundle), good, long, "--out", str(tmp_path / "p.csv")], 1)
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 2
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    run(["predict", str(bundle), "-"], 2)


def test_classes_by_name(bundle: Path, tested: list[str], tmp_path: Path, run: Run) -> None:
    names = tmp_path / "classes.txt"
    names.write_text("a red thing\n\na blue thing\n")
    words, more = ["predict", str(bundle), tested[0], "--json"], ["--classes-file", str(names)]
    found = json.loads(run([*words, *more, "--add-classes", "sea"])[0])
    assert {one["name"] for one in found["predictions"][0]["top"]} == {"a red thing", "a blue thing", "sea"}
    found = json.loads(run([*words, "--add-classes", "sea,sand"])[0])
    assert len(found["predictions"][0]["top"]) == 5
    assert "--classes-file" in run([*words, *more, "--classes", "a,b"], 2)[1]
    names.write_text("oak\nbirch\nOak\n")
    assert "'oak' and 'Oak'" in run([*words, *more], 2)[1]


def test_eval_on_a_labeled_folder(
    photos: Path, bundle: Path, tested: list[str], tmp_path: Path, run: Run
) -> None:
    config = json.loads((bundle / "config.json").read_text())
    scores = json.loads(run(["eval", str(bundle), str(photos), "--json"])[0])
    predictor = dear.Predictor(bundle, "cpu")
    names = [predictor.classes[label] for label in predictor.predict_proba(tested).argmax(axis=1)]
    right = [
        name == Path(path).parent.name.replace("_", " ") for name, path in zip(names, tested, strict=True)
    ]
    assert scores["images"] == 6
    assert scores["accuracy"] == config["scores"]["accuracy"] == pytest.approx(np.mean(right))
    whole = str(photos / "test")  # without a split
    for share, images in (
        ([], 6),
        (["--dataset.test-share", "0.3"], 3),
    ):  # as given, though it is the usual one
        assert json.loads(run(["eval", str(bundle), whole, "--json", *share])[0])["images"] == images
    out, _ = run(["eval", str(bundle), str(photos), "--out", str(tmp_path / "page")])
    assert str(tmp_path / "page/evaluation.html") in out
    assert "Accuracy" in (tmp_path / "page/evaluation.html").read_text()


@pytest.mark.long
def test_export_gives_the_same_probabilities(
    photos: Path, tested: list[str], tmp_path: Path, ask: Ask, small_clip: Clip,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Methods with learned tokens: tests/unit/adapters/test_export.py."""
    rt = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    monkeypatch.setattr("dear.adapters.bundle.load_clip", lambda *_args, **_options: small_clip)
    made = replace(fitted("zero-shot", small_clip)[0], model="tiny", pretrained=None)
    bundle = made.save_pretrained(tmp_path / "bundle")
    words = f"export {bundle} --out {tmp_path}/m.onnx"
    done = ask([*words.split(), "--images", str(photos / "test")])
    assert (done["checked"], done["same_best"]) == (12, 12)  # six made up, and these
    predictor = dear.Predictor(bundle, "cpu")
    pixels = torch.stack([predictor.preprocess(image) for image in tested])
    session = rt.InferenceSession(str(tmp_path / "m.onnx"))
    [probabilities] = session.run(["probabilities"], {"pixels": pixels.numpy()})
    np.testing.assert_allclose(probabilities, predictor.predict_proba(tested), atol=1e-5)


def test_a_fit_skips_broken_images_and_takes_corrections(photos: Path, tmp_path: Path, run: Run) -> None:
    """The table is what `dear predict` wrote, with one class corrected."""
    folder, table = tmp_path / "signs", tmp_path / "p.csv"
    shutil.copytree(photos, folder)
    broken, wrong = sorted((folder / "test").rglob("0.png"))[:2]
    broken.write_bytes(broken.read_bytes()[:200])
    name = next(path.name for path in (folder / "test").iterdir() if path.name != wrong.parent.name)
    table.write_text(f"file,class,probability,predicted,checked\n{wrong},{name},0.5,{wrong.parent.name},\n")
    told = run(["labels", "apply", str(table), str(folder)])[0]
    assert "1 label in" in told
    assert "1 of 1 row used: 1 label changed" in told
    words = ["fit", str(folder), "--model", "tiny", "--method", "zero-shot"]
    assert main([*words, "--out", str(tmp_path / "bundle"), "--json"]) == 0
    config = json.loads((tmp_path / "bundle/config.json").read_text())
    assert config["scores"]["images"] == 5  # all but the broken one: a correction changes no side
    assert broken.name in run([*words, "--dataset.broken", "stop", "--out", str(tmp_path / "other")], 2)[1]


def test_info_shows_how_a_bundle_was_made(photos: Path, bundle: Path, tmp_path: Path, run: Run) -> None:
    told = json.loads(run(["info", str(bundle), "--json"])[0])
    config = json.loads((bundle / "config.json").read_text())
    assert (told["training"], told["scores"]) == (config["training"], config["scores"])
    words = shlex.split(told["training"]["command"])
    assert [word for word in words if word != "--overwrite"] == ["dear", *fit_words(photos, bundle)]
    shown = run(["info", str(bundle)])[0]
    assert f"made by: {shlex.join(words)}\n" in shown
    assert config["training"]["data_identity"] in shown
    assert dear.Bundle.from_pretrained(bundle).without_paths().training.command == ""
    assert "no bundle" in run(["info", str(tmp_path / "nowhere")], 2)[1]


def test_an_older_bundle_is_read_and_one_of_another_schema_refused(
    tested: list[str], tmp_path: Path, run: Run
) -> None:
    printed = json.loads(run(["predict", str(STORED), tested[0], "--json", "--top", "16"])[0])
    top = printed["predictions"][0]["top"]
    assert len(top) == 16
    assert sum(candidate["probability"] for candidate in top) == pytest.approx(1)
    shutil.copytree(STORED, tmp_path / "older")
    config = json.loads((STORED / "config.json").read_text())
    (tmp_path / "older/config.json").write_text(json.dumps(config | {"schema": 1}))
    assert "fit it again with `dear fit`" in run(["predict", str(tmp_path / "older"), tested[0]], 2)[1]
