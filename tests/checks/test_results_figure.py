"""The table and the figure of docs/study.md, and the numbers that its text repeats."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dear.data.world.tasks import downstream_names
from dear.methods.registry import FIT_METHOD
from dear.report.records import UNLABELLED
from tests.checks.test_measurements import measured
from tools.document import with_table
from tools.measurements import BASE, FIGURE, FILE, STUDY, Results, figure, main_table, read_measurements
from tools.results_figure import Estimate, Row, results_figure

ROOT = Path(__file__).parents[2]


def test_the_main_table_and_the_figure_leave_out_variants() -> None:
    """Base 60 and novel 80 on all tasks: HM 68.57; jointly 12.5 on both halves. No large task was run."""
    runs = [
        measured(task, method, 1, 0.6, 0.8)
        for task in downstream_names()
        for method in ("zero-shot", "dear", "dear (shuffled)", f"promptkd ({UNLABELLED})")
    ]
    lines = main_table(runs).splitlines()
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]]
    assert {*names} == {"`zero-shot`", "`dear`", "`promptkd` †"}
    row = "60.0 | 80.0 | 68.6 | 12.5 | +0.0 ± 0.0 |  |  |"
    assert lines[2 + names.index("`dear`")] == f"| `dear` | {row}"
    drawn = figure(runs)
    assert drawn.count("<circle") == 1 + 3  # the legend, three methods
    assert ">promptkd †<" in drawn
    assert "shuffled" not in drawn


def test_the_figure_draws_means_and_intervals_on_its_axis() -> None:
    """The axis is 610 wide and starts at 130; an interval ends with the axis."""
    drawn = results_figure([Row("a<b", {"joint HM": Estimate(50, 10), "base": Estimate(99, 5)})], 'a "b"')
    assert '<circle cx="435.0" ' in drawn  # 130 + 0.5 * 610
    assert 'd="M374.0 74H496.0"' in drawn  # 40 and 60%
    assert 'd="M703.4 54H740.0"' in drawn  # 94 and, cut, 100%
    assert "a&lt;b" in drawn
    root = ElementTree.fromstring(drawn)
    assert root.attrib["aria-label"] == 'a "b"'
    without = results_figure([Row("c", {"base": Estimate(50, None)})], "")
    assert 'class="e"' not in without


def test_the_figure_is_that_of_the_measurements() -> None:
    drawn = figure(read_measurements(ROOT / FILE))
    assert (ROOT / FIGURE).read_text(encoding="utf-8") == drawn, "run `python -m tools.measurements`"


def test_what_the_study_says_of_the_best_methods_is_measured() -> None:
    """Means and the runners-up of both sizes, and the differences behind the default of `dear fit`."""
    page = (ROOT / STUDY).read_text(encoding="utf-8")
    text = page.partition("## Which method to choose")[2].partition("## Results")[0]
    runs = [run for run in read_measurements(ROOT / FILE) if "(" not in run.method]  # no variants
    small, large = (Results(runs, downstream_names(size=size)) for size in ("small", "large"))
    for results, most in ((small, "joint HM {:.1f} on twelve"), (large, "and {:.1f} on four")):
        best, second = sorted(results.by_method, key=results.joint, reverse=True)[:2]
        assert best == FIT_METHOD
        assert most.format(results.joint(best)) in text
        assert re.search(rf"next: `[^)]*`{second}`|next: `{second}`", text)
        assert f", {results.joint(second):.1f})" in text
    for results, most in ((small, "{:.1f}% of base"), (large, "{:.1f} on large")):
        best, second = sorted(results.by_method, key=lambda m: results.mean(m, BASE), reverse=True)[:2]
        assert best == FIT_METHOD
        assert most.format(results.mean(best, BASE)) in text
        assert f"next: `{second}`, {results.mean(second, BASE):.1f})" in text
    differences = re.findall(r"(\d+\.\d ± \d+\.\d) above (\S+)", text)
    assert {other.lower() for _, other in differences} == {"tac", "clip-adapter", "promptsrc"}
    for difference, other in differences:
        results = large if other == "PromptSRC" else small
        assert results.gap(FIT_METHOD, other.lower(), lambda run: run.joint_hm) == f"+{difference}"


def test_a_table_without_its_markers_is_refused() -> None:
    """Else a page whose markers were moved would get the table at its end."""
    for page in ("", "<!-- main: begin -->", "<!-- main: end --> <!-- main: begin -->"):
        with pytest.raises(ValueError, match="no markers of the table main"):
            with_table(page, "main", "a table")
