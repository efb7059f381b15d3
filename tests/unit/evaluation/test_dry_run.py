"""A dry run lists runs, their work and time, and all that is missing."""

from itertools import count
from pathlib import Path

import pytest

from dear.errors import WeightsError
from dear.evaluation import session
from dear.evaluation.dry_run import UnitTimes, Work, estimate, list_runs
from dear.evaluation.experiment import Machines
from dear.evaluation.launch import launch
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


def test_time_is_the_sum_of_counts_times_measured_units(tmp_path: Path) -> None:
    """By a clock that goes on by a second whenever it is looked at: so a step takes one, and a batch of all
    test images, and all that comes before the first step of a training.
    """
    sweep = experiment(tmp_path / "out", seeds=(1, 2), train={"epochs": 3, "batch": 1})
    seconds = count()
    planned, missing = list_runs([sweep], Machines("cpu"), timed=True, clock=lambda: float(next(seconds)))
    assert missing == []
    # Two of the four classes are trained on, with an image of each: their names take a second. Names are set
    # of base and of novel classes, and of all at once: 8. The eight test images are one batch.
    names, tests = 8 * 1 / 2, 8 * 1 / 8
    before_the_steps, steps = 1, 3 * 2
    assert [(run["method"], run["seconds"]["usual"]) for run in planned] == [
        ("zero-shot", names + tests), ("dear", names + tests + before_the_steps + steps),
    ] * 2  # fmt: skip
    assert all(run["seconds"]["shortest"] == run["seconds"]["longest"] for run in planned)


def test_a_time_is_taken_between_few_and_many_classes() -> None:
    """By hand: a step takes 1 to 3 seconds with 10 classes, and 5 to 9 with 30, so 3 to 6 with 20."""
    few = UnitTimes(
        10, name=(0.1,), training_image=(0.0,), step=(1.0, 1.5, 3.0), test_image=(0.25,), kept_image=(0.1,)
    )
    many = UnitTimes(
        30, name=(0.3,), training_image=(0.5,), step=(5.0, 6.5, 9.0), test_image=(0.25,), kept_image=(0.1,)
    )
    work = Work(classes=20, names=100, training_images=8, steps=2, test_images=40)
    rest = 100 * 0.2 + 8 * 0.25 + 40 * 0.25
    assert estimate([work], [[few], [many]]) == pytest.approx((rest + 2 * 4, rest + 2 * 3, rest + 2 * 6))
    teacher = Work(classes=10, names=10, training_images=0, steps=1, test_images=0)
    both = estimate([work, teacher], [[few, few]])
    kept = work._replace(test_images=0, kept_images=40)
    assert estimate([kept], [[few], [many]]).usual == pytest.approx(rest + 2 * 4 - 40 * 0.15)
    assert both.usual == pytest.approx(100 * 0.1 + 2 * 1.5 + 40 * 0.25 + 10 * 0.1 + 1.5)
