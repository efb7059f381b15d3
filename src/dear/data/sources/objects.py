"""Data sets that are Python objects: images or paths with labels, data frames, torchvision's folders of
images, and tables of the library datasets.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from dear.data.images.decode import image_path
from dear.data.images.forms import is_image, refused_image
from dear.data.settings import DataSettings
from dear.data.sources.class_names import plain_label, sort_names, spelling_note
from dear.data.sources.folder import ignored_note
from dear.data.sources.huggingface import list_tables, undecoded
from dear.data.sources.listing import Listing
from dear.data.sources.shards import find_images, is_collection
from dear.data.sources.table import LABELS, PATHS, Entry, column, listing_of
from dear.errors import DataError
from dear.reading.files import is_passed_over
from dear.reading.remote import as_path, is_address
from dear.text import list_names, plural

ReadImage = Callable[[str], Any]
"""Gives the image of a row's path, for images that are not files."""

NAME = "images"
"""The name of a data set that is not in files."""
MISSING = ("nan", "None", "<NA>", "NaT")
"""What Python calls a label that is not there."""
FORMS = (
    "give a folder, a file, (images, labels), a data frame with columns path and label, a data set of the "
    "library datasets, or torchvision's ImageFolder"
)


def read_object(data: Any, settings: DataSettings) -> tuple[Listing, ReadImage | None]:
    """The lists of a data set, and what gives its images if they are not files. Raises DataError."""
    datasets: Any = sys.modules.get("datasets")  # who has such an object has imported it
    if datasets is not None and isinstance(data, datasets.Dataset | datasets.DatasetDict):
        return _read_tables(data if isinstance(data, datasets.DatasetDict) else {"all": data}, settings)
    if hasattr(data, "samples") and hasattr(data, "classes"):
        samples, passed_over = _without_passed_over(data)
        labels = [data.classes[label] for _, label in samples]
        keys = [key for key in data.classes if not is_passed_over(key)]
        listed, read = read_pairs(samples, labels, keys=sort_names(keys) if keys == sorted(keys) else keys)
        return replace(listed, notes=(*listed.notes, *ignored_note(passed_over))), read
    if isinstance(data, Mapping) or hasattr(data, "columns"):
        names = [str(name) for name in (data if isinstance(data, Mapping) else data.columns)]
        named = settings.named_columns
        labels = _column(data, [*filter(None, [named.get("label")]), *LABELS], names)
        part = named.get("split", "split")
        splits = data[part] if part in names else None
        paths = _column(data, [*filter(None, [named.get("path")]), *PATHS], names)
        return read_pairs(paths, labels, splits=splits)
    if isinstance(data, tuple | list) and len(data) == 2 and not isinstance(data[0], str | os.PathLike):
        return read_pairs(data[0], data[1])
    raise DataError(f"{type(data).__name__} is not a data set: {FORMS}.")


def _without_passed_over(data: Any) -> tuple[list[Any], list[str]]:
    """The samples of torchvision's ImageFolder, and the folders and images in it that are passed over."""
    samples, passed_over = list[Any](), dict[str, None]()
    for path, label in data.samples:
        parts = os.path.relpath(path, data.root).split(os.sep)
        outer = next((end for end, part in enumerate(parts, start=1) if is_passed_over(part)), None)
        if outer is None:
            samples.append((path, label))
        else:
            passed_over["/".join(parts[:outer]) + "/" * (outer < len(parts))] = None
    return samples, [*passed_over]


def each_image(images: Any, *, several: bool = False) -> Iterator[Any]:
    """The images below a folder, in an archive or a table, of a data frame, a list, a batch, a torch Dataset
    or a DataLoader, or the image itself. Labels that come with them, as (image, number), and other columns
    are left out. If there are ``several`` for certain, an array of three axes has gray ones.

    Raises DataError for what is neither an image nor several, and a folder or a data frame without images.
    """
    if isinstance(images, str | os.PathLike) and is_collection(images):
        images = find_images(as_path(images), DataSettings())
    elif hasattr(images, "columns"):
        images = _column(images, PATHS, [*map(str, images.columns)])
    if several and isinstance(images, np.ndarray | Tensor) and images.ndim == 3:
        yield from images
    elif is_image(images):
        yield images
    elif isinstance(images, DataLoader):
        for batch in map(_image_of, images):
            yield from _images_of_batch(batch, several=images.batch_sampler is not None)
    elif isinstance(images, Mapping) or not (hasattr(images, "__iter__") or hasattr(images, "__getitem__")):
        raise refused_image(images)
    elif hasattr(images, "__iter__"):
        yield from map(_image_of, images)
    else:
        yield from (_image_of(images[index]) for index in range(len(images)))


def _images_of_batch(batch: Any, *, several: bool) -> Iterator[Any]:
    """The images of what a DataLoader gives: of a batch there are ``several``; without batches it is an
    image, or what the data set has for a batch.
    """
    if isinstance(batch, list | tuple) and not all(is_image(_image_of(item)) for item in batch):
        batch = batch[0]  # images, then their labels
    if is_image(batch) and not (several and isinstance(batch, np.ndarray | Tensor)):
        yield batch
    else:
        yield from map(_image_of, batch)


def _image_of(item: Any) -> Any:
    """The image of an item of a data set: it may come with its label, or as a column."""
    if isinstance(item, Mapping) and "image" in item:
        return item["image"]
    if isinstance(item, tuple | list) and len(item) == 2:
        labeled = isinstance(item[1], Integral) or (isinstance(item[1], Tensor) and not item[1].ndim)
        return item[0] if labeled else item
    return item


def _column(data: Any, candidates: Sequence[str], names: Sequence[str]) -> Any:
    """The first of the candidates that is a column. Raises DataError if none is."""
    if (name := column(candidates, names)) not in names:
        raise DataError(
            f"the columns are {list_names(names, 20)}: one of {list_names(candidates)} is needed."
        )
    return data[name]


def read_pairs(
    images: Any, labels: Any, *, keys: Sequence[str] | None = None, splits: Any = None
) -> tuple[Listing, ReadImage | None]:
    """`read_object` for images and their labels: names of classes, or whole numbers.
    ``keys`` are the names in label order, by default sorted; ``splits`` are train, val or test for each.

    Files are listed relative to the folder that holds all of them: those of a folder of classes are the same
    data set as the folder.
    """
    images, labels = [*each_image(images, several=True)], _values(labels)
    splits = [""] * len(images) if splits is None else _values(splits)
    if not images or not len(images) == len(labels) == len(splits):
        counts = f"{plural(len(images), 'image')} and {plural(len(labels), 'label')}"
        raise DataError(f"{counts} were given: give one label per image.")
    labels = read_labels(labels)
    if labels and isinstance(labels[0], str):
        keys = [plain_label(key) for key in keys or sort_names({*map(plain_label, labels)})]
    in_files = all(isinstance(image, str | os.PathLike) for image in images)
    folder, names = Path(NAME), [f"{number:06}" for number in range(len(images))]
    if in_files:
        files = [str(image_path(image)) for image in images]
        local = [os.path.abspath(file) for file in files if not is_address(file)]
        folder = Path(os.path.commonpath([os.path.dirname(file) for file in local])) if local else Path(NAME)
        names = [
            file if is_address(file) else Path(os.path.abspath(file)).relative_to(folder).as_posix()
            for file in files
        ]
    rows = enumerate(zip(names, map(str, labels), map(str, splits), strict=True))
    entries = [
        Entry(f"row {row}", name, plain_label(label), split.strip()) for row, (name, label, split) in rows
    ]
    listed = listing_of(folder, folder, entries, keys=keys)
    notes = (*listed.notes, *spelling_note(map(str, labels)))
    listed = replace(listed, name=folder.name or NAME, notes=notes)
    return listed, None if in_files else dict(zip(names, images, strict=True)).__getitem__


def read_labels(labels: Any, *, may_be_bool: bool = False) -> list[Any]:
    """The labels of images, one for each: names, or whole numbers. A table or an array may have one column.
    Raises DataError for a missing label, several columns, names among numbers, and other kinds of values.
    """
    labels = [
        int(label) if isinstance(label, float) and label.is_integer() else label for label in _values(labels)
    ]
    numbered = all(isinstance(label, Integral) and not isinstance(label, bool) for label in labels)
    numbered |= may_be_bool and all(isinstance(label, bool) for label in labels)
    odd = [(row, label) for row, label in enumerate(labels) if not isinstance(label, str)]
    if not numbered and odd:
        missing = [(row, label) for row, label in odd if str(label) in MISSING]
        (row, label), hint = odd[0], "give one name an image, or whole numbers from 0"
        if missing:
            (row, label), hint = missing[0], 'pandas reads "NA" so, unless keep_default_na=False is given'
        raise DataError(f"row {row}: {label!r:.100} ({type(label).__name__}) is not a label: {hint}.")
    return [*labels]


def _read_tables(tables: Mapping[str, Any], settings: DataSettings) -> tuple[Listing, ReadImage]:
    """The lists of tables of the library datasets, and what gives the image of a row."""
    tables = {part: table for part, table in tables.items() if len(table)}
    if not tables:
        raise DataError("the data set is empty.")
    name = next(iter(tables.values())).info.dataset_name or NAME
    listed, image = list_tables(name, tables, settings)
    cells = {part: undecoded(table, image) for part, table in tables.items()}

    def read(path: str) -> Any:
        part, _, row = path.rpartition("/")
        cell = cells[part][int(row)][image] or {}
        return cell.get("bytes") or cell.get("path") or b""

    return listed, read


def _values(labels: Any) -> list[Any]:
    """A column as a list of Python's own values."""
    if hasattr(labels, "columns") and hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()
    shape: tuple[int, ...] = tuple(getattr(labels, "shape", ()))
    if len(shape) > 1:
        if len(shape) > 2 or shape[1] != 1:
            raise DataError(
                f"the labels have the shape {shape}: give one label per image; of one-hot rows, the "
                "column that has the 1."
            )
        labels = labels[:, 0]
    values = labels.tolist() if hasattr(labels, "tolist") else labels
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise DataError(f"{type(labels).__name__} is not a list of labels: give one label per image.")
    return [*values]
