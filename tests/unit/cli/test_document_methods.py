"""The measured table of docs/methods.md, and the recipes of the methods."""

from pathlib import Path
from typing import Any

import pytest

from dear.cli.document_methods import TABLES, measured_table, with_table
from dear.errors import DataError
from dear.evaluation.recipe import load_recipe
from dear.methods.settings import (
    METHODS,
    MmrlPlusSettings,
    MmrlSettings,
    PromptSrcSettings,
    option_groups,
)
from dear.training.settings import TrainOptions

ROOT = Path(__file__).parents[3]
STATED = ("optimizer", "lr", "epochs", "batch", "warmup_epochs", "warmup_lr", "weight_decay")
# What other methods have for each data set, or for 20 epochs, is one value for 10.
UNIFORM = {
    "promptsrc": PromptSrcSettings(average_mean=7.5, average_std=1),
    "mmrl": MmrlSettings(regularisation="uniform"),
    "mmrl++": MmrlPlusSettings(regularisation="uniform"),
}


def record(method: str, task: str, seed: int, base: float, novel: float, **more: Any) -> dict[str, Any]:
    return {
        "method": method,
        "variant": None,
        "seed": seed,
        "shots": 16,
        "dataset": {"name": task},
        "results": {"base": {"accuracy": base}, "novel": {"accuracy": novel}},
        "trainable_parameters": 1234,
        "seconds": {"train": 3.0, "test": 1.5},
    } | more


def test_the_table_averages_seeds_then_data_sets() -> None:
    runs = [
        record("coop", "a", 1, 0.5, 0.2),
        record("coop", "a", 2, 0.7, 0.4, seconds={"train": 80.0, "test": 1.5}),
        record("coop", "b", 1, 0.9, 0.1),
        record("coop", "b", 2, 0.9, 0.1),
    ]
    # base (60 + 90) / 2, novel (30 + 10) / 2, HM 2 * 75 * 20 / 95; 4.5 seconds thrice, 81.5 once
    # seed 1: 2 * 70 * 15 / 85; seed 2: 2 * 80 * 25 / 105
    row = "| coop | 75.00 | 20.00 | 31.58 | 24.71 to 38.10 | 1,234 | 4.5 |"
    assert measured_table(runs).splitlines()[-1] == row
    alone = [record("coop", "a", 1, 0.5, 0.2, peak_memory={"resident": 5.0, "gpu": None})]
    assert measured_table(runs, alone).splitlines()[-1] == f"{row} 5 |"


def test_methods_stand_in_the_order_of_their_table() -> None:
    """Variants too; a method without a run alone has no peak."""
    runs = [
        record("mmrl", "a", 1, 0.5, 0.2, variant="regularisation uniform"),
        record("dear", "a", 1, 0.5, 0.2),
        record("coop", "a", 1, 0.5, 0.2),
    ]
    alone = [record("coop", "a", 1, 0.5, 0.2, peak_memory={"resident": 5.0, "gpu": 7.0})]
    rows = [row.split(" | ") for row in measured_table(runs, alone).splitlines()[-3:]]
    assert [row[0] for row in rows] == ["| coop", "| mmrl (regularisation uniform)", "| dear"]
    assert [row[-1] for row in rows] == ["7 |", "not measured |", "not measured |"]


def test_methods_on_different_data_are_not_compared() -> None:
    runs = [record("coop", "a", 1, 0.5, 0.2), record("maple", "a", 2, 0.5, 0.2)]
    with pytest.raises(DataError, match="maple and coop were not run on the same data sets and seeds"):
        measured_table(runs)


@pytest.mark.parametrize("name", TABLES)
def test_only_the_marked_part_of_the_page_changes(name: str) -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    new = with_table(page, name, "a table")
    assert f"<!-- {name}: begin -->\na table\n<!-- {name}: end -->" in new
    assert with_table(new, name, "other").replace("\nother\n", "\na table\n") == new
    assert new.startswith("# The methods")
    assert new.rstrip().endswith("82.72 |")


@pytest.mark.parametrize("group", [group for group in option_groups() if group != "dear"])
def test_each_method_has_a_recipe_that_says_its_defaults(group: str) -> None:
    """The recipe states the published settings, and how the authors train in full; so do the defaults."""
    method = option_groups()[group]
    experiment = load_recipe(ROOT / "recipes" / "methods" / f"{group}.yaml")
    kind = METHODS[method].settings
    (plan,) = experiment.plans
    assert plan.method == method
    assert plan.settings == kind()
    published = TrainOptions().over(kind.training)
    assert experiment.train.over({}) == published
    assert all(getattr(experiment.train, name) is not None for name in STATED)


@pytest.mark.parametrize("recipe", ["all", "alone", "uniform"])
def test_recipes_of_all_methods(recipe: str) -> None:
    experiment = load_recipe(ROOT / "recipes" / "methods" / f"{recipe}.yaml")
    assert [plan.method for plan in experiment.plans] == list(METHODS)
    changed = {plan.method: plan.settings for plan in experiment.plans if plan.settings}
    assert changed == (UNIFORM if recipe == "uniform" else {})
