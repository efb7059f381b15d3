"""What authors set in other protocols: the rows by hand, and that a choice of the user stays."""

import copy
import pickle
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclopts import App

from dear.cli.parsing import OPTIONS, with_method_settings
from dear.cli.run import few_shot
from dear.errors import SettingsError
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.transfer import CrossDataset
from dear.evaluation.recipe import load_recipe
from dear.evaluation.resolve import MethodSetup, resolve_settings
from dear.methods.coop import CoOpSettings
from dear.methods.declaration import MethodSettings, read_published_rows
from dear.methods.mmrl import MmrlSettings
from dear.methods.registry import METHODS
from dear.training.settings import TrainOptions, TrainSettings


def settled(
    protocol: Protocol, setup: MethodSetup, dataset: str = "stamped-tiles", shots: int = 16, **given: object
):  # type: ignore[no-untyped-def]
    return resolve_settings(protocol, setup, dataset, shots, TrainOptions(**given))


@pytest.mark.parametrize(
    ("dataset", "shots", "epochs"),
    [("Food101", 1, 50), ("Food101", 2, 100), ("Food101", 4, 100), ("Food101", 8, 200), ("ImageNet", 16, 50)],
)
def test_coop_in_few_shot(dataset: str, shots: int, epochs: int) -> None:
    found, training = settled(FewShot(), MethodSetup("coop"), dataset, shots)
    assert found.settings == CoOpSettings(tokens=16, words="")
    assert (training.epochs, training.batch, training.lr) == (epochs, 32, 0.002)
    assert "few-shot" in found.rows


def test_base_to_novel_is_as_declared() -> None:
    for name, method in METHODS.items():
        found, training = settled(BaseToNovel(), MethodSetup(name))
        assert (found.settings, found.rows) == (method.settings(), ())
        assert training == TrainOptions().over(method.settings.training)


def test_what_is_given_stays() -> None:
    own = MethodSetup("coop", settings=CoOpSettings(tokens=7))
    found, training = settled(FewShot(), own, shots=1, epochs=3)
    assert (found.settings.tokens, found.settings.words) == (7, "")
    assert training.epochs == 3
    whole = TrainSettings(epochs=9)
    assert resolve_settings(FewShot(), own, "Food101", 1, whole)[1] is whole


def test_transfer() -> None:
    found, training = settled(CrossDataset(), MethodSetup("mmrl"), "source")
    assert (found.settings.regularisation, found.settings.reg_weight) == ("uniform", 0.2)
    assert (training.epochs, training.warmup_epochs, training.batch) == (1, 0, 32)
    assert settled(CrossDataset(), MethodSetup("mmrl"), epochs=1)[1].epochs == 1  # no warm-up of all epochs
    found, training = settled(CrossDataset(), MethodSetup("maple"))
    assert (found.settings.depth, training.lr, training.epochs) == (3, 0.0026, 2)
    found, _ = settled(FewShot(), MethodSetup("promptsrc"), "SUN397")
    assert (found.settings.average_mean, found.settings.average_std) == (30.0, 30.0)
    assert found.rows == ("few-shot", "few-shot, mean around 30")


@pytest.mark.parametrize("folder", sorted(one.folder for one in METHODS.values()))
def test_rows_name_what_there_is(folder: str) -> None:
    fields = {one.folder: one.settings for one in METHODS.values()}[folder]
    for row in read_published_rows(folder):
        assert row.source
        assert {*row.protocols} <= {*PROTOCOLS}
        TrainSettings(**row.training)
        fields(**row.settings)


def test_every_file_is_read() -> None:
    home = Path(__file__).parents[3] / "src/dear/methods"
    assert {path.parent.name for path in home.glob("*/published.json")} == {
        one.folder for one in METHODS.values() if read_published_rows(one.folder)
    }


ASKS_FOR_THE_AUTHORS = {
    (name, field)
    for name, names in {
        "prograd": ["templates"],
        "tcp": ["templates"],
        "skip": ["templates"],
        "clip-lora": ["templates"],
        "atprompt": ["tokens", "by_position", "attributes"],
    }.items()
    for field in names
}
"""Fields whose default is no value but asks for what the authors have for the data set."""


def resolved_everywhere(name: str, settings: MethodSettings) -> Iterator[MethodSettings]:
    """The settings in each protocol, on each data set and with each number of shots that a row names."""
    rows = read_published_rows(METHODS[name].folder)
    shots = {1, 16, *(number for row in rows for number in row.shots if number)}
    for dataset in {"photos", "EuroSAT", *(dataset for row in rows for dataset in row.data)}:
        for kind in PROTOCOLS.values():
            for number in shots:
                found, _ = settled(kind(), MethodSetup(name, settings=settings), dataset, number)
                yield found.settings.for_data(dataset)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if fields(method.settings)])
def test_a_field_set_to_its_default_runs(name: str, tmp_path: Path) -> None:
    """By an option, in a recipe, in Python: the value runs and counts as the user's, and no other does."""
    declared = METHODS[name]
    defaults = {field.name: field.default for field in fields(declared.settings)}
    items = [{"method": name, "label": field, "settings": {field: defaults[field]}} for field in defaults]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"protocol": "few-shot", "out": "runs", "methods": items}))
    by_recipe = {setup.label: setup.settings for setup in load_recipe(recipe).methods}
    app = App(default_command=with_method_settings(few_shot, [name]), default_parameter=OPTIONS)
    for field, default in defaults.items():
        made: list[MethodSettings] = [declared.settings(**{field: default}), by_recipe[field]]
        if default is not None:  # which no option can say
            words = [option_of(declared.folder, field, default)]
            made.append(app.parse_args(words)[1].arguments[declared.folder])
        for settings in made:
            assert settings.set_by_user == {field}
            if (name, field) in ASKS_FOR_THE_AUTHORS:
                continue
            for resolved in resolved_everywhere(name, settings):
                assert getattr(resolved, field) == default, (field, resolved)
                assert resolved.set_by_user == {field}


def option_of(folder: str, field: str, value: Any) -> str:
    prefix, option = (part.replace("_", "-") for part in (folder, field))
    if isinstance(value, bool):
        return f"--{prefix}.{'' if value else 'no-'}{option}"
    return f"--{prefix}.{option}={value}"


def test_the_value_for_a_data_set_is_the_users() -> None:
    settings = [MmrlSettings(), MmrlSettings(reg_weight=1.0), MmrlSettings(reg_weight=3.0, space=64)]
    resolved = [part.for_data("EuroSAT") for part in settings]
    assert [(part.reg_weight, part.space) for part in resolved] == [(0.01, 2048), (1.0, 2048), (3.0, 64)]


@pytest.mark.parametrize("settings", [{"tokens": 4}, MmrlSettings()])
def test_a_plan_takes_the_settings_of_its_method(settings: object) -> None:
    with pytest.raises(SettingsError, match=f"coop takes CoOpSettings, not {type(settings).__name__}"):
        MethodSetup("coop", settings=settings)


def test_copies_know_what_was_set() -> None:
    settings = CoOpSettings(4, position="middle")
    assert settings.set_by_user == {"tokens", "position"}
    copies = [copy.deepcopy(settings), pickle.loads(pickle.dumps(settings)), settings.with_values(words="x")]
    assert [part.set_by_user for part in copies] == [settings.set_by_user] * 3
    assert CoOpSettings().with_values(tokens=16).set_by_user == set()
