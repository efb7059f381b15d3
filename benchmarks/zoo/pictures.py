"""Pictures as files, and how those of a set are divided: what `dear fit` gets, and what is kept aside."""

import hashlib
import io
import random
import shutil
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

KEPT_ASIDE = 0.4
"""The share of each class, or of its groups, that is kept aside."""


class Picture(NamedTuple):
    """The content of an image file, its suffix, and the group whose pictures stay on one side."""

    content: bytes
    suffix: str
    group: str = ""


Classes = Mapping[str, Sequence[Picture]]


def as_png(image: Image.Image) -> Picture:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return Picture(buffer.getvalue(), ".png")


def as_jpeg(image: Image.Image, group: str = "", *, quality: int = 90) -> Picture:
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=quality)
    return Picture(buffer.getvalue(), ".jpg", group)


def as_is(path: Path) -> Picture:
    return Picture(path.read_bytes(), path.suffix)


def from_values(values: np.ndarray) -> Image.Image:
    """An 8-bit image of numbers, those out of its range at its ends."""
    return Image.fromarray(values.clip(0, 255).astype("uint8"))


def draw_some(paths: Sequence[Path], count: int) -> list[Path]:
    """So many of some paths, always the same."""
    drawn = sorted(paths, key=str)
    random.Random(0).shuffle(drawn)
    return drawn[:count]


def stream(*numbers: int) -> np.random.Generator:
    return np.random.default_rng(numbers)


def number_name(name: str) -> int:
    """A number that depends on a name alone."""
    return zlib.crc32(name.encode())


def write_set(
    folder: Path,
    name: str,
    classes: Classes,
    *,
    to_fit: Mapping[str, int] | None = None,
    most: tuple[int, int] | None = None,
) -> None:
    """Write a set's pictures to folder/data/NAME/CLASS and folder/held/NAME/CLASS.

    ``to_fit`` says how many of each class are not kept aside, ``most`` how many are left of a class on either
    side at most.
    """
    for side in ("data", "held"):
        shutil.rmtree(folder / side / name, ignore_errors=True)
    draws = random.Random(number_name(name))
    for label, pictures in classes.items():
        groups = [picture.group or number for number, picture in enumerate(pictures)]
        order = sorted({*groups}, key=str)
        draws.shuffle(order)
        count = round(len(order) * (1 - KEPT_ASIDE)) if to_fit is None else to_fit[label]
        fitted = {*order[:count]}
        for number, (picture, group) in enumerate(zip(pictures, groups, strict=True)):
            place = folder / ("data" if group in fitted else "held") / name / label
            place.mkdir(parents=True, exist_ok=True)
            stem = f"{picture.group or 'img'}_{number:03d}"
            (place / f"{stem}{picture.suffix}").write_bytes(picture.content)
    for side, count in zip(("data", "held"), most or (), strict=False):
        for place in (folder / side / name).iterdir():
            paths = sorted(place.iterdir())
            for path in random.Random(1).sample(paths, max(0, len(paths) - count)):
                path.unlink()


def list_pictures(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*"))


def hash_set(folder: Path, name: str) -> str:
    """A hash of the names and the pixels of a set, whatever its files were compressed by."""
    digest = hashlib.sha256()
    for side in ("data", "held"):
        for path in list_pictures(folder / side / name):
            with Image.open(path) as image:
                title = f"{side}/{path.parent.name}/{path.name} {image.mode} {image.size}\n"
                digest.update(title.encode() + np.asarray(image).tobytes())
    return digest.hexdigest()[:16]
