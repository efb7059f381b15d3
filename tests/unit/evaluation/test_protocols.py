"""Few-shot, the transfer protocols and the choice of an epoch, on a few random pictures."""

import base64
from dataclasses import asdict, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset, assemble
from dear.data.fewshot import Subset
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DataError, SettingsError
from dear.evaluation import trial
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.retrieval import Retrieval
from dear.evaluation.protocols.transfer import CrossDataset, DomainGeneralization
from dear.evaluation.records import check_record
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import run_one
from dear.evaluation.session import Session
from dear.methods import registry
from dear.methods.dear.method import Dear
from dear.methods.registry import register
from dear.report.protocols import tables_of
from dear.roles.table import RoleTable
from dear.training.settings import TrainSettings
from tests.helpers.data import CLASSES, Noise, noise_dataset
from tests.helpers.methods import role_table
from tests.helpers.runs import resolve_run

TRAINING = asdict(TrainSettings(epochs=3, batch=3, lr=1e-2))
DEAR = MethodSetup("dear", {"first": 8})


def made(
    clip: Clip, protocol: Protocol, datasets: list[Dataset], setup: MethodSetup = DEAR,
    *, session: Session | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    session = session or Session()
    options = {"shots": 2, "roles": role_table(clip), "train": TRAINING} | options
    return run_one(session, resolve_run(session, clip, protocol, datasets, setup, seed=1, **options))


def other(name: str, labels: list[int]) -> Dataset:
    names = ["red square", "the sea"]
    images = Noise(labels, seed=5)
    return assemble(name, name.title(), names, ["a photo of a {}"], images, None, images)


def test_few_shot_is_over_all_classes(small_clip: Clip) -> None:
    record = made(small_clip, FewShot(), [noise_dataset()])
    assert record["protocol"] == "few-shot"
    assert len(record["fewshot"]["indices"]) == 8
    assert set(record["results"]["all"]["per_class"]) == {*CLASSES, "blue square"}
    # Test images of the classes: 7, 5, 5, 7.
    by_class = record["results"]["all"]["per_class"]
    hits = sum(n * by_class[c] for n, c in zip((7, 5, 5, 7), [*CLASSES, "blue square"], strict=True))
    assert record["results"]["all"]["accuracy"] == pytest.approx(hits / 24)


def test_transfer_trains_once_and_tests_everywhere(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    loss = Dear.loss

    def counted(self: Dear, *args: Any) -> Any:
        steps.append(1)
        return loss(self, *args)

    monkeypatch.setattr(Dear, "loss", counted)
    session, targets = Session(), [other("toys", [0, 1, 1]), other("cars", [1, 0])]
    source = noise_dataset()
    one = made(small_clip, CrossDataset(), [source, *targets], session=session)
    assert len(steps) == 3 * 3 + 1  # 8 images in batches of 3, 3 epochs; and what the last step left
    two = made(small_clip, DomainGeneralization(), [source, *targets[:1]], session=session)
    assert len(steps) == 3 * 3 + 1
    assert set(one["results"]["targets"]) == {"toys", "cars"}
    assert [target["name"] for target in one["targets"]] == ["toys", "cars"]
    assert [target["classes"] for target in one["targets"]] == [[*data.classnames] for data in targets]
    assert one["results"]["source"] == two["results"]["source"]
    assert one["results"]["targets"]["toys"] == two["results"]["targets"]["toys"]
    assert one["train"] == two["train"]
    assert one["key"] != two["key"]
    alone = made(small_clip, CrossDataset(), [source, *targets[:1]])
    assert alone["results"]["targets"]["toys"] == one["results"]["targets"]["toys"]


@pytest.mark.parametrize(("name", "protocol"), [("mmrl", CrossDataset()), ("mmrl++", DomainGeneralization())])
def test_mmrl_scores_other_data_sets_by_the_class_feature(
    name: str, protocol: Protocol, small_clip: Clip
) -> None:
    """Their authors' code fuses the two features on the source alone, in both protocols."""
    shifted = other("shifted", [0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 1])
    setup = MethodSetup(name, {"space": 19, "alpha": 0.1, "token_std": 1.0})
    record = made(small_clip, protocol, [noise_dataset(), shifted], setup)
    source, target = record["results"]["source"], record["results"]["targets"]["shifted"]
    assert source["accuracy"] != source["decoupled"]
    assert target["accuracy"] == target["decoupled"]
    share = {"red square": 5 / 11, "the sea": 6 / 11}
    by_class = sum(share[one] * value for one, value in target["per_class"].items())
    assert by_class == pytest.approx(target["decoupled"])


class Relative(Dear):
    """A method of a stranger, derived from DeAR and scored as it is."""


class Contrary(Dear):
    """One that is scored in another way than DeAR in each protocol."""

    declaration = replace(Dear.declaration, decoupled_on=("classes",))


TRANSFER = ["cross-dataset", "domain-generalization"]


@pytest.mark.parametrize(
    ("kind", "by_class_feature"), [(Dear, TRANSFER), (Relative, TRANSFER), (Contrary, ["base-to-novel"])]
)
def test_a_method_says_by_protocol_how_it_is_scored(
    kind: type[Dear], by_class_feature: list[str], small_clip: Clip, request: pytest.FixtureRequest
) -> None:
    """A derived one inherits it. The table of the report has these accuracies, whatever its name."""
    name = "dear"
    if kind is not Dear:
        register(name := f"{__name__}:{kind.__name__}")
        request.addfinalizer(lambda: registry._methods.pop(name))
    setup = MethodSetup(name, {"first": 8, "alpha_cls": 0.02, "token_std": 1.0, "copy_projection": False})
    shifted = replace(noise_dataset(), name="shifted", title="Shifted", identity="shifted")
    options = {"roles": role_table(small_clip), "train": TRAINING | {"epochs": 5, "lr": 0.1}}
    for protocol in (CrossDataset(), DomainGeneralization(), BaseToNovel()):
        data = [noise_dataset()] if protocol.name == "base-to-novel" else [noise_dataset(), shifted]
        record = made(small_clip, protocol, data, setup, **options)
        results = record["results"]
        trained, new = (
            (results["base"], results["novel"])
            if protocol.name == "base-to-novel"
            else (results["source"], results["targets"]["shifted"])
        )
        assert trained["accuracy"] == trained["fused"]
        rule = "decoupled" if protocol.name in by_class_feature else "fused"
        assert new["accuracy"] == new[rule]
        assert new["fused"] != new["decoupled"]
        if protocol.trained_on is not None:
            (grid,) = tables_of([record])
            (row,) = [row for row in grid.rows if row.label == name]
            assert row.cells[-1].mean == pytest.approx(100 * new[rule])


def test_a_target_has_the_authors_templates_for_it(small_clip: Clip) -> None:
    """As in their code, which builds the method anew with the name of the target; not the source's, nor in
    place of what the user gives.
    """

    def named(name: str, template: str) -> Dataset:
        return replace(other("toys", [0, 1, 1]), name=name, identity=name, templates=(template,))

    planes, toys, cars = (
        named(*each)
        for each in (
            ("FGVCAircraft", "a photo of a {}, a type of aircraft."),
            ("toys", "the {}"),
            ("EuroSAT", "my {}"),
        )
    )  # fmt: skip
    source, session = named("DescribableTextures", "{} texture."), Session()
    resolve = partial(resolve_run, session, small_clip, CrossDataset(), [source, planes, toys, cars], seed=1)
    run = resolve(MethodSetup("tcp"), train=TRAINING, shots=1)
    want = {
        "DescribableTextures": ("X X X X {} texture.", "a photo of a {}, a type of texture."),
        "FGVCAircraft": ("X X X X {}, a type of aircraft.", "a photo of an aircraft {}."),
        "toys": ("", ""),
        "EuroSAT": ("", ""),
    }
    found = {data.name: run.settings_for(data) for data in run.datasets}
    assert {name: (of.template, of.frozen_template) for name, of in found.items()} == want  # type: ignore[attr-defined]
    given = resolve(MethodSetup("tcp", {"template": "X {}"}))
    assert [given.settings_for(data).template for data in given.datasets] == ["X {}"] * 4  # type: ignore[attr-defined]
    skip = resolve(MethodSetup("skip"))
    plane_template = "a bright photo of a {}, a type of aircraft."
    assert [skip.settings_for(data).template for data in skip.datasets] == [
        "itap of a {}.",
        plane_template,
        "",
        "",
    ]  # type: ignore[attr-defined]
    without = resolve_run(session, small_clip, CrossDataset(), [source, toys], MethodSetup("skip"), seed=1)
    assert skip.training_key == without.training_key


def test_a_run_in_float16(small_clip: Clip) -> None:
    session, train = Session(), TRAINING | {"precision": "16-true", "optimizer": "sgd"}

    def run(setup: MethodSetup, **changes: Any) -> dict[str, Any]:
        options: dict[str, Any] = {"session": session, "train": train | changes}
        return made(small_clip, BaseToNovel(), [noise_dataset()], setup, **options)

    record, exact = run(MethodSetup("coop")), run(MethodSetup("coop"), precision="auto")
    losses = [[epoch["loss"] for epoch in one["train"]["epochs"]] for one in (record, exact)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]
    assert session.in_precision(small_clip, "16-true").image.projection.dtype == torch.float16
    assert small_clip.image.projection.dtype == torch.float32
    with pytest.raises(SettingsError, match=r"coop is trained with adamw, .* use --train.optimizer sgd"):
        run(MethodSetup("coop"), optimizer="adamw")
    run(MethodSetup("zero-shot"), optimizer="adamw")  # trains nothing


@pytest.mark.parametrize("protocol", [FewShot(), BaseToNovel(), CrossDataset(source="noise")])
def test_every_data_set_needs_test_images(protocol: Protocol) -> None:
    data = noise_dataset()
    targets = (noise_dataset("other"),) if protocol.trained_on else ()
    untested = replace(data, test=Subset(data.test, torch.empty(0, dtype=torch.int64)))
    for trained_on, tested in [(untested, targets)] + [(other, [untested]) for other in targets]:
        with pytest.raises(DataError, match="noise has no test images"):
            protocol.check_data(trained_on, tested)


def test_transfer_needs_other_data(small_clip: Clip) -> None:
    with pytest.raises(DataError, match="at least one data set to test on"):
        made(small_clip, CrossDataset(), [noise_dataset()])
    with pytest.raises(DataError, match="noise is both the source and a target"):
        made(small_clip, CrossDataset(), [noise_dataset(), noise_dataset()])


def test_the_first_of_the_best_epochs_is_tested(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """With validation accuracies that are given; the test images are scored for real."""
    given, states, load = iter([0.2, 0.7, 0.7]), list[Any](), Dear.load_state_dict

    def watched(self: Dear, state: Any, *args: Any, **options: Any) -> Any:
        states.append(state)
        return load(self, state, *args, **options)

    monkeypatch.setattr(Dear, "load_state_dict", watched)
    monkeypatch.setattr(trial, "evaluate", lambda *_, **__: SimpleNamespace(accuracy=next(given)))
    data = replace(noise_dataset(), val=Noise([0, 1, 2, 3], seed=9))
    chosen = made(small_clip, FewShot(), [data], select="val")
    assert chosen["selection"] == {"rule": "val", "epoch": 2}
    assert [epoch["val"] for epoch in chosen["train"]["epochs"]] == [0.2, 0.7, 0.7]
    assert len(states) == 1
    last = made(small_clip, FewShot(), [noise_dataset()])
    assert last["selection"] == {"rule": "last", "epoch": 3}
    assert "val" not in last["train"]["epochs"][0]
    assert last["fusion_weights"] != chosen["fusion_weights"]  # the third epoch moved them on
    with pytest.raises(DataError, match="noise has no validation images"):
        made(small_clip, FewShot(), [noise_dataset()], select="val")


def test_fewer_images_by_choice(small_clip: Clip) -> None:
    with pytest.raises(DataError, match="fewer than 5 shots"):
        made(small_clip, FewShot(), [noise_dataset()], shots=5)
    lenient = replace(noise_dataset(), allow_fewer=True)
    record = made(small_clip, FewShot(), [lenient], shots=5)
    assert len(record["fewshot"]["indices"]) == 12


def test_the_record_of_a_world_task(small_clip: Clip) -> None:
    """It has the fewest test images, 320. The small CLIP has no room for more than the names."""
    task = load_dataset("worn-fabrics", DataSettings(template="{}"))
    record = made(small_clip, Retrieval(), [task], shots=1, train={"epochs": 1, "warmup_epochs": 0})
    check_record(record)
    assert record["settings"]["method"]["first"] == 8
    table = record["roles"]["table"]
    assert RoleTable.from_json(table, "the record") == role_table(small_clip)
    assert set(record["results"]["precision"]) == set(record["fusion_weights"])
    (grid,) = tables_of([record])
    by_label = {row.label: row for row in grid.rows}
    at = grid.columns.index("shape")
    (shape,) = [row.cells[at] for label, row in by_label.items() if label == "(chance)"]
    assert shape.mean == pytest.approx(100 * record["results"]["chance"]["shape"])


def test_retrieval_among_photographs_knows_their_classes_alone(small_clip: Clip) -> None:
    """Chance by hand: of n images an image has (images of its class - 1) / (n - 1) with its class."""
    dataset = noise_dataset()
    labels = dataset.test.labels.tolist()
    record = made(small_clip, Retrieval(), [dataset])
    check_record(record)
    results = record["results"]
    alike = [labels.count(label) - 1 for label in labels]
    assert results["chance"]["class"] == pytest.approx(sum(alike) / len(alike) / (len(labels) - 1))
    assert {name: [*of] for name, of in results["precision"].items()} == {
        name: ["class"] for name in record["fusion_weights"]
    }
    for query in results["queries"]:
        assert query["factors"]["class"] in dataset.classnames
        assert base64.b64decode(query["image"]).startswith(b"\xff\xd8\xff")  # a JPEG


def test_the_queries_of_a_retrieval_are_chosen(small_clip: Clip) -> None:
    """The class of a query is the label of the test image with its number."""
    dataset = noise_dataset()
    last = len(dataset.test) - 1
    record = made(small_clip, Retrieval(queries=(last, 0)), [dataset])
    labels = [dataset.test.labels[number] for number in (last, 0)]
    titles = [query["title"] for query in record["results"]["queries"]]
    assert titles == [dataset.classnames[label] for label in labels]
    assert Retrieval(queries=(0,)).fingerprint != Retrieval().fingerprint
    for wrong in (last + 1, -1):
        with pytest.raises(DataError, match=f"queries has {wrong}, .* 0 to {last}"):
            made(small_clip, Retrieval(queries=(wrong,)), [dataset])


def test_what_retrieval_cannot_run(small_clip: Clip) -> None:
    with pytest.raises(SettingsError, match="coop has no attribute features"):
        made(small_clip, Retrieval(), [noise_dataset()], MethodSetup("coop"))
