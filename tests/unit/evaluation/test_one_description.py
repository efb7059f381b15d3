"""Options, a recipe and Python describe the same experiment."""

from dataclasses import fields
from pathlib import Path

import pytest

import dear
from dear.cli import run
from dear.evaluation.experiment import RunOptions
from dear.evaluation.protocols import protocol_class
from dear.evaluation.recipe import load_recipe
from dear.methods.coop import CoOpSettings
from tests.unit.cli.sample import parse

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
    monkeypatch.setattr(run, "list_runs", lambda experiments, _: from_options.extend(experiments))
    run.cross_dataset(**parse("run", "cross-dataset", "--dry-run", *OPTIONS.split(), "a {}."))

    from_python = dear.Experiment(
        protocol=protocol_class("cross-dataset")(source="badges"),  # type: ignore[call-arg]
        plans=(dear.Plan("coop", settings=CoOpSettings(tokens=7)),),
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
    few_shot = dear.Experiment(protocol=protocol_class("few-shot")(), plans=(dear.Plan("dear"),))
    assert (few_shot.shots, few_shot.seeds, few_shot.out) == ((1, 2, 4, 8, 16), (1,), Path("runs/few-shot"))
    assert len(few_shot.data) == 12
    assert {field.name for field in fields(RunOptions)} <= {field.name for field in fields(few_shot)}
