"""Choose a method by the training images of a data set: each candidate classifies images that it was not
fitted on, and the simplest of those that are as good as the best wins. No test image takes part.

The features of the images in the test view are computed once. A method that has the scores of left-out images
in closed form gives them (`Method.left_out_scores`); any other is fitted again without a fold of images, of
which the test view stands for random ones.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dear.adapters.facts import TriedMethod
from dear.adapters.leftout import REPEATS, LeftOut, absent_classes
from dear.backbone.clip import Clip
from dear.data.dataset import Images
from dear.errors import DearError
from dear.evaluation.resolve import ResolvedRun
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial
from dear.methods.registry import FIT_METHOD, METHODS, SIMPLEST_FIRST, check_towers, method_class
from dear.progress import Progress, silent
from dear.stats import share_interval

FEWEST = 100
"""Images that can be left out from which there is a choice. With fewer, the standard error of an accuracy may
be above 5 points. Set after 20 had failed on test images (recipes/study/PREDICTIONS.md).
"""


LEFT_OUT = " on left-out training images"


@dataclass(frozen=True)
class Choice:
    """The method for a data set.

    Attributes:
        reason: Why this one, to follow its name.
        candidates: What was tried, the simplest first; nothing with too few images.
        images: How many training images were left out at least once.
        trial: The training of the method on all images, where the choice needed it.
    """

    method: str
    reason: str
    candidates: tuple[TriedMethod, ...] = ()
    images: int = 0
    trial: Trial | None = field(default=None, compare=False, repr=False)


def choose_method(
    session: Session,
    run: ResolvedRun,
    *,
    methods: Sequence[str] | None = None,
    unlabeled: Images | None = None,
    present: str | None = None,
    progress: Progress = silent,
) -> Choice:
    """Choose a method for a run among ``methods``, the simplest first; by default among all that its backbone
    can take.

    Where some classes of the data set have only names, each half of the classes is treated so in turn, and
    the accuracy on it counts by the share of classes with only names. A method that is able to also learns
    from ``unlabeled`` images, which have no labels. The ``present`` method stays unless another is better
    beyond the standard error of the difference.
    """
    names = list_candidates(run.clip) if methods is None else [*methods]
    left_out = LeftOut(session, run, unlabeled)
    images = int(left_out.tested.sum())
    if images < FEWEST:
        default = next(name for name in (present, FIT_METHOD, names[-1]) if name in names)
        return Choice(default, f"the default: {images} training images can be left out, too few to choose by")
    candidates, shares = dict[str, TriedMethod](), dict[str, Float[Tensor, "tested"]]()
    trials = dict[str, Trial]()
    for number, name in enumerate(reversed(names)):  # those with the longest span first
        progress("choosing a method", number, len(names))
        trials[name] = left_out.build(name)
        candidates[name], of_images = assess(left_out, trials[name])
        if of_images is not None:
            shares[name] = of_images
    progress("choosing a method", len(names), len(names))
    method, reason = pick_simplest({name: shares[name] for name in names if name in shares}, present)
    trial = trials[method]
    candidates_tried = tuple(candidates[name] for name in names)
    return Choice(method, reason, candidates_tried, images, trial if trial.pick is not None else None)


def list_candidates(clip: Clip) -> list[str]:
    """The methods that the backbone can take, the simplest first."""
    plug_ins = [name for name, declared in METHODS.items() if declared.module and method_class(name).cheap]
    names = []
    for name in (*SIMPLEST_FIRST, *plug_ins):
        try:
            check_towers(name, clip)
        except DearError:
            continue
        names.append(name)
    return names


def pick_simplest(shares: Mapping[str, Float[Tensor, "item"]], present: str | None = None) -> tuple[str, str]:
    """The ``present`` method, else the first of some methods, that is at most one standard error below the
    best, and why; if one that can add classes by name is right as often as it, that one. ``shares`` are of
    correct scores of each image; the error is that of the mean difference from the best.
    """
    best = max(shares, key=lambda name: float(shares[name].mean()))

    def is_as_good(name: str) -> bool:
        behind = shares[best] - shares[name]
        return bool(behind.mean() <= behind.std() / math.sqrt(len(behind)))

    good = [name for name in shares if is_as_good(name)]
    method, why = good[0], "the simplest within"
    right = int(shares[method].sum())
    if present is not None and present in good:
        method, why = present, "the present method, within"
    elif not _adds_names(method):
        tied = [name for name in good if _adds_names(name) and int(shares[name].sum()) == right]
        if tied:
            method, why = tied[0], "open to more classes by name, and right as often as the simplest within"
    how = "the best" if method == best else f"{why} one standard error of the best, {best},"
    return method, how + LEFT_OUT


def describe_change(
    present: str, method: str, choice: Choice | None, settings: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """What it means that a method takes the place of the ``present`` one of an earlier fit, in a line; if it
    was chosen, with the options of `dear fit` that keep that one with the ``settings`` that it was given.
    """
    line = f"{method}, {choice.reason}, takes" if choice else f"{method} takes"
    line += f" the place of {present}"
    tried = {candidate.method: candidate.accuracy for candidate in (choice.candidates if choice else ())}
    before, after = tried.get(present), tried.get(method)
    if before is not None and after is not None:
        line += f": {after:.1%} of these are right, with {present} {before:.1%}"
    if _adds_names(present) and not _adds_names(method):
        line += "; classes can no longer be added by name"
    if choice is None:  # the user named it
        return line
    group = METHODS[present].folder if present in METHODS else present
    words = [f"--{group}.{name}".replace("_", "-") + f" {value}" for name, value in settings.items()]
    return f"{line}. {' '.join([f'--method {present}', *words])} keeps it"


def _adds_names(method: str) -> bool:
    return method in METHODS and METHODS[method].open_vocabulary


def assess(left_out: LeftOut, trial: Trial) -> tuple[TriedMethod, Float[Tensor, "tested"] | None]:
    """A candidate, and its share of correct scores on each tested picture; None if it cannot be fitted."""
    started, name = time.perf_counter(), trial.run.setup.method
    tested, named_only = left_out.tested, left_out.named_only
    absent = absent_classes(left_out.dataset.classnames) if named_only else []
    rounds = left_out.rounds(REPEATS) if trial.run.setup.declared.trains else [tested]
    # Rows: without images of the class, and with.
    correct = torch.zeros(2, len(tested), dtype=torch.float64)
    times = torch.zeros_like(correct)
    try:
        for without, pictures, scores in left_out.leave_out(trial, rounds, absent, one_view=True):
            if not scores.isfinite().all():
                return TriedMethod(name, reason="its scores are not finite numbers"), None
            rows = pictures.nonzero().flatten()
            labels = left_out.labels[rows]
            kind = (~without[labels]).long()
            correct[kind, rows] += (scores.argmax(dim=1).cpu() == labels).double()
            times[kind, rows] += 1
    except DearError as error:
        return TriedMethod(name, reason=str(error)), None
    absent_share, known_share = (correct / times.clamp(min=1))[:, tested]
    if named_only and not absent_share.any():
        return TriedMethod(name, reason="it names no class without images"), None
    shares = torch.lerp(known_share, absent_share, named_only)
    accuracy, images = float(shares.mean()), len(shares)
    low, high = share_interval(round(accuracy * images), images)
    return TriedMethod(name, accuracy, low, high, time.perf_counter() - started), shares
