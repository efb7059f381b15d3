"""Example images for the page: of a task of the Attribute World, or of a folder that the user names."""

import io
import random
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from dear.adapters.bundle import Bundle
from dear.data.images.decode import as_image, decode
from dear.data.loading import load_dataset
from dear.data.sources.folder import image_files
from dear.data.world.tasks import task_names
from dear.errors import DataError, SettingsError

MAX_EXAMPLES = 8
SIDE, LONGEST = 512, 1024
"""Pixels of the short side to which larger pictures of a folder are reduced, and at most of the long one."""


@dataclass(frozen=True)
class Example:
    """An example image as PNG, and its name on the page."""

    name: str
    png: bytes


def encode_png(image: Image.Image) -> bytes:
    """An image as the bytes of a PNG file."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def load_examples(bundle: Bundle, folder: Path | None = None) -> tuple[Example, ...]:
    """Up to eight images: of a folder (searched recursively), or else a test image each of up to eight
    classes of the bundle's world task; none for a bundle of other data.

    Raises SettingsError for a folder that does not exist, DataError for one without readable images.
    """
    if folder is not None:
        return _take_from_folder(folder)
    name = bundle.training.get("data")
    task = load_dataset(name) if name in task_names() else None
    if task is None or task.identity != bundle.training.get("data_identity"):
        return ()  # it may be a user's folder of the same name
    count = min(MAX_EXAMPLES, len(task.classnames))
    labels, classes = task.test.labels.tolist(), [at * len(task.classnames) // count for at in range(count)]
    images = task.test.load(torch.tensor([labels.index(label) for label in classes]))
    names = (task.classnames[label] for label in classes)
    return tuple(
        Example(name, encode_png(as_image(image))) for name, image in zip(names, images, strict=True)
    )


def _take_from_folder(folder: Path) -> tuple[Example, ...]:
    if not folder.is_dir():
        raise SettingsError(f"--examples {folder} is no folder: give a folder of images.")
    paths, examples = image_files(folder), list[Example]()
    for path in random.Random(0).sample(paths, len(paths)):  # not all of the first class
        if len(examples) < MAX_EXAMPLES:
            with suppress(DataError):
                image = as_image(decode(path, SIDE))
                image.thumbnail((LONGEST, LONGEST))
                name = path.relative_to(folder).with_suffix("").as_posix()
                examples.append(Example(name, encode_png(image)))
    if not examples:
        raise DataError(f"--examples {folder}: none of its images can be read.")
    return tuple(examples)
