"""Experiments and machines that cannot be: told with what is wrong before anything is made."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dear.errors import DearError
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.plan import Plan
from dear.evaluation.protocols.retrieval import Retrieval
from dear.evaluation.protocols.transfer import CrossDataset
from dear.training.settings import TrainOptions

GOOD = Experiment(protocol=CrossDataset(), out=Path("out"), data=("tags",), plans=(Plan("dear"),))


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
        ({"protocol": Retrieval(), "plans": (Plan("coop"),)}, "coop has no attribute features"),
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
