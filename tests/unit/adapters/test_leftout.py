"""Scores of left-out images, against fits to the other images and what is expected of random labels."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import cross_entropy

from dear.adapters.calibration import Calibration, best_temperature
from dear.adapters.facts import CROSS_VALIDATION
from dear.adapters.fit import fit
from dear.adapters.leftout import FOLDS, LeftOut, draw_folds, draw_names
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset, Unlabeled, draw_few
from dear.data.images.photos import HeldImages, picture_names
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup
from dear.evaluation.session import Session
from dear.training.batches import training_images
from tests.helpers.data import Noise, noise_dataset
from tests.helpers.methods import role_table
from tests.helpers.runs import resolve_run

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("linear-probe", {"c": 0.001}), ("tip-adapter", {"alpha": 7.0, "views": 2}), ("zero-shot", {}),
]  # fmt: skip


def pictures(count: int, seed: int) -> list[np.ndarray]:
    """Noise, brighter from one to the next of four."""
    draw = np.random.default_rng(seed)
    return [draw.integers(0, 90 + 40 * (item % 4), (23, 29, 3)).astype(np.uint8) for item in range(count)]


@pytest.mark.parametrize(("method", "settings"), SETTINGS)
@pytest.mark.usefixtures("only_clip")
def test_what_a_bundle_says_of_left_out_images_is_of_its_own_settings(
    method: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temperature, accuracy and log-loss by fits to the other images, predictions, and a search by scipy."""
    labels = [f"class {item % 4}" if item % 7 else "class 1" for item in range(44)]
    data = load_dataset((pictures(44, 1), labels), DataSettings(test_share=0))
    options: dict[str, Any] = {"method": method, "settings": settings, "review": False, "refuse": 0}
    bundle = fit(data, **options)
    # The fits below are not calibrated.
    monkeypatch.setattr("dear.adapters.fit.calibrate_fit", lambda *_: (Calibration(), None))
    picked = draw_few(replace(data, allow_fewer=True), 44, 1)[1]
    fold_of = draw_folds(picked.labels, picture_names(picked), FOLDS, "1 0")
    logits = torch.zeros(44, 4, dtype=torch.float64)
    for fold in range(FOLDS):
        others = Subset(picked, (fold_of != fold).nonzero().flatten())
        refitted = Predictor(fit(replace(data, train=others), **options))
        left_out = (fold_of == fold).nonzero().flatten()
        logits[left_out] = refitted.logits([*picked.load(left_out)]).double()

    def loss(log_temperature: float) -> float:
        return float(cross_entropy(logits / np.exp(log_temperature), picked.labels))

    found = minimize_scalar(loss, bounds=(np.log(0.01), np.log(100)), method="bounded")
    assert bundle.temperature == pytest.approx(float(np.exp(found.x)), rel=0.01)
    right = int((logits.argmax(dim=1) == picked.labels).sum())
    assert bundle.scores is not None
    assert (bundle.scores.split, bundle.scores.images) == (CROSS_VALIDATION, 44)
    assert round(44 * bundle.scores.accuracy) == right
    of_folds = 0.0
    for fold in range(FOLDS):
        others, scored = fold_of != fold, fold_of == fold
        temperature = best_temperature(logits[others], picked.labels[others])
        of_folds += float(cross_entropy(logits[scored] / temperature, picked.labels[scored], reduction="sum"))
    assert bundle.scores.log_loss == pytest.approx(of_folds / 44, rel=1e-3)
    assert f"{right} of 44 right" in bundle.verdict


def test_where_all_are_right_one_more_is_taken_to_be_of_its_second_class() -> None:
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(17, 5, generator=draw).double()
    best = logits.topk(2, dim=1).indices
    both = torch.cat([logits] * 2), best.T.flatten()
    weights = torch.tensor([1.0] * 17 + [1 / 17] * 17).double()

    def loss(log_temperature: float) -> float:
        each = cross_entropy(both[0] / np.exp(log_temperature), both[1], reduction="none")
        return float((weights * each).sum())

    found = minimize_scalar(loss, bounds=(np.log(0.01), np.log(100)), method="bounded")
    assert best_temperature(logits, best[:, 0]) == pytest.approx(float(np.exp(found.x)), rel=1e-3)


def test_frames_of_a_clip_count_once_for_a_temperature() -> None:
    """However many copies of each image there are, it is that of one more image of its second best class; a
    wrong image changes nothing about that.
    """
    draw = torch.Generator().manual_seed(4)
    logits = torch.randn(12, 5, generator=draw).double()
    labels = logits.argmax(dim=1)
    frames = torch.cat([logits] * 7), torch.cat([labels] * 7)
    once = best_temperature(logits, labels)
    assert best_temperature(*frames, per_group=7) == pytest.approx(once, rel=1e-9)
    assert best_temperature(*frames) < 0.8 * once
    wrong = labels.clone()
    wrong[0] = (labels[0] + 1) % 5
    seconds = logits.topk(2, dim=1).values[:, 1].mean()
    of_labels = (logits.gather(1, wrong[:, None]).sum() + seconds) / 13

    def loss(log_temperature: float) -> float:
        scores = logits / np.exp(log_temperature)
        return float(scores.logsumexp(dim=1).mean() - of_labels / np.exp(log_temperature))

    found = minimize_scalar(loss, bounds=(np.log(0.01), np.log(100)), method="bounded")
    repeated = torch.cat([wrong] * 7)
    assert best_temperature(frames[0], repeated, per_group=7) == pytest.approx(
        float(np.exp(found.x)), rel=1e-3
    )


@pytest.mark.usefixtures("only_clip")
def test_what_is_trained_in_steps_says_that_it_is_not_calibrated() -> None:
    data = replace(noise_dataset(), train=Noise([0, 1, 2, 3] * 6, 1))
    options: dict[str, Any] = {"method": "tip-adapter", "settings": {"tuned": True, "views": 1}}
    bundle = fit(data, refuse=0, verbose=False, **options)
    assert (bundle.temperature, bundle.training.calibration_images) == (1, 0)
    assert "not calibrated: tip-adapter is trained in steps" in bundle.verdict
    assert "24 training labels look wrong to dear+" in bundle.verdict.replace("looks", "look")


def random_labels(shares: list[float], count: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.multinomial(torch.tensor(shares), count, replacement=True, generator=draw)


EVEN, UNEVEN, SINGLE = [0.25] * 4, [0.55, 0.25, 0.1, 0.1], [0.6, 0.3, *[0.0125] * 8]
CASES: dict[str, dict[str, Any]] = {
    "even": {"shares": EVEN},
    "uneven": {"shares": UNEVEN},
    "balance": {"shares": UNEVEN, "balance": True},
    "classes of one image": {"shares": SINGLE},
    "names alone": {"shares": EVEN, "named": 3},
}
TRAINED = ("ensemble", "dear+", "linear-probe", "gda")
PAIRS = [*product(CASES, TRAINED), ("even", "zero-shot"), ("images without labels", "dear+")]


@pytest.mark.parametrize(("case", "method"), PAIRS)
def test_random_labels_are_right_by_chance(
    case: str, method: str, small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As often as an image of none of the others' labels would be: within the binomial's 99% interval."""
    monkeypatch.setattr("dear.adapters.leftout.ENOUGH", 1)  # each image is left out once
    options = CASES.get(case, {"shares": EVEN})
    shares = options["shares"]
    labels = random_labels(shares, 53, 1)
    data = random_dataset(labels, len(shares) + options.get("named", 0), 1)
    data = replace(data, balance=options.get("balance", False))
    session, setup, shots = Session(), MethodSetup(method), int(labels.bincount().max())
    conditions = {"seed": 1, "shots": shots, "roles": role_table(small_clip)}
    run = resolve_run(session, small_clip, FewShot(), [data], setup, **conditions)
    others = Unlabeled(random_images([0] * 19, 99)) if case == "images without labels" else None
    left_out = LeftOut(session, run, others)
    found = left_out.scores(left_out.build(setup))
    predicted = found.scores[0].argmax(dim=1)
    hits = int((predicted == found.labels).sum())
    chance = torch.tensor([*shares, *[0.0] * len(data.classnames)])[predicted]
    deviation = float((chance * (1 - chance)).sum()) ** 0.5
    assert abs(hits - float(chance.sum())) <= 2.576 * deviation + 0.5


def test_groups_reach_the_method(small_clip: Clip) -> None:
    """Those of the images that are drawn: two of three of a class belong together."""
    data = noise_dataset()
    data.train.groups = ["x" if item in (0, 4) else "" for item in range(12)]  # type: ignore[attr-defined]
    session, setup, options = Session(), MethodSetup("dear+"), {"roles": role_table(small_clip)}
    run = resolve_run(session, small_clip, FewShot(), [data], setup, seed=1, shots=3, **options)
    left_out = LeftOut(session, run)
    trial = left_out.build(setup)
    read = training_images(trial.method, left_out.images, run.training, 1, session.cache)
    assert read.groups is not None
    together = [read.labels[read.groups == number].tolist() for number in read.groups.unique()]
    assert sorted(together) == [[0], [0, 0], *[[label] for label in (1, 2, 3) for _ in range(3)]]
    trial.method.set_classes(data.classnames, data.templates)
    examples = trial.method._examples(read)  # type: ignore[operator]
    assert examples.images.tolist() == [2, 3, 3, 3]


def test_of_very_many_some_are_left_out_and_the_others_stay_in_each_fit(
    small_clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by a fit to all but its part, written out; whole groups, whatever the order of the images."""
    monkeypatch.setattr("dear.adapters.leftout.MOST_SCORES", 4 * 17)
    monkeypatch.setattr("dear.adapters.leftout.ENOUGH", 1)
    labels, setup, options = torch.arange(4).repeat(11), MethodSetup("linear-probe"), {"seed": 1, "shots": 11}
    data = random_dataset(labels, 4, 3)
    data.train.groups = [f"pair {item % 22}" for item in range(44)]  # type: ignore[attr-defined]
    session = Session()
    run = resolve_run(session, small_clip, FewShot(), [data], setup, **options)
    with pytest.warns(UserWarning, match="of 1[78] of 44 images"):
        left_out = LeftOut(session, run)
    found = left_out.scores(left_out.build(setup))
    assert len(found.judged) == int(left_out.tested.sum()) in (17, 18)
    assert (found.groups.bincount()[found.groups.unique()] == 2).sum() >= 8
    images, seen = left_out.images, 0
    for fold in found.folds[0].unique():
        out = found.judged[found.folds[0] == fold]
        rest = ~torch.isin(left_out.groups, left_out.groups[out])
        assert len(out) < 17 < int(rest.sum())
        trial = left_out.build(setup)
        trial.method.set_classes(data.classnames, data.templates)
        few = Subset(images, rest.nonzero().flatten())
        trial.method.before_training(training_images(trial.method, few, run.training, 1, session.cache))  # type: ignore[operator]
        shown = training_images(trial.method, Subset(images, out), run.training, 1, session.cache).view(None)
        expected = trial.method.logits(trial.method.image_features(shown), trial.method.text_features())
        torch.testing.assert_close(
            found.scores[0][found.folds[0] == fold], expected.double(), rtol=0, atol=1e-3
        )
        seen += len(out)
    assert seen == len(found.judged)
    unfitted = left_out.scores(left_out.build(MethodSetup("zero-shot")))
    assert unfitted.judged.tolist() == found.judged.tolist()
    order = torch.randperm(44, generator=torch.Generator().manual_seed(1)).tolist()
    names = [f"n{item % 22}" for item in range(44)]
    drawn, again = draw_names(names, 17, "1"), draw_names([names[item] for item in order], 17, "1")
    assert again.tolist() == drawn[order].tolist()


def random_images(labels: list[int], seed: int) -> Images:
    shown = pictures(len(labels), seed)
    rows = [(str(row), label) for row, label in enumerate(labels)]
    return HeldImages(rows, lambda name: shown[int(name)])


def random_dataset(labels: Tensor, classes: int, seed: int) -> Dataset:
    train, names = random_images(labels.tolist(), seed), tuple(f"class {number}" for number in range(classes))
    return replace(noise_dataset(), train=train, classnames=names, allow_fewer=True)
