"""Recipes: what they say is what is run, and what they say wrongly is told with its name."""

from pathlib import Path

import pytest

from dear.errors import DataError, DearError, OutputError
from dear.evaluation.ablations import ablation_plans, ablations
from dear.evaluation.execute import claimed, distinct_places
from dear.evaluation.plan import Plan
from dear.evaluation.recipe import RecipeError, load_recipe, load_recipes, restricted
from dear.methods.settings import DearSettings

RECIPES = Path(__file__).parents[3] / "recipes"
GOOD = """
protocol: few-shot
out: runs/x
data: [fine-shades, spun-tiles]
methods:
  - zero-shot
  - {method: dear, label: soft, settings: {beta: 0.5}}
shots: [1, 2]
seeds: [3, 5]
train: {epochs: 7, lr: 1e-2}
"""


def written(tmp_path: Path, text: str, name: str = "one.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_what_it_says_is_what_is_run(tmp_path: Path) -> None:
    experiment = load_recipe(written(tmp_path, GOOD))
    assert (experiment.train.epochs, experiment.train.lr) == (7, 0.01)
    soft = Plan("dear", settings=DearSettings(beta=0.5), label="soft")
    assert experiment.plans == (Plan("zero-shot"), soft)
    runs = experiment.runs()
    # Two data sets, two seeds: zero-shot once (0 shots), DeAR with 1 and with 2 shots.
    assert len(runs) == 2 * 2 * 3
    assert [(r.plan.method, r.shots) for r in runs[:3]] == [("zero-shot", 0), ("dear", 1), ("dear", 2)]
    assert [r.dataset for r in runs] == ["fine-shades"] * 6 + ["spun-tiles"] * 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "sheds: 1\n", r"one\.yaml: unknown key 'sheds'\. Did you mean 'seeds'\?"),
        (GOOD.replace("beta", "betta"), "unknown setting of dear 'betta'. Did you mean 'beta'"),
        (GOOD.replace("label", "labell"), "unknown key of a method 'labell'. Did you mean 'label'"),
        (GOOD.replace("epochs", "epoch"), "unknown setting of training 'epoch'. Did you mean 'epochs'"),
        (GOOD.replace("few-shot", "fewshot"), "unknown protocol 'fewshot'. Did you mean 'few-shot'"),
        (GOOD.replace("method: dear", "method: deer"), "unknown method 'deer'. Did you mean 'dear'"),
        (GOOD.replace("beta: 0.5", "beta: much"), "beta is 'much': it must be a number"),
        (GOOD.replace("beta: 0.5", "beta: 1.5"), "beta is 1.5"),
        (GOOD.replace("[3, 5]", "[3, five]"), "'seeds' is"),
        (GOOD.replace("[1, 2]", "[0]"), "shots are"),
        (GOOD.replace("[3, 5]", "[]"), "no seed"),
        (GOOD.replace("[fine-shades, spun-tiles]", "[]"), "no data set"),
        (GOOD.replace("protocol: few-shot", ""), "'protocol' is missing"),
        (GOOD.replace("few-shot", "cross-dataset"), "needs a source"),
        (GOOD + "source: source\n", "has no source"),
        (GOOD + "of: mask\n", "'of' does not go with the protocol few-shot"),
        ("protocol: ablation\nout: x\n", "'of' is missing"),
        ("protocol: ablation\nout: x\nof: masks\n", "unknown ablation 'masks'. Did you mean 'mask'"),
        ("protocol: ablation\nout: x\nof: attributes\nwithout: [K = 8]\n", "unknown row 'K = 8'"),
        ("[1, 2]", "holds no keys"),
        ("a: [", "not readable YAML"),
    ],
)  # fmt: skip
def test_a_recipe_that_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no recipe"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="holds no recipe"):
        load_recipes(tmp_path)


def test_an_empty_intersection_is_told(tmp_path: Path) -> None:
    experiment = load_recipe(written(tmp_path, GOOD))
    assert restricted(experiment, data=["spun-tiles", "other"]).data == ("spun-tiles",)
    assert restricted(experiment, out=tmp_path).out == tmp_path / "x"
    with pytest.raises(DataError, match="the recipe one has none of the data sets other: it has fine-shades"):
        restricted(experiment, data=["other"])
    with pytest.raises(DataError, match="none of the methods coop: it has zero-shot, dear"):
        restricted(experiment, methods=["coop"])


def test_two_recipes_writing_to_one_place(tmp_path: Path) -> None:
    place = f"out: {tmp_path}/x"
    paths = [written(tmp_path, GOOD.replace("out: runs/x", place), name) for name in ("a.yaml", "b.yaml")]
    one, two = map(load_recipe, paths)
    with pytest.raises(OutputError, match="a and b write to one place"):
        distinct_places([one, two])
    with claimed(one), pytest.raises(OutputError, match="another process is writing"), claimed(one):
        pass
    with claimed(one):  # the same recipe goes on
        pass
    with pytest.raises(OutputError, match="holds the runs of the recipe a, not of b"), claimed(two):
        pass


@pytest.mark.parametrize(
    "path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_packaged_recipes_can_be_read(path: Path) -> None:
    experiment = load_recipe(path)
    assert experiment.runs()
    assert experiment.out == Path("runs", path.parent.name, path.stem)
    if path.parent.name == "methods":
        return
    other = RECIPES / ("world" if path.parent.name == "paper" else "paper") / path.name
    assert load_recipe(other).protocol == experiment.protocol


def test_an_ablation_changes_one_thing_each() -> None:
    assert set(ablations()) == {"mask", "loss", "inference", "quantile", "attributes", "beta", "first"}
    plans = ablation_plans(ablations(), DearSettings(tokens=3), without=["K = 7"])
    assert len(plans) == len(set(plans)) == 1 + 3 + 2 + 4 + 1 + 5 + 3
    assert all(plan.settings is None or plan.settings.tokens == 3 for plan in plans)
    labels = [plan.variant for plan in plans]
    assert len(set(labels)) == len(labels)
    rows = {row.label for one in ablations().values() for row in one.rows} - {"K = 7"}
    assert set(labels) == rows  # how the report finds a row's runs
    ce = next(plan for plan in plans if plan.variant == "CE")
    assert (ce.settings.lambda_reg, ce.settings.lambda_fusion, ce.settings.beta) == (0, 0, 0.9)


def test_errors_can_be_mended() -> None:
    assert issubclass(RecipeError, DearError)
