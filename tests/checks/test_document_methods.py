"""The measured tables of the methods, and their recipes."""

from pathlib import Path

import pytest

from dear.errors import DataError
from dear.evaluation.recipe import load_recipe
from dear.methods.mmrl import MmrlSettings
from dear.methods.mmrlpp import MmrlPlusSettings
from dear.methods.promptsrc import PromptSrcSettings
from dear.methods.registry import METHODS, option_groups
from dear.training.settings import TrainOptions
from tests.unit.report.samples import record
from tools.document import with_table
from tools.document_methods import PAGE, TABLES, measured_table

ROOT = Path(__file__).parents[2]
STATED = ("optimizer", "lr", "batch", "warmup_epochs", "warmup_lr", "weight_decay")
# What other methods have for each data set, or for 20 epochs, is one value for 10.
UNIFORM = {
    "promptsrc": PromptSrcSettings(average_mean=7.5, average_std=1),
    "mmrl": MmrlSettings(regularisation="uniform"),
    "mmrl++": MmrlPlusSettings(regularisation="uniform"),
}


def test_a_table_of_the_page() -> None:
    """The methods side by side, as in a report; the peaks are of other records."""
    runs = [record("a", method, 0.5, 0.2, seed=seed) for method in ("dear", "coop") for seed in (1, 2)]
    about, _, head, _, guess, first, second = measured_table(runs).splitlines()
    assert about == "1 data set, seeds 1, 2, 16 shots, percent, ± standard deviation over seeds."
    assert head == "| Method | Base | Novel | HM | Trainable parameters | Seconds per run |"
    assert guess == "| chance | 100.00 | 100.00 | 100.00 | – | – |"  # two classes: one in each half
    assert first.startswith("| coop | ")
    assert second == "| dear | **50.00 ± 0.00** | **20.00 ± 0.00** | **28.57 ± 0.00** | 11 | 4.0 |"
    alone = [record("b", "dear", 0, 0, peak_memory={"resident": 5.0, "gpu": None})]
    _, _, head, _, _, first, second = measured_table(runs, alone).splitlines()
    assert head.endswith("| Seconds per run | Peak memory, MiB |")
    assert (first.split(" | ")[-1], second.split(" | ")[-1]) == ("– |", "5 |")


def test_methods_on_different_data_are_not_compared() -> None:
    runs = [record("a", "coop", 0.5, 0.2), record("a", "maple", 0.5, 0.2, seed=2)]
    with pytest.raises(DataError, match="maple and coop were not run on the same data sets and seeds"):
        measured_table(runs)


@pytest.mark.parametrize("name", TABLES)
def test_only_the_marked_part_of_the_page_changes(name: str) -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    new = with_table(page, name, "a table")
    assert f"<!-- {name}: begin -->\na table\n<!-- {name}: end -->" in new
    assert with_table(new, name, "other").replace("\nother\n", "\na table\n") == new
    before, after = page.split(f"<!-- {name}: begin -->")[0], page.split(f"<!-- {name}: end -->")[1]
    assert new.startswith(before)
    assert new.endswith(after)


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
    length = "steps_per_shot" if published.steps_per_shot else "epochs"
    assert all(getattr(experiment.train, name) is not None for name in (*STATED, length))


@pytest.mark.parametrize("recipe", ["all", "alone", "uniform"])
def test_recipes_of_all_methods(recipe: str) -> None:
    experiment = load_recipe(ROOT / "recipes" / "methods" / f"{recipe}.yaml")
    able = [name for name, one in METHODS.items() if one.open_vocabulary]  # base-to-novel has other classes
    assert [plan.method for plan in experiment.plans] == able
    changed = {plan.method: plan.settings for plan in experiment.plans if plan.settings}
    assert changed == (UNIFORM if recipe == "uniform" else {})
