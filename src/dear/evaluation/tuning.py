"""Choosing settings of a method, and of its training, on validation images (`MethodSetup.each`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial
from dear.progress import OnStep


def train_candidates(
    session: Session,
    run: ResolvedRun,
    classes: Sequence[int],
    checkpoint: Path | None,
    on_step: OnStep,
    *,
    shares_training: bool,
) -> Trial:
    """Train all candidates of a run on some classes. Returns the trial of the one with the highest accuracy
    on the validation images of these classes, the first of equals, with what each reached, and the seconds
    of all trainings. No test image is read.
    """
    best: Trial | None = None
    tried, highest, seconds = list[dict[str, Any]](), -1.0, 0.0
    for number, candidate in enumerate(run.candidates):
        file = checkpoint and checkpoint.with_name(f"{checkpoint.stem}-{number}.pt")
        trial = Trial(session, candidate, file, on_step, shares_training=shares_training)
        trial.train(classes)
        accuracy, seconds = trial.validate(classes), seconds + trial.train_seconds
        values = {
            part: {name: getattr(candidate.setup, part)[name] for name in names}
            for part, names in run.setup.each.items()
        }
        tried.append(values | {"val": accuracy, "epoch": trial.epoch_tested})
        if best is None or accuracy > highest:
            best, highest = trial, accuracy
    assert best is not None, "a run with choices has candidates"
    best.tried, best.train_seconds = tried, seconds
    return best
