"""A dry run lists runs, their work, and all that is missing."""

import json
from pathlib import Path

import pytest

from dear.errors import WeightsError
from dear.evaluation import session
from dear.evaluation.dry_run import list_runs, seconds_by_method
from dear.evaluation.experiment import Machines
from dear.evaluation.launch import launch
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.recipe import change, load_recipes
from dear.evaluation.resolve import MethodSetup
from tests.unit.evaluation.children import experiment

RECIPES = Path(__file__).parents[3] / "recipes"
ZERO = (MethodSetup("zero-shot"),)


def test_a_dry_run_knows_what_has_a_record(tmp_path: Path) -> None:
    launch([experiment(tmp_path / "out", methods=ZERO)], Machines("cpu"))
    planned, reason = list_runs([experiment(tmp_path / "out")], Machines("cpu"))
    assert [(run["method"], run["variant"], run["done"]) for run in planned] == [
        ("zero-shot", None, True), ("dear", "all-mixed", False),
    ]  # fmt: skip
    assert reason == []


def test_a_teacher_without_weights_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a method without roles. What can be known of the others is, and each thing is missing once."""
    launch([experiment(tmp_path / "out", methods=ZERO)], Machines("cpu"))
    sought, load = list[str](), session.load_clip

    def load_but_large(model: str, *given: object, **options: object) -> object:
        sought.append(model)
        if model == "ViT-L-14":
            raise WeightsError("no weights of ViT-L-14")
        return load(model, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "load_clip", load_but_large)
    methods = (
        MethodSetup("promptkd", {"teacher": "ViT-L-14", "teacher_pretrained": "openai"}),
        MethodSetup("dear", roles=tmp_path / "nothing.json"),
        *ZERO,
    )
    planned, missing = list_runs(
        [experiment(tmp_path / "out", methods=methods, seeds=(1, 2))], Machines("cpu")
    )
    assert [(run["method"], run["done"]) for run in planned] == [
        ("promptkd", False), ("dear", False), ("zero-shot", True),
        ("promptkd", False), ("dear", False), ("zero-shot", False),
    ]  # fmt: skip
    assert [run["test_images"] for run in planned] == [8] * 6
    assert len(missing) == 2
    assert all(key in text for key, text in zip(("ViT-L-14", "nothing.json"), missing, strict=True))
    assert sorted(sought) == ["ViT-L-14", "tiny"]


def test_all_that_is_missing_of_a_transfer_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each target beside the source, and the weights; without a root one line names all data sets."""
    monkeypatch.delenv("DEAR_DATA", raising=False)

    def load(*_: object, **__: object) -> None:
        raise WeightsError("no weights of ViT-B-16")

    monkeypatch.setattr(session, "load_clip", load)
    (shifted,) = load_recipes(RECIPES / "paper" / "domain-generalization.yaml")
    names = ["ImageNet", "ImageNetV2", "ImageNetSketch", "ImageNetA", "ImageNetR"]
    _, (data, weights) = list_runs([shifted], Machines("cpu"))
    assert data.startswith(f"{', '.join(names)} need the folder")
    assert weights == "no weights of ViT-B-16"
    (mixed,) = change(load_recipes(RECIPES / "paper" / "cross-dataset.yaml"), data=["eurosat", "ucf101"])
    monkeypatch.setenv("DEAR_DATA", str(tmp_path))
    _, missing = list_runs([mixed], Machines("cpu"))
    # As `dear data list` says: torchvision downloads EuroSAT alone of these.
    assert [("Fetch it with" in line, line.split()[0]) for line in missing] == [
        (False, "ImageNet"), (True, "EuroSAT"), (False, "UCF101"), (False, "no"),
    ]  # fmt: skip


def test_the_seconds_of_a_method_are_the_median_of_its_records(tmp_path: Path) -> None:
    """Of three runs of 2, 4 and 9 seconds; a damaged record and another file do not count."""
    sweep = experiment(tmp_path / "out", methods=ZERO, seeds=(1, 2, 3, 4))
    launch([sweep], Machines("cpu"))
    paths = sorted(sweep.out.glob("*.json"))
    for path, train in zip(paths, (1.5, 3.5, 8.5), strict=False):
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"seconds": {"train": train, "test": 0.5}}))
    paths[3].write_text("{}")
    (sweep.out / "notes.json").write_text("[]")
    assert seconds_by_method(sweep.out) == {"zero-shot": 4.0}
    other = experiment(tmp_path / "out", seeds=(5,))
    planned, _ = list_runs([other], Machines("cpu"))
    assert [(run["method"], run["seconds"]) for run in planned] == [("zero-shot", 4.0), ("dear", None)]


def test_the_work_of_a_run_and_of_its_teacher(tmp_path: Path) -> None:
    """By hand: half of the four classes are trained on, with an image of each, in batches of one. The
    student takes the eight training images of all classes.
    """
    tip = [MethodSetup("tip-adapter", {"tuned": tuned}, label=str(tuned)) for tuned in (False, True)]
    few = experiment(
        tmp_path / "few", protocol=FewShot(), methods=tuple(tip), train={"epochs": 3, "batch": 1}
    )
    assert [run["steps"] for run in list_runs([few], Machines("cpu"))[0]] == [0, 3 * 4]
    methods = (*ZERO, MethodSetup("coop"), MethodSetup("promptkd"))
    sweep = experiment(tmp_path / "out", methods=methods, train={"epochs": 3, "batch": 1})
    planned, _ = list_runs([sweep], Machines("cpu"))
    assert [run["test_images"] for run in planned] == [8, 8, 8]
    assert [run["steps"] for run in planned] == [0, 3 * 2, 3 * 8 + 3 * 2]


def test_drawings_beside_photographs_have_the_backbone_of_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports refuse results on several backbones together."""
    sought = list[str]()

    def load(model: str, *_: object, **__: object) -> None:
        sought.append(model)
        raise WeightsError("no weights")

    monkeypatch.setattr(session, "load_clip", load)
    photos = experiment(tmp_path / "out").data[0]
    mixed = experiment(tmp_path / "out", methods=ZERO, data=("mixed-paints", photos), model=None)
    planned, _ = list_runs([mixed], Machines("cpu"))
    assert ([run["dataset"] for run in planned], sought) == (["mixed-paints", photos], ["ViT-B-16"])
