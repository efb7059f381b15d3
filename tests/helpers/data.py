"""Data sets as files, and of random pictures in memory."""

import zipfile
from pathlib import Path

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from dear.data.dataset import Dataset, assemble

CLASSES = ["red circle on the sea", "house", "green tree"]


class Noise:
    """Random 8-bit pictures of 23 x 29 pixels, brighter with the label, in memory."""

    def __init__(self, labels: list[int], seed: int = 0) -> None:
        self.labels = torch.tensor(labels)
        self.identity = f"noise {labels} {seed}"
        generator = torch.Generator().manual_seed(seed)
        pictures = torch.randint(0, 100, (len(labels), 3, 23, 29), generator=generator, dtype=torch.uint8)
        self.pictures = pictures + (40 * self.labels.to(torch.uint8)).clamp(max=150)[:, None, None, None]
        self.loads = 0

    def __len__(self) -> int:
        return len(self.labels)

    def load(self, indices: Int[Tensor, "batch"]) -> UInt8[Tensor, "batch 3 height width"]:
        self.loads += 1
        return self.pictures[indices]


def few() -> Noise:
    """Seven pictures of three classes."""
    return Noise([0, 1, 2, 0, 2, 1, 1])


def noise_dataset(name: str = "noise") -> Dataset:
    """Four classes with three pictures to train on and five or seven to test on."""
    train, test = Noise([0, 1, 2, 3] * 3, 1), Noise([0, 1, 2, 3] * 5 + [0, 3] * 2, 2)
    return assemble(name, name.title(), [*CLASSES, "blue square"], ["a photo of a {}"], train, None, test)


def pack(path: Path, folder: Path, within: str = "") -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for place in sorted(folder.rglob("*")):
            if place.is_file():
                file.write(place, within + place.relative_to(folder).as_posix())
    return path
