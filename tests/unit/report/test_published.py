"""The paper's printed numbers against each other: what contradicts itself is told, and nothing else."""

import re
from statistics import fmean

from dear.report.published import ablation, base_to_novel, slips, transfer


def told(table: str, words: str) -> set[tuple[str, str, str, str]]:
    """Method, data set, printed number and what the others give, of the slips of a table with these words."""
    matches = [(slip, re.search(words + r" (\d+\.\d+); .* (\d+\.\d+)", slip["error"])) for slip in slips()]
    return {
        (slip["method"], slip.get("dataset", ""), match[1], match[2])
        for slip, match in matches
        if match and slip["table"] == table and "elsewhere" not in slip["error"]
    }


def test_each_hm_that_its_base_and_novel_do_not_give_is_told() -> None:
    for table in ("base_to_novel", "seeds"):
        wrong = set()
        for (method, dataset), numbers in base_to_novel(table).items():
            base, novel, hm = (numbers[name][0] for name in ("base", "novel", "hm"))
            given = 2 * base * novel / (base + novel)
            if not -0.05 <= hm - given <= 0.0101:
                wrong.add((method, dataset, f"{hm:.2f}", f"{given:.2f}"))
        stated = {
            (method, dataset, hm, re.sub(r",.*", "", given))
            for method, dataset, hm, given in told(table, "the published HM is")
        }
        assert stated == wrong
    for name in ("mask", "loss", "inference"):  # in which nothing is wrong
        for numbers in ablation(name)["average of 11"].values():
            base, novel, hm = (numbers[measure][0] for measure in ("base", "novel", "hm"))
            assert abs(2 * base * novel / (base + novel) - hm) < 0.01


def test_each_average_that_the_data_sets_do_not_give_is_told() -> None:
    printed, wrong = base_to_novel(), set()
    for method in {method for method, _ in printed}:
        for measure in ("base", "novel"):
            mean = fmean(
                of[measure][0] for (by, on), of in printed.items() if by == method and on != "Average"
            )
            average = printed[method, "Average"][measure][0]
            if abs(mean - average) > 0.05:
                wrong.add((method, "", f"{average:.2f}", f"{mean:.2f}"))
    assert told("base_to_novel", r"the published average (?:base|novel) is") == wrong
    for protocol in ("cross-dataset", "domain-generalization"):
        for of in transfer(protocol).values():
            targets = [value for name, value in of.items() if name not in ("ImageNet", "average")]
            assert abs(fmean(targets) - of["average"]) < 0.01
