"""The adversarial variant of `source`: images that a zero-shot model misclassifies, stored as data."""

import json
from pathlib import Path

import torch

from dear.data.world.factors import bulk
from dear.data.world.images import WorldImages
from dear.errors import DataError

CHOSEN = Path(__file__).with_name("adversarial.json")


def adversarial_numbers(candidates: WorldImages, path: Path = CHOSEN) -> list[int]:
    """The chosen numbers, class by class.

    Raises DataError if no choice was made yet, or if it was made from other candidates.
    """
    command = bulk("tasks")["adversarial_command"]
    if not path.is_file():
        raise DataError(
            f"the adversarial images are not chosen yet: {path} is missing. Create it with `{command}`."
        )
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept["candidates"] != candidates.identity:
        raise DataError(
            f"{path} was chosen from other images ({kept['candidates']}, not {candidates.identity}). "
            f"Create it again with `{command}`."
        )
    numbers = torch.tensor([number for numbers in kept["chosen"] for number in numbers])
    if len(numbers) == 0 or int(numbers.max()) >= len(candidates):
        raise DataError(f"{path} names images that do not exist. Create it again with `{command}`.")
    return [int(number) for number in numbers]
