"""What authors set in other protocols: the rows by hand, and that a choice of the user stays."""

from pathlib import Path

import pytest

from dear.evaluation.plan import Plan
from dear.evaluation.protocols import PROTOCOLS
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.transfer import CrossDataset
from dear.evaluation.resolve import settle
from dear.methods.coop import CoOpSettings
from dear.methods.declaration import published_rows
from dear.methods.registry import METHODS
from dear.training.settings import TrainOptions, TrainSettings


def settled(protocol: Protocol, plan: Plan, dataset: str = "stamped-tiles", shots: int = 16, **given: object):  # type: ignore[no-untyped-def]
    return settle(protocol, plan, dataset, shots, TrainOptions(**given))


@pytest.mark.parametrize(
    ("dataset", "shots", "epochs"),
    [("Food101", 1, 50), ("Food101", 2, 100), ("Food101", 4, 100), ("Food101", 8, 200), ("ImageNet", 16, 50)],
)
def test_coop_in_few_shot(dataset: str, shots: int, epochs: int) -> None:
    found, training = settled(FewShot(), Plan("coop"), dataset, shots)
    assert found.settings == CoOpSettings(tokens=16, words="")
    assert (training.epochs, training.batch, training.lr) == (epochs, 32, 0.002)
    assert "few-shot" in found.rows


def test_base_to_novel_is_as_declared() -> None:
    for name, method in METHODS.items():
        found, training = settled(BaseToNovel(), Plan(name))
        assert (found.settings, found.rows) == (method.settings(), ())
        assert training == TrainOptions().over(method.settings.training)


def test_what_is_given_stays() -> None:
    own = Plan("coop", settings=CoOpSettings(tokens=7))
    found, training = settled(FewShot(), own, shots=1, epochs=3)
    assert (found.settings.tokens, found.settings.words) == (7, "")
    assert training.epochs == 3
    whole = TrainSettings(epochs=9)
    assert settle(FewShot(), own, "Food101", 1, whole)[1] is whole


def test_transfer() -> None:
    found, training = settled(CrossDataset(), Plan("mmrl"), "source")
    assert (found.settings.regularisation, found.settings.reg_weight) == ("uniform", 0.2)
    assert (training.epochs, training.warmup_epochs, training.batch) == (1, 0, 32)
    assert settled(CrossDataset(), Plan("mmrl"), epochs=1)[1].epochs == 1  # no warm-up of all epochs
    found, training = settled(CrossDataset(), Plan("maple"))
    assert (found.settings.depth, training.lr, training.epochs) == (3, 0.0026, 2)
    found, _ = settled(FewShot(), Plan("promptsrc"), "SUN397")
    assert (found.settings.average_mean, found.settings.average_std) == (30.0, 30.0)
    assert found.rows == ("few-shot", "few-shot, mean around 30")


@pytest.mark.parametrize("folder", sorted(one.folder for one in METHODS.values()))
def test_rows_name_what_there_is(folder: str) -> None:
    fields = {one.folder: one.settings for one in METHODS.values()}[folder]
    for row in published_rows(folder):
        assert row.source
        assert {*row.protocols} <= {*PROTOCOLS}
        TrainSettings(**row.training)
        fields(**row.settings)


def test_every_file_is_read() -> None:
    home = Path(__file__).parents[3] / "src/dear/methods"
    assert {path.parent.name for path in home.glob("*/published.json")} == {
        one.folder for one in METHODS.values() if published_rows(one.folder)
    }
