"""The few-shot curves: a small plot a data set, a line a method; shots on a scale of doublings."""

from typing import Any

from matplotlib.figure import Figure

from dear.errors import DataError
from dear.report.few_shot import AVERAGE, Curves
from dear.report.plots import DASHES, NEUTRAL, PALETTE, plain
from dear.report.svg import draw

ACROSS = 3


def few_shot_plot(curves: Curves) -> str:
    """Accuracy in percent by shots, the average first; 0 shots is a level line. Raises DataError without a
    curve.
    """
    titles = sorted(curves, key=lambda title: title != AVERAGE)
    if not titles:
        raise DataError("there is no few-shot run to draw")
    methods = list(dict.fromkeys(method for title in titles for method in curves[title]))
    colored = [m for m in methods if any(set(curves[title].get(m, {})) - {0} for title in titles)]
    down = -(-len(titles) // ACROSS)

    def paint(figure: Figure) -> None:
        for at, title in enumerate(titles, start=1):
            axes = figure.add_subplot(down, ACROSS, at)
            shots = sorted({n for curve in curves[title].values() for n in curve if n})
            for method, curve in curves[title].items():
                look: dict[str, Any] = {"label": method, "linewidth": 1.4}
                if method not in colored:
                    axes.axhline(curve[0].mean, color=NEUTRAL, linestyle="--", **look)
                    continue
                number = colored.index(method)
                look["color"] = PALETTE[number % len(PALETTE)]
                known = [n for n in shots if n in curve]
                style = DASHES[number // len(PALETTE) % len(DASHES)]
                axes.errorbar(
                    [shots.index(n) for n in known],
                    [curve[n].mean for n in known],
                    [curve[n].spread or 0.0 for n in known],
                    marker="o", markersize=3, linestyle=style, capsize=2, **look,
                )  # fmt: skip
            axes.set_xticks(range(len(shots)), [str(n) for n in shots])
            axes.set_title(title, fontsize=10)
            if at > len(titles) - ACROSS:
                axes.set_xlabel("images a class")
            plain(axes)
        handles = {
            label: handle
            for axes in figure.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(methods), 4)
        )

    words = "; ".join(
        f"{title}: " + ", ".join(
            f"{method} " + " ".join(f"{n} shots {cell.mean:.1f}" for n, cell in curve.items())
            for method, curve in curves[title].items()
        )
        for title in titles
    )  # fmt: skip
    return draw(
        "few-shot", f"Accuracy in percent by images a class. {words}.", (7.6, 0.5 + 2.1 * down), paint
    )
