"""Training of an entry of a recipe, and settings that validation images choose."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.dataset import Dataset
from dear.errors import DataError, SettingsError
from dear.evaluation.dry_run import list_runs
from dear.evaluation.experiment import Experiment, Machines
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.recipe import RecipeError, change, load_recipes
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.runs import run_one
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial
from dear.progress import TrainingStep
from dear.report.report_page import report_page
from dear.writing import UNFINISHED
from tests.helpers.clips import eval_views
from tests.helpers.data import Noise, noise_dataset
from tests.helpers.records import numbers, record
from tests.helpers.runs import resolve_run


def written(folder: Path, text: str) -> Path:
    (folder / "one.yaml").write_text(text)
    return folder / "one.yaml"


TRAINING = {"epochs": 2, "batch": 3, "warmup_epochs": 0}
RATES, TOKENS = (1e-4, 0.5, 2.0), (2, 3)
TUNED = MethodSetup("coop", each={"settings": {"tokens": TOKENS}, "train": {"lr": RATES}})


def dataset_with_validation() -> Dataset:
    return replace(noise_dataset(), val=Noise([0, 1, 2, 3] * 6, 3))


def run(
    clip: Clip, setup: MethodSetup, out: Path | None = None, session: Session | None = None, **options: Any
) -> dict[str, Any]:
    session = session or Session()
    given: dict[str, Any] = {"seed": 1, "shots": 2, "train": TRAINING, "select": "val"} | options
    data = given.pop("data", None) or dataset_with_validation()
    return run_one(session, resolve_run(session, clip, FewShot(), [data], setup, **given), out=out)


def validation_accuracy(clip: Clip, setup: MethodSetup) -> float:
    """Trained alone, then each validation image classified alone."""
    session, data = Session(), dataset_with_validation()
    options: dict[str, Any] = {"seed": 1, "shots": 2, "train": TRAINING, "select": "val"}
    trial = Trial(session, resolve_run(session, clip, FewShot(), [data], setup, **options))
    trial.train(range(4))
    rights, images = 0, Noise([0, 1, 2, 3] * 6, 3)
    with torch.no_grad():
        text = trial.method.text_features()
        for item in range(len(images)):
            view = eval_views(images.load(torch.tensor([item])), 20)
            image = trial.method.image_features(trial.method.image_trunk(view))
            rights += int(trial.method.logits(image, text).argmax()) == int(images.labels[item])
    return rights / len(images)


def test_the_best_on_validation_images_is_tested(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is the first argmax of accuracies that are computed alone, image by image; the results are
    those of a run with these settings, and no test image is loaded before.
    """
    data, validate, loads = dataset_with_validation(), Trial.validate, list[int]()

    def watched(trial: Trial, classes: Sequence[int]) -> float:
        loads.append(data.test.loads)  # type: ignore[attr-defined]
        return validate(trial, classes)

    monkeypatch.setattr(Trial, "validate", watched)
    tuned = run(small_clip, TUNED, data=data)
    assert loads == [0] * 6
    alone = {
        (tokens, lr): MethodSetup("coop", {"tokens": tokens}, train={"lr": lr})
        for tokens, lr in product(TOKENS, RATES)
    }
    accuracies = {values: validation_accuracy(small_clip, setup) for values, setup in alone.items()}
    assert len({*accuracies.values()}) > 1  # or nothing would be chosen
    tried = tuned["selection"]["tried"]
    found = {(each["settings"]["tokens"], each["train"]["lr"]): each["val"] for each in tried}
    assert found == pytest.approx(accuracies)
    best = max(accuracies, key=lambda values: accuracies[values])
    by_itself = run(small_clip, alone[best])
    assert tuned["results"] == by_itself["results"]
    settings = tuned["settings"]
    assert (settings["method"]["tokens"], settings["train"]["lr"]) == best
    assert tuned["selection"]["epoch"] == by_itself["selection"]["epoch"]
    keys = {tuned["key"], *(run(small_clip, setup)["key"] for setup in alone.values())}
    keys.add(run(small_clip, MethodSetup("coop", {"tokens": 2}, each={"train": {"lr": RATES}}))["key"])
    assert len(keys) == 1 + 6 + 1
    assert tuned["overrides"] == {"method": {}, "train": TRAINING}


def test_an_interrupted_choice_goes_on(small_clip: Clip, tmp_path: Path) -> None:
    """In the third training; the first two are not made again, and no checkpoint is left."""
    made, whole = list[int](), run(small_clip, TUNED)

    def stop(step: TrainingStep) -> None:
        made.append(step.done)
        if made.count(0) == 3 and step.ends_epoch:
            raise KeyboardInterrupt

    session, data = Session(), dataset_with_validation()
    options: dict[str, Any] = {"seed": 1, "shots": 2, "train": TRAINING, "select": "val"}
    resolved = resolve_run(session, small_clip, FewShot(), [data], TUNED, **options)
    with pytest.raises(KeyboardInterrupt):
        run_one(session, resolved, out=tmp_path, on_step=stop)
    assert len([*(tmp_path / UNFINISHED).iterdir()]) == 3
    steps = list[TrainingStep]()
    again = run_one(session, resolved, out=tmp_path, on_step=steps.append)
    assert numbers(again) == numbers(whole)
    first = [step.done for step in steps if not step.losses]
    assert first[:3] == [steps[0].of, steps[0].of, steps[0].of // 2]
    assert not [*(tmp_path / UNFINISHED).iterdir()]


def test_a_method_without_steps_is_chosen_too(small_clip: Clip) -> None:
    tuned = run(small_clip, MethodSetup("tip-adapter", each={"settings": {"alpha": (0.1, 30.0)}}))
    tried = tuned["selection"]["tried"]
    assert [each["epoch"] for each in tried] == [None, None]
    assert (
        tuned["settings"]["method"]["alpha"] == max(tried, key=lambda each: each["val"])["settings"]["alpha"]
    )


def test_without_validation_images_nothing_is_chosen(small_clip: Clip) -> None:
    with pytest.raises(DataError, match="noise has no validation images"):
        run(small_clip, TUNED, data=noise_dataset())


RECIPE = """
protocol: few-shot
out: runs/x
data: mixed-paints
methods:
  - {method: coop, train: {lr: 0.5, epochs: 3}}
  - {method: maple, settings: {tokens: 3}, each: {settings: {depth: [2, 3]}, train: {lr: [0.1, 0.2, 0.3]}}}
  - vpt
select: val
shots: 2
train: {lr: 0.1, steps_per_shot: 7}
"""


def test_an_entry_has_training_of_its_own(tmp_path: Path) -> None:
    """Its epochs replace the steps of all; what it does not set is as for all."""
    (recipe,) = load_recipes(written(tmp_path, RECIPE))
    coop, maple, vpt = recipe.methods
    trained = {setup.method: recipe.settings_of(setup)[0].training for setup in (coop, vpt)}
    found = {name: (of.lr, of.epochs, of.steps_per_shot) for name, of in trained.items()}
    assert found == {"coop": (0.5, 3, 0), "vpt": (0.1, trained["vpt"].epochs, 7)}
    depths = [(resolved.method.depth, resolved.training.lr) for resolved in recipe.settings_of(maple)]  # type: ignore[attr-defined]
    assert depths == [*product((2, 3), (0.1, 0.2, 0.3))]
    with pytest.raises(SettingsError, match="lr of coop is set by the recipe one"):
        change([recipe], train={"lr": 0.7})
    with pytest.raises(SettingsError, match="depth of maple is set by the recipe one"):
        change([recipe], settings={"maple": {"depth": 4}})
    (changed,) = change([recipe], train={"crop": 0.3})
    assert changed.settings_of(coop)[0].training.crop == 0.3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("lr: 0.5", "lr: much", "coop.* lr is 'much'"),
        ("lr: 0.5", "rate: 0.5", "'rate'"),
        ("coop, train", "zero-shot, train", "zero-shot is not trained"),
        ("select: val", "select: last", "each of maple.*select: val"),
        ("[2, 3]", "[]", "depth has no values"),
        ("[2, 3]", "4", "depth is 4"),
        ("[2, 3]", "[2, deep]", "depth is 'deep'"),
        ("[0.1, 0.2, 0.3]", "[0.1, -1]", "lr is -1"),
        ("settings: {depth", "settingz: {depth", "'settingz'.*'settings'"),
        ("{depth: [2", "{tokens: [2", "tokens of maple is set, and also to be chosen"),
        ("[0.1, 0.2, 0.3]", f"[{', '.join(['0.1'] * 501)}]", "1,002 combinations"),
    ],
)
def test_an_entry_that_is_wrong(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in RECIPE
    with pytest.raises(RecipeError, match=rf"one\.yaml.*{message}") as caught:
        load_recipes(written(tmp_path, RECIPE.replace(old, new)))
    assert "\n" not in str(caught.value)


def test_the_work_of_a_choice(tmp_path: Path) -> None:
    """By hand: an image of each of six base classes, one a batch; 3 rates with 3 epochs; 2 + 5 epochs."""
    rates = MethodSetup("coop", each={"train": {"lr": (0.1, 0.2, 0.3)}})
    lengths = MethodSetup("coop", label="lengths", each={"train": {"epochs": (2, 5)}})
    sweep = Experiment(
        protocol=BaseToNovel(),
        methods=(rates, lengths),
        data=("mixed-paints",),
        shots=(1,),
        train={"epochs": 3, "batch": 1},
        select="val",
        out=tmp_path / "out",
    )
    planned, missing = list_runs([sweep], Machines("cpu"))
    assert [run["steps"] for run in planned] == [3 * 3 * 6, (2 + 5) * 6]
    assert not missing


def chosen_run(seed: int, values: list[float]) -> dict[str, Any]:
    """Of three rates, with these accuracies on validation images."""
    tried = [{"train": {"lr": lr}, "val": val, "epoch": 1} for lr, val in zip(RATES, values, strict=True)]
    best = RATES[values.index(max(values))]
    return record(
        "tools", "coop", 0.5, 0.5, seed=seed, settings={"method": {}, "train": {"lr": best}},
        selection={"rule": "val", "epoch": 1, "tried": tried}, roles=None, fusion_weights=None,
    )  # fmt: skip


def test_tables_name_what_was_chosen() -> None:
    """Runs with different choices among the same values stand in one table; among others they do not."""
    runs = [chosen_run(1, [0.1, 0.3, 0.2]), chosen_run(2, [0.4, 0.5, 0.5]), chosen_run(3, [0.1, 0.2, 0.3])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tables = report_page(title="t", records=runs).tables
    note = "Chosen on validation images, in each run: coop: lr 0.5 in 2 of 3 runs; lr 2.0 in 1."
    assert note in tables[0].notes
    other = json.loads(json.dumps(chosen_run(4, [0.1, 0.2, 0.3])).replace("0.0001", "0.0002"))
    with pytest.raises(DataError, match="mix different training"):
        report_page(title="t", records=[*runs, other])
