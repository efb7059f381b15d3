"""Accuracies against a plain loop over the images."""

import math
from dataclasses import asdict
from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.data.fewshot import base_novel
from dear.evaluation.metrics import (
    BINS,
    METRICS,
    calibration_error,
    evaluate,
    expected_error,
    log_loss,
    reliability,
    separation,
    top5,
)
from dear.evaluation.predictions import Predictions, load_trunks, predict
from dear.evaluation.protocols.base_to_novel import BaseToNovel, harmonic_mean
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.session import Session
from dear.evaluation.trial import Trial
from dear.methods.base import Method
from dear.methods.dear.method import Dear
from dear.methods.registry import build_method
from dear.report.protocols.base_to_novel import Results, joint_grid
from dear.training.cache import Cache
from dear.training.settings import TrainSettings
from tests.helpers.clips import eval_views
from tests.helpers.data import CLASSES, Noise, noise_dataset
from tests.helpers.methods import role_table, small_dear
from tests.helpers.records import record
from tests.helpers.runs import resolve_run


def test_harmonic_mean() -> None:
    assert harmonic_mean(0.8, 0.6) == pytest.approx(0.96 / 1.4)
    assert harmonic_mean(0.37, 0.37) == pytest.approx(0.37)
    assert harmonic_mean(0.0, 0.6) == harmonic_mean(0.6, 0.0) == harmonic_mean(0.0, 0.0) == 0.0


@torch.no_grad()
def test_against_a_plain_loop(small_clip: Clip) -> None:
    method = small_dear(small_clip, alpha_cls=0.2, token_std=1.0)
    images = Noise(torch.randint(0, 3, (31,), generator=torch.Generator().manual_seed(1)).tolist(), seed=7)
    text = method.text_features()
    hits: dict[str, list[float]] = {name: [] for name in CLASSES}
    decoupled = []
    for item in range(31):
        view = eval_views(images.load(torch.tensor([item])), 20)
        features = method.image_features(method.read_out(method.image_trunk(view)))
        label = int(images.labels[item])
        guesses = [int(method.logits(features, text, decoupled=d)[0].argmax()) for d in (False, True)]
        hits[CLASSES[label]].append(float(guesses[0] == label))
        decoupled.append(float(guesses[1] == label))
    every = [hit for of_class in hits.values() for hit in of_class]
    for batch in (250, 11, 1):
        scores = evaluate(method, images, batch=batch)
        assert scores.accuracy == pytest.approx(sum(every) / 31)
        assert scores.decoupled == pytest.approx(sum(decoupled) / 31)
        assert scores.per_class == pytest.approx({name: sum(one) / len(one) for name, one in hits.items()})
    assert 0 < scores.accuracy < 1


def test_fused_and_decoupled_and_classes_without_images(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A method that says class 0 when fused and class 2 when decoupled, on images of classes 0, 2, 2, 2,
    0.
    """

    def logits(
        _self: Dear, image: torch.Tensor, _text: torch.Tensor, *, decoupled: bool = False
    ) -> torch.Tensor:
        return torch.tensor([[0.0, 0.0, 1.0] if decoupled else [1.0, 1.0, 0.0]]).expand(image.shape[1], -1)

    monkeypatch.setattr(Dear, "logits", logits)
    scores = evaluate(small_dear(small_clip), Noise([0, 2, 2, 2, 0]))
    assert (scores.accuracy, scores.decoupled) == (0.4, 0.6)
    assert scores.per_class == {CLASSES[0]: 1.0, CLASSES[2]: 0.0}


def zero_shot(clip: Clip) -> Method:
    method = build_method("zero-shot", clip, torch.Generator())
    method.set_classes(CLASSES, ["a photo of a {}"])
    return method


def test_the_cache_saves_the_trunk_and_changes_nothing(small_clip: Clip) -> None:
    """Zero-shot CLIP, and DeAR from layer 5, go on from the trunk of DeAR from layer 4 (of 5); not so MMRL,
    from layer 3.
    """
    cache, images = Cache(10**7), Noise([0, 1, 2, 1, 0])
    plain = evaluate(small_dear(small_clip), Noise([0, 1, 2, 1, 0]), batch=3)
    for _ in range(2):
        assert evaluate(small_dear(small_clip), images, batch=3, cache=cache) == plain
    for method in (zero_shot(small_clip), small_dear(small_clip, first=12)):
        continued = [*load_trunks(method, images, 3, cache, "auto")]
        assert images.loads == 2
        whole = load_trunks(method, Noise([0, 1, 2, 1, 0]), 3, Cache(0), "auto")
        assert all(torch.equal(*pair) for pair in zip(continued, whole, strict=True))
        assert continued[0].shape[1] == (26 if isinstance(method, Dear) else 1)
    earlier = build_method("mmrl", small_clip, torch.Generator())
    earlier.set_classes(CLASSES, ["a photo of a {}"])
    assert earlier.image_from == 3
    evaluate(earlier, images, batch=3, cache=cache)
    assert images.loads == 4


def test_reliability_by_hand() -> None:
    # 15 bins: the first holds one image, (0.4, 0.4667] two, one of them right, (0.9333, 1] two, both right.
    confidence = torch.tensor([0.0, 0.41, 0.45, 0.95, 1.0], dtype=torch.float64)
    bins = reliability(confidence, torch.tensor([False, True, False, True, True]))
    filled = {number: bin for number, bin in enumerate(bins) if bin.images}
    assert len(bins) == BINS == 15
    assert {number: bin.images for number, bin in filled.items()} == {0: 1, 6: 2, 14: 2}
    assert (filled[6].accuracy, filled[14].accuracy) == (0.5, 1.0)
    assert (filled[6].confidence, filled[14].confidence) == pytest.approx((0.43, 0.975))
    assert (filled[6].low, filled[6].high) == pytest.approx((0.4, 7 / 15))
    assert expected_error(bins) == pytest.approx((2 * 0.07 + 2 * 0.025) / 5)


def predictions(logits: torch.Tensor, labels: list[int], temperature: float = 1.0) -> Predictions:
    classes = tuple(map(str, range(logits.shape[1])))
    return Predictions(classes, torch.tensor(labels), logits, logits, logits, temperature=temperature)


def test_log_loss_by_hand() -> None:
    logits = torch.tensor([[0.0, 2.0], [4.0, 0.0]])
    # Softmax at T = 2: 1 / (1 + e^-1) and 1 / (1 + e^2).
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(2))) / 2
    assert log_loss(predictions(logits, [1, 1], 2.0)) == pytest.approx(expected)


def test_calibration_error_by_hand() -> None:
    """Confidences 0.6 (right), 0.6 (wrong) and 0.9 (right): gaps of 0.1 over two, and of 0.1 over one."""
    probabilities = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]]).double()
    assert calibration_error(predictions(probabilities.log(), [0, 1, 1])) == pytest.approx(
        (2 * 0.1 + 0.1) / 3
    )


def test_top_5_by_hand() -> None:
    logits = torch.arange(7.0).expand(7, -1)  # the classes 2 to 6 have the highest logits of every image
    assert top5(predictions(logits, [*range(7)])) == pytest.approx(5 / 7)
    assert top5(predictions(logits[:, :3], [0] * 7)) == 1


def test_a_frozen_backbone_goes_on_from_the_trunk(small_clip: Clip) -> None:
    """Its logits are those of zero-shot CLIP alone, and no image is loaded for them."""
    images, method = Noise([0, 1, 2, 1, 0]), small_dear(small_clip)
    frozen = zero_shot(small_clip)
    found = predict(method, images, frozen=frozen, batch=3, keep_features=True)
    assert images.loads == 2
    assert torch.allclose(found.zero_shot, predict(frozen, Noise([0, 1, 2, 1, 0])).logits, atol=1e-5)
    assert found.features.shape[:2] == (5, len(method.features))
    assert METRICS["zero_shot"](found) == evaluate(frozen, images).accuracy


TEMPLATES = ["a photo of a {}"]
SETUPS = [
    MethodSetup("mmrl", {"space": 19, "alpha": 0.1, "token_std": 1.0}),
    MethodSetup("cocoop"),
    MethodSetup("gda"),
    MethodSetup("zero-shot"),
]


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.method)
def test_all_classes_at_once_against_a_plain_loop(setup: MethodSetup, small_clip: Clip) -> None:
    """Each test image among all four classes, encoded alone; MMRL's new classes by the class feature."""
    dataset = noise_dataset()
    session = Session()
    options = {"roles": role_table(small_clip), "train": asdict(TrainSettings(epochs=2, batch=3, lr=1e-2))}
    run = resolve_run(session, small_clip, BaseToNovel(), [dataset], setup, seed=1, shots=2, **options)
    trial = Trial(session, run)
    trial.train(base_novel(4)[0])
    results = run.protocol.test(trial)
    images: Any = dataset.test
    assert images.loads == 2  # once for each half: the frozen backbone goes on from the trunk
    method, (base, novel) = trial.method, base_novel(4)
    names = [dataset.classnames[label] for label in (*base, *novel)]
    frozen = build_method("zero-shot", small_clip, torch.Generator())
    for model in (method, frozen):
        model.set_classes(names, TEMPLATES)
    hits: dict[str, dict[str, list[bool]]] = {half: {} for half in ("base", "novel")}
    confidences: dict[str, list[float]] = {half: [] for half in hits}
    for item in range(len(dataset.test)):
        view = eval_views(dataset.test.load(torch.tensor([item])), 20)
        with torch.no_grad():
            text = method.text_features()
            features = method.image_features(method.read_out(method.image_trunk(view)))
            fused = method.logits(features, text)[0]
            alone = method.logits(features, text, decoupled=True)[0]
            plain = frozen(view)[0]
        score = {
            name: alone if setup.method == "mmrl" and at >= 2 else fused for at, name in enumerate(names)
        }
        by_rule = torch.stack([score[name][at] for at, name in enumerate(names)])
        known = float(by_rule[:2].double().softmax(dim=0).max())
        switched = torch.cat([fused[:2], plain[2:]])
        label = names.index(dataset.classnames[int(dataset.test.labels[item])])
        half = hits["base" if label < 2 else "novel"]
        confidences["base" if label < 2 else "novel"].append(known)
        for rule, row in (("accuracy", by_rule), ("decoupled", alone), ("zero_shot_for_new", switched)):
            half.setdefault(rule, []).append(int(row.argmax()) == label)
    for name, half in hits.items():
        for rule, rights in half.items():
            assert results["joint"][name][rule] == pytest.approx(sum(rights) / len(rights)), (name, rule)
    pairs = [of_base > of_novel for of_base in confidences["base"] for of_novel in confidences["novel"]]
    assert results["joint"]["novel"]["auroc"] == pytest.approx(sum(pairs) / len(pairs), abs=1 / len(pairs))
    joint = [results["joint"][name]["accuracy"] for name in ("base", "novel")]
    assert results["joint"]["hm"] == harmonic_mean(*joint)
    assert {*results["joint"]["novel"]["per_class"]} == {*names[2:]}


def test_how_well_a_score_tells_known_from_new() -> None:
    """By hand: of six pairs 3 are right and two are ties."""
    known, new = torch.tensor([0.9, 0.5, 0.2]), torch.tensor([0.5, 0.2])
    assert separation(known, new) == pytest.approx((3 + 2 / 2) / 6)
    assert separation(known, torch.tensor([0.1])) == 1
    assert separation(torch.tensor([0.1]), known) == 0


def test_zero_shot_for_new_by_hand() -> None:
    """Class 2 is new: image 0 goes to it by the frozen score 5, image 1 stays with class 1 at 6."""
    logits = torch.tensor([[4.0, 0.0, 9.0], [0.0, 6.0, 9.0]])
    frozen = torch.tensor([[9.0, 0.0, 5.0], [9.0, 0.0, 5.0]])
    predictions = Predictions(("a", "b", "c"), torch.tensor([2, 1]), logits, logits, logits, frozen, new=(2,))
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
