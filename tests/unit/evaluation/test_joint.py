"""Scores among all classes at once: against a plain loop over the images, by hand, and in the report."""

from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.fewshot import base_novel
from dear.evaluation.metrics import METRICS
from dear.evaluation.predictions import Predictions
from dear.evaluation.protocols.base_to_novel import BaseToNovel, harmonic_mean
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.run_context import RunContext
from dear.evaluation.trial import Trial
from dear.methods.registry import METHODS, build_method
from dear.report.protocols.base_to_novel import Results, joint_grid
from dear.training.settings import TrainSettings
from tests.unit.report.samples import record
from tests.unit.training.world import noise_dataset, role_table
from tests.views import eval_views

TEMPLATES = ["a photo of a {}"]
SETUPS = [
    MethodSetup("mmrl", settings=METHODS["mmrl"].settings(space=19, alpha=0.1, token_std=1.0)),
    MethodSetup("cocoop"),
    MethodSetup("gda"),
    MethodSetup("zero-shot"),
]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.method)
def test_against_a_plain_loop(setup: MethodSetup, small_clip: Clip) -> None:
    """Each test image among all four classes, encoded alone; MMRL's new classes by the class feature."""
    dataset = noise_dataset()
    context = RunContext(small_clip, role_table(small_clip), TrainSettings(epochs=2, batch=3, lr=1e-2))
    trial = Trial(context, context.resolve(BaseToNovel(), [dataset], setup, seed=1, shots=2))
    results = trial.run.protocol.run(trial)
    images: Any = dataset.test
    assert images.loads == 2  # once for each half: the frozen backbone goes on from the trunk
    method, (base, novel) = trial.method, base_novel(4)
    names = [dataset.classnames[label] for label in (*base, *novel)]
    frozen = build_method("zero-shot", small_clip, torch.Generator())
    for model in (method, frozen):
        model.set_classes(names, TEMPLATES)
    hits: dict[str, dict[str, list[bool]]] = {half: {} for half in ("base", "novel")}
    for item in range(len(dataset.test)):
        view = eval_views(dataset.test.load(torch.tensor([item])), 20)
        with torch.no_grad():
            text = method.text_features()
            features = method.image_features(method.image_trunk(view))
            fused = method.logits(features, text)[0]
            alone = method.logits(features, text, decoupled=True)[0]
            plain = frozen.logits(frozen.image_features(frozen.image_trunk(view)), frozen.text_features())[0]
        score = {
            name: alone if setup.method == "mmrl" and at >= 2 else fused for at, name in enumerate(names)
        }
        by_rule = torch.stack([score[name][at] for at, name in enumerate(names)])
        switched = torch.cat([fused[:2], plain[2:]])
        label = names.index(dataset.classnames[int(dataset.test.labels[item])])
        half = hits["base" if label < 2 else "novel"]
        for rule, row in (("accuracy", by_rule), ("decoupled", alone), ("zero_shot_for_new", switched)):
            half.setdefault(rule, []).append(int(row.argmax()) == label)
    for name, half in hits.items():
        for rule, rights in half.items():
            assert results["joint"][name][rule] == pytest.approx(sum(rights) / len(rights)), (name, rule)
    joint = [results["joint"][name]["accuracy"] for name in ("base", "novel")]
    assert results["joint"]["hm"] == harmonic_mean(*joint)
    assert {*results["joint"]["novel"]["per_class"]} == {*names[2:]}


def test_zero_shot_for_new_by_hand() -> None:
    """Class 2 is new: image 0 goes to it by the frozen score 5, image 1 stays with class 1 at 6."""
    logits = torch.tensor([[4.0, 0.0, 9.0], [0.0, 6.0, 9.0]])
    frozen = torch.tensor([[9.0, 0.0, 5.0], [9.0, 0.0, 5.0]])
    predictions = Predictions(("a", "b", "c"), torch.tensor([2, 1]), logits, logits, frozen, new=(2,))
    assert METRICS["zero_shot_for_new"](predictions) == 1.0
    assert METRICS["accuracy"](predictions) == 0.5
    assert predictions.logits[0, 2] == 9.0  # not changed


def test_the_report_averages_over_data_sets() -> None:
    def joint(base: float, novel: float) -> dict[str, Any]:
        numbers = {"decoupled": 0.5, "zero_shot_for_new": 0.25, "per_class": {}}
        halves = {"base": {"accuracy": base} | numbers, "novel": {"accuracy": novel} | numbers}
        return halves | {"hm": 0.1}

    runs = [record("tools", "dear", 0.8, 0.6), record("toys", "dear", 0.4, 0.9)]
    assert joint_grid(Results(runs)).rows == ()
    for run, numbers in zip(runs, ((0.6, 0.3), (0.4, 0.5)), strict=True):
        run["results"]["joint"] = joint(*numbers)
    without = [record("tools", "coop", 0.8, 0.6), record("toys", "coop", 0.4, 0.9)]
    grid = joint_grid(Results([*runs, *without]))
    (row,) = grid.rows
    assert row.label == "dear"
    # Base 50, novel 40, their HM 4000 / 90; the HMs of equal halves are these.
    values = [cell.mean for cell in row.cells if cell]
    assert values == pytest.approx([50, 40, 4000 / 90, 50, 25])
