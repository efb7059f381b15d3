"""Domain generalization on a folder of domains, and bundles on folders called by WordNet ids."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dear.cli.main import main
from dear.evaluation import trial
from tests.e2e.conftest import Run

WORDS = ["run", "domain-generalization", "--methods", "coop", "--train.epochs", "2", "--shots", "1"]


@pytest.fixture
def domains(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """12 images of 4 classes in each of three domains, all of noise, so that none is like another."""
    monkeypatch.setenv("DEAR_CACHE", str(tmp_path / "cache"))
    for level, name in enumerate(("art", "photo", "sketch")):
        folder = tmp_path / "domains" / name
        shutil.copytree(photos / "images", folder)
        for number, path in enumerate(sorted(folder.rglob("*.*"))):
            path.unlink()
            pixels = np.random.default_rng(12 * level + number).integers(0, 256, (23, 29, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path.with_suffix(".png"))
    return tmp_path / "domains"


@pytest.mark.usefixtures("small")
def test_all_images_of_the_other_domains_are_tested_on(
    domains: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[int] = []
    measure = trial.predict

    def counted(method: Any, images: Any, **options: Any) -> Any:
        tested.append(len(images))
        return measure(method, images, **options)

    monkeypatch.setattr(trial, "predict", counted)
    assert main([*WORDS, "--data", str(domains), "--source", "photo", "--out", str(out)]) == 0
    (record,) = (json.loads(file.read_text()) for file in out.glob("*.json"))
    assert record["dataset"]["name"] == "photo"
    assert len(record["fewshot"]["files"]) == 4
    assert record["results"]["targets"].keys() == {"art", "sketch"}
    assert tested == [4, 12, 12]  # a test image of each class of the source, all images of the targets


def test_a_source_that_is_no_domain(domains: Path, out: Path, run: Run) -> None:
    line = run([*WORDS, "--data", str(domains), "--out", str(out)], 2)[1]
    assert "holds the domains art, photo, sketch: name the one to train on" in line
