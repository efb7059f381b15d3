"""Figures of an evaluation: confusions, reliability, the training's course, attention, a map of features."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from dear.evaluation.diagnosis import Bin
from dear.report.diagnosis import FeatureMap, Looks
from dear.report.plots import HEAT, NEUTRAL, PALETTE, plain
from dear.report.roles_plots import concept_looks
from dear.report.svg import INK, Drawing, draw

NUMBERED = 20  # classes up to which the counts stand in the cells
NAMED = 60  # classes up to which their names stand beside the matrix
COLOURED = 12  # classes with a colour of their own in the map of features
ACROSS = 3


def confusion_map(
    counts: Int[Tensor, "class class"], classes: Sequence[str], name: str = "confusion"
) -> Drawing:
    """The matrix of confusions: true classes down, answers across; the shade is the root of the share of the
    row, so that rare confusions are seen.
    """
    found = counts.numpy()
    shares = found / np.maximum(found.sum(axis=1, keepdims=True), 1)
    count = len(classes)
    shade = np.empty((count, count, 4))
    shade[..., :3], shade[..., 3] = to_rgb(HEAT), np.where(found > 0, 0.1 + 0.8 * np.sqrt(shares), 0.03)
    names = [_short(name) for name in classes]
    longest = max(map(len, names)) if count <= NAMED else 0
    side = min(max(0.32 * count, 2.4), 8.5)

    def paint(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.imshow(shade, interpolation="nearest")
        if count <= NAMED:
            size = 9 if count <= 25 else max(4.5, 9 * 25 / count)
            axes.set_xticks(range(count), names, rotation=90, fontsize=size)
            axes.set_yticks(range(count), names, fontsize=size)
        if count <= NUMBERED:
            for y, x in np.argwhere(found > 0):
                axes.text(x, y, str(found[y, x]), ha="center", va="center", fontsize=8)
        axes.set_xlabel("answer")
        axes.set_ylabel("class")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    worst = sorted(((int(found[y, x]), y, x) for y, x in np.argwhere(found > 0) if y != x), reverse=True)[:3]
    words = "; ".join(f"{classes[y]} taken for {classes[x]}: {n}" for n, y, x in worst) or "no confusion"
    right = f"{int(found.trace())} of {int(found.sum())} images are on the diagonal"
    data = [
        ["class \\ answer", *classes],
        *([name, *row.tolist()] for name, row in zip(classes, found, strict=True)),
    ]
    size = (side + 0.085 * longest + 0.6, side + 0.085 * longest + 0.5)
    return draw(name, f"Confusion matrix: {right}. Most frequent: {words}.", size, paint, data)


def confused_pairs(
    counts: Int[Tensor, "class class"], classes: Sequence[str], most: int = 10
) -> list[tuple[str, str, int, float]]:
    """The most frequent confusions: class, answer, images, and their share of the class's images."""
    found = counts.numpy()
    pairs = sorted((-int(found[y, x]), y, x) for y, x in np.argwhere(found > 0) if y != x)[:most]
    return [(classes[y], classes[x], -n, -n / int(found[y].sum())) for n, y, x in pairs]


def reliability_diagram(bins: Sequence[Bin], error: float) -> Drawing:
    """Accuracy by confidence, in percent, with the diagonal of a calibrated classifier; below, how many
    images each bin has.
    """
    used = [one for one in bins if one.images]
    width = 100 / len(bins)

    def paint(figure: Figure) -> None:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        places = [50 * (one.low + one.high) for one in used]
        above.bar(
            places, [100 * one.accuracy for one in used], 0.9 * width, color=PALETTE[0], label="accuracy"
        )
        above.plot(
            [100 * one.confidence for one in used], [100 * one.accuracy for one in used],
            "o", color=PALETTE[1], markersize=4, label="at the mean confidence",
        )  # fmt: skip
        above.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1, label="calibrated")
        above.set(xlim=(0, 100), ylim=(0, 100), ylabel="accuracy (%)")
        below.bar(places, [one.images for one in used], 0.9 * width, color=NEUTRAL)
        below.set_ylabel("images")
        below.set_xlabel("confidence (%)")
        below.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        for axes in (above, below):
            plain(axes)
        figure.legend(loc="outside upper center", ncols=3, fontsize=9)

    words = "; ".join(
        f"{100 * one.confidence:.0f}%: {100 * one.accuracy:.0f}% of {one.images}" for one in used
    )
    data = [["confidence above", "up to", "images", "mean confidence", "accuracy"]]
    data += [[one.low, one.high, one.images, one.confidence, one.accuracy] for one in bins]  # type: ignore[list-item]
    text = f"Accuracy by confidence, calibration error {100 * error:.1f}%. {words}."
    return draw("reliability", text, (5.2, 4.4), paint, data)


def learning_curve(epochs: Sequence[Mapping[str, Any]]) -> Drawing:
    """Loss by epoch, and the accuracy on validation images where it is known."""
    numbers = [int(one["epoch"]) for one in epochs]
    losses = [float(one["loss"]) for one in epochs]
    known = [(n, 100 * float(one["val"])) for n, one in zip(numbers, epochs, strict=True) if "val" in one]

    def paint(figure: Figure) -> None:
        panels = figure.subplots(1, 2 if known else 1, squeeze=False)[0]
        mark = "o" if len(epochs) < 20 else None
        panels[0].plot(numbers, losses, color=PALETTE[0], marker=mark, markersize=3)
        panels[0].set(xlabel="epoch", ylabel="loss")
        if known:
            panels[1].plot(*zip(*known, strict=True), color=PALETTE[2], marker=mark, markersize=3)
            panels[1].set(xlabel="epoch", ylabel="validation accuracy (%)")
        for axes in panels:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            plain(axes)

    words = f"Loss from {losses[0]:.3f} in epoch {numbers[0]} to {losses[-1]:.3f} in epoch {numbers[-1]}"
    if known:
        words += f"; validation accuracy from {known[0][1]:.1f}% to {known[-1][1]:.1f}%"
    data = [["epoch", "loss", "validation accuracy"]]
    data += [[n, loss, one.get("val", "")] for n, loss, one in zip(numbers, losses, epochs, strict=True)]  # type: ignore[list-item]
    return draw("learning", f"{words}.", (7.2 if known else 4.6, 2.8), paint, data)


def attention_figure(looks: Looks, name: str) -> Drawing:
    """One row a core head: the picture, and the picture with the attention of each token over it."""
    columns = list(dict.fromkeys(column for look in looks.heads for column in look.maps))
    rows = len(looks.heads)

    def paint(figure: Figure) -> None:
        grid = figure.subplots(rows, 1 + len(columns), squeeze=False)
        for line, look in zip(grid, looks.heads, strict=True):
            shown = {"the picture": looks.picture, **look.maps}
            for axes, column in zip(line, ("the picture", *columns), strict=True):
                axes.set_xticks([])
                axes.set_yticks([])
                axes.spines[:].set_visible(False)
                if column in shown:
                    axes.imshow(np.asarray(shown[column]), interpolation="nearest")
            line[0].set_ylabel(f"{look.attribute}\nlayer {look.layer}, head {look.head}", fontsize=9)
        for axes, column in zip(grid[0], ("the picture", *columns), strict=True):
            axes.set_title(column, fontsize=9)

    words = "; ".join(f"{look.attribute}: layer {look.layer}, head {look.head}" for look in looks.heads)
    text = f"Attention of core heads on {looks.title} ({words}), by {', '.join(columns)}."
    return draw(name, text, (1.55 * (1 + len(columns)) + 0.4, 1.5 * rows + 0.3), paint)


def feature_map(features: FeatureMap, classes: Sequence[str]) -> Drawing:
    """One panel a feature: images as points, coloured by their class; the most frequent classes have a colour
    of their own.
    """
    labels = features.labels.tolist()
    most = [label for label, _ in Counter(labels).most_common(COLOURED)]
    looks = concept_looks([classes[label] for label in sorted(most)])
    down = -(-len(features.points) // ACROSS)
    rest = {*labels} - {*most}

    def paint(figure: Figure) -> None:
        panels = figure.subplots(down, min(len(features.points), ACROSS), squeeze=False).flat
        for axes, (name, points) in zip(panels, features.points.items(), strict=False):
            x, y = points[:, 0].numpy(), points[:, 1].numpy()
            if rest:
                inside = np.isin(labels, [*rest])
                axes.scatter(
                    x[inside], y[inside], s=6, color=NEUTRAL, alpha=0.5, linewidth=0, label="other classes"
                )
            for label in sorted(most):
                inside = np.equal(labels, label)
                color, marker = looks[classes[label]]
                axes.scatter(
                    x[inside], y[inside], s=11, color=color, marker=marker, linewidth=0, alpha=0.85,
                    label=_short(classes[label]),
                )  # fmt: skip
            axes.set_title(name, fontsize=10)
        for axes in figure.axes:
            axes.set_xticks([])
            axes.set_yticks([])
            axes.spines[:].set(alpha=0.2)
            axes.set_visible(bool(axes.collections))
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=9, markerscale=1.8)

    rows: list[Sequence[object]] = [["feature", "class", "x", "y"]]
    for name, points in features.points.items():
        rows += [[name, classes[label], *point] for label, point in zip(labels, points.tolist(), strict=True)]
    keys = len(most) + bool(rest)
    size = (2.5 * min(len(features.points), ACROSS) + 0.3, 2.5 * down + 0.22 * -(-keys // 3) + 0.3)
    text = f"Maps of {len(labels)} images by the features {', '.join(features.points)}, coloured by class."
    return draw("features", text, size, paint, rows)


def _short(name: str, most: int = 26) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
