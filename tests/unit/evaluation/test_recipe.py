"""Recipes: what they say is what is run, and what they say wrongly is told with its name."""

import pickle
import re
from inspect import cleandoc
from pathlib import Path

import pytest
from docstring_parser import DocstringStyle, parse

from dear.cli.run import command_ablation
from dear.errors import DataError, SettingsError
from dear.evaluation.ablations import ablation_setups, ablations
from dear.evaluation.experiment import expand_data
from dear.evaluation.recipe import RecipeError, change, load_recipes
from dear.evaluation.resolve import MethodSetup
from dear.methods.registry import METHODS

RECIPES = Path(__file__).parents[3] / "recipes"
GOOD = """
protocol: few-shot
out: runs/x
data: [mixed-paints, stamped-tiles]
methods:
  - zero-shot
  - {method: dear, label: soft, settings: {beta: 0.5}}
shots: [1, 2]
seeds: [3, 5]
train: {epochs: 7, lr: 1e-2}
"""

# What other methods have for each data set, or for 20 epochs, is one value for 10.
UNIFORM = {
    "promptsrc": {"average_mean": 7.5, "average_std": 1},
    "mmrl": {"reg_weight": 1, "space": 512},
    "mmrl++": {"reg_weight": 1, "beta": 0.9},
}
SHORT = "protocol: few-shot\nout: runs/x\ndata: mixed-paints\n"


def written(tmp_path: Path, text: str, name: str = "one.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_what_it_says_is_what_is_run(tmp_path: Path) -> None:
    experiment = load_recipes(written(tmp_path, GOOD))[0]
    assert experiment.train == {"epochs": 7, "lr": 0.01}
    soft = MethodSetup("dear", {"beta": 0.5}, label="soft")
    assert experiment.methods == (MethodSetup("zero-shot"), soft)
    runs = experiment.runs()
    # Two data sets, two seeds: zero-shot once (0 shots), DeAR with 1 and with 2 shots.
    assert len(runs) == 2 * 2 * 3
    facts = [run.identifying_facts() for run in runs]
    methods = [(run["method"], run["shots"]) for run in facts[:3]]
    assert methods == [("zero-shot", 0), ("dear", 1), ("dear", 2)]
    assert [run["dataset"] for run in facts] == ["mixed-paints"] * 6 + ["stamped-tiles"] * 6
    assert pickle.loads(pickle.dumps(runs)) == runs


@pytest.mark.parametrize(
    ("protocol", "methods"), [("few-shot", ["zero-shot", "dear"]), ("retrieval", ["dear"])]
)
def test_methods_by_default_are_those_that_suit_the_protocol(
    protocol: str, methods: list[str], tmp_path: Path
) -> None:
    experiment = load_recipes(written(tmp_path, f"protocol: {protocol}\nout: x\n"))[0]
    assert [setup.method for setup in experiment.methods] == methods


def test_the_help_names_all_ablations() -> None:
    assert f"Ablations: {', '.join(ablations())}." in (command_ablation.__doc__ or "")


ABLATION = "protocol: ablation\nout: x\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "sheds: 1\n", "'sheds'.*'seeds'"),
        (GOOD + "source: source\n", "'source'"),  # another protocol's
        (GOOD + "root: data\n", "a key of dataset: write dataset: {root: 'data'}"),
        (GOOD + "epochs: 5\n", "a key of train: write train: {epochs: 5}"),
        (GOOD + "train: {batch: 3}\n", "'train' appears twice"),
        (GOOD.replace("beta", "betta"), "settings.*'betta'.*'beta'"),
        (GOOD.replace("few-shot", "fewshot"), "'fewshot'.*'few-shot'"),
        (GOOD.replace("out: runs/x\n", ""), "'out'"),
        (GOOD.replace("method: dear", "method: deer"), "'deer'.*'dear'"),
        (GOOD.replace("- zero-shot", "- mmrlpp"), r"mmrl\+\+"),
        (GOOD.replace("beta: 0.5", "beta: much"), "beta is 'much'"),
        (GOOD.replace("beta: 0.5", "beta: 1.5"), "beta is 1.5"),
        (GOOD.replace("[3, 5]", "[3, five]"), r"seeds\[1\] is 'five'"),
        (GOOD.replace("1e-2", f"1{'0' * 320}"), "its lr is"),
        (GOOD.replace("- zero-shot", "- {method: coop, role_variant: shuffled}"), "coop has no head roles"),
        (GOOD.replace("- zero-shot", "- {method: coop, roles: mine.json}"), "coop has no head roles"),
        (GOOD.replace("- zero-shot", "- {method: dear, label: soft+}"), "two of the methods are called dear"),
        (ABLATION + "of: masks\n", "'masks'.*'mask'"),
        (ABLATION + "of: attributes\nwithout: [K = 8]\n", "'K = 8'"),
        (ABLATION + "methods: all\n", "'methods'"),
        ("[1, 2]", "keys and values"),
        ("a: [", "YAML"),
    ],
)
def test_a_recipe_that_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf"one\.yaml.*{message}") as caught:
        load_recipes(written(tmp_path, text))[0]
    assert "\n" not in str(caught.value)


def setups_of(tmp_path: Path, methods: str) -> tuple[MethodSetup, ...]:
    return load_recipes(written(tmp_path, f"protocol: few-shot\nout: x\nmethods: {methods}\n"))[0].methods


def test_all_is_every_method_that_is_not_named_beside_it(tmp_path: Path) -> None:
    every = tuple(map(MethodSetup, METHODS))
    assert (
        setups_of(tmp_path, "all")
        == setups_of(tmp_path, "[all]")
        == setups_of(tmp_path, "[maple, all]")
        == every
    )
    soft, hard = (MethodSetup("dear", {"beta": beta}, label=f"{beta}") for beta in (0.5, 1.0))
    items = ["{method: dear, label: '0.5', settings: {beta: 0.5}}", "{method: coop, label: x}", "all"]
    items.append("{method: dear, label: '1.0', settings: {beta: 1}}")
    named = {"coop": [MethodSetup("coop", label="x")], "dear": [soft, hard]}
    want = tuple(setup for name in METHODS for setup in named.get(name, [MethodSetup(name)]))
    assert setups_of(tmp_path, f"[{', '.join(items)}]") == want


def test_a_method_may_have_a_role_table_of_its_own(tmp_path: Path) -> None:
    """Files are from the recipe's folder; variants are told apart by the tables' names."""
    tables = [f"{{method: dear, roles: {table}}}" for table in ("mine.json", "published")]
    plain, mine, published = setups_of(tmp_path, f"[dear, {', '.join(tables)}]")
    assert (plain.roles, mine.roles, published.roles) == (None, tmp_path / "mine.json", Path("published"))
    assert [setup.variant for setup in (plain, mine, published)] == [None, "roles mine", "roles published"]


def test_an_ablation_runs_all_unless_some_are_named(tmp_path: Path) -> None:
    every, beta = (
        load_recipes(written(tmp_path, ABLATION + of))[0].methods for of in ("", "of: [beta, beta]\n")
    )
    assert every == ablation_setups(ablations())
    assert beta == ablation_setups(["beta"])


def test_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no recipe"):
        load_recipes(tmp_path / "none.yaml")[0]
    with pytest.raises(RecipeError, match="contains no recipe"):
        load_recipes(tmp_path)


def test_part_of_a_recipe(tmp_path: Path) -> None:
    one = load_recipes(written(tmp_path, GOOD))[0]
    two = load_recipes(written(tmp_path, GOOD.replace("zero-shot", "coop"), "two.yaml"))[0]
    (part,) = change([one], data=["stamped-tiles"], methods=["dear"], seeds=[7])
    assert (part.data, part.methods, part.seeds) == (("stamped-tiles",), one.methods[1:], (7,))
    assert load_recipes(tmp_path / "one.yaml", tmp_path)[0].out == tmp_path / "x"
    assert change([one, two]) == change([one, two], methods=["all"]) == [one, two]
    changed = change(
        [two],
        settings={"dear": {"tokens": 2}},
        train={"epochs": 3},
        dataset={"workers": 2},
        shots=(5,),
        model="tiny",
    )
    assert [setup.settings for setup in changed[0].methods] == [{}, {"beta": 0.5, "tokens": 2}]
    assert (changed[0].train, changed[0].shots) == ({"epochs": 3, "lr": 0.01}, (5,))
    assert (changed[0].backbone, changed[0].named_by) == (("tiny", None), "")
    assert (changed[0].dataset.workers, two.named_by) == (2, "the recipe two")
    for options, missing in (
        ({"data": ["stamped-tiles", "other"]}, "'other'.* mixed-paints, s"),
        ({"methods": ["dear", "maple"]}, "'maple'.* zero-shot, dear"),
        ({"methods": ["zero-shot"], "data": ["other"]}, "'other'"),
    ):
        with pytest.raises(DataError, match=missing):
            change([one, two], **options)


def test_recipes_without_a_data_set_are_left_out() -> None:
    """Each by its name; the others keep this one."""
    experiments = load_recipes(RECIPES / "paper")
    with pytest.warns(
        UserWarning, match="left out.*: ablations:quantile, ablations:attributes, domain-g"
    ) as said:
        changed = change(experiments, data=["eurosat"])
    assert len(said) == 1
    assert {experiment.data for experiment in changed} == {("EuroSAT",)}
    names = [experiment.recipe for experiment in changed]
    assert len(names) == len(experiments) - 3
    assert {"ablations:mask", "cross-dataset"} < {*names}
    with pytest.warns(UserWarning, match="left out"), pytest.raises(DataError, match="together"):
        change(
            change(experiments, data=["imagenetv2"]) + load_recipes(RECIPES / "study" / "large.yaml"),
            data=["imagenetv2"],
            methods=["mmrl"],
        )


def test_what_a_recipe_gives_its_rows_is_not_changed() -> None:
    """And a benchmark goes by each of its names."""
    experiments = load_recipes(RECIPES / "paper" / "ablations.yaml:beta")
    with pytest.raises(SettingsError, match="beta of dear is set by the recipe ablations:beta"):
        change(experiments, settings={"dear": {"beta": 0.5}})
    assert change(experiments, data=["dtd", "eurosat"])[0].data == ("DescribableTextures", "EuroSAT")


@pytest.mark.parametrize(
    "path", sorted(RECIPES.rglob("*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_packaged_recipes_can_be_read(path: Path) -> None:
    experiment, *others = experiments = load_recipes(path)
    assert all(experiment.runs() for experiment in experiments)
    assert others or experiment.out == Path("runs", path.parent.name, path.stem)
    if path.parent.name not in ("paper", "world"):
        return
    other = RECIPES / ("world" if path.parent.name == "paper" else "paper") / path.name
    assert [twin.protocol.name for twin in load_recipes(other)] == [one.protocol.name for one in experiments]


def test_several_experiments_in_a_file(tmp_path: Path) -> None:
    """They share its keys, each has some of its own, and one is taken by its name."""
    text = "protocol: ablation\nout: runs/x\nshots: 3\nabout: {a: 1, b: 1}\neach:\n"
    text += "  mask: {of: mask}\n  beta: {of: beta, shots: 5, about: {b: 2}}\n"
    mask, beta = load_recipes(written(tmp_path, text))
    assert (mask.out, mask.shots, mask.methods) == (Path("runs/x-mask"), (3,), ablation_setups(["mask"]))
    assert (beta.out, beta.shots, beta.methods) == (Path("runs/x-beta"), (5,), ablation_setups(["beta"]))
    assert beta.about == {"a": 1, "b": 2, "recipe": "one:beta"}
    assert load_recipes(tmp_path / "one.yaml:beta") == [beta]
    assert load_recipes(tmp_path, Path("all"))[0].out == Path("all/x-mask")
    with pytest.raises(RecipeError, match=r"unknown part 'bet'.*'beta'"):
        load_recipes(tmp_path / "one.yaml:bet")


def test_an_ablation_changes_one_thing_each() -> None:
    names = "mask mask-form loss inference quantile attributes beta first"
    assert [*ablations()] == names.split()
    setups = ablation_setups(ablations(), {"tokens": 3}, without=["K = 7"])
    assert len(setups) == len(set(setups)) == 1 + 3 + 1 + 2 + 4 + 1 + 5 + 3
    assert all(setup.settings["tokens"] == 3 for setup in setups)
    labels = [setup.variant for setup in setups]
    assert len(set(labels)) == len(labels)
    rows = {row.label for one in ablations().values() for row in one.rows} - {"K = 7"}
    assert set(labels) == rows  # how the report finds a row's runs
    ce = next(setup for setup in setups if setup.variant == "CE")
    assert ce.settings == {"tokens": 3, "lambda_reg": 0, "lambda_fusion": 0}


@pytest.mark.parametrize(
    ("name", "settings"),
    [("beta", {"beta": 0.9}), ("loss", {"lambda_fusion": 0.1})],  # 0.9 is the default
)
def test_no_setting_that_the_ablation_varies(name: str, settings: dict[str, float]) -> None:
    """The row of DeAR as it is would show the runs of another one."""
    with pytest.raises(SettingsError, match=f"ablation {name}"):
        ablation_setups(["mask", name], settings)
    assert ablation_setups(["mask"], settings)[-1].settings == settings


def test_sets_of_tasks_by_one_name() -> None:
    tasks = expand_data(["world"])
    assert len(tasks) == 12
    assert "mixed-paints" in tasks
    assert expand_data(["street-signs", "world", "photos"]) == (
        "street-signs",
        *(name for name in tasks if name != "street-signs"),
        "photos",
    )
    large = expand_data(["world-large"])
    assert len(large) == 4
    assert not {*large} & {*tasks}
    assert expand_data(["world", "world-large"]) == tasks + large


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ("data: [mixed-paints, album-stickers]", ("tiny", None)),
        ("data: [./mixed-paints]", ("ViT-B-16", "laion2b_s34b_b88k")),
        ("data: [mixed-paints, photos]", ("ViT-B-16", "laion2b_s34b_b88k")),
        ("data: [photos]\npretrained: mine.pt", ("ViT-B-16", "mine.pt")),
        ("data: [photos]\nmodel: tiny", ("tiny", None)),
        ("data: [mixed-paints]\nsource: source", ("tiny", None)),
        ("data: [mixed-paints]\nsource: ImageNet", ("ViT-B-16", "laion2b_s34b_b88k")),
    ],
)
def test_the_backbone_follows_the_data(lines: str, wanted: tuple[str, str | None], tmp_path: Path) -> None:
    protocol = "cross-dataset" if "source" in lines else "few-shot"
    one = load_recipes(written(tmp_path, f"protocol: {protocol}\nout: x\n{lines}\n"))[0]
    assert one.backbone == wanted


def test_where_a_recipe_finds_files(tmp_path: Path) -> None:
    """Beside it; words stay words, and results go to the current folder."""
    methods = "methods: [{method: tac, settings: {descriptions: %s}}]\n"
    keys = SHORT + "dataset: {classnames: names.json, root: data, template: %s}\nroles: %s\n" + methods
    files = "more/prompts.txt", "x.json", "of/classes"
    recipe = load_recipes(written(tmp_path, keys % files))[0]
    assert recipe.dataset.classnames == tmp_path / "names.json"
    assert recipe.dataset.root == tmp_path / "data"
    assert recipe.dataset.template == str(tmp_path / "more" / "prompts.txt")
    assert recipe.roles == tmp_path / "x.json"
    assert recipe.out == Path("runs/x")
    settings = [setup.settings for setup in recipe.methods]
    assert settings[0] == {"descriptions": str(tmp_path / "of" / "classes")}
    words = "'a {}.'", "ground-truth", "templates"
    recipe = load_recipes(written(tmp_path, keys % words), Path("all"))[0]
    assert (recipe.dataset.template, recipe.roles) == ("a {}.", Path("ground-truth"))
    assert [setup.settings for setup in recipe.methods] == [{"descriptions": "templates"}]
    assert recipe.out == Path("all/x")


def test_methods_declare_which_of_their_settings_name_files() -> None:
    declared = {(name, path) for name, method in METHODS.items() for path in method.settings.paths}
    described = {
        (name, entry.arg_name)
        for name, method in METHODS.items()
        for entry in parse(cleandoc(method.settings.__doc__ or ""), DocstringStyle.GOOGLE).params
        if re.match(r"An? (\w+ )?file\b", entry.description or "")
    }
    assert declared == described == {("tac", "descriptions")}


@pytest.mark.parametrize("recipe", ["published", "uniform", "alone"])
def test_recipes_of_all_methods(recipe: str) -> None:
    (experiment,) = load_recipes(RECIPES / "methods" / f"all.yaml:{recipe}")
    able = [name for name, one in METHODS.items() if one.open_vocabulary]  # base-to-novel has other classes
    assert [setup.method for setup in experiment.methods] == able
    changed = {setup.method: setup.settings for setup in experiment.methods if setup.settings}
    assert changed == (UNIFORM if recipe == "uniform" else {})
