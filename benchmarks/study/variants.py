"""DeAR's variants: other settings and masks, and other readings of the paper, as tables."""

from collections.abc import Sequence

from benchmarks.study.runs import NoRuns, Runs, complete, difference, mean, read, written_difference
from benchmarks.study.tables import gain, table
from benchmarks.study.versions import version_of
from dear.world.names import downstream_names

READINGS = ("street-signs", "stamped-tiles", "postcard-scenes")
"""The tasks of recipes/world/readings.yaml."""
MASKS = {
    "shuffled": "roles shuffled among the heads",
    "all-isolated": "image tokens and attribute tokens separated in all heads",
    "eq9": "core heads by equation 9 alone",
    "all-mixed": "no mask (all heads mixed)",
}
"""Variants of DeAR with another mask, in words."""
OTHER_READINGS = (
    "equal weights at the start",
    "L_fusion by the logarithm",
    "mask of equation 9",
    "five tokens an attribute",
    "beta on the previous output",
)
"""Variants of DeAR that read the paper in another way."""


def variant_runs(method: str, tasks: Sequence[str]) -> dict[str, tuple[Runs, Runs]]:
    """By label, the runs of a method's variants that were run on all of some tasks, and those of the method
    without change with the same seeds.
    """
    variants, runs = read("variants"), read("base_to_novel")
    plain = complete(runs[runs.method == method], tasks)
    ours = complete(variants[variants.method.str.startswith(f"{method} (")], tasks)
    return {
        str(label).removeprefix(f"{method} (").removesuffix(")"): (of, plain[plain.seed.isin({*of.seed})])
        for label, of in ours.groupby("method", sort=False)
    }


def masks() -> list[str]:
    """DeAR with other masks, minus DeAR, in HM on the small tasks."""
    of = variant_runs("dear", downstream_names())
    if missing := [label for label in MASKS if label not in of]:
        raise NoRuns(", ".join(missing))
    rows = [[words, gain(*of[label], "hm")] for label, words in MASKS.items()]
    return table("other mask (`--role-variant`) | difference of HM", "lr", rows)


def variants() -> list[str]:
    """DeAR with seed 1 and its variants on the small tasks."""
    unseen, runs, rows = downstream_names("unseen"), read("base_to_novel"), list[list[str]]()
    default = complete(runs[runs.method == "dear"], downstream_names(), [1])
    of_dear = variant_runs("dear", downstream_names()) | {"default": (default, default)}
    for label, (of, plain) in of_dear.items():
        ours, theirs = (runs[runs.data.isin(unseen)] for runs in (of, plain))
        differences = difference(of, plain, "hm"), difference(ours, theirs, "hm")
        gains = ["", ""] if of is plain else [written_difference(d, decimals=2) for d in differences]
        alone = (f"{mean(of, measure):.2f}" for measure in ("base_alone", "novel_alone"))
        rows.append([label, *_two_decimals(of), *gains, *alone, version_of(of)])
    head = (
        "variant | base | novel | HM | HM minus the default's | on the four unseen "
        "| class feature alone: base | novel | version"
    )
    return table(head, "lrrrrrrrl", rows)


def readings() -> list[str]:
    """Other readings of the paper on three tasks."""
    of, rows = variant_runs("dear", READINGS), list[list[str]]()
    for label in OTHER_READINGS:
        if label in of:
            runs, plain = of[label]
            if not rows:
                rows.append(["as it is", *_two_decimals(plain), "", version_of(plain)])
            gained = written_difference(difference(runs, plain, "hm"), decimals=2)
            rows.append([label, *_two_decimals(runs), gained, version_of(runs)])
    return table("reading | base | novel | HM | HM minus DeAR's | version", "lrrrrl", rows)


def _two_decimals(runs: Runs) -> list[str]:
    return [f"{mean(runs, measure):.2f}" for measure in ("base", "novel", "hm")]
