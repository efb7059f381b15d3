"""What the rule for near-duplicates finds, and what it takes for some that are none: planted in data sets.

    python benchmarks/near_duplicates.py photos/ street-signs --out benchmarks/results/near_duplicates.json

Each data set is a folder of classes, or a task of the Attribute World. Pairs are counted in it as it is; then
another version of an eighth of its images is planted, a kind at a time. A version is found if it is in one
group with its image.
"""

import argparse
import json
import random
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from dear.data.images.decode import as_image, decode
from dear.data.images.near_duplicates import find_near_duplicates
from dear.data.images.thumbnails import thumbnail
from dear.data.settings import DataSettings
from dear.data.sources.folder import read_folder
from dear.world.tasks import load_task, task_names

SHARE, FEWEST, MOST = 8, 4, 60  # planted: one of so many images, at least and at most so many
FRAMES = 4  # of a burst, besides the image
KINDS: dict[str, Callable[[Image.Image, random.Random], bytes]] = {
    "JPEG 60": lambda image, _: save(image, quality=60),
    "JPEG 75": lambda image, _: save(image, quality=75),
    "JPEG 95": lambda image, _: save(image, quality=95),
    "0.6 x": lambda image, _: save(resize(image, 0.6), "PNG"),
    "2 x": lambda image, _: save(resize(image, 2), quality=85),
    "20% brighter": lambda image, _: save(ImageEnhance.Brightness(image).enhance(1.2)),
    "20% darker": lambda image, _: save(ImageEnhance.Brightness(image).enhance(0.8)),
    "crop 2%": lambda image, _: save(crop(image, 0.02, 0.02)),
    "crop 5%, 2.5%": lambda image, _: save(crop(image, 0.05, 0.025)),
    "burst": lambda image, draw: save(move(image, draw)),
}


def save(image: Image.Image, kind: str = "JPEG", quality: int = 90) -> bytes:
    """The content of a file."""
    content = BytesIO()
    image.save(content, kind, quality=quality)
    return content.getvalue()


def resize(image: Image.Image, scale: float) -> Image.Image:
    """The image with sides that are so many times as long."""
    width, height = (max(1, round(scale * side)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def crop(image: Image.Image, before: float, after: float) -> Image.Image:
    """The image without these shares of its sides on the left and above, and on the right and below."""
    width, height = image.size
    corner = round(before * width), round(before * height)
    return image.crop((*corner, width - round(after * width), height - round(after * height)))


def move(image: Image.Image, draw: random.Random) -> Image.Image:
    """The next frame: a shift of up to 1.5% of the sides, light that differs by up to 3%, and noise."""
    width, height = image.size
    shift = round(height * draw.uniform(-0.015, 0.015)), round(width * draw.uniform(-0.015, 0.015))
    pixels = np.roll(np.asarray(image, float), shift, (0, 1)) * draw.uniform(0.97, 1.03)
    pixels += np.random.default_rng(draw.randrange(10**6)).normal(0, 3, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def read(name: str, most: int) -> tuple[list[Tensor], list[Image.Image], list[int]]:
    """The thumbnails, pictures and labels of a data set, of which ``most`` images count, evenly spread."""
    if name in task_names():
        images = load_task(name).train
        chosen = torch.arange(len(images))[:: -(-len(images) // most)]
        pictures = images.load(chosen)
        return [*map(thumbnail, pictures)], [*map(as_image, pictures)], images.labels[chosen].tolist()
    listing = read_folder(Path(name), DataSettings())
    rows = [row for part in listing.splits.values() for row in part]
    rows = rows[:: -(-len(rows) // most)]
    files = [listing.folder / row.path for row in rows]
    thumbnails = [thumbnail(decode(file, coarse=True)) for file in files]
    return thumbnails, [as_image(decode(file)) for file in files], [row.label for row in rows]


def measure(name: str, most: int, seed: int) -> dict[str, Any]:
    """A row of the table: counts of images and pairs, and how many percent of each kind are found."""
    thumbnails, pictures, labels = read(name, most)
    count = len(pictures)
    found = find_near_duplicates(torch.stack(thumbnails), torch.tensor(labels))
    row: dict[str, Any] = {"data": Path(name).name, "images": count}
    row["pairs, none planted"] = sum(len(group) * (len(group) - 1) // 2 for group in found.groups)
    row["images in them"] = sum(map(len, found.groups))
    chosen = random.Random(seed).sample(range(count), min(MOST, max(FEWEST, count // SHARE)))
    for kind, change in KINDS.items():
        draw, copies = random.Random(seed), 1 if kind != "burst" else FRAMES
        owners = [item for item in chosen for _ in range(copies)]
        contents = [change(pictures[item], draw) for item in owners]
        planted = [thumbnail(decode(Path("planted"), data=content, coarse=True)) for content in contents]
        groups = find_near_duplicates(
            torch.stack([*thumbnails, *planted]), torch.tensor([*labels, *(labels[item] for item in owners)])
        ).groups
        group_of = {item: number for number, group in enumerate(groups) for item in group}
        hits = [
            item in group_of and group_of[item] == group_of.get(count + number)
            for number, item in enumerate(owners)
        ]
        row[kind] = round(100 * sum(hits) / len(hits))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", nargs="+", help="folders of classes, or tasks")
    parser.add_argument("--images", type=int, default=720, help="the most images of a data set")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.data:
        rows.append(measure(name, options.images, options.seed))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        settings = {"images": options.images, "seed": options.seed, "planted": f"1 of {SHARE}"}
        options.out.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
