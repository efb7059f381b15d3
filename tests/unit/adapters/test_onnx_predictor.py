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
from torch.nn.functional import normalize

from dear.adapters.costs import read_costs
from dear.adapters.export import export
from dear.adapters.onnx_predictor import OnnxPredictor
from dear.adapters.operating import OperatingPoint
from dear.adapters.predictor import Predictor
from dear.adapters.results import Prediction
from dear.cli.main import main
from dear.curation.outlier_fit import fit_outlier_model
from dear.errors import BundleError, DataError, ExportError
from tests.conftest import small_clip_of
from tests.helpers.bundles import fitted
from tests.helpers.data import CLASSES
from tests.helpers.errors import refuses

onnx = pytest.importorskip("onnx", reason="the extra export is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
pytest.importorskip("onnxscript", reason="the extra export is not installed")

WITHOUT_TORCH = """
import sys
from dear.cli.main import main
code = main(sys.argv[1:])
sys.exit("torch was imported" if "torch" in sys.modules else code)
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Noise and a strip, a file with an orientation, and one that is no image, in this order."""
    generator, files, folder = np.random.default_rng(5), list[Path](), tmp_path_factory.mktemp("photos")
    for number, size in enumerate([(26, 33), (20, 20), (300, 9), (41, 17), (17, 41)]):
        exif = Image.Exif()
        exif[0x112] = 1 + 5 * (number == 3)
        noise = generator.integers(0, 256, (size[1], size[0], 3)).astype(np.uint8)
        files.append(folder / f"{number}.png")
        Image.fromarray(noise).save(files[-1], exif=exif)
    files.append(folder / "bad.png")
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
    "dear": OperatingPoint(0.9, by_class={CLASSES[0]: 0.2, CLASSES[1]: 0.9}),
    "dear+": OperatingPoint(0.9, 0.36),
    "ensemble": OperatingPoint(costs=read_costs("to a person=0.4")),
    "mmrl++": None,
}


def build_predictor(method: str, photos: list[Path]) -> Predictor:
    clip = small_clip_of()
    bundle, _ = fitted(method, clip)
    bundle = replace(bundle, training=replace(bundle.training, operating=POINTS[method]))
    if method != "mmrl++":  # the others know what looks like none of the classes
        features = Predictor(fitted("zero-shot", clip)[0], clip=clip).encode(photos[:-1])[:, 0]
        noise = torch.randn(60, features.shape[1], generator=torch.Generator().manual_seed(3))
        near = normalize(features[torch.arange(60) % 2] + 0.001 * noise, dim=1)
        known = fit_outlier_model(near, torch.arange(60) % 2, len(CLASSES))
        bundle = replace(bundle, known=known and known[0], refuse=0.1)
    return Predictor(bundle, clip=clip)


@pytest.fixture(scope="module")
def exported_dear(photos: list[Path]) -> tuple[Predictor, Path]:
    """A predictor of DeAR, and the file that it is exported to."""
    predictor, file = build_predictor("dear", photos), photos[0].parent / "m.onnx"
    export(predictor, file)
    return predictor, file


@pytest.mark.parametrize(
    "method",
    [name if name == "dear" else pytest.param(name, marks=pytest.mark.long) for name in POINTS],
)
def test_predictions_are_those_of_the_bundle(
    method: str, photos: list[Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if method == "dear":
        of_torch, file = request.getfixturevalue("exported_dear")
    else:
        of_torch, file = build_predictor(method, photos), tmp_path / "m.onnx"
        export(of_torch, file)
    exported = OnnxPredictor(file)
    assert (exported.classes, exported.features) == (of_torch.classes, of_torch.features)
    wanted = [*of_torch.predict_each(photos, 2)]
    found = [*exported.predict_each(photos, 2, batch=4)]
    assert found[-1] == wanted[-1]  # the unreadable one, with its reason
    for mine, other in zip(found[:-1], wanted[:-1], strict=True):
        require_same(mine, other)
    if of_torch.bundle.known is not None:
        assert {one.none_of_these for one in found[:-1]} == {True, False}
    if POINTS[method]:
        assert {one.decision for one in found[:-1]} <= {"decided", "to a person"}
    require_same(exported.predict(photos[0]), of_torch.predict(photos[0]))
    refuses(DataError, "bad", exported.predict, photos)


def test_the_file_says_what_is_decided(exported_dear: tuple[Predictor, Path]) -> None:
    session = onnxruntime.InferenceSession(exported_dear[1])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["operating"])
    assert facts == {"precision": 0.9, "thresholds": [0.2, 0.9, None]}


def test_a_command_without_torch_has_the_same_output(
    exported_dear: tuple[Predictor, Path], photos: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    of_torch, file = exported_dear
    words = ["predict", str(file), *map(str, photos)]
    program = [sys.executable, "-c", WITHOUT_TORCH, *words, "--json"]
    printed = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert "torch was imported" not in printed.stderr
    assert printed.returncode == 1  # one image cannot be read
    said = json.loads(printed.stdout)
    assert [row["image"] for row in said["predictions"]] == [*map(str, photos[:-1])]
    wanted = of_torch.predict(photos[0])
    assert said["predictions"][0]["top"][0]["name"] == wanted.best.name
    assert said["predictions"][0]["top"][0]["evidence"] == pytest.approx(wanted.best.evidence, abs=1e-3)
    assert [*said["features"]] == [*wanted.best.evidence]
    table = photos[0].parent / "p.csv"
    assert main([*words, "--out", str(table)]) == 1
    assert table.read_text(encoding="utf-8-sig").splitlines()[1].startswith("0.png,")
    capsys.readouterr()
    for option in (["--classes", "x"], ["--refuse", "0.1"], ["--decoupled"], ["--remember"]):
        assert main(["predict", str(file), str(photos[0]), *option]) == 2
        assert option[0] in capsys.readouterr().err


def test_what_is_no_exported_classifier(exported_dear: tuple[Predictor, Path], tmp_path: Path) -> None:
    refuses(BundleError, ("m.onnx", "no file"), OnnxPredictor, tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"no model")
    refuses(BundleError, ("m.onnx", "not an ONNX"), OnnxPredictor, tmp_path / "m.onnx")
    model = onnx.load(exported_dear[1])
    facts = {entry.key: entry for entry in model.metadata_props}
    facts["classes"].value, facts["method"].value = "null", '"cocoop"'  # as it is exported
    onnx.save(model, tmp_path / "m.onnx")
    refuses(ExportError, "cocoop", OnnxPredictor, tmp_path / "m.onnx")
