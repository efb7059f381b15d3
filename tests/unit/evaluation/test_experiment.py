"""Experiments and machines that cannot be: told with what is wrong before anything is made."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import dear
from dear.cli import run
from dear.data.dataset import Dataset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError, DearError
from dear.evaluation.experiment import Experiment, Machines, RunOptions
from dear.evaluation.protocols import protocol_class
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.retrieval import Retrieval
from dear.evaluation.protocols.transfer import CrossDataset
from dear.evaluation.recipe import load_recipe
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import check_data
from dear.methods.coop import CoOpSettings
from dear.training.settings import TrainOptions
from tests.unit.cli.sample import parse

GOOD = Experiment(protocol=CrossDataset(), out=Path("out"), data=("tags",), methods=(MethodSetup("dear"),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (1, 2**63)}, f"the seed is {2**63}"),
        ({"seeds": (-1,)}, "the seed is -1"),
        ({"seeds": ()}, "there is no seed"),
        ({"data": ("tags", "source")}, "source is both the source and a target"),
        ({"data": ("tags", "")}, "a data set's name is empty"),
        ({"protocol": CrossDataset("")}, "a data set's name is empty"),
        ({"shots": (1, 2)}, "cross-dataset takes a single number of shots"),
        ({"shots": (0,)}, "each must be at least 1"),
        ({"protocol": Retrieval(), "methods": (MethodSetup("coop"),)}, "coop has no attribute features"),
        ({"train": TrainOptions(epochs=0)}, "epochs is 0"),
        ({"train": TrainOptions(view_seed=1, view_cache=float("inf"))}, "view_cache is inf"),
    ],
)
def test_an_experiment_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DearError, match=message):
        replace(GOOD, **changes)


@pytest.mark.parametrize(
    ("machines", "message"),
    [
        ({"jobs": 2, "log": Path("log")}, "--log is for sequential runs"),
        ({"cluster": "local", "log": Path("log")}, "--log is for sequential runs"),
        ({"gpus": 0.5}, "--gpus is for runs on a cluster"),
        ({"cluster": "local", "gpus": -1.0}, "gpus is -1.0: it must be at least 0"),
        ({"jobs": 2, "cluster": "local"}, "--jobs and --cluster: choose one"),
    ],
)
def test_machines_that_cannot_be(machines: dict[str, Any], message: str) -> None:
    with pytest.raises(DearError, match=message):
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
    from_recipe = load_recipe(path)

    from_options = list[dear.Experiment]()
    monkeypatch.setattr(run, "run_experiments", lambda made, *_, **__: from_options.extend(made))
    run.cross_dataset(**parse("run", "cross-dataset", "--dry-run", *OPTIONS.split(), "a {}."))

    from_python = dear.Experiment(
        protocol=protocol_class("cross-dataset")(source="badges"),  # type: ignore[call-arg]
        methods=(dear.MethodSetup("coop", settings=CoOpSettings(tokens=7)),),
        data=("tags", "mixed-paints"),
        seeds=(3, 5),
        shots=(4,),
        model="tiny",
        roles=Path("ground-truth"),
        train=dear.TrainOptions(epochs=7, lr=0.01, optimizer="sgd"),
        select="val",
        dataset=dear.DataSettings(template="a {}.", workers=2),
        out=Path("runs/x"),
        about={"recipe": "a"},
    )
    assert from_recipe == from_python
    assert [vars(from_options[0]) | {"about": {"recipe": "a"}}] == [vars(from_python)]
    assert from_python.runs() == from_options[0].runs()


def test_what_is_not_given_comes_from_the_protocol() -> None:
    few_shot = dear.Experiment(protocol=protocol_class("few-shot")(), methods=(dear.MethodSetup("dear"),))
    assert (few_shot.shots, few_shot.seeds, few_shot.out) == ((1, 2, 4, 8, 16), (1,), Path("runs/few-shot"))
    assert len(few_shot.data) == 12
    assert {field.name for field in fields(RunOptions)} <= {field.name for field in fields(few_shot)}


def frames(folder: Path, level: int) -> Dataset:
    for name in ("ant", "bee"):
        for part in ("train", "test"):
            (folder / part / name).mkdir(parents=True)
            Image.new("RGB", (8, 8), (level, level, level)).save(folder / part / name / "1.bmp")
    return load_dataset(str(folder), DataSettings(cache=folder.parent / "cache"))


def test_the_record_of_one_is_not_that_of_the_other(tmp_path: Path) -> None:
    """The second was taken for run already."""
    data = {name: frames(tmp_path / name / "frames", level) for name, level in (("a", 10), ("b", 200))}
    assert data["a"].identity == data["b"].identity
    experiment = Experiment(protocol=FewShot(), methods=(MethodSetup("zero-shot"),), data=("a", "b"))
    with pytest.raises(DataError, match=r"^a and b have the same paths, labels, sizes of files and class"):
        check_data(experiment, data)
    check_data(experiment, {"a": data["a"], "b": data["a"]})


def test_two_data_sets_of_one_name(tmp_path: Path) -> None:
    """All was run, and then no report could be made of it."""
    data = {name: frames(tmp_path / name / "photos", 10) for name in ("a", "b")}
    data["b"] = replace(data["b"], identity="another")
    for protocol in (FewShot(), CrossDataset("a")):
        targets = ("a", "b") if protocol.trained_on is None else ("b",)
        experiment = Experiment(protocol=protocol, methods=(MethodSetup("zero-shot"),), data=targets)
        with pytest.raises(DataError, match=r"^a and b are both called photos, by which reports"):
            check_data(experiment, data)
