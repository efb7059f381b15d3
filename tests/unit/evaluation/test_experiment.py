"""Experiments and machines that cannot be: told with what is wrong before anything is made."""

from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dear
from dear.cli import run
from dear.cli.main import main
from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError, DearError, SettingsError
from dear.evaluation.experiment import Experiment, Machines, RunOptions
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.retrieval import Retrieval
from dear.evaluation.protocols.transfer import CrossDataset
from dear.evaluation.recipe import load_recipes
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import check_names

GOOD = Experiment(protocol=CrossDataset(), out=Path("out"), data=("tags",), methods=(MethodSetup("dear"),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (1, 2**63)}, rf"seeds\[1\] is {2**63}: it must be a whole number from 0 to 9,223,"),
        ({"seeds": (-1,)}, r"seeds\[0\] is -1"),
        ({"seeds": ()}, "no seed"),
        ({"data": ("tags", "source")}, "source is both"),
        ({"data": ("tags", "")}, "name is empty"),
        ({"protocol": CrossDataset("")}, "name is empty"),
        ({"shots": (1, 2)}, "single number of shots"),
        ({"shots": (0,)}, r"shots\[0\] is 0: it must be a whole number from 1 "),
        ({"dataset": DataSettings(groups="other=site")}, "unknown data set of --dataset.groups .other."),
        ({"protocol": Retrieval(), "methods": (MethodSetup("coop"),)}, "coop has no attribute features"),
        ({"train": {"epochs": 0}}, "epochs is 0"),
    ],
)
def test_an_experiment_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DearError, match=message):
        replace(GOOD, **changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantile": 20}, "quantile is 20: it must be a number above 0 and at most 0\\.5"),
        ({"quantile": 0.0}, "quantile is 0\\.0"),
        ({"attributes": 0}, "attributes is 0"),
        ({"role_variant": "none"}, "role_variant is 'none': it must be one of roles, all-isolated"),
    ],
)
def test_a_method_that_cannot_be(options: dict[str, Any], message: str) -> None:
    """Refused before anything is loaded, as numbers of an experiment are."""
    with pytest.raises(SettingsError, match=message):
        MethodSetup("dear", **options)


def test_numbers_may_be_of_any_sequence() -> None:
    """Also of one that is no list."""
    experiment = replace(GOOD, seeds=range(1, 4), shots=range(2, 3))
    assert [(run.seed, run.shots) for run in experiment.runs()] == [(1, 2), (2, 2), (3, 2)]


@pytest.mark.parametrize(
    ("machines", "option"),
    [
        ({"cluster": "local", "log": Path("log")}, "--log"),
        ({"gpus": 0.5}, "--gpus"),
        ({"cluster": "local", "gpus": -1.0}, "gpus is -1.0"),
        ({"jobs": 2, "cluster": "local"}, "--jobs and --cluster"),
    ],
)
def test_machines_that_cannot_be(machines: dict[str, Any], option: str) -> None:
    with pytest.raises(SettingsError, match=option):
        Machines(**machines)


RECIPE = """
protocol: cross-dataset
source: badges
out: runs/x
data: [tags, mixed-paints]
methods: [{method: coop, settings: {tokens: 7}}]
seeds: [3, 5]
shots: 4
model: tiny
roles: ground-truth
train: {epochs: 7, lr: 1e-2, optimizer: sgd}
select: val
dataset: {template: "a {}.", workers: 2}
"""
OPTIONS = (
    "--source badges --out runs/x --data tags,mixed-paints --methods coop --coop.tokens 7 --seeds 3,5 "
    "--shots 4 --model tiny --roles ground-truth --train.epochs 7 --train.lr 1e-2 --train.optimizer sgd "
    "--select val --dataset.workers 2 --dataset.template"
)


def test_three_ways_to_the_same_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(RECIPE)
    from_recipe = load_recipes(path)[0]

    from_options = list[dear.Experiment]()
    monkeypatch.setattr(run, "execute", lambda made, *_, **__: from_options.extend(made))
    main(["run", "cross-dataset", "--dry-run", *OPTIONS.split(), "a {}."])

    from_python = dear.Experiment(
        protocol=PROTOCOLS["cross-dataset"](source="badges"),  # type: ignore[call-arg]
        methods=(dear.MethodSetup("coop", {"tokens": 7}),),
        data=("tags", "mixed-paints"),
        seeds=(3, 5),
        shots=(4,),
        model="tiny",
        roles=Path("ground-truth"),
        train={"epochs": 7, "lr": 0.01, "optimizer": "sgd"},
        select="val",
        dataset=dear.DataSettings(template="a {}.", workers=2),
        out=Path("runs/x"),
        about={"recipe": "a"},
    )
    assert from_recipe == from_python
    assert [vars(from_options[0]) | {"about": {"recipe": "a"}}] == [vars(from_python)]
    by_python, by_options = (
        [run.identifying_facts() for run in each.runs()] for each in (from_python, *from_options)
    )
    assert by_python == by_options


def test_what_is_not_given_comes_from_the_protocol() -> None:
    few_shot = dear.Experiment(protocol=PROTOCOLS["few-shot"](), methods=(dear.MethodSetup("dear"),))
    assert (few_shot.shots, few_shot.seeds, few_shot.out) == ((1, 2, 4, 8, 16), (1,), Path("runs/few-shot"))
    assert len(few_shot.data) == 12
    assert {field.name for field in fields(RunOptions)} <= {field.name for field in fields(few_shot)}


def test_data_sets_that_records_could_not_tell_apart(tmp_path: Path) -> None:
    """Of a copy under another name the second was taken for run already; of the others no report could be
    made.
    """

    def photos(folder: Path) -> Dataset:
        for part, name in product(("train", "test"), ("ant", "bee")):
            (folder / part / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / part / name / "1.bmp")
        return load_dataset(str(folder), DataSettings(cache=tmp_path / "cache"))

    data = {name: photos(tmp_path / name / "photos") for name in "ab"}
    assert data["a"].identity == data["b"].identity
    check_names(data, trained_on_each=True)
    renamed = {"a": data["a"], "b": replace(data["b"], name="copy")}
    check_names(renamed, trained_on_each=False)
    with pytest.raises(DataError, match="a and b are the same data set"):
        check_names(renamed, trained_on_each=True)
    data["b"] = replace(data["b"], identity="another")
    for is_each in (True, False):
        with pytest.raises(DataError, match="a and b are both called photos"):
            check_names(data, trained_on_each=is_each)
