"""Data sets of a hub that is forged: what it answers leads to no file outside of the cache."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError
from tests.standin_hub import StandIn
from tests.unit.data.photos import refused

datasets: Any = pytest.importorskip("datasets")
CARD = b"---\nlicense: mit\n---\nwritten by the hub\n"


@pytest.fixture
def forged(standin: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", standin.endpoint)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache" / "datasets"))
    standin.files["someone/photos"] = {"README.md": CARD}
    return standin


@pytest.mark.parametrize("fault", ["etag", "commit", "missing", "sha"])
def test_what_it_answers_is_no_path(
    fault: str, forged: StandIn, tmp_path: Path, settings: DataSettings
) -> None:
    """The hub's client joins the ETag, the commit and the revision to the path of its cache."""
    precious, new = tmp_path / "precious", tmp_path / "new"
    precious.write_text("x")
    for path in (str(precious), str(new), "../../../precious", "../../../new"):
        if fault == "etag":
            forged.faults.etag = path
        elif fault == "sha":
            forged.files["someone/photos"] = {"photos.py": b"pass"}
            forged.faults.sha = path
        else:
            forged.faults.commit, forged.faults.missing = path, fault == "missing"
        with pytest.raises(DataError, match=r"states no (hash|commit) of a file of someone/photos") as caught:
            load_dataset("hf:someone/photos", settings)
        assert "\n" not in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} <= {"precious", "cache"}
    assert precious.read_text() == "x"


def test_labels_that_python_cannot_hold(tmp_path: Path, settings: DataSettings) -> None:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("timestamp[s]")})
    rows = {"image": [Image.new("RGB", (7, 5))] * 2, "label": [1, 2]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "mine")
    labelled = DataSettings(cache=settings.cache, label="label")
    refused(tmp_path / "mine", labelled, r"the column label holds timestamp\[s\], not texts, numbers")
