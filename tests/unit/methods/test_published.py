"""What authors set in other protocols: the rows by hand, and that a choice of the user stays."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cyclopts import App

from dear.backbone.clip import Clip
from dear.cli.parsing import OPTIONS, with_method_settings
from dear.cli.run import few_shot
from dear.data.sources.benchmarks import benchmarks
from dear.errors import SettingsError
from dear.evaluation.experiment import Experiment
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.transfer import CrossDataset, DomainGeneralization
from dear.evaluation.recipe import load_recipes
from dear.evaluation.resolve import MethodSetup, ResolvedSettings, resolve
from dear.evaluation.session import Session
from dear.methods import registry
from dear.methods.coop import CoOpSettings
from dear.methods.declaration import MethodSettings, PublishedRow, published_values, read_published_rows
from dear.methods.registry import METHODS
from dear.training.settings import TrainSettings
from tests.helpers.data import noise_dataset
from tests.helpers.runs import resolve_run

NOISE = noise_dataset()


def settled(
    protocol: Protocol, setup: MethodSetup, dataset: str = "stamped-tiles", shots: int = 16, **given: object
) -> ResolvedSettings:
    return resolve(protocol, setup, dataset, shots, given)


def test_base_to_novel_is_as_declared() -> None:
    for name, method in METHODS.items():
        found = settled(BaseToNovel(), MethodSetup(name))
        assert (found.method, found.authors.rows) == (method.settings(), ("teacher",) * bool(method.teacher))
        assert found.training == TrainSettings(**method.settings.training)


@pytest.mark.parametrize("folder", sorted(one.folder for one in METHODS.values()))
def test_rows_name_what_there_is(folder: str) -> None:
    (method,) = (one for one in METHODS.values() if one.folder == folder)
    fields = method.settings
    for row in read_published_rows(folder):
        assert row.source
        assert {*row.protocols} <= {*PROTOCOLS}
        TrainSettings(**{**row.training, **row.teacher_training})
        if row.teacher_settings:
            METHODS[str(method.teacher)].settings(**row.teacher_settings)
        for of_dataset in ({}, *row.by_data.values()):
            fields(**{**row.settings, **of_dataset})
        assert {*row.data, *row.by_data} <= {*benchmarks()}


def resolved_everywhere(name: str, settings: dict[str, Any]) -> Iterator[MethodSettings]:
    """The settings in each protocol, on each data set and with each number of shots that a row names."""
    rows = read_published_rows(METHODS[name].folder)
    shots = {1, 16, *(number for row in rows for number in row.shots if number)}
    for dataset in {"photos", "EuroSAT", *(dataset for row in rows for dataset in (*row.data, *row.by_data))}:
        for kind in PROTOCOLS.values():
            for number in shots:
                yield settled(kind(), MethodSetup(name, settings), dataset, number).method


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if fields(method.settings)])
def test_a_field_set_to_its_default_runs(name: str, tmp_path: Path) -> None:
    """By an option, in a recipe, in Python: the value runs and counts as the user's, and no other does."""
    declared = METHODS[name]
    defaults = {field.name: field.default for field in fields(declared.settings)}
    items = [{"method": name, "label": field, "settings": {field: defaults[field]}} for field in defaults]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"protocol": "few-shot", "out": "runs", "methods": items}))
    by_recipe = {setup.label: setup.settings for setup in load_recipes(recipe)[0].methods}
    app = App(default_command=with_method_settings(few_shot, [name]), default_parameter=OPTIONS)
    stated = {field: value for field, value in defaults.items() if value is not None}  # which has no option
    words = [option_of(declared.folder, field, default) for field, default in stated.items()]
    assert app.parse_args(words)[1].arguments[declared.folder] == stated
    for field, default in defaults.items():
        assert MethodSetup(name, {field: default}).settings == by_recipe[field] == {field: default}
    for resolved in resolved_everywhere(name, defaults):
        assert vars(resolved).items() >= defaults.items()


def option_of(folder: str, field: str, value: Any) -> str:
    prefix, option = (part.replace("_", "-") for part in (folder, field))
    if isinstance(value, bool):
        return f"--{prefix}.{'' if value else 'no-'}{option}"
    return f"--{prefix}.{option}={value}"


def test_rows_go_with_what_the_user_sets() -> None:
    """MaPLe's tokens and training with its base; the place of the authors' words with these alone."""
    maple = settled(BaseToNovel(), MethodSetup("atprompt", {"base": "maple"}), "UCF101")
    assert (maple.method.tokens, maple.method.attributes) == (2, "precision")  # type: ignore[attr-defined]
    assert (maple.training.lr, maple.training.epochs, maple.training.batch) == (0.0035, 5, 4)
    assert settled(BaseToNovel(), MethodSetup("atprompt", {"base": "maple"})).method.tokens == 4  # type: ignore[attr-defined]
    own = settled(BaseToNovel(), MethodSetup("atprompt", {"attributes": "playfulness"}), "OxfordPets")
    assert own.method.by_position is False  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"token": 4}, r"settings of coop: .*'token' \(did you mean 'tokens'\?\)"),
        ({"tokens": "four"}, "its tokens is 'four': it must be a whole number"),
        ({"tokens": 0}, "settings of coop: its tokens is 0: it must be a whole number from 1 to 256"),
        (CoOpSettings(), "settings of coop are a CoOpSettings: give a mapping"),
    ],
)
def test_settings_are_checked_when_they_are_set(settings: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        MethodSetup("coop", settings)


def test_what_is_set_is_a_value() -> None:
    """Setups are equal if the same is set, whatever else they resolve to, and copies are equal."""
    words, tokens, nothing = (
        MethodSetup("coop", set_) for set_ in ({"words": "a photo of a"}, {"tokens": np.int64(4)}, {})
    )
    assert len({words, tokens, nothing}) == 3
    assert tokens == MethodSetup("coop", {"tokens": 4}) == pickle.loads(pickle.dumps(tokens))
    assert type(tokens.settings["tokens"]) is int
    assert replace(tokens, label="x").settings == {"tokens": 4}
    assert MethodSetup("dear.methods.coop.method:CoOp") == nothing
    assert CoOpSettings(tokens=4) == CoOpSettings() == replace(CoOpSettings(tokens=7), tokens=4)
    runs = Experiment(
        protocol=FewShot(),
        data=("a",),
        shots=(2,),
        methods=(replace(words, label="words"), replace(tokens, label="tokens"), nothing),
    )
    assert len(runs.runs()) == 3
    with pytest.raises(SettingsError, match="label each differently"):
        Experiment(protocol=FewShot(), data=("a",), methods=(words, tokens))


@pytest.mark.parametrize(
    ("name", "protocol", "dataset", "shots", "settings", "training"),
    [
        ("coop", FewShot(), "Food101", 1, {"tokens": 16, "words": ""}, {"epochs": 50, "lr": 0.002}),
        ("coop", FewShot(), "Food101", 8, {}, {"epochs": 200}),
        ("coop", FewShot(), "ImageNet", 16, {}, {"epochs": 50}),
        ("vpt", CrossDataset(), "ImageNet", 16, {"tokens": 8, "depth": 12}, {"epochs": 2, "lr": 0.0025}),
        ("vpt", FewShot(), "EuroSAT", 16, {"template": "a photo of a {}."}, {"epochs": 5, "batch": 4}),
        ("atprompt", BaseToNovel(), "Food101", 16, {}, {"optimizer": "sgd", "lr": 0.002, "epochs": 100}),
        ("atprompt", BaseToNovel(), "ImageNet", 16, {}, {"epochs": 10}),
        ("provp", FewShot(), "Food101", 1, {"tokens": 50, "ref_weight": 0}, {"epochs": 50, "lr": 0.1}),
        ("provp", FewShot(), "Food101", 16, {"ref_weight": 1}, {"epochs": 200}),
        ("tac", FewShot(), "ImageNet", 16, {"image_tokens": 5}, {"epochs": 20, "crop": 0.4}),
        ("tac", CrossDataset(), "ImageNet", 16, {"image_tokens": 10}, {"epochs": 5, "crop": 0.8}),
        ("mmrl", CrossDataset(), "source", 16, {"space": 512, "reg_weight": 0.2}, {
            "epochs": 1, "warmup_epochs": 0, "batch": 32,
        }),
        ("mmrl", CrossDataset(), "EuroSAT", 16, {"space": 512, "reg_weight": 0.2}, {}),
        ("mmrl", BaseToNovel(), "EuroSAT", 16, {"space": 2048, "reg_weight": 0.01}, {"batch": 4}),
        ("mmrl", FewShot(), "StanfordCars", 1, {"space": 512, "reg_weight": 7}, {"epochs": 50}),
        ("mmrl++", BaseToNovel(), "Food101", 16, {"beta": 0.1, "reg_weight": 1}, {}),
        ("promptkd", BaseToNovel(), "OxfordFlowers", 16, {"kd_weight": 200}, {}),
        ("skip", BaseToNovel(), "Food101", 16, {}, {"epochs": 5}),
        ("coop", BaseToNovel(), "ImageNet", 16, {"tokens": 4}, {"epochs": 50}),
        ("tcp", BaseToNovel(), "FGVCAircraft", 16, {
            "template": "X X X X {}, a type of aircraft.", "frozen_template": "a photo of an aircraft {}.",
        }, {}),
        ("provp", FewShot(), "DescribableTextures", 16, {"template": "a texture of {}."}, {}),
        ("atprompt", BaseToNovel(), "OxfordPets", 16, {
            "attributes": "playfulness, energy", "by_position": True, "tokens": 2,
        }, {}),
        ("atprompt", BaseToNovel(), "street-signs", 16, {"attributes": "color, shape", "tokens": 2}, {}),
        ("atprompt", BaseToNovel(), "DescribableTextures", 16, {"tokens": 4}, {}),
        ("maple", CrossDataset(), "ImageNet", 16, {"depth": 3}, {"lr": 0.0026, "epochs": 2}),
        ("promptsrc", FewShot(), "SUN397", 16, {"average_mean": 30.0, "average_std": 30.0}, {}),
        ("skip", BaseToNovel(), "EuroSAT", 16, {}, {"lr": 2e-5, "warmup_lr": 1e-6, "epochs": 20}),
        ("skip", CrossDataset(), "ImageNet", 16, {}, {"lr": 1e-5, "warmup_lr": 1e-8, "epochs": 5}),
    ],
)  # fmt: skip
def test_rows_by_hand(
    name: str,
    protocol: Protocol,
    dataset: str,
    shots: int,
    settings: dict[str, Any],
    training: dict[str, Any],
) -> None:
    found = settled(protocol, MethodSetup(name), dataset, shots)
    assert {key: getattr(found.method, key) for key in settings} == settings
    assert {key: getattr(found.training, key) for key in training} == training


@pytest.mark.parametrize(
    ("dataset", "templates", "want"),
    [
        ("OxfordPets", ("a photo of a {}, a type of pet.",), "X X X X {}, a type of pet."),
        ("OxfordPets", (), "X X X X {}, a type of pet."),
        ("OxfordPets", ("{} on a sofa",), ""),
        ("OxfordPets", ("a photo of a {}, a type of pet.", "the {}"), ""),
        ("my-pets", ("a photo of a {}, a type of pet.",), ""),
        ("ImageNet", ("a photo of a {}.",), ""),  # theirs is the same
    ],
)
def test_templates_of_the_authors_replace_those_of_benchmarks(
    dataset: str, templates: tuple[str, ...], want: str
) -> None:
    setup = MethodSetup("tcp")
    assert resolve(BaseToNovel(), setup, dataset, 16, templates=templates).method.template == want
    given = replace(setup, settings={"template": "my {}"})
    assert resolve(BaseToNovel(), given, dataset, 16, templates=templates).method.template == "my {}"


def templates_in_files() -> dict[str, dict[str, dict[str, str]]]:
    """The templates of each method's authors by data set, read from its file without the code."""
    by_method = dict[str, dict[str, dict[str, str]]]()
    for name, method in METHODS.items():
        file = Path(registry.__file__).with_name(method.folder) / "published.json"
        for row in json.loads(file.read_text())["rows"] if file.exists() else ():
            assert not [key for key in row.get("settings", {}) if key.endswith("template")]
            if any("template" in values for values in row.get("by_data", {}).values()):
                assert row.keys() == {"name", "source", "by_data"}  # in all protocols
                by_method.setdefault(name, {}).update(row["by_data"])
    return by_method


@pytest.mark.parametrize("protocol", [CrossDataset(), DomainGeneralization()], ids=lambda one: one.name)
@pytest.mark.parametrize(("method", "templates"), templates_in_files().items())
def test_in_transfer_each_target_takes_the_templates_of_its_row(
    method: str, templates: dict[str, dict[str, str]], protocol: Protocol, small_clip: Clip
) -> None:
    """For each pair of benchmarks; what the row of a target leaves out is not taken from the source."""
    datasets = [
        replace(NOISE, name=name, identity=name, templates=(benchmark.template,))
        for name, benchmark in benchmarks().items()
    ]
    session, setup = Session(), MethodSetup(method)
    names = [item.name for item in fields(setup.declared.settings) if item.name.endswith("template")]
    for source in datasets:
        targets = [target for target in datasets if target is not source]
        run = resolve_run(session, small_clip, protocol, [source, *targets], setup, seed=1)
        for data in run.datasets:
            found = {name: getattr(run.settings_for(data), name) for name in names}
            assert found == dict.fromkeys(names, "") | templates.get(data.name, {})


def test_rows_are_joined_only_where_they_differ_in_adjoining_shots_alone() -> None:
    few, one = (
        PublishedRow("few", "", ("few-shot",), shots=(2, 7)),
        PublishedRow("one", "", ("few-shot",), shots=(1, 1)),
    )
    assert few.joined(one) == replace(few, shots=(1, 7))
    assert one.joined(few) == replace(one, shots=(1, 7))
    assert few.joined(replace(one, shots=(0, 0))) is None
    assert few.joined(replace(one, data=("dtd",))) is None
    assert few.joined(replace(one, when={"base": "coop"})) is None
    assert replace(few, shots=(2, None)).joined(replace(one, shots=(8, 8))) is None


def test_a_class_outside_the_package_has_rows_of_its_own() -> None:
    """They come after those of a packaged class that it derives from, and hold for fields of its own."""

    @dataclass(frozen=True)
    class Mine(METHODS["dear"].settings):  # type: ignore[misc]
        tokens: int = 3
        known: float = 0.5
        published = (
            PublishedRow("few", "my paper", ("few-shot",), settings={"known": 0.9, "tokens": 2}),
            PublishedRow("one", "my paper", ("few-shot",), shots=(1, 1), training={"epochs": 7}),
        )

    few, one, other = (
        published_values(Mine, {}, protocol, "DTD", shots)
        for protocol, shots in (("few-shot", 4), ("few-shot", 1), ("base-to-novel", 4))
    )
    assert (few.settings["known"], few.settings["tokens"]) == (0.9, 2)
    assert few.rows[-1] == "few"
    assert one.rows[-2:] == ("few", "one")
    assert one.training["epochs"] == 7
    assert "known" not in other.settings
    assert other == published_values(METHODS["dear"].settings, {}, "base-to-novel", "DTD", 4)
