"""README's three commands with the default backbone, which a stand-in of the hub serves in small."""

import json
from pathlib import Path

import pytest
import torch
from open_clip.factory import _MODEL_CONFIGS
from PIL import Image
from safetensors.torch import save

from dear.adapters.predictor import Predictor
from dear.backbone.loading.load import load_clip
from dear.backbone.loading.open_clip_format import build_random
from dear.backbone.names import REAL
from tests.e2e.conftest import Run
from tests.standin_hub import CHUNK, StandIn

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.app import create_app
from dear.serving.service import Service

REPOSITORY, FILE = "laion/CLIP-ViT-B-16-laion2B-s34B-b88K", "open_clip_model.safetensors"
SMALL = {  # 12 layers of 12 heads, as the published role table has them
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 12, "width": 36, "head_width": 3, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 24, "heads": 2, "layers": 12},
}


@pytest.fixture
def served(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The weights, under the names that open_clip asks for."""
    monkeypatch.setitem(_MODEL_CONFIGS, REAL.model, SMALL)
    content = save(dict(build_random(REAL.model, 5).state_dict()))
    standin.files[REPOSITORY] = {"README.md": b"a card", FILE: content}
    return content


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of images for each of two classes."""
    for label, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            picture = Image.new("RGB", (40, 36), (200 * label, 60 * number, 90))
            picture.save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def test_fit_predict_and_serve(
    standin: StandIn, served: bytes, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    out = tmp_path / "my-classifier"
    fit = ["fit", str(photos), "--out", str(out), "--train.epochs", "1", "--train.warmup-epochs", "0"]

    standin.faults.corrupt = True
    assert f"{FILE} was damaged on the way" in run(fit, 2)[1]
    assert not out.exists()

    standin.faults.corrupt, standin.faults.cut = False, CHUNK * (len(served) // CHUNK // 2)
    asked = len(standin.downloads())
    told = run(fit)[1]
    assert standin.downloads()[asked:] == [None, f"bytes={CHUNK * (len(served) // CHUNK // 2)}-"]
    megabytes = f"{len(served) / 1e6:.0f} MB"
    assert f"fetching ViT-B-16/laion2b_s34b_b88k once from {standin.endpoint}/{REPOSITORY}" in told
    assert f", {megabytes}; it is kept in {tmp_path / 'cache'}" in told
    weights = json.loads((out / "config.json").read_text())["backbone"]
    assert (weights["model"], weights["pretrained"]) == REAL

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # no network from here on
    asked, kept = len(standin.requests), tree(tmp_path / "cache")
    image = photos / "cat" / "0.png"
    answer = run(["predict", str(out), str(image), "--json"])[0]
    predictor = Predictor(out)
    [prediction] = predictor.predict([image])
    assert f'"{prediction.best.name}"' in answer
    with TestClient(create_app(Service(predictor)), base_url="http://127.0.0.1") as client:
        served_answer = client.post("/api/predict?top=1", content=image.read_bytes())
    assert served_answer.status_code == 200
    assert f'"{prediction.best.name}"' in served_answer.text
    assert len(standin.requests) == asked
    assert tree(tmp_path / "cache") == kept  # so that it may be read-only


@pytest.mark.usefixtures("served")
def test_a_strangers_folder_with_a_model_of_the_same_names_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the path of its file is given."""
    published = load_clip(*REAL).identity.sha256
    folder = tmp_path / "stranger"
    (folder / REAL.model).mkdir(parents=True)
    config = {"model_cfg": SMALL, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3}}
    (folder / REAL.model / "open_clip_config.json").write_text(json.dumps(config))
    torch.save(dict(build_random(REAL.model, 77).state_dict()), folder / str(REAL.pretrained))
    monkeypatch.chdir(folder)
    assert load_clip(*REAL).identity.sha256 == published
    assert load_clip(REAL.model, f"./{REAL.pretrained}").identity.sha256 != published


def tree(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in folder.rglob("*")}
