"""Facts that others have reproduced with real CLIPs, checked against runs on the Attribute World: whether a
bench that anybody can run agrees with them before it is used to judge a method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean

from dear.evaluation.schema import harmonic_mean
from dear.methods.registry import FROZEN, METHODS, methods_with_roles
from dear.report import published
from dear.report.intervals import half_width
from dear.report.records import Record, accuracy, data_set, grouped, readable
from tools.headroom import Headroom

ALONE = ("color", "shape", "texture", "object", "place")
ORDERED = ("promptsrc", "mmrl", "mmrl++")
"""Methods that must be above CoOp and zero-shot CLIP."""
OF_ONE_FACTOR = 5
"""The number of the fact that is about tasks whose classes differ in one factor."""

Average = Mapping[str, float]


@dataclass(frozen=True)
class Fact:
    """A statement about averages over tasks, in points.

    Attributes:
        number: Its group.
        holds: None if a method that it is about was not run.
        published: What was published for it; "" if nothing was.
    """

    number: int
    statement: str
    measured: str
    published: str
    holds: bool | None


def published_averages() -> dict[str, dict[str, float]]:
    """Method -> base, novel, hm, averaged over 11 data sets with ViT-B/16, percent, as published."""
    table = published.base_to_novel()
    found = {
        method: dict(table[name, published.AVERAGE])
        for method, settings in METHODS.items()
        if method not in methods_with_roles()
        and (name := published.paper_method(method, asdict(settings.settings()))) is not None
    }
    return found | published.other_averages()


def averages(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Method -> base, novel and hm (of these two) in percent, averaged over data sets, over seeds before.

    Runs of DeAR and DeAR+, which go by head roles, and runs with other than a method's own settings are left
    out. Raises DataError for records that cannot be combined.
    """
    found: dict[str, dict[str, float]] = {}
    for method, runs in grouped(readable(records), lambda r: str(r["method"])).items():
        if method in methods_with_roles():
            continue
        by_data = grouped([run for run in runs if not run.get("variant")], data_set)
        halves = {
            half: 100 * fmean(fmean(accuracy(run, half) for run in own) for own in by_data.values())
            for half in ("base", "novel")
        }
        found[method] = halves | {"hm": harmonic_mean(halves["base"], halves["novel"])}
    return found


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau-a: pairs in the same order minus pairs in the opposite order, over all pairs."""
    pairs = list(combinations(range(len(one)), 2))
    return fmean(_sign((one[a] - one[b]) * (other[a] - other[b])) for a, b in pairs)


def check_facts(
    records: Sequence[Record], headrooms: Mapping[str, Headroom], alone: Mapping[str, str]
) -> list[Fact]:
    """Check the facts on base-to-novel records of several methods, none of them DeAR.

    Args:
        headrooms: Of each task.
        alone: The factor of each task whose classes differ in one factor only.
    """
    ours, printed = averages(records), published_averages()
    return [
        *_zero_shot(ours, printed, headrooms),
        *_prompts(ours, printed),
        *_constants(ours, headrooms),
        *_order(ours, printed),
        _factors(alone),
    ]


def _zero_shot(
    ours: Mapping[str, Average], printed: Mapping[str, Average], headrooms: Mapping[str, Headroom]
) -> list[Fact]:
    zero, known = ours.get(FROZEN), printed[FROZEN]
    base, probe = (fmean(getattr(h, name) for h in headrooms.values()) for name in ("base", "probe"))
    return [
        Fact(
            1,
            "zero-shot: novel at least as high as base, both between 45 and 80",
            _halves(zero),
            _halves(known),
            None if zero is None else 45 <= zero["base"] <= zero["novel"] <= 80,
        ),
        Fact(
            1,
            "a linear probe of the frozen features at least 12 above zero-shot on base",
            f"{probe:.1f} - {base:.1f} = {probe - base:+.1f}",
            "",
            probe - base >= 12,
        ),
    ]


def _prompts(ours: Mapping[str, Average], printed: Mapping[str, Average]) -> list[Fact]:
    zero, coop, cocoop = (ours.get(method) for method in (FROZEN, "coop", "cocoop"))
    return [
        Fact(
            2,
            "CoOp: base up by at least 6, novel below zero-shot by at least 2",
            _change(coop, zero),
            _change(printed["coop"], printed[FROZEN]),
            None
            if zero is None or coop is None
            else coop["base"] - zero["base"] >= 6 and coop["novel"] - zero["novel"] <= -2,
        ),
        Fact(
            2,
            "CoCoOp's novel above CoOp's",
            _both("novel", cocoop, coop),
            _both("novel", printed["cocoop"], printed["coop"]),
            None if coop is None or cocoop is None else cocoop["novel"] > coop["novel"],
        ),
    ]


def _constants(ours: Mapping[str, Average], headrooms: Mapping[str, Headroom]) -> list[Fact]:
    """The gain of one constant a class against the best method's, each over zero-shot on its own images."""
    zero = ours.get(FROZEN)
    base = fmean(h.bias_base - h.base for h in headrooms.values())
    gains = [h.bias_novel - h.novel for h in headrooms.values()]
    spread = half_width(gains)
    best = max((row["base"] for row in ours.values()), default=0.0) - (zero["base"] if zero else 0.0)
    return [
        Fact(
            3,
            "one constant a class explains at most a third of the best method's gain on base",
            f"{base:+.1f} of {best:+.1f}" if zero else "-",
            "",
            None if zero is None else base <= best / 3,
        ),
        Fact(
            3,
            "and nothing on novel (the 95% interval over tasks reaches down to 0)",
            f"{fmean(gains):+.1f}" + ("" if spread is None else f" ± {spread:.1f}"),
            "",
            None if spread is None else fmean(gains) - spread <= 0,
        ),
    ]


def _order(ours: Mapping[str, Average], printed: Mapping[str, Average]) -> list[Fact]:
    shared = [method for method in printed if method in ours]
    tau = None
    if len(shared) > 1:
        tau = kendall_tau(*([of[method]["hm"] for method in shared] for of in (ours, printed)))
    present = all(method in ours for method in (*ORDERED, "coop", FROZEN))
    return [
        Fact(
            4,
            f"the order of HM agrees with the published one over {len(shared)} methods: tau at least 0.6",
            "-" if tau is None else f"tau {tau:.2f}",
            "",
            None if tau is None else tau >= 0.6,
        ),
        Fact(
            4,
            "PromptSRC, MMRL and MMRL++ above CoOp and zero-shot in HM",
            ", ".join(f"{m} {ours[m]['hm']:.1f}" for m in (*ORDERED, "coop", FROZEN) if m in ours),
            ", ".join(f"{m} {printed[m]['hm']:.1f}" for m in (*ORDERED, "coop", FROZEN) if m in printed),
            min(ours[m]["hm"] for m in ORDERED) > max(ours["coop"]["hm"], ours[FROZEN]["hm"])
            if present
            else None,
        ),
    ]


def _factors(alone: Mapping[str, str]) -> Fact:
    shown = ", ".join(f"{factor}: {task}" for task, factor in alone.items())
    return Fact(
        OF_ONE_FACTOR,
        "for each factor a task that it alone sets apart",
        shown or "-",
        "",
        {*alone.values()} >= {*ALONE},
    )


def _halves(row: Average | None) -> str:
    return f"{row['base']:.1f} / {row['novel']:.1f}" if row else "-"


def _change(row: Average | None, zero: Average | None) -> str:
    if not row or not zero:
        return "-"
    return " / ".join(f"{row[half] - zero[half]:+.1f}" for half in ("base", "novel"))


def _both(half: str, one: Average | None, other: Average | None) -> str:
    return f"{one[half]:.1f} against {other[half]:.1f}" if one and other else "-"


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
