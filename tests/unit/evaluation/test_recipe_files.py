"""The recipes of the repository, and where the files that a recipe names are looked for."""

import os
from pathlib import Path

import pytest

from dear.cli.help import descriptions
from dear.errors import DearError
from dear.evaluation.recipe import RecipeError, load_recipe, load_recipes
from dear.methods.atprompt import AtPromptSettings
from dear.methods.mmrl import MmrlSettings
from dear.methods.mmrlpp import MmrlPlusSettings
from dear.methods.promptsrc import PromptSrcSettings
from dear.methods.registry import METHODS, option_groups
from dear.methods.tac import TacSettings
from dear.training.settings import TrainOptions

ROOT = Path(__file__).parents[3]

STATED = ("optimizer", "lr", "batch", "warmup_epochs", "warmup_lr", "weight_decay")
# What other methods have for each data set, or for 20 epochs, is one value for 10.
UNIFORM = {
    "promptsrc": PromptSrcSettings(average_mean=7.5, average_std=1),
    "mmrl": MmrlSettings(regularisation="uniform"),
    "mmrl++": MmrlPlusSettings(regularisation="uniform"),
}
GOOD = "protocol: few-shot\nout: runs/x\ndata: mixed-paints\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "one.yaml"
    path.write_text(text)
    return path


def test_where_a_recipe_finds_files(tmp_path: Path) -> None:
    read = "dataset: {classnames: names.json, template: %s}\nroles: %s\n"
    one = load_recipe(written(tmp_path, GOOD + read % ("more/prompts.txt", "x.json")))
    assert one.dataset.classnames == tmp_path / "names.json"
    assert one.dataset.template == str(tmp_path / "more" / "prompts.txt")
    assert one.roles == tmp_path / "x.json"
    assert one.out == Path("runs/x")
    assert load_recipe(written(tmp_path, GOOD), Path("all")).out == Path("all/x")
    two = load_recipe(written(tmp_path, GOOD + read % ("'a {}.'", "ground-truth")))
    assert two.dataset.template == "a {}."
    assert two.roles == Path("ground-truth")


def test_where_a_recipe_finds_the_files_of_methods(tmp_path: Path) -> None:
    def settings(tac: str, atprompt: str) -> list[object]:
        methods = f"methods: [{{method: tac, settings: {tac}}}, {{method: atprompt, settings: {atprompt}}}]"
        return [plan.settings for plan in load_recipe(written(tmp_path, GOOD + methods)).plans]

    assert settings("{descriptions: of/classes, views: 2}", "{words: words.json}") == [
        TacSettings(descriptions=str(tmp_path / "of" / "classes"), views=2),
        AtPromptSettings(words=str(tmp_path / "words.json")),
    ]
    assert settings("{descriptions: templates, views: 2}", "{depth: 3}") == [
        TacSettings(views=2),
        AtPromptSettings(depth=3),
    ]


def test_a_file_called_like_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its recipe, in the current folder, "./templates" became the word for hand-written sentences."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "templates").write_text("{}")
    Path("r.yaml").write_text(
        "protocol: few-shot\nout: x\ndata: [mixed-paints]\n"
        "methods: [{method: tac, settings: {descriptions: ./templates}}]\n"
    )
    (plan,) = load_recipe(Path("r.yaml")).plans
    assert isinstance(plan.settings, TacSettings)
    assert plan.settings.descriptions == "./templates"


def test_a_folder_with_a_brace_in_its_name(tmp_path: Path) -> None:
    """The path of the file became a template."""
    (tmp_path / "a{}b").mkdir()
    (tmp_path / "a{}b" / "t.txt").write_text("x {}")
    recipe = tmp_path / "a{}b" / "r.yaml"
    recipe.write_text("protocol: few-shot\nout: x\ndata: [mixed-paints]\ndataset: {template: t.txt}\n")
    with pytest.raises(DearError, match=r"'dataset\.template' is 't\.txt' in a folder with { in its name"):
        load_recipe(recipe)


def test_methods_declare_which_of_their_settings_name_files() -> None:
    declared = {(name, path) for name, method in METHODS.items() for path in method.settings.paths}
    described = {
        (name, setting)
        for name, method in METHODS.items()
        for setting, about in descriptions(method.settings).items()
        if about.startswith("A file ")
    }
    assert declared == described == {("tac", "descriptions"), ("atprompt", "words")}


@pytest.mark.parametrize("name", [b"caf\xe9.yaml", b" a.yaml", b"a .yaml", "\ufeffa.yaml".encode()])
def test_a_recipe_whose_name_marks_no_folder(tmp_path: Path, name: bytes) -> None:
    """Its runs ended in a traceback, or could not be given again."""
    path = tmp_path / os.fsdecode(name)
    path.write_text("protocol: few-shot\nout: o\ndata: [mixed-paints]\nmethods: [zero-shot]\n")
    for given in (path, tmp_path):
        with pytest.raises(RecipeError, match="its name is not in UTF-8, or begins or ends with a space"):
            load_recipes(given)


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
