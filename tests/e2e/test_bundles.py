"""The life of a bundle through the command line: fit, predict, eval, export; kills, damage, older ones."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dear
from dear.cli.main import main
from tests.e2e.conftest import write_signs

REFUSAL = {"error", "kind"}
"""The keys of a refusal with --json."""
STORED = Path(__file__).parents[1] / "unit/stored/bundle"
KILLED = """
import os, signal, sys
renamed = []
def kill(event, _arguments):
    if event == "os.rename":
        renamed.append(event)
        if len(renamed) == 3:  # the third checkpoint of training
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
from dear.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

Run = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of three classes of a world task as a folder: three each to train on, two to test on."""
    return write_signs(tmp_path_factory.mktemp("photos") / "signs", train=3, test=2)


def fit_words(photos: Path, out: Path) -> list[str]:
    words = ["fit", str(photos), "--out", str(out), "--model", "tiny", "--device", "cpu", "--json"]
    return [*words, "--method", "dear", "--train.epochs", "3"]


@pytest.fixture(scope="module")
def bundle(photos: Path) -> Path:
    out = photos.parent / "bundle"
    assert main(fit_words(photos, out)) == 0
    return out


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command prints to stdout and stderr; its exit code is compared."""

    def run(words: list[str], code: int = 0) -> tuple[str, str]:
        capsys.readouterr()  # of the fixtures
        assert main(words) == code
        printed = capsys.readouterr()
        if code == 2:
            assert (json.loads(printed.out).keys() if "--json" in words else printed.out) in ("", REFUSAL)
            (line,) = [line for line in printed.err.splitlines() if not line.startswith("dear: note: ")]
            assert line.startswith("dear: error: ")
        return printed.out, printed.err

    return run


def test_fit_writes_a_bundle_and_an_existing_one_only_with_overwrite(
    photos: Path, bundle: Path, run: Run
) -> None:
    assert sorted(path.name for path in bundle.iterdir()) == [
        "README.md", "adapter.safetensors", "config.json", "features.safetensors", "review.csv",
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
    words = ["fit", str(grown), "--device", "cpu", "--method", "dear+", "--json"]
    assert "--out" in run(words, 2)[1]
    whole = json.loads(run([*words, "--model", "tiny", "--out", str(tmp_path / "whole")])[0])
    again = json.loads(run([*words, "--continue", str(old)])[0])
    assert (again["out"], again["metrics"]) == (str(old), whole["metrics"])
    assert (old / "adapter.safetensors").read_bytes() == (tmp_path / "whole/adapter.safetensors").read_bytes()


def test_predict_folders_names_on_stdin_and_a_table(
    photos: Path, bundle: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = json.loads(run(["predict", str(bundle), str(photos / "test"), "--json"])[0])
    images = [prediction["image"] for prediction in printed["predictions"]]
    assert images == sorted(map(str, (photos / "test").rglob("*.png")))
    expected = dear.Predictor(bundle, "cpu").predict_proba(images)
    for prediction, row in zip(printed["predictions"], expected, strict=True):
        probabilities = [candidate["probability"] for candidate in prediction["top"]]
        assert probabilities == pytest.approx(sorted(row, reverse=True), abs=1e-9)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(images[:2])))
    from_stdin = json.loads(run(["predict", str(bundle), "-", "--json"])[0])
    best = [prediction["top"][0]["name"] for prediction in printed["predictions"]]
    assert [prediction["top"][0]["name"] for prediction in from_stdin["predictions"]] == best[:2]
    run(["predict", str(bundle), str(photos / "test"), "--out", str(tmp_path / "p.csv")])
    rows = [*csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text("utf-8-sig")))]
    assert [(row["file"], row["class"]) for row in rows] == [*zip(images, best, strict=True)]
    assert [float(row["probability"]) for row in rows] == pytest.approx(expected.max(axis=1))


def test_a_broken_image_is_one_line_and_exit_code_1(
    photos: Path, bundle: Path, tmp_path: Path, run: Run
) -> None:
    good = next((photos / "test").rglob("0.png"))
    (tmp_path / "bad.png").write_bytes(good.read_bytes()[:90])
    out, err = run(["predict", str(bundle), str(good), str(tmp_path / "bad.png"), "--json"], 1)
    printed = json.loads(out)
    assert [prediction["image"] for prediction in printed["predictions"]] == [str(good)]
    assert [Path(image["image"]).name for image in printed["unreadable"]] == ["bad.png"]
    assert len([line for line in err.splitlines() if "bad.png" in line]) == 1
    run(["predict", str(bundle), str(tmp_path / "bad.png")], 2)


def test_eval_on_a_labelled_folder(photos: Path, bundle: Path, tmp_path: Path, run: Run) -> None:
    config = json.loads((bundle / "config.json").read_text())
    scores = json.loads(run(["eval", str(bundle), str(photos), "--json"])[0])
    predictor = dear.Predictor(bundle, "cpu")
    images = sorted((photos / "test").rglob("*.png"))
    best = predictor.predict_proba(images).argmax(axis=1)
    right = [predictor.classes[label] == path.parent.name.replace("_", " ") for label, path in zip(
        best, images, strict=True
    )]  # fmt: skip
    assert scores["images"] == 6
    assert scores["accuracy"] == config["metrics"]["accuracy"] == pytest.approx(np.mean(right))
    out, _ = run(["eval", str(bundle), str(photos), "--out", str(tmp_path / "page")])
    assert str(tmp_path / "page/evaluation.html") in out
    assert "Accuracy" in (tmp_path / "page/evaluation.html").read_text()


def test_export_to_onnx_gives_the_same_probabilities(
    photos: Path, bundle: Path, tmp_path: Path, run: Run
) -> None:
    pytest.importorskip("onnxscript", reason="the extra export is not installed")
    import onnxruntime

    file = tmp_path / "m.onnx"
    run(["export", str(bundle), "--out", str(file), "--with-classes"])
    predictor, images = dear.Predictor(bundle, "cpu"), sorted((photos / "test").rglob("*.png"))
    pixels = torch.stack([predictor.preprocess(image) for image in images])
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    _, probabilities = session.run(["logits", "probabilities"], {"pixels": pixels.numpy()})
    np.testing.assert_allclose(probabilities, predictor.predict_proba(images), atol=1e-5)
    classes = json.loads({prop.key: prop.value for prop in _properties(file)}["classes"])
    assert tuple(classes) == predictor.classes


def _properties(file: Path) -> Any:
    import onnx

    return onnx.load(str(file)).metadata_props


def test_a_fit_that_was_killed_continues_to_the_same_digits(
    photos: Path, bundle: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "killed"
    source = {"PYTHONPATH": str(Path(dear.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", KILLED, *fit_words(photos, out)]
    killed = subprocess.run(words, env=os.environ | source, timeout=300, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (out / "config.json").exists()
    assert "unfinished" in run(["predict", str(out), str(next(photos.rglob("*.png")))], 2)[1]
    assert "continuing after epoch 2 of 3" in run(fit_words(photos, out))[1]
    assert (out / "adapter.safetensors").read_bytes() == (bundle / "adapter.safetensors").read_bytes()
    metrics = [json.loads((folder / "config.json").read_text())["metrics"] for folder in (out, bundle)]
    assert metrics[0] == metrics[1]
    assert not (out / "unfinished").exists()


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    """Another last digit or letter, or another last bit."""
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


@pytest.mark.parametrize("damage", [cut, flip, lambda _: b"", None])
@pytest.mark.parametrize("name", ["config.json", "adapter.safetensors"])
def test_a_damaged_bundle_is_one_line(
    name: str, damage: Callable[[bytes], bytes] | None, photos: Path, bundle: Path, tmp_path: Path, run: Run
) -> None:
    shutil.copytree(bundle, tmp_path / "damaged")
    file = tmp_path / "damaged" / name
    content = file.read_bytes()
    file.unlink()
    if damage is not None:
        file.write_bytes(damage(content))
    for words in (["predict", str(file.parent), str(next(photos.rglob("*.png")))],
                  ["eval", str(file.parent), str(photos)]):  # fmt: skip
        assert name in run(words, 2)[1]


def test_an_older_bundle_is_read_and_one_of_another_schema_refused(
    photos: Path, tmp_path: Path, run: Run
) -> None:
    image = str(next((photos / "test").rglob("0.png")))
    printed = json.loads(run(["predict", str(STORED), image, "--json", "--top", "16"])[0])
    top = printed["predictions"][0]["top"]
    assert len(top) == 16
    assert sum(candidate["probability"] for candidate in top) == pytest.approx(1)
    shutil.copytree(STORED, tmp_path / "older")
    config = json.loads((STORED / "config.json").read_text())
    (tmp_path / "older/config.json").write_text(json.dumps(config | {"schema": 1}))
    assert "fit it again with `dear fit`" in run(["predict", str(tmp_path / "older"), image], 2)[1]
