"""What the facts and the scores of a bundle mean, in sentences and tables. Light to import."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import median
from typing import Any

from dear.adapters.facts import (
    CROSS_VALIDATION,
    BundleScores,
    NameCost,
    SteeredScores,
    TrainingFacts,
    UnlabeledGain,
)
from dear.adapters.operating_words import describe_decided, describe_point
from dear.curation.issues import Issue, describe_issues
from dear.methods.registry import FIT_METHOD, JUDGES_IMAGES
from dear.stats import LEVEL, gain_interval, share_interval
from dear.text import list_names, plural, printable

UNOWNED = "rest"
"""Name of the summed evidence of all attributes that own no head. It is about none of them."""
OF_NAMES = ("class", "rep", UNOWNED)
"""Features that say nothing of the images of a class."""
WHOLE_IMAGE = "image"
"""The feature of `dear+` that stands for attributes where heads have no roles."""
FACTS = {
    "data_identity": "hash of the data",
    "train_images": "images fitted to",
    "calibration_images": "images for the temperature",
    "epoch": "epoch that is kept",
    "seconds": "seconds of training",
    "train": "settings of training",
    "overrides": "settings given",
    "held_out": "share kept aside to test",
    "doubted_labels": "labels left out of the temperature",
    "judged_labels": "labels reviewed",
    "judge": "reviewed by",
    "suspect_labels": "labels that look wrong",
    "is_precise": "most labels that look wrong are wrong",
}
"""Titles of facts of a fit whose names alone do not say what they are."""
UNEVEN = 1.5
"""How many times its equal share the largest class has, from which it is said what is right if each class
counts the same."""
SELDOM = 0.75
"""Share of left-out images that classes by name alone find, below which it is said that they may find half or
fewer: beside half of the classes they find more than beside all (docs/use.md, "Other classes").
"""
FEWEST_FOR_NAMES = 7
"""Classes with images from which a name was measured to take what it promises (docs/use.md)."""


def list_metrics(scores: BundleScores, decimals: int) -> dict[str, str]:
    """The metrics of a bundle as text, by their titles; ``decimals`` are those of a percentage."""
    shown = {}
    for column in fields(BundleScores):
        if column.metadata:
            value, unit = getattr(scores, column.name), column.metadata["unit"]
            text = f"{100 * value:.{decimals}f}%" if unit == "%" else f"{value:.{decimals + 1}f} {unit}"
            shown[column.metadata["title"]] = text
    return shown


def list_facts(facts: TrainingFacts) -> dict[str, str]:
    """The numbers, texts and mappings among the facts of a fit as text, by title, without empty ones."""
    shown = {}
    for fact in fields(facts):
        value = getattr(facts, fact.name)
        if isinstance(value, Mapping):
            value = ", ".join(f"{key} {entry}" for key, entry in value.items() if entry not in ({}, None))
        if value and isinstance(value, str | int | float):
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            shown[FACTS.get(fact.name, fact.name.replace("_", " "))] = printable(text)
    return shown


def describe_accuracy(scores: BundleScores) -> list[str]:
    """The accuracy in sentences: whether it is better than zero-shot and chance, and by how much."""
    images, chance, level = scores.images, scores.chance, f"{LEVEL:.0%}"
    right = round(scores.accuracy * images)
    low, high = accuracy_interval(scores)
    share = f"{right} of {images} right, {right / images:.1%} ({level}: {low:.1%} to {high:.1%})"
    lines = [f"{share}; zero-shot {scores.zero_shot:.1%}, chance {chance:.1%}."]
    gain = (scores.gained - scores.lost) / images
    least, most = scores.gain_interval or gain_interval(scores.gained, scores.lost, images)
    points = f"{100 * gain:+z.1f} points ({level}: {100 * least:+z.1f} to {100 * most:+z.1f})"
    if most < 0:
        lines.insert(0, f"Worse than zero-shot: {points}.")
    elif least > 0:
        lines.append(f"Better than zero-shot: {points}.")
    elif scores.gained or scores.lost:
        lines.insert(0, f"Not clearly better than zero-shot: {points}.")
    if scores.twins:
        others, right = images - scores.twins, right - scores.twins_right
        low, high = share_interval(right, others) if others else (0.0, 1.0)
        apart = f"{scores.twins_right} of them are right, {right} of the {others} others"
        apart += f" ({level}: {low:.1%} to {high:.1%})"
        if not others:
            apart = "nothing is known about new images"
        twins = f"{scores.twins if others else 'all'} of these images are near-duplicates of training images"
        lines.insert(0, f"The split leaks: {twins}, or of their group; {apart}.")
    elif 0 < scores.groups < images:
        lines.append(f"These images are from {plural(scores.groups, 'group')}, which are what counts.")
    if scores.per_class and chance > UNEVEN / len(scores.per_class):
        shares, worst = scores.per_class, min(scores.per_class, key=scores.per_class.__getitem__)
        mean = sum(shares.values()) / len(shares)
        number = scores.class_images.get(worst)
        of_worst = f"{shares[worst]:.1%}" + (f" of {plural(number, 'image')}" if number else "")
        line = f"The classes are uneven. If each counts the same, {mean:.1%} are right"
        lines.append(f"{line}; the worst is {printable(worst)} with {of_worst}.")
    if low <= chance and scores.twins < images:
        lines.insert(0, "Not clearly better than chance.")
    return lines


def verdict(scores: BundleScores) -> list[str]:
    """What the scores of a bundle mean, in sentences: `describe_accuracy`, then what it confuses, what it
    refuses, and whether its probabilities can be believed.
    """
    lines, level = describe_accuracy(scores), f"{LEVEL:.0%}"
    if scores.steered is not None:
        lines.append(describe_steering(scores, scores.steered))
    if scores.confusions:
        pairs = [f"{name} as {other} ({count})" for name, other, count in scores.confusions]
        lines.append(f"Most confused: {printable(', '.join(pairs))}.")
    if scores.refused is not None:
        low, high = share_interval(round(scores.refused * scores.images), scores.images)
        line = f"{scores.refused:.1%} ({level}: {low:.1%} to {high:.1%}) look like none of the classes"
        if scores.let_through is not None:
            low, high = share_interval(round(scores.let_through * scores.others), scores.others)
            of_others = f"{scores.let_through:.1%} ({level}: {low:.1%} to {high:.1%})"
            line += f"; of {plural(scores.others, 'other image')} {of_others} look like one of them"
            if (decided := scores.others_decided) is not None:
                line += f", and {decided or 'none'} {'is' if decided == 1 else 'are'} decided"
        lines.append(f"{line}.")
    if scores.confidence is not None:
        low, high = accuracy_interval(scores)
        if not low <= scores.confidence <= high:
            side = "too low" if scores.confidence < scores.accuracy else "too high"
            line = f"mean probability {scores.confidence:.1%}, {scores.accuracy:.1%} right"
            lines.append(f"Probabilities are {side}: {line} ({level}: {low:.1%} to {high:.1%}).")
    return lines


def describe_steering(scores: BundleScores, steered: SteeredScores) -> str:
    """What the bundle's own weights of features give, beside the scores by other ones."""
    least, most = steered.gain_interval or gain_interval(steered.gained, steered.lost, scores.images)
    gain = (steered.gained - steered.lost) / scores.images
    points = f"{100 * gain:+z.1f} points ({LEVEL:.0%}: {100 * least:+z.1f} to {100 * most:+z.1f})"
    own = f"by the bundle's own weights{_list_weights(steered.own_weights)}"
    right = f"{steered.own_accuracy:.1%} are right; the difference is {points}"
    return f"Steered{_list_weights(steered.weights)}: {own} {right}."


def _list_weights(weights: Mapping[str, float]) -> str:
    return f" ({', '.join(f'{name} {weight:.2f}' for name, weight in weights.items())})" if weights else ""


def accuracy_interval(scores: BundleScores) -> tuple[float, float]:
    """The interval of the accuracy, at `LEVEL`."""
    return scores.interval or share_interval(round(scores.accuracy * scores.images), scores.images)


def describe_doubt(scores: BundleScores, facts: TrainingFacts) -> list[str]:
    """Of which classes an accuracy says nothing, and that the labels that it is measured by are doubtful too
    if some look wrong, in lines.
    """
    lines, untested = list[str](), scores.classes - len(scores.class_images) - len(facts.named)
    if scores.split == CROSS_VALIDATION and scores.class_images and untested > 0:
        lines.append(
            f"This says nothing of {untested} of {plural(scores.classes, 'class')}, with a single image or "
            "group each, which cannot be left out: label more images of these."
        )
    if scores.split == CROSS_VALIDATION and scores.class_images and median(scores.class_images.values()) < 3:
        lines.append(
            "With two images of a class, each is judged by a fit to the other one alone: of new images more "
            "may be right, and their probabilities may be far off."
        )
    if not (wrong := facts.suspect_labels):
        return lines
    verb = "looks" if wrong == 1 else "look"
    if scores.split == CROSS_VALIDATION:
        labels, points = plural(scores.images, "label"), f"{100 * wrong / scores.images:.1f}"
        line = (
            f"{wrong} of these {labels} {verb} wrong: by right ones up to {points} points more may be right."
        )
        return [*lines, line] if float(points) else lines
    share = f"{wrong} of {plural(facts.judged_labels, 'training label')} {verb} wrong"
    return [*lines, f"{share}: test labels may be wrong too, and then count as mistakes."]


def describe_test(scores: BundleScores | None, facts: TrainingFacts) -> list[str]:
    """The `verdict` on a bundle's test images in lines, and whether their labels are doubtful; without any,
    what was measured of an earlier fit of the same method to some of its images. If the method was chosen,
    cross-validation is of that too.
    """
    if scores is not None:
        title = f"On {plural(scores.images, 'test image')}:"
        if scores.split == CROSS_VALIDATION:
            choice = ", of the choice of the method too" if len(facts.candidates) > 1 else ""
            images = plural(scores.images, "image")
            title = f"Cross-validated on {images}, each left out of the fit in turn{choice}:"
        lines = [*verdict(scores), *describe_doubt(scores, facts)]
        return [title, *(f"  {line}" for line in lines)]
    lines = ["Not tested: it has no scores on test images."]
    if facts.earlier_test is not None:
        lines += ["The earlier fit, of the same method to a part of these images, has:"]
        lines += [f"  {line}" for line in describe_accuracy(facts.earlier_test)]
    return lines


def describe_fit(method: str, facts: TrainingFacts, scores: BundleScores | None = None) -> list[str]:
    """Why a method was chosen and what it was chosen from, what it decides by itself, what images without
    labels were worth, and why probabilities are not calibrated; each in lines if it is so.
    """
    lines = [f"{method} is {facts.chosen}."] if facts.chosen else []
    width = max((len(tried.method) for tried in facts.candidates), default=0)
    for tried in facts.candidates:
        outcome = f"not fitted: {tried.reason}"
        if tried.accuracy is not None:
            interval = f"{100 * tried.low:.1f}% to {100 * tried.high:.1f}%"
            outcome = f"{100 * tried.accuracy:5.1f}% ({interval}), {tried.seconds:.1f} s"
        lines.append(f"  {tried.method:{width}}  {outcome}")
    if facts.candidates and facts.named:
        lines.append(
            "  (these choose the method: half of the classes are known by their names alone in turn, so they "
            "are no accuracy of this classifier)"
        )
    elif len(facts.candidates) > 1:
        lines.append(
            "  (these choose the method, and are no promise: that is of new images, and of the choice too)"
        )
    lines += describe_point(facts.operating)
    lines += describe_decided(facts.operating, scores.decided if scores else None)
    if facts.unlabeled is not None:
        lines.append(describe_unlabeled(facts.unlabeled))
    if facts.doubted_labels:
        used, doubted = facts.calibration_images, facts.doubted_labels
        lines.append(
            f"Probabilities are calibrated by {used} of {used + doubted} labels, to be safe without the "
            f"{doubted} that the classifier contradicts most."
        )
    if facts.uncalibrated:
        lines.append(f"Probabilities are not calibrated: {facts.uncalibrated}.")
    return [printable(line) for line in lines]


def describe_unlabeled(gain: UnlabeledGain) -> str:
    """What images without labels were worth, in a line."""
    images = plural(gain.images, "image") + " without labels"
    if gain.weight is None:
        needed = f"{FIT_METHOD}, and two labeled images of each class: one known by its name alone has none"
        return f"{images} not used: --unlabeled needs {needed}."
    before, after = f"{gain.accuracy_before:.1%}", f"{gain.accuracy_after:.1%}"
    is_same = before == after
    accuracy = f"as many right ({before})" if is_same else f"{before} right without them, {after} with them"
    loss = f"log-loss {gain.before:.2f} without, {gain.after:.2f} with"
    outcome = f"of the labeled images, left out in turn, {accuracy} ({loss})"
    if not gain.weight:
        return f"{images} not used, because they gain nothing: {outcome}."
    return f"{images} used, at a weight of {gain.weight:g}: {outcome}."


def describe_names(cost: NameCost | None, classes: Sequence[str], known: Sequence[str]) -> list[str]:
    """What the classes find that are not ``known`` by images, and what they take from others, in a line."""
    names = [name for name in classes if name not in {*known}]
    if cost is None or not 0 < len(names) < len(classes):
        return []
    verb = "is known by its name alone" if len(names) == 1 else "are known by their names alone"
    line = f"{printable(list_names(names, 3))} {verb}"
    if not cost.images:
        return [f"{line}: too few images to measure what that finds."]
    outcome = f"it finds {cost.found:.1%} of its images and takes {cost.taken:.1%} of the others'"
    outcome += f", up to {cost.most:.1%} by one name" if cost.most > cost.taken else ""
    tried = "Tried on left-out images, each class by its name, with the threshold that the others set"
    warning = " In use it may find half or fewer: give it images." if cost.found < SELDOM else ""
    if len(classes) - len(names) < FEWEST_FOR_NAMES:
        warning += " With so few classes a new name may take several percent."
    return [f"{line}. {tried}: {outcome}.{warning}"]


def explain_features(method: str, features: Sequence[str]) -> dict[str, str]:
    """What each part of the evidence for a class says, in words."""
    explained = {
        "class": "how well the whole image fits the name of the class",
        "rep": "what learned tokens beside the image see of it",
        UNOWNED: "attributes that no attention head carries, and so about none of them",
    }
    like_images = "how much more it looks like your images of the class than like your other images"
    for name, alone in name_likenesses(method, features).items():
        explained[name] = ", ".join(filter(None, (like_images, alone)))
    for name in features:
        explained.setdefault(name, f"how well its {name} fits the name of the class")
    return {name: explained[name] for name in features}


def name_likenesses(method: str, features: Sequence[str]) -> dict[str, str]:
    """The features by which an image is compared with those of the fit, and what of it they see, if it is not
    the whole image.
    """
    compared = [name for name in features if name not in OF_NAMES] if method in JUDGES_IMAGES else []
    return {name: "" if name == WHOLE_IMAGE else f"by its {name} alone" for name in compared}


def describe_review(issues: Sequence[Issue] | None, facts: TrainingFacts) -> list[str]:
    """What the review of the training images found, in lines; none without a review."""
    how: dict[str, Any] = {"is_precise": facts.is_precise, "held_out": facts.held_out > 0}
    how["confused"] = facts.confused
    return describe_issues(issues, facts.judged_labels, of_fit=True, judge=facts.judge, **how)
