"""Exported models against torch: other batch sizes, other methods, and what is refused."""

import json
import logging
import math
import os
import runpy
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from dear.adapters import export as module
from dear.adapters.export import export
from dear.adapters.predictor import Predictor
from dear.backbone.preprocess import Preprocess
from dear.data.images.decode import decode
from dear.data.images.transforms import eval_view, to_unit
from dear.errors import ExportError, OutputError
from tests.conftest import MakeClip
from tests.helpers.bundles import fitted
from tests.helpers.data import CLASSES
from tests.helpers.errors import refuses
from tests.helpers.methods import OTHERS, images
from tests.unit.data.photos import gray_tiff

EXAMPLE = Path(__file__).parents[3] / "examples" / "classify_onnx.py"
WITH_A_GRAPH = (
    "clip-adapter", "clip-lora", "cocoop", "dear+", "gda", "lp++", "maple", "mmrl++", "prolip", "promptkd",
    "tac", "tip-adapter",
)  # fmt: skip
"""Methods with an image part or scores of their own; what the others export is like one of these or DeAR."""


def predictor(name: str, make_small_clip: MakeClip) -> Predictor:
    clip = make_small_clip()
    return Predictor(fitted(name, clip)[0], clip=clip)


def test_onnx_classifier_without_a_word_of_the_exporter_and_the_example_of_it(
    make_small_clip: MakeClip, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rt = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
    pytest.importorskip("onnxscript", reason="the extra export is not installed")
    one = predictor("dear", make_small_clip)
    Image.new("RGB", (29, 23), (60, 30, 99)).save(tmp_path / "a.png")
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = export(one, tmp_path / "m.onnx", images=[tmp_path / "a.png"])
    assert capfd.readouterr() == ("", "")
    assert logging.root.manager.disable == logging.NOTSET
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    assert (done.checked, done.classes, done.same_best) == (7, 3, 7)
    assert done.difference < 1e-4
    session = rt.InferenceSession(str(tmp_path / "m.onnx"))
    pixels = {"pixels": images().numpy()}  # seven, a size that was not traced
    logits, shares, features, evidence = session.run(None, pixels)
    want = one.logits(images())
    torch.testing.assert_close(torch.from_numpy(logits), want, rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(shares), (want / 1.7).softmax(dim=1), rtol=0, atol=1e-4)
    torch.testing.assert_close(torch.from_numpy(features), one.encode(images()), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.from_numpy(evidence.sum(axis=1)), want, rtol=0, atol=1e-4)
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"]) == CLASSES
    assert json.loads(told["features"]) == ["class", "color", "object"]
    assert json.loads(told["preprocess"])["size"] == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "m.onnx"]
    content = (tmp_path / "m.onnx").read_bytes()  # without the paths of the code on this machine
    assert str(Path(__file__).parents[3]).encode() not in content
    assert b"site-packages" not in content
    example("main")(str(tmp_path / "m.onnx"), str(tmp_path / "a.png"))
    shown = ", ".join(
        f"{best.name} {best.probability:.1%}" for best in one.predict(tmp_path / "a.png", top=3).top
    )
    assert capfd.readouterr().out == f"{tmp_path / 'a.png'}: {shown}\n"


def draw_noise(mode: str, size: tuple[int, int]) -> Image.Image:
    width, height = size
    noise = torch.randint(0, 256, (height, width, 4), generator=torch.Generator().manual_seed(2)).byte()
    if mode == "I;16":
        return Image.fromarray(noise.numpy().astype("uint16")[:, :, 0] * 257)
    return Image.fromarray(noise.numpy()).convert("RGB" if mode == "P" else mode).convert(mode)


def example(function: str) -> Any:
    return runpy.run_path(str(EXAMPLE))[function]


USUAL = (26, 33)
PICTURES = [
    *[(f"{turned}.jpg", "RGB", USUAL, turned) for turned in range(1, 9)], ("6.png", "RGB", USUAL, 6),
    ("5.webp", "RGB", USUAL, 5), ("8.tif", "RGB", USUAL, 8), ("ink.jpg", "CMYK", USUAL, 1),
    *[(f"{mode}.png", mode, USUAL, 1) for mode in ("1", "L", "LA", "P", "RGBA", "I;16")],
    *[(f"{size}.png", "RGB", size, 1) for size in ((300, 9), (9, 301), (20, 20), (1, 50))],
]  # fmt: skip


def exchange_primaries(profile: bytes) -> bytes:
    """A profile that shows red where green is stored."""
    entries = {name: slice(at + 4, at + 12) for name in (b"rXYZ", b"gXYZ") if (at := profile.find(name)) > 0}
    changed = bytearray(profile)
    changed[entries[b"rXYZ"]], changed[entries[b"gXYZ"]] = (
        profile[entries[b"gXYZ"]],
        profile[entries[b"rXYZ"]],
    )
    return bytes(changed)


@pytest.mark.parametrize(
    "view",
    [
        Preprocess(20),
        Preprocess(20, interpolation="bilinear", resize_mode="squash"),
        Preprocess(20, resize_mode="longest", fill_color=7),
        Preprocess(20, short_side=23, rounds_crop_down=True),
    ],
    ids=lambda view: view.resize_mode,
)
def test_the_examples_pixels_are_those_of_dear(view: Preprocess, tmp_path: Path) -> None:
    read, compute = example("read_picture"), example("compute_pixels")
    levels = np.random.default_rng(3).integers(0, 65536, (33, 26)).astype(np.uint16)
    (tmp_path / "negative.tif").write_bytes(gray_tiff(levels, white_is_zero=True))
    pixels = compute(read(tmp_path / "negative.tif"), asdict(view))
    wanted = to_unit(eval_view(decode(tmp_path / "negative.tif"), view))
    assert torch.equal(torch.from_numpy(pixels)[0], wanted)
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for name, mode, size, turned in PICTURES:
        exif = Image.Exif()
        exif[0x112] = turned
        draw_noise(mode, size).save(tmp_path / name, exif=exif)
        wanted = to_unit(eval_view(decode(tmp_path / name), view))
        pixels = torch.from_numpy(compute(read(tmp_path / name), asdict(view)))[0]
        assert torch.equal(pixels, wanted), name
        for profile in (exchange_primaries(srgb), srgb, b"damaged") if mode in ("RGB", "RGBA", "P") else ():
            draw_noise(mode, size).save(tmp_path / name, exif=exif, icc_profile=profile)
            pixels = torch.from_numpy(compute(read(tmp_path / name), asdict(view)))[0]
            assert torch.equal(pixels, to_unit(eval_view(decode(tmp_path / name), view))), name


def test_what_is_refused(make_small_clip: MakeClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExportError, match="cocoop"):
        export(predictor("cocoop", make_small_clip), tmp_path / "m.onnx", classes=CLASSES)
    one = predictor("zero-shot", make_small_clip)
    monkeypatch.setattr(module, "MAX_ONNX_BYTES", 10)
    refuses(ExportError, "limited to 2", export, one, tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    refuses(ExportError, "onnxscript", export, one, tmp_path / "m.onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("wrong", "out", "error"),
    [
        (0.01, "m.onnx", pytest.raises(ExportError, match=r"1\.0e-02")),
        (math.nan, "m.onnx", pytest.raises(ExportError, match="nan")),
        (0.0, "file/m.onnx", pytest.raises(OutputError, match="--out")),
        (0.0, ".", pytest.raises(OutputError, match="--out")),
        (0.0, "m.txt", pytest.raises(OutputError, match=r"m\.txt: give a file ending in \.onnx")),
    ],
)
def test_a_model_that_differs_or_has_no_folder_is_not_written(
    wrong: float, out: str, error: Any, make_small_clip: MakeClip, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    models = list[torch.nn.Module]()

    def note(model: torch.nn.Module, *_: Any) -> bytes:
        models.append(model)
        return b"what was not exported"

    def run(pixels: torch.Tensor) -> list[torch.Tensor]:
        return [output + wrong for output in models[0](pixels)]

    monkeypatch.setattr(module, "_to_onnx", note)
    monkeypatch.setattr(module, "_load_onnx", lambda _: run)
    (tmp_path / "file").write_text("")
    with error:
        export(predictor("zero-shot", make_small_clip), tmp_path / out)
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_A_GRAPH)
def test_methods_as_onnx_with_other_classes_if_they_take_any(
    name: str, make_small_clip: MakeClip, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript", reason="the extra export is not installed")
    one, options = predictor(name, make_small_clip), {}
    if not one.method.declaration.text_depends_on_image:  # else no classes can be built in
        options = {"classes": OTHERS if one.method.open_vocabulary else CLASSES}
    assert export(one, tmp_path / "m.onnx", **options).difference < 1e-3
