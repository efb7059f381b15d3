"""Pictures as files."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def save_picture(path: Path, picture: Any) -> Path:
    """Save a Pillow image, or the pixels of one from 0 to 255, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_image = isinstance(picture, Image.Image)
    image = picture if is_image else Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    image.save(path)
    return path


def save_folders(
    folder: Path, names: Iterable[str], numbers: Iterable[int], draw: Callable[[int, int], Any]
) -> Path:
    """Save ``name/number.png`` for each name: what ``draw`` gives for the name's place and the number."""
    for place, name in enumerate(names):
        for number in numbers:
            save_picture(folder / name / f"{number}.png", draw(place, number))
    return folder


def noise_pixels(seed: Any, width: int = 20, height: int = 20) -> np.ndarray:
    """Pixels that are unlike those of other seeds."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
