"""Hugging Face data sets, made and saved in a folder, and forged there."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

datasets = pytest.importorskip("datasets")
pyarrow = pytest.importorskip("pyarrow")


def made(labels: list[int], names: list[str] | None = None, **columns: list[Any]) -> Any:
    """Image n has the level n; the classes are numbers with names, or texts."""
    pictures = [Image.new("RGB", (7, 5), (n, n, n)) for n in range(len(labels))]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names or ["sea horse", "ant"])}
    whole = {"image": pictures, "label": labels, **columns}
    features = datasets.Features({**kinds, **{one: datasets.Value("string") for one in columns}})
    return datasets.Dataset.from_dict(whole, features=features)


def levels(images: Any) -> list[int]:
    return [int(images.load(images.labels.new_tensor([at]))[0].max()) for at in range(len(images))]


def arrow_table(folder: Path) -> Any:
    """The table of a saved data set."""
    (stream,) = folder.glob("*.arrow")
    return pyarrow.ipc.open_stream(stream.read_bytes()).read_all()


def forge(folder: Path, table: Any, **options: Any) -> Path:
    """Give a saved data set another table, which its library would not write."""
    (stream,) = folder.glob("*.arrow")
    options = {"options": pyarrow.ipc.IpcWriteOptions(**options)}
    with pyarrow.OSFile(str(stream), "wb") as sink:  # noqa: SIM117 (the schema is in the second)
        with pyarrow.ipc.new_stream(sink, table.schema, **options) as writer:
            writer.write_table(table)
    return folder
