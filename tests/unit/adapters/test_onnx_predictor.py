"""Predictions by an exported file: those of the bundle, without torch."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dear.adapters.costs import read_costs
from dear.adapters.export import export
from dear.adapters.onnx_predictor import OnnxPredictor
from dear.adapters.operating import OperatingPoint
from dear.adapters.predictor import Predictor
from dear.adapters.results import Prediction
from dear.cli.main import main
from dear.curation.outlier_fit import fit_outlier_model
from dear.errors import BundleError, DataError, ExportError
from tests.conftest import MakeClip
from tests.helpers.bundles import fitted
from tests.helpers.data import CLASSES

pytest.importorskip("onnxruntime", reason="the extra export is not installed")
pytest.importorskip("onnxscript", reason="the extra export is not installed")

WITHOUT_TORCH = """
import sys
from dear.cli.main import main
code = main(sys.argv[1:])
sys.exit("torch was imported" if "torch" in sys.modules else code)
"""


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Noise and a strip, a file with an orientation, and one that is no image, in this order."""
    generator, files = np.random.default_rng(5), list[Path]()
    for number, size in enumerate([(26, 33), (20, 20), (300, 9), (41, 17), (17, 41)]):
        exif = Image.Exif()
        exif[0x112] = 1 + 5 * (number == 3)
        noise = generator.integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(noise).save(files[-1], exif=exif)
    files.append(tmp_path / "bad.png")
    files[-1].write_bytes(b"no image")
    return files


def require_same(exported: Prediction, wanted: Prediction) -> None:
    """The same image, classes, decision and evidence, with numbers to 1e-4."""
    assert exported.image == wanted.image
    assert (exported.none_of_these, exported.decision) == (wanted.none_of_these, wanted.decision)
    assert exported.decided_class == wanted.decided_class
    assert [score.name for score in exported.top] == [score.name for score in wanted.top]
    for mine, other in zip(exported.top, wanted.top, strict=True):
        assert mine.probability == pytest.approx(other.probability, abs=1e-4)
        assert mine.logit == pytest.approx(other.logit, abs=1e-3)
        assert [*mine.evidence] == [*other.evidence]
        assert [*mine.evidence.values()] == pytest.approx([*other.evidence.values()], abs=1e-3)


POINTS = {
    "dear": OperatingPoint(0.9, 0.36),
    "dear+": OperatingPoint(0.9, by_class={CLASSES[0]: 0.2, CLASSES[1]: 0.9}),
    "ensemble": OperatingPoint(costs=read_costs("to a person=0.4")),
    "mmrl++": None,
}


@pytest.mark.parametrize(
    "method",
    ["dear", "ensemble", *(pytest.param(name, marks=pytest.mark.long) for name in ("dear+", "mmrl++"))],
)
def test_predictions_are_those_of_the_bundle(
    method: str, make_small_clip: MakeClip, photos: list[Path], tmp_path: Path
) -> None:
    clip = make_small_clip()
    bundle, _ = fitted(method, clip)
    bundle = replace(bundle, training=replace(bundle.training, operating=POINTS[method]))
    if method == "ensemble":  # which knows what looks like none of the classes
        generator = torch.Generator().manual_seed(3)
        features = Predictor(bundle, clip=clip).encode(photos[:-1])[:, 0]
        near = features[torch.arange(60) % 2] + 0.001 * torch.randn(
            60, features.shape[1], generator=generator
        )
        known = fit_outlier_model(near / near.norm(dim=1, keepdim=True), torch.arange(60) % 2, len(CLASSES))
        bundle = replace(bundle, known=known, refuse=0.1)
    of_torch = Predictor(bundle, clip=clip)
    export(of_torch, tmp_path / "m.onnx")
    exported = OnnxPredictor(tmp_path / "m.onnx")
    assert (exported.classes, exported.features) == (of_torch.classes, of_torch.features)
    wanted = [*of_torch.predict_each(photos, 2)]
    found = [*exported.predict_each(photos, 2, batch=4)]
    assert found[-1] == wanted[-1]  # the unreadable one, with its reason
    for mine, other in zip(found[:-1], wanted[:-1], strict=True):
        require_same(mine, other)
    if method == "ensemble":
        assert {one.none_of_these for one in found[:-1]} == {True, False}
    if POINTS[method]:
        assert {one.decision for one in found[:-1]} <= {"decided", "to a person"}
    require_same(exported.predict(photos[0]), of_torch.predict(photos[0]))
    with pytest.raises(DataError, match="bad"):
        exported.predict(photos)


def test_a_command_without_torch_has_the_same_output(
    make_small_clip: MakeClip, photos: list[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    clip = make_small_clip()
    of_torch = Predictor(fitted("dear", clip)[0], clip=clip)
    file = tmp_path / "m.onnx"
    export(of_torch, file)
    words = [sys.executable, "-c", WITHOUT_TORCH, "predict", str(file), *map(str, photos)]
    printed = subprocess.run([*words, "--json"], capture_output=True, text=True, timeout=300)
    assert "torch was imported" not in printed.stderr
    assert printed.returncode == 1  # one image cannot be read
    said = json.loads(printed.stdout)
    assert [row["image"] for row in said["predictions"]] == [*map(str, photos[:-1])]
    wanted = of_torch.predict(photos[0])
    assert said["predictions"][0]["top"][0]["name"] == wanted.best.name
    assert said["predictions"][0]["top"][0]["evidence"] == pytest.approx(wanted.best.evidence, abs=1e-3)
    assert [*said["features"]] == [*wanted.best.evidence]
    table = subprocess.run(
        [*words, "--out", str(tmp_path / "p.csv")], capture_output=True, text=True, timeout=300
    )
    assert "torch was imported" not in table.stderr
    assert (tmp_path / "p.csv").read_text(encoding="utf-8-sig").splitlines()[1].startswith("0.png,")
    capfd.readouterr()
    for option in (["--classes", "x"], ["--refuse", "0.1"], ["--decoupled"], ["--remember"]):
        assert main(["predict", str(file), str(photos[0]), *option]) == 2
        assert option[0] in capfd.readouterr().err


def test_what_is_no_exported_classifier(make_small_clip: MakeClip, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no file .*m\.onnx"):
        OnnxPredictor(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(BundleError, match="not an ONNX file"):
        OnnxPredictor(tmp_path / "m.onnx")
    clip = make_small_clip()
    export(Predictor(fitted("cocoop", clip)[0], clip=clip), tmp_path / "m.onnx")
    with pytest.raises(ExportError, match="cocoop"):
        OnnxPredictor(tmp_path / "m.onnx")
