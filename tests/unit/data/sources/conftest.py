"""A hub of data sets on this machine."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from tests.standin_hub import StandIn

CONVERTED = "someone/photos@refs/convert/parquet"


@pytest.fixture
def pictures() -> Callable[..., bytes]:
    """Makes a Parquet file as the library datasets writes it: image n has the level n, its class is given."""
    datasets: Any = pytest.importorskip("datasets")

    def make(*labels: int) -> bytes:
        features = datasets.Features(
            image=datasets.Image(), label=datasets.ClassLabel(names=["sea horse", "ant"])
        )
        rows = {
            "image": [Image.new("RGB", (7, 5), (level,) * 3) for level in range(len(labels))],
            "label": [*labels],
        }
        file = BytesIO()
        datasets.Dataset.from_dict(rows, features=features).to_parquet(file)
        return file.getvalue()

    return make


@pytest.fixture
def forged(standin: StandIn, pictures: Callable[..., bytes]) -> StandIn:
    """A hub with a data set that it has converted."""
    standin.files["someone/photos"] = {"README.md": b"---\nlicense: mit\n---\n", "photos.py": b"exit(1)"}
    standin.files[CONVERTED] = {
        "default/train/0000.parquet": pictures(0, 1, 0), "default/test/0000.parquet": pictures(1, 0),
    }  # fmt: skip
    return standin
