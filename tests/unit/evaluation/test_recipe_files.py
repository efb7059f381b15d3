"""The files that a recipe names: where they are looked for, and that a stranger's leads nowhere else."""

import os
import re
from pathlib import Path

import pytest

from dear.cli.help import descriptions
from dear.data.names import path_of
from dear.errors import DearError
from dear.evaluation.recipe import RecipeError, load_recipe, load_recipes
from dear.methods.atprompt import AtPromptSettings
from dear.methods.registry import METHODS
from dear.methods.tac import TacSettings
from dear.reading.files import expanded

GOOD = "protocol: few-shot\nout: runs/x\ndata: mixed-paints\n"
KEYS = {
    "roles": "roles: %s",
    "dataset.classnames": "dataset: {classnames: %s}",
    "dataset.template": "dataset: {template: %s}",
    "methods[0].settings.descriptions": "methods: [{method: tac, settings: {descriptions: %s}}]",
    "methods[0].settings.words": "methods: [{method: atprompt, settings: {words: %s}}]",
}


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


def test_a_folder_called_like_a_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "./~" is none, but was, when the recipe's file was read: another line of the user's own home."""
    home, here = tmp_path / "home", tmp_path / "here"
    for folder, line in ((home, "mine {}"), (here / "~", "theirs {}")):
        folder.mkdir(parents=True)
        (folder / "t.txt").write_text(line)
        (folder / "names.txt").write_text("a\tb\n")
    (here / "~" / "r.yaml").write_text(
        "protocol: few-shot\nout: x\ndata: [mixed-paints]\n"
        "dataset: {template: t.txt, classnames: names.txt}\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    settings = load_recipe(Path("./~/r.yaml")).dataset
    assert settings.templates() == ("theirs {}",)
    assert expanded(str(settings.classnames)).samefile(here / "~" / "names.txt")
    assert path_of("./~") == Path("./~")
    with pytest.raises(DearError, match="the name of a file here and of a home"):
        path_of("~")


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


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "file", ["/etc/passwd", "~/x", "~no-one/x", "../x", "more/../../x", "link/x", "passwd"]
)
def test_a_recipe_names_no_file_outside_of_its_folder(key: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "link").symlink_to(tmp_path)
    (tmp_path / "recipes" / "passwd").symlink_to("/etc/passwd")
    path = written(tmp_path / "recipes", GOOD + KEYS[key] % file)
    message = rf"the key '{re.escape(key)}' is '{file}', which is not below .*: copy the file"
    with pytest.raises(RecipeError, match=message):
        load_recipe(path)


def test_a_link_to_itself_is_looked_for_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert load_recipe(written(tmp_path, GOOD + "roles: loop\n")).roles == tmp_path / "loop"


@pytest.mark.parametrize("out", ["link/x", "runs/link/x", "runs/link"])
def test_records_go_through_no_link_of_a_strangers_folder(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for link in ("link", "runs/link"):
        (tmp_path / link).symlink_to("/")
    path = written(tmp_path, GOOD.replace("runs/x", out))
    link = out.removesuffix("/x")
    with pytest.raises(RecipeError, match=rf"'out' is '{out}', but '{link}' is a link, .* with --out"):
        load_recipe(path)
    assert load_recipe(path, Path("mine")).out == Path("mine") / Path(out).name


@pytest.mark.parametrize("place", ["/etc/x", "~/runs", "~no-such-user/runs", "~"])
def test_only_who_runs_a_recipe_chooses_a_place_elsewhere(place: str, tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("runs/x", f'"{place}"'))
    with pytest.raises(RecipeError, match=rf"the key 'out' is '{place}', which is not below .* with --out"):
        load_recipe(path)
    assert load_recipe(path, tmp_path).out == tmp_path / Path(place).name


@pytest.mark.parametrize("content", ["machine a login me password: precious: x\n", "protocol: precious\n"])
def test_a_recipe_of_a_folder_is_no_link(content: str, tmp_path: Path) -> None:
    """Of a recipe that the user names, a message tells a key's value, but quotes no line."""
    (tmp_path / "mine").write_text(content)
    (tmp_path / "recipes").mkdir()
    link = tmp_path / "recipes" / "a.yaml"
    link.symlink_to(tmp_path / "mine")
    with pytest.raises(RecipeError, match=r"a\.yaml: it is a link\.$"):
        load_recipes(tmp_path / "recipes")
    link.unlink()
    link.symlink_to(written(tmp_path, GOOD))
    assert load_recipe(link).about["recipe"] == "a"
    (tmp_path / "all").symlink_to(tmp_path / "recipes")
    link.rename(tmp_path / "b.yaml")
    written(tmp_path / "recipes", GOOD)
    assert len(load_recipes(tmp_path / "all")) == 1


@pytest.mark.parametrize("name", [b"caf\xe9.yaml", b" a.yaml", b"a .yaml", "\ufeffa.yaml".encode()])
def test_a_recipe_whose_name_marks_no_folder(tmp_path: Path, name: bytes) -> None:
    """Its runs ended in a traceback, or could not be given again."""
    path = tmp_path / os.fsdecode(name)
    path.write_text("protocol: few-shot\nout: o\ndata: [mixed-paints]\nmethods: [zero-shot]\n")
    for given in (path, tmp_path):
        with pytest.raises(RecipeError, match="its name is not in UTF-8, or begins or ends with a space"):
            load_recipes(given)


def test_a_recipe_makes_no_room_in_the_cache_of_views(tmp_path: Path) -> None:
    """With little room all that other runs had kept there was removed."""
    path = written(tmp_path, GOOD + "train: {view_seed: 1, view_cache: 0.001}\n")
    with pytest.raises(
        RecipeError, match=r"cannot have the key 'train\.view_cache', which removes .*`dear run`"
    ):
        load_recipe(path)
