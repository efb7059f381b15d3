"""Choose the images of the task source-adversarial again, after the tiny CLIP's weights have changed:
`python -m tools.adversarial`, in the root of the repository.

Like ImageNet-A: unshifted images that a zero-shot model gets wrong. It writes into the package.
"""

import json
from pathlib import Path

from jaxtyping import Bool, Int
from torch import Tensor

from dear.backbone.load import load_clip
from dear.data.world.tasks import ADVERSARIAL, WorldImages, adversarial_candidates, load_task
from dear.errors import DataError
from dear.evaluation.predictions import predict
from dear.methods.registry import frozen_clip
from tools import end_with


def choose_adversarial(
    wrong: Bool[Tensor, "item"], labels: Int[Tensor, "item"], per_class: int = 40
) -> list[list[int]]:
    """For each class, the numbers of its first `per_class` misclassified images (or of all, if fewer).

    Raises DataError if a class has none.
    """
    chosen = []
    for label in range(int(labels.max()) + 1):
        numbers = (wrong & (labels == label)).nonzero()[:per_class, 0].tolist()
        if not numbers:
            raise DataError(f"no image of class {label} is misclassified: use a weaker model or more images.")
        chosen.append(numbers)
    return chosen


def save_adversarial(candidates: WorldImages, chosen: list[list[int]], path: Path = ADVERSARIAL) -> None:
    """Write the choice, with the identity of the candidates."""
    text = json.dumps({"candidates": candidates.identity, "chosen": chosen}, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Choose the images, write their numbers, and say how many."""
    task, candidates = load_task("source"), adversarial_candidates()
    method = frozen_clip(load_clip("tiny"))
    method.set_classes(task.classnames, (task.template,))
    wrong = ~predict(method, candidates).correct
    chosen = choose_adversarial(wrong, candidates.labels)
    save_adversarial(candidates, chosen)
    share, images = float(wrong.double().mean()), sum(map(len, chosen))
    print(f"{share:.1%} of the candidates are wrong; {images} kept in {ADVERSARIAL}")


if __name__ == "__main__":
    end_with(main)
