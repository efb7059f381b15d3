"""Small image files for tests of readers."""

from pathlib import Path

from PIL import Image


def picture(path: Path, level: int = 0, size: tuple[int, int] = (7, 5)) -> Path:
    """An image file of one level; `size` is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level, level, level)).save(path)
    return path


def class_folders(root: Path, counts: dict[str, int]) -> Path:
    """`root/class/number.png`: image n of a class has the level n."""
    for name, count in counts.items():
        for number in range(count):
            picture(root / name / f"{number}.png", number)
    return root
