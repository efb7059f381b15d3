"""The tables of methods, as lines of Markdown."""

from collections.abc import Iterable, Sequence
from statistics import fmean

import pandas

from benchmarks.study.runs import (
    NoRuns,
    Runs,
    by_task,
    complete,
    difference,
    is_variant,
    mean,
    read,
    read_photographs,
    written_difference,
)
from benchmarks.study.versions import version_of
from dear.evaluation.protocols.base_to_novel import harmonic_mean
from dear.stats import half_width
from dear.world.names import Size, downstream_names

FROZEN, DISCOVERED, DEALT = "zero-shot", "discovered", ("shuffled", "random")
WHOLE, CLASSES, TRAINED = "holiday-albums", 60, ("dear", "mmrl", "promptsrc")
"""The large task that has parts of fewer classes, its base classes, and the methods that take steps there."""
RIVALS = {"tac": "TAC", "clip-adapter": "CLIP-Adapter", "promptsrc": "PromptSRC"}


def table(head: str, align: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a table; the columns that ``align`` has as ":" are text, the others numbers."""
    rule = " | ".join("---" if kind == "l" else "---:" for kind in align)
    return [f"| {head} |", f"| {rule} |", *(f"| {' | '.join(map(str, row))} |" for row in rows)]


def by_method(runs: Runs, measure: str) -> dict[str, Runs]:
    """The runs of each method, the lowest mean first."""
    of = {str(method): rows for method, rows in runs.groupby("method")}
    return dict(sorted(of.items(), key=lambda item: mean(item[1], measure)))


def gain(runs: Runs, over: Runs, measure: str) -> str:
    """A method minus another, nothing for the same."""
    return "" if {*runs.method} == {*over.method} else written_difference(difference(runs, over, measure))


def numbers(runs: Runs, *measures: str) -> list[str]:
    """Means to one decimal."""
    return [f"{mean(runs, measure):.1f}" for measure in measures]


def seeds(runs: Runs) -> str:
    """The seeds of some runs."""
    return ", ".join(map(str, sorted({*runs.seed})))


def main_table() -> list[str]:
    """The methods without their variants, the highest joint HM of small tasks first."""
    runs = read("base_to_novel")
    runs = runs[~runs.method.map(is_variant)]
    small, large = (by_method(complete(runs, downstream_names(size=s)), "joint") for s in ("small", "large"))
    rows = [
        [
            f"`{method}`",
            *numbers(of, "base", "novel", "hm", "joint"),
            gain(of, small[FROZEN], "joint"),
            *(numbers(large[method], "hm", "joint") if method in large else ("", "")),
        ]
        for method, of in reversed(small.items())
    ]
    head = "method | base | novel | HM | joint HM | joint gain | large: HM | large: joint HM"
    return table(head, "lrrrrrrr", rows)


def apart_table(size: Size) -> list[str]:
    """Each half among its own classes, with costs."""
    runs = by_method(complete(read("base_to_novel"), downstream_names(size=size)), "hm")
    unseen, frozen = downstream_names("unseen", size), runs[FROZEN]
    rows = [
        [
            method,
            seeds(of),
            *numbers(of, "base", "novel", "hm"),
            *numbers(of[of.data.isin(unseen)], "hm"),
            gain(of, frozen, "hm"),
            f"{harmonic_mean(mean(of, 'base'), mean(frozen, 'novel')):.1f}",
            f"{of.steps.median():,.0f}",
            f"{of.seconds.median():,.0f}",
        ]
        for method, of in runs.items()
    ]
    head = (
        "method | seeds | base | novel | HM | HM, unseen tasks | HM minus zero-shot's "
        "| HM, novel by zero-shot | steps | seconds"
    )
    return table(head, "llrrrrrrrr", rows)


def joint_table(size: Size) -> list[str]:
    """All classes at once, then by other rules."""
    runs = by_method(complete(read("base_to_novel"), downstream_names(size=size)), "joint")
    unseen = downstream_names("unseen", size)
    rows = [
        [
            method,
            seeds(of),
            *numbers(of, "joint_base", "joint_novel", "joint"),
            *numbers(of[of.data.isin(unseen)], "joint"),
            gain(of, runs[FROZEN], "joint"),
            *numbers(of, "joint_alone", "joint_switched"),
        ]
        for method, of in runs.items()
    ]
    head = (
        "method | seeds | joint base | joint novel | joint HM | joint HM, unseen tasks "
        "| joint HM minus zero-shot's | class feature alone | novel by zero-shot"
    )
    return table(head, "llrrrrrrr", rows)


def part_table(method: str) -> list[str]:
    """The methods with seed 1 on those of the small tasks that one of them was run on."""
    runs = read("base_to_novel")
    runs = runs[(runs.seed == 1) & ~runs.method.map(is_variant)]
    measured = {*runs[runs.method == method].data}
    tasks = [task for task in downstream_names() if task in measured]
    rows = [
        [name, *numbers(of, "base", "novel", "hm", "joint")]
        for name, of in by_method(complete(runs, tasks), "joint").items()
    ]
    return [
        f"On {', '.join(tasks)}:",
        "",
        *table("method | base | novel | HM | joint HM", "lrrrr", rows),
    ]


def role_runs() -> Runs:
    """`dear+` on all small tasks with other roles (``method`` is "shuffled" or "random", ``table`` which of
    these), and with those that it has ("discovered"), by the same version of the code if there is one.
    """
    controls, runs = complete(read("role_controls"), downstream_names()), read("base_to_novel")
    is_stored = controls.method == DISCOVERED
    stored, dealt = controls[is_stored], controls[~is_stored]
    same = runs[(runs.method == "dear+") & (runs.seed == 1) & runs.code.isin(dealt.code)]
    same = complete(same, downstream_names()).assign(method=DISCOVERED)
    found = pandas.concat([same if len(same) and not stored.code.isin(dealt.code).all() else stored, dealt])
    return found.assign(table=found.method, method=found.method.str.split().str[0])


def count_reached(kind: str, measure: str) -> tuple[int, int]:
    """How many tables of a kind have a mean that is not below that of the discovered roles, of how many."""
    runs = role_runs()
    most = mean(runs[runs.method == DISCOVERED], measure)
    means = [mean(of, measure) for _, of in runs[runs.method == kind].groupby("table")]
    return sum(value >= most for value in means), len(means)


def role_controls() -> list[str]:
    """`dear+` with the discovered roles, and with those of each kind of control: means over its tables with
    the range, the difference to the roles over tasks, and how many tables reach the roles.
    """
    runs = role_runs()
    roles = runs[runs.method == DISCOVERED]
    rows: list[list[object]] = [[DISCOVERED, 1]]
    for measure in ("hm", "joint"):
        rows[0] += [*numbers(roles, measure), "", ""]
    rows[0].append(version_of(roles))
    for kind in DEALT:
        of_kind = runs[runs.method == kind]
        dealt = [of for _, of in of_kind.groupby("table")]
        row: list[object] = [kind, len(dealt)]
        for measure in ("hm", "joint"):
            means = [mean(of, measure) for of in dealt]
            differences = [*by_task(of_kind, measure) - by_task(roles, measure)]
            row += [f"{fmean(means):.1f} ({min(means):.1f} to {max(means):.1f})"]
            row += [written_difference((fmean(differences), half_width(differences)))]
            row += [count_reached(kind, measure)[0]]
        row.append(version_of(of_kind))
        rows.append(row)
    columns = " | ".join(f"{name} | minus roles | tables not below roles" for name in ("HM", "joint HM"))
    return table(f"roles | tables | {columns} | version", "lrrrrrrrl", rows)


def class_counts() -> list[str]:
    """HM by the number of base classes of one large task and its parts; last with as many steps as there."""
    parts = runs_by_classes()
    methods, rows = (FROZEN, *TRAINED, "dear+"), []
    for classes, equal in sorted({(count, equal) for count, _, equal in parts}, key=lambda row: row[::-1]):

        def of(method: str, classes: int = classes, equal: bool = equal) -> Runs | None:
            return parts.get((classes, method, equal and method in TRAINED))

        steps = ["-" if (runs := of(method)) is None else str(runs.steps.iloc[0]) for method in TRAINED]
        count = max(len(runs) for (number, *_), runs in parts.items() if number == classes)
        cells = [
            "" if (runs := of(method)) is None else f"{mean(runs, measure):.1f}"
            for measure in ("hm", "joint")
            for method in methods
        ]
        rows.append([classes, count, ", ".join(steps), *cells])
    columns = " | ".join(f"{method}: {name}" for name in ("HM", "joint HM") for method in methods)
    return table(f"base classes | parts | steps of dear, mmrl, promptsrc | {columns}", "rrl" + "r" * 10, rows)


def runs_by_classes() -> dict[tuple[int, str, bool], Runs]:
    """Seed 1 of the task and its parts, by base classes, method, and whether a training on a part has as many
    steps as that on the task.
    """
    whole, parts = read("base_to_novel"), read("class_counts")
    whole = whole[(whole.data == WHOLE) & (whole.seed == 1)]
    steps = dict(zip(whole.method, whole.steps, strict=True))
    of = {(CLASSES, str(method), False): rows for method, rows in whole.groupby("method")}
    counts = parts.data.str.extract(r"-(\d+)[a-z]$")[0].astype(int)
    is_equal = parts.method.isin(TRAINED) & (parts.steps == parts.method.map(steps))
    for (count, method, equal), rows in parts.groupby([counts, "method", is_equal]):
        of[count, method, bool(equal)] = rows
    return {key: rows for key, rows in of.items() if key[1] in (FROZEN, *TRAINED, "dear+")}


def leads() -> list[str]:
    """`dear+` minus the methods that come nearest, each half alone and all classes at once."""
    runs = read("base_to_novel")
    sizes = downstream_names(), downstream_names("unseen"), downstream_names(size="large")
    rows = []
    for rival, title in RIVALS.items():
        row = [title]
        for tasks in sizes:
            ours, theirs = (complete(runs[runs.method == name], tasks) for name in ("dear+", rival))
            row += [gain(ours, theirs, measure) for measure in ("hm", "joint")]
        rows.append(row)
    names = ("small tasks", "the four unseen ones", "large tasks")
    head = " | ".join(f"{name}: {measure}" for name in names for measure in ("HM", "joint HM"))
    return table(f"minus | {head}", "lrrrrrr", rows)


def of_shots(runs: Runs, shots: int) -> dict[str, Runs]:
    """The runs of few-shot learning with a number of images of each class, or with none, on all small tasks,
    by method.
    """
    runs = complete(runs[runs.shots.isin([0, shots])], downstream_names())
    return {str(method): of for method, of in runs.groupby("method")}


def few_shot() -> list[str]:
    """Accuracy on all classes with 16 images of each."""
    runs = of_shots(read("few_shot"), 16)
    if not {FROZEN, "linear-probe"} <= {*runs}:
        raise NoRuns(FROZEN)
    runs = dict(sorted(runs.items(), key=lambda item: mean(item[1], "accuracy")))
    rows = [
        [
            method,
            *numbers(of, "accuracy"),
            *numbers(of[of.data.isin(downstream_names("unseen"))], "accuracy"),
            f"{min(by_task(of, 'accuracy')):.1f}",
            gain(of, runs[FROZEN], "accuracy"),
            gain(of, runs["linear-probe"], "accuracy"),
            seeds(of),
            version_of(of),
        ]
        for method, of in runs.items()
    ]
    head = (
        "method | accuracy | unseen tasks | lowest task | minus zero-shot's | minus linear-probe's "
        "| seeds | version"
    )
    return table(head, "lrrrrrll", rows)


def few_shot_images() -> list[str]:
    """Accuracy on all classes by the number of images of each."""
    runs = read("few_shot")
    of = {shots: of_shots(runs, shots) for shots in sorted({*runs.shots} - {0})}
    if not of:
        raise NoRuns("few-shot")
    methods = sorted({method for by in of.values() for method in by})
    rows = [
        [f"`{method}`", *(numbers(by[method], "accuracy")[0] if method in by else "" for by in of.values())]
        for method in methods
    ]
    head = " | ".join(f"{shots} image{'s' * (shots > 1)}" for shots in of)
    return table(f"method | {head}", "l" + "r" * len(of), rows)


def photographs() -> list[str]:
    """Means over seeds on photographs, by the number of training images of each class."""
    runs, titles = read_photographs(), {"dear+": "`dear+`", "linear-probe": "`linear-probe`"}
    titles |= {"ensemble": "`ensemble`", "dear fit": "the method that `dear fit` chooses"}
    rows = [
        [shots, *(numbers(runs[(runs.shots == shots) & (runs.method == m)], "accuracy")[0] for m in titles)]
        for shots in sorted({*runs.shots} - {0})
    ]
    return table(
        f"training images of each class | {' | '.join(titles.values())}", "r" * (1 + len(titles)), rows
    )
