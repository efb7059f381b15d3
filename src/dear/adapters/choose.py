"""Choose a method by cross-validation on the training images of a data set: each candidate classifies images
that it was not fitted on, and the best wins. No test image takes part.

The choice is a part of what is fitted, so the accuracy that is promised is that of the choice: for each part
of the images, the candidate that is the best on the other parts.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dear.adapters.facts import TriedMethod
from dear.adapters.leftout import LeftOut, LeftOutScores, absent_classes
from dear.backbone.clip import Clip
from dear.errors import DearError, SettingsError
from dear.evaluation.resolve import MethodSetup
from dear.methods.registry import CANDIDATES, FIT_METHOD, METHODS, check_towers
from dear.progress import Progress, silent
from dear.stats import group_share_interval, mean_difference_error

LEFT_OUT = " on training images left out in turn"
ALONE = "not compared with others, which take long with so many images and classes"
MOST_VIEWED = 5_000
"""Images up to which candidates with random views are tried: each view of an image is encoded like another
image, and with so many images it teaches little."""
MOST_TRIED = 2_500_000
"""Images x classes up to which several candidates are tried. With more, only one is: the present method, or
the first of `CANDIDATES`, whose closed forms grow least."""


@dataclass(frozen=True)
class Choice:
    """The method for a data set.

    Attributes:
        reason: Why this one, to follow its name.
        candidates: What was tried, in the order of `CANDIDATES`; nothing if no image can be left out.
        left_out: The scores of left-out images by the method; None if the choice was made with names alone in
            mind, or if there was none.
        scores: The same by the choice, as it would be without them.
    """

    setup: MethodSetup
    reason: str
    candidates: tuple[TriedMethod, ...] = ()
    left_out: LeftOutScores | None = None
    scores: LeftOutScores | None = None

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.setup.method


def choose_method(
    left_out: LeftOut,
    *,
    setups: Sequence[MethodSetup] | None = None,
    present: str | None = None,
    progress: Progress = silent,
) -> Choice:
    """Choose a method for a run by its images that are left out, among ``setups``; by default among all that
    its backbone can take, with `dear+` first if there is a role table. It is the first one, unless another is
    better beyond the standard error of the difference.

    Where some classes of the data set have only names, each half of the classes is treated so in turn, and
    the accuracy on it counts by the share of classes with only names. The ``present`` method takes the place
    of the first. Whatever a candidate raises takes only itself away. Raises SettingsError if none can be
    fitted.
    """
    run = left_out.run
    listed = [*(setups or list_candidates(run.clip, with_roles=run.table is not None))]
    counts = len(left_out.pictures), len(run.source.classnames)
    candidates = listed if setups else limit_candidates(listed, *counts, present)
    names = [*map(name_candidate, candidates)]
    is_alone = counts[1] > 1 and len(left_out.labels.unique()) == 1
    if is_alone or not left_out.tested.any():
        usual = (setup for name in (present, FIT_METHOD) for setup in candidates if setup.method == name)
        reason = "a single class has images" if is_alone else "no class has images that can be left out"
        return Choice(next(usual, candidates[0]), f"the default: {reason}")
    tried, judged = dict[str, TriedMethod](), dict[str, Judged]()
    # Those with the longest span first, so that the others go on from what these have computed.
    by_span = sorted(zip(names, candidates, strict=True), key=lambda pair: pair[1].declared.roles is None)
    for number, (name, setup) in enumerate(by_span, start=1):
        step = f"trying {name} ({number} of {len(names)})"  # a bar of its own, for they take unequal times
        progress(step, 0, 1)
        tried[name], of_images = assess(left_out, setup)
        progress(step, 1, 1)
        if of_images is not None:
            judged[name] = of_images
    order = [name for name in names if name in judged]
    if not order:
        reasons = "; ".join(f"{name}: {tried[name].reason}" for name in names)
        raise SettingsError(f"no method can be fitted to these images ({reasons}).")
    groups = left_out.groups[left_out.tested]
    stays = next((name for name in order if name.split(" ")[0] == present), None)
    best, reason = pick_best({name: judged[name].shares for name in order}, groups, stays)
    scores = None
    if all(each.scores is not None for each in judged.values()):
        by_name = {name: each.scores for name in order if (each := judged[name]).scores is not None}
        scores = cross_fit_choice(by_name, best, stays)
    setup = candidates[names.index(best)]
    reason += "".join(f" ({name} {value})" for name, value in setup.settings.items()) + LEFT_OUT
    if len(candidates) == 1 < len(listed):
        reason = ALONE
    of_method = judged[best].scores
    return Choice(setup, reason, tuple(tried[name] for name in names), of_method, scores)


def name_candidate(setup: MethodSetup) -> str:
    """The method with its settings, as it stands in tables."""
    settings = ", ".join(f"{name} {value}" for name, value in setup.settings.items())
    return f"{setup.method} ({settings})" if settings else setup.method


def list_candidates(clip: Clip, *, with_roles: bool = False) -> list[MethodSetup]:
    """The methods that the backbone can take, with their settings; where there is a role table, those that
    use it come first, with their defaults before others.
    """
    plug_ins = [name for name, declared in METHODS.items() if declared.module and declared.cheap]
    candidates = [MethodSetup(each.method, each.settings) for each in CANDIDATES]
    if with_roles:
        candidates.sort(key=lambda setup: (setup.declared.roles is None, bool(setup.settings)))
    fitting = []
    for setup in (*candidates, *map(MethodSetup, plug_ins)):
        try:
            check_towers(setup.method, clip)
        except DearError:
            continue
        fitting.append(setup)
    return fitting


def limit_candidates(
    candidates: Sequence[MethodSetup], images: int, classes: int, present: str | None
) -> list[MethodSetup]:
    """Those that are tried with so many images and classes, with their settings there."""
    if images > MOST_VIEWED:
        with_views = {each.method for each in CANDIDATES if hasattr(METHODS[each.method].settings, "views")}
        without = {name: MethodSetup(name, {"views": 0}) for name in with_views}
        candidates = [without.get(setup.method, setup) for setup in candidates]
    if images * classes > MOST_TRIED:
        methods = [setup.method for setup in candidates]
        alone = present if present in methods else CANDIDATES[0].method
        candidates = [candidates[methods.index(alone)]]
    return [setup for number, setup in enumerate(candidates) if setup not in candidates[:number]]


def pick_best(
    shares: Mapping[str, Float[Tensor, "item"]],
    groups: Sequence[int] | Tensor,
    present: str | None = None,
) -> tuple[str, str]:
    """The method that is most often right, the first of equals, and why; the ``present`` one, by default the
    first, if it is at most one standard error below. ``shares`` are of correct scores of each image; the
    error is that of the mean difference from the best, over the groups of images.
    """
    best = max(shares, key=lambda name: round(float(shares[name].mean()), 9))
    stays = next(iter(shares)) if present is None else present
    means = [round(float(of.mean()), 9) for of in shares.values()]
    if stays == best:
        return best, "as good as any other" if means.count(max(means)) > 1 else "the best"
    behind = float((shares[best] - shares[stays]).mean())
    error = mean_difference_error(shares[best].numpy(), shares[stays].numpy(), [*map(int, groups)])
    if behind <= error:
        kind = "the usual method" if present is None else "the present method"
        return stays, f"{kind}, within one standard error of the best, {best},"
    return best, "the best"


def cross_fit_choice(
    scores: Mapping[str, LeftOutScores], best: str, present: str | None = None
) -> LeftOutScores:
    """The scores of the choice itself: those of each part of the images are of the method that is the best on
    the other parts. ``scores`` are of the same images in the same parts.
    """
    of_best = scores[best]
    if len(scores) == 1:
        return of_best
    chosen = of_best.scores.clone()
    for way, folds in enumerate(of_best.folds):
        for fold in folds.unique():
            others = folds != fold
            if not others.any():
                continue
            shares = {
                name: (each.scores[way, others].argmax(dim=1) == each.labels[others]).double()
                for name, each in scores.items()
            }
            name = pick_best(shares, of_best.groups[others], present)[0]
            chosen[way, ~others] = scores[name].scores[way, ~others]
    return replace(of_best, scores=chosen)


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


@dataclass(frozen=True)
class Judged:
    """What a candidate did on the pictures that can be left out.

    Attributes:
        shares: In what share of the ways each is right.
        scores: None where classes by name alone counted.
    """

    shares: Float[Tensor, "tested"]
    scores: LeftOutScores | None = None


def assess(left_out: LeftOut, setup: MethodSetup) -> tuple[TriedMethod, Judged | None]:
    """A candidate, and what it did on left-out pictures; None if it cannot be fitted, for whatever reason."""
    started, name = time.perf_counter(), name_candidate(setup)
    try:
        judged = _judge(left_out, setup)
    except (KeyboardInterrupt, SystemExit):
        raise
    except Exception as error:  # of one candidate, which takes no other away
        reason = str(error).partition("\n")[0] or type(error).__name__
        return TriedMethod(
            name, reason=reason if isinstance(error, DearError) else f"it failed: {reason}"
        ), None
    groups = left_out.groups[left_out.tested].tolist()
    low, high = group_share_interval(judged.shares.numpy(), groups)
    accuracy = float(judged.shares.mean())
    return TriedMethod(name, accuracy, low, high, time.perf_counter() - started), judged


def _judge(left_out: LeftOut, setup: MethodSetup) -> Judged:
    """As `assess`. Raises whatever the method does."""
    trial, tested, named_only = left_out.build(setup), left_out.tested, left_out.named_only
    if not named_only:
        scores = left_out.scores(trial)
        if not setup.declared.trains:  # it has seen no image, so these can be left out in any way
            scores = left_out.part_anew(scores)
        return Judged(scores.right, scores)
    # Rows: without images of the class, and with.
    correct = torch.zeros(2, len(tested), dtype=torch.float64)
    times = torch.zeros_like(correct)
    absent = absent_classes(left_out.dataset.classnames)
    rounds = left_out.rounds() if setup.declared.trains else [tested]
    for without, pictures, scores_of_part in left_out.leave_out(trial, rounds, absent):
        if not scores_of_part.isfinite().all():
            raise SettingsError("its scores are not finite numbers")
        rows = pictures.nonzero().flatten()
        labels = left_out.labels[rows]
        kind = (~without[labels]).long()
        correct[kind, rows] += (scores_of_part.argmax(dim=1).cpu() == labels).double()
        times[kind, rows] += 1
    absent_share, known_share = (correct / times.clamp(min=1))[:, tested]
    if not (trial.method.open_vocabulary or absent_share.any()):
        raise SettingsError("it names no class without images")
    return Judged(torch.lerp(known_share, absent_share, named_only))
