"""README's three commands with the default backbone, which a stand-in of the hub serves in small."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from open_clip.factory import _MODEL_CONFIGS
from PIL import Image
from safetensors.torch import save

from dear.adapters.predictor import Predictor
from dear.backbone.loading.load import load_clip
from dear.backbone.loading.open_clip_format import build_random
from dear.backbone.names import REAL
from dear.data.sources.benchmarks import benchmarks, published_names
from dear.report.published import ablation, base_to_novel, transfer
from tests.e2e.conftest import Run
from tests.standin_hub import CHUNK, StandIn

pytest.importorskip("fastapi", reason="the extra `app` is not installed")
from fastapi.testclient import TestClient

from dear.serving.app import create_app
from dear.serving.service import Service
from tests.helpers.pictures import save_folders

OPENAI, OPENAI_REPOSITORY = "ViT-B-16-quickgelu", "timm/vit_base_patch16_clip_224.openai"
RECIPES = Path(__file__).parents[2] / "recipes"
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

    def draw(label: int, number: int) -> Image.Image:
        return Image.new("RGB", (40, 36), (200 * label, 60 * number, 90))

    return save_folders(tmp_path / "photos", ("cat", "dog"), range(3), draw)


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


def write_benchmarks(root: Path) -> None:
    """Every benchmark in CoOp's layout, with its first four classes: 16 images of each to train on, one to
    test on.
    """
    for number, benchmark in enumerate(benchmarks().values()):
        folder = root / benchmark.folder / benchmark.images
        folder.mkdir(parents=True)
        rows: dict[str, list[Any]] = {"train": [], "val": [], "test": []}
        for label, name in enumerate(published_names(benchmark)[:4]):
            for image in range(17):
                path = folder / f"{label}-{image}.png"
                Image.new("RGB", (33, 32), (60 * label, 14 * image, 9 * number)).save(path)
                rows["train" if image else "test"].append([path.name, label, name])
        (root / benchmark.folder / f"split_zhou_{benchmark.name}.json").write_text(json.dumps(rows))


def table(folder: Path, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "report" / f"{name}.csv").read_text().splitlines()))


@pytest.mark.long
@pytest.mark.usefixtures("served")
def test_the_papers_recipes_stand_beside_its_numbers(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Tables 2, 3, 5 and 6, with few images of benchmarks that are not those: every number that the paper
    prints is in the row of its method and data set.
    """
    monkeypatch.setitem(_MODEL_CONFIGS, OPENAI, {**SMALL, "quick_gelu": True})
    standin.files[OPENAI_REPOSITORY] = {FILE: save(dict(build_random(OPENAI, 6).state_dict()))}
    write_benchmarks(tmp_path / "data")
    paper, folder = RECIPES / "paper", tmp_path / "runs"
    few = ["--train.epochs", "1", "--train.warmup-epochs", "0", "--seeds", "1"]
    few += ["--dataset.root", str(tmp_path / "data"), "--out", str(folder)]
    run(["run", "recipe", str(paper / "base-to-novel.yaml"), *few])
    run(["run", "recipe", str(paper / "cross-dataset.yaml"), *few])
    for name in ("mask", "loss", "inference", "attributes", "quantile"):
        run(
            [
                "run",
                "recipe",
                f"{paper / 'ablations.yaml'}:{name}",
                *few,
                "--data",
                "imagenet,DTD"[: 8 if name in ("attributes", "quantile") else None],
            ]
        )
    openai = ["--model", OPENAI, "--pretrained", "openai", "--dear.roles-from-other-weights"]
    words = [word if word != str(folder) else str(tmp_path / "openai") for word in few]
    two = ["--data", "ImageNet,DTD"]
    run(["run", "recipe", str(paper / "base-to-novel.yaml"), *words, *openai, *two])

    printed = base_to_novel()
    everything = {data_set for _, data_set in printed}
    for place, methods, run_on in (
        (folder, {"dear": "DeAR"}, everything),
        (tmp_path / "openai", {"dear": "DeAR", "zero-shot": "CLIP"}, {"ImageNet", "DTD"}),
    ):
        run(["report", str(place / "base-to-novel")])
        rows = {
            row["Data set: method"]: row for row in table(place / "base-to-novel", "base-to-novel-published")
        }
        for method, name in methods.items():
            for data_set in run_on:
                row = rows[f"{data_set}: {method}"]
                for column, measure in (("Base", "base"), ("Novel", "novel"), ("HM", "hm")):
                    assert float(row[f"{column} (published)"]) == printed[name, data_set][measure][0]
        data_sets = {label.partition(":")[0] for label in rows if "supplement" not in label}
        assert data_sets == run_on
    run(["report", str(folder / "cross-dataset")])
    rows_of_transfer = table(folder / "cross-dataset", "cross-dataset")
    (dear_row,) = [row for row in rows_of_transfer if row["Method"] == "DeAR"]
    assert {
        name: float(value) for name, value in dear_row.items() if name in transfer("cross-dataset")["DeAR"]
    } == {name: value for name, value in transfer("cross-dataset")["DeAR"].items() if name in dear_row}
    assert {row["Method"] for row in rows_of_transfer if row["published"] == "no"} >= {"zero-shot", "dear"}
    for name in ("mask", "loss", "inference", "attributes", "quantile"):
        run(["report", str(folder / f"ablation-{name}")])
        rows = {row["Variant"]: row for row in table(folder / f"ablation-{name}", f"ablation-{name}")}
        for data, by_row in ablation(name).items():
            title = {"average of 11": "11 data sets"}.get(data, data)
            for label, numbers in by_row.items():
                for column, measure in (("Base", "base"), ("Novel", "novel"), ("HM", "hm")):
                    if measure in numbers:
                        assert float(rows[label][f"{column}, published ({title})"]) == numbers[measure][0]
                        assert rows[label][column]  # ours stands beside it


def tree(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_mtime_ns for path in folder.rglob("*")}
