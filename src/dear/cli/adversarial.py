"""`dear adversarial`: select the images of source-adversarial, misclassified by the zero-shot tiny CLIP."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console


@dataclass(frozen=True)
class Chosen:
    """How many candidates were wrong (fraction) and how many images were kept."""

    wrong: float
    images: int
    file: Path


def command() -> Chosen:
    """Choose the images of the task source-adversarial again, after the tiny CLIP's weights have changed.

    Like ImageNet-A: unshifted images that a zero-shot model gets wrong. For
    development: it writes into the package.
    """
    from dear.backbone.load import load_clip
    from dear.data.world.adversarial import CHOSEN, choose_adversarial, save_adversarial
    from dear.data.world.tasks import adversarial_candidates, load_task
    from dear.evaluation.metrics import hits
    from dear.methods.registry import frozen_clip

    task, candidates = load_task("source"), adversarial_candidates()
    method = frozen_clip(load_clip("tiny"))
    method.set_classes(task.classnames, (task.template,))
    wrong = ~hits(method, candidates)[0]
    chosen = choose_adversarial(wrong, candidates.labels)
    save_adversarial(candidates, chosen)
    return Chosen(float(wrong.double().mean()), sum(map(len, chosen)), CHOSEN)


def render(result: Chosen, console: Console) -> None:
    """Show what was selected."""
    console.print(f"{result.wrong:.1%} of the candidates are wrong; {result.images} kept in {result.file}")
