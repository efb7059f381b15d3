"""Small copies of twelve sets for tests, with what is strange about them: python -m benchmarks.zoo.small

Written from the sets that `python -m benchmarks.zoo --only-make` has made.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests/data/zoo"
IMAGES = 6
"""Of each class."""
MORE = {
    "frames": dict.fromkeys(("ball", "bar", "cross"), 9),
    "imbalanced": {"stars": 24, "fruit": 2, "arrows": 1},
}
LONGEST = {
    "pages": 150,
    "textile": 100,
    "cam_scratch": 100,
    "only_position": 56,
    "only_count": 56,
    "clipart": 64,
}
"""Pixels of the longer side; other sets keep theirs but for x-rays, of which every third pixel stays."""


def shrink(path: Path, name: str) -> Image.Image:
    with Image.open(path) as image:
        image.load()
    if name == "gray16":  # Pillow resizes no 16-bit image
        return Image.fromarray(np.asarray(image)[::3, ::3])
    if image.mode == "P":
        image = image.convert("RGBA")
    longest = LONGEST.get("clipart" if name == "imbalanced" else name, max(image.size))
    image.thumbnail((longest, longest))
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "zoo", help="where the sets were made")
    options = parser.parse_args()
    for name in (
        *("textile", "digits8", "clipart", "fonts", "pages", "cam_scratch"),
        *("only_position", "only_count", "imbalanced", "strips", "gray16", "frames"),
    ):
        shutil.rmtree(SMALL / name, ignore_errors=True)
        for folder in sorted((options.folder / "data" / name).iterdir()):
            (SMALL / name / folder.name).mkdir(parents=True)
            paths = sorted(folder.iterdir())
            count = MORE.get(name, {}).get(folder.name, IMAGES)
            for path in paths[:: max(1, len(paths) // count)][:count]:
                shrink(path, name).save(SMALL / name / folder.name / path.name)


if __name__ == "__main__":
    main()
