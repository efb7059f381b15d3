"""The choice of a method: folds, the rule, and left-out accuracy against a library and plain loops."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from dear.adapters import choose
from dear.adapters.bundle import Bundle
from dear.adapters.choose import (
    Choice,
    assess,
    choose_method,
    cross_fit_choice,
    describe_change,
    limit_candidates,
    list_candidates,
    name_candidate,
    pick_best,
)
from dear.adapters.facts import TriedMethod
from dear.adapters.fit import fit
from dear.adapters.leftout import FOLDS, LeftOut, LeftOutScores, draw_folds
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.backbone.loading.load import load_clip
from dear.data.dataset import Dataset
from dear.data.fewshot import Subset, items_by_class
from dear.data.images.transforms import load_test_views, to_unit
from dear.data.loading import load_dataset
from dear.errors import SettingsError
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.evaluation.session import Session
from dear.methods import registry
from dear.methods.declaration import Declaration
from dear.roles.table import role_table
from tests.helpers.runs import resolve_run

SHOTS = 4


@pytest.fixture(scope="module")
def task() -> Dataset:
    """With a few test images: none is needed to choose."""
    data = load_dataset("mixed-paints")
    return replace(data, test=Subset(data.test, torch.arange(60)))


@pytest.fixture
def clip() -> Clip:
    return load_clip("tiny")


def arguments(clip: Clip, task: Dataset, shots: int = SHOTS) -> tuple[Session, ResolvedRun]:
    """A session, and a run of it whose method is to be chosen."""
    session, setup, roles = Session(), MethodSetup("dear+"), role_table(clip)
    return session, resolve_run(session, clip, FewShot(), [task], setup, seed=1, shots=shots, roles=roles)


def shares(**right: list[int]) -> dict[str, Tensor]:
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in right.items()}


def test_the_best_wins_and_the_first_of_equals() -> None:
    """And the first one stays within a standard error: 0.25 of four images, but one of sixteen in four."""
    groups = range(4)
    assert pick_best(shares(first=[1, 1, 0, 0], second=[1, 1, 1, 1]), groups) == ("second", "the best")
    even = shares(first=[1, 1, 0, 1], second=[1, 0, 1, 1])
    assert pick_best(even, groups) == ("first", "as good as any other")
    name, why = pick_best(shares(first=[1, 1, 0, 0], second=[1, 1, 1, 0]), groups)
    assert name == "first"
    assert "one standard error of the best, second" in why
    assert pick_best(shares(first=[1, 0, 0, 0] * 4, second=[1, 1, 0, 0] * 4), range(16))[0] == "second"


def test_a_change_of_method_says_what_it_costs() -> None:
    tried = (TriedMethod("linear-probe", 0.94, 0.9, 1.0), TriedMethod("dear+", 0.912, 0.88, 0.94))
    told = describe_change("dear+", "linear-probe", Choice(MethodSetup("linear-probe"), "the best", tried))
    assert all(words in told for words in ("94.0%", "91.2%", "by name", "--method dear+ keeps it"))
    told = describe_change("linear-probe", "dear+", Choice(MethodSetup("dear+"), "the best", tried))
    assert "by name" not in told
    assert "--method" not in describe_change("coop", "dear+", None)  # the user has just named one
    told = describe_change(
        "tip-adapter", "dear+", Choice(MethodSetup("dear+"), "the best", tried), {"tuned": True}
    )
    assert told.endswith("--method tip-adapter --tip-adapter.tuned True keeps it")


def test_the_present_method_stays_unless_another_is_clearly_better() -> None:
    """By one standard error of the mean difference: 0.25 of four images, and 0.5 of two clips."""
    near = shares(first=[1, 1, 1, 1], second=[1, 1, 1, 0])
    assert [pick_best(near, range(4), present)[0] for present in (None, "second")] == ["first", "second"]
    far = shares(first=[1] * 20, second=[0] * 10 + [1] * 10)
    assert pick_best(far, range(20), "second")[0] == "first"
    assert pick_best(far, [0] * 10 + [1] * 10, "second")[0] == "second"  # behind in one clip of two
    assert pick_best(far, range(20), "first") == ("first", "the best")


def test_the_accuracy_of_a_choice_is_of_parts_that_took_no_part_in_it() -> None:
    """Two methods, each right in one of two folds: the one that is better in a fold is wrong in the other."""
    labels, folds = torch.zeros(8, dtype=torch.int64), torch.tensor([[0] * 4 + [1] * 4])
    right, wrong = torch.tensor([1.0, 0.0]).double(), torch.tensor([0.0, 1.0]).double()

    def scores(is_right: list[bool]) -> LeftOutScores:
        of_images = torch.stack([right if each else wrong for each in is_right])[None]
        return LeftOutScores("zero-shot", torch.arange(8), of_images, labels, folds, torch.arange(8))

    first, second = scores([True] * 4 + [False] * 4), scores([False] * 4 + [True] * 4)
    assert cross_fit_choice({"first": first, "second": second}, "first").right.tolist() == [0] * 8
    always = scores([True] * 8)
    assert cross_fit_choice({"always": always, "first": first}, "always").right.tolist() == [1] * 8


def test_scores_of_several_ways_of_parting_images_are_averaged() -> None:
    """Of two images in two ways: the first is right once, the second always."""
    ways = torch.tensor([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 3.0]]]).double()
    labels, folds = torch.tensor([0, 1]), torch.tensor([[0, 1], [1, 0]])
    scores = LeftOutScores("gda", torch.arange(2), ways, labels, folds, torch.arange(2))
    assert scores.mean.tolist() == [[1, 0.5], [0, 2]]
    assert scores.right.tolist() == [0.5, 1]
    assert torch.equal(cross_fit_choice({"gda": scores}, "gda").scores, ways)


def test_neither_names_of_files_nor_the_order_of_classes_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fit` draws the same images, chooses the same method, judges alike and predicts the same."""
    monkeypatch.setattr(choose, "CANDIDATES", registry.CANDIDATES[:2])  # without random views
    monkeypatch.setattr("dear.adapters.leftout.ENOUGH", 1)  # each image is left out once
    task, results = load_dataset("street-signs"), []
    rows = [(label, item) for label in range(5) for item in items_by_class(task.train.labels)[label][:4]]
    probes = [picture.permute(1, 2, 0).numpy() for picture in task.test.load(torch.arange(30))]
    for turned in (False, True):
        folder, samples = tmp_path / str(turned), []
        folder.mkdir()
        names = [*task.classnames[:5]][:: -1 if turned else 1]
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).tolist()
        for place in order if turned else range(len(rows)):
            label, item = rows[place]
            [picture] = task.train.load(item[None])
            path = folder / f"{len(samples)}.png"
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
            samples.append((str(path), names.index(task.classnames[label])))
        data = SimpleNamespace(samples=samples, classes=names, root=str(folder))
        bundle = fit(data, shots=3, model="tiny", review=False, refuse=0)
        columns = [bundle.classes.index(name) for name in task.classnames[:5]]
        results.append((bundle, Predictor(bundle).predict_proba(probes)[:, columns]))
    (first, expected), (second, found) = results
    assert first.image_hashes == second.image_hashes  # of the split that was drawn
    assert first.method == second.method
    tried = [{part.method: part.accuracy for part in bundle.training.candidates} for bundle, _ in results]
    assert len(tried[0]) > 1
    assert tried[0] == pytest.approx(tried[1], abs=1e-9)
    assert second.temperature == pytest.approx(first.temperature, rel=1e-4)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_folds_spread_each_class_and_spare_an_only_image() -> None:
    """By the names of images, in whatever order these and the classes are."""
    labels, names = torch.tensor([0] * 10 + [1] * 3 + [2]), [f"image {item}" for item in range(14)]
    folds = draw_folds(labels, names, 5, "1")
    assert folds[:10].bincount(minlength=5).tolist() == [2] * 5
    assert len({*folds[10:13].tolist()}) == 3
    assert folds[13] == -1
    assert not torch.equal(folds, draw_folds(labels, names, 5, "2"))
    order = torch.randperm(14, generator=torch.Generator().manual_seed(1))
    renumbered = torch.tensor([2, 0, 1])[labels[order]]
    assert torch.equal(folds[order], draw_folds(renumbered, [names[item] for item in order], 5, "1"))


def test_items_of_a_group_are_in_one_fold() -> None:
    labels = torch.tensor([0] * 12 + [1] * 6)
    names = [f"clip {item // 3}" for item in range(18)]
    folds = draw_folds(labels, names, 3, "1")
    assert (folds.reshape(6, 3) == folds[::3, None]).all()
    assert folds[:12].unique().tolist() == [0, 1, 2]
    assert draw_folds(labels[:3], names[:3], 3, "1").tolist() == [-1] * 3


def test_a_probe_is_as_accurate_as_scikit_learns_on_the_same_folds(task: Dataset, clip: Clip) -> None:
    judge = LeftOut(*arguments(clip, task))
    labels = judge.labels
    pixels = load_test_views(judge.images, torch.arange(len(labels)), clip.preprocess)
    features = clip.encode_image(clip.normalize_pixels(to_unit(pixels))).double().numpy()
    lengths = (features**2).sum(axis=1, keepdims=True) ** 0.5
    inputs = features / lengths * lengths.mean()
    correct, times = torch.zeros(len(labels)), torch.zeros(len(labels))
    for left_out in judge.rounds():
        probe = LogisticRegression(C=0.01, tol=1e-9, max_iter=3000)
        probe.fit(inputs[~left_out], labels[~left_out])
        correct[left_out] += torch.tensor(probe.predict(inputs[left_out])) == labels[left_out]
        times[left_out] += 1
    candidate, judged = assess(judge, MethodSetup("linear-probe", {"c": 0.01}))
    assert judged is not None
    assert candidate.accuracy == pytest.approx(float((correct / times).mean()))
    assert judged.shares.tolist() == pytest.approx((correct / times).tolist())


def test_every_image_is_left_out_as_often(task: Dataset, clip: Clip) -> None:
    rounds = LeftOut(*arguments(clip, task)).rounds()
    times = torch.stack(rounds).sum(dim=0)
    assert len({*times.tolist()}) == 1
    assert len(rounds) == SHOTS * int(times[0])  # 4 folds, as a class has 4 images
    many = LeftOut(*arguments(clip, load_dataset("travel-posters"), 48))
    assert len(many.rounds()) < 3 * FOLDS  # enough were left out before


def test_names_without_images_have_their_place_taken(task: Dataset, clip: Clip) -> None:
    """A class without images: zero-shot is judged by its accuracy; a probe, which never names it, is out."""
    half = [label for label in range(len(task.classnames)) if label % 4 < 3]
    few = without_images(task, half)
    judge = LeftOut(*arguments(clip, few))
    named_only = 1 - len(half) / len(task.classnames)
    assert judge.named_only == pytest.approx(named_only)
    probe, of_images = assess(judge, MethodSetup("linear-probe"))
    assert of_images is None
    assert "without images" in probe.reason
    frozen = registry.frozen_clip(clip)
    frozen.set_classes(task.classnames, task.templates)
    pixels = load_test_views(judge.images, torch.arange(len(judge.labels)), clip.preprocess)
    with torch.no_grad():
        image = frozen.image_features(frozen.image_trunk(to_unit(pixels)))
        right = frozen.logits(image, frozen.text_features()).argmax(dim=1) == judge.labels
    zero_shot, _ = assess(judge, MethodSetup("zero-shot"))
    assert zero_shot.accuracy == pytest.approx(float(right.double().mean()))


def without_images(task: Dataset, labels: list[int]) -> Dataset:
    """A data set with training images of some classes only."""
    rows = [row for row, label in enumerate(task.train.labels.tolist()) if label in labels]
    return replace(task, train=Subset(task.train, torch.tensor(rows)), allow_fewer=True)


def test_with_one_image_of_each_class_there_is_nothing_to_choose_by(task: Dataset, clip: Clip) -> None:
    choice = choose_method(LeftOut(*arguments(clip, task, 1)))
    assert (choice.method, choice.candidates, choice.scores) == (registry.FIT_METHOD, (), None)


def test_each_candidate_has_a_step_of_its_own(task: Dataset, clip: Clip) -> None:
    """They take unequal times, so a common bar would promise an end that is far away."""
    seen = list[tuple[str, int, int]]()
    setups = [MethodSetup("zero-shot"), MethodSetup("gda")]
    choose_method(LeftOut(*arguments(clip, task)), setups=setups, progress=lambda *step: seen.append(step))
    steps = [step for step in seen if step[0].startswith("trying ")]
    assert [step[1:] for step in steps] == [(0, 1), (1, 1)] * 2
    assert len({step for step, _, _ in steps}) == 2


def test_whatever_a_candidate_raises_takes_only_itself_away(
    task: Dataset, clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr("dear.methods.ensemble.method.Ensemble.before_training", fail)
    failing, other = MethodSetup("ensemble"), MethodSetup("zero-shot")
    choice = choose_method(LeftOut(*arguments(clip, task)), setups=[failing, other])
    reasons = {tried.method: tried.reason for tried in choice.candidates if tried.accuracy is None}
    assert (choice.method, reasons) == ("zero-shot", {"ensemble": "it failed: did not converge"})
    with pytest.raises(SettingsError, match="no method"):
        choose_method(LeftOut(*arguments(clip, task)), setups=[failing])


def test_a_method_that_cannot_be_fitted_says_why(task: Dataset, clip: Clip) -> None:
    few = without_images(task, [0, 1, 2, 3, 4, 5, 6])
    judge = LeftOut(*arguments(clip, few))
    candidate, of_images = assess(judge, MethodSetup("linear-probe"))
    assert of_images is None
    assert (candidate.accuracy, candidate.reason) == (None, "it names no class without images")
    assert assess(judge, MethodSetup("gda"))[0].accuracy is not None


def test_a_plug_in_is_tried_if_it_is_cheap(clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cheap in {"quick": True, "slow": False}.items():
        declaration = Declaration(name, cheap=cheap, module="elsewhere")
        monkeypatch.setitem(registry._methods, name, declaration)
    monkeypatch.setattr("dear.adapters.choose.check_towers", lambda *_: None)
    names = [setup.method for setup in list_candidates(clip)]
    assert names[-1] == "quick"
    assert "slow" not in names


def test_methods_that_use_roles_come_first_where_they_are_known(clip: Clip) -> None:
    """So that one of them stays where left-out images do not decide."""
    orders = [[*map(name_candidate, list_candidates(clip, with_roles=known))] for known in (False, True)]
    assert orders[0][:3] == ["ensemble", "dear+ (views 0)", "dear+"]
    assert orders[1][:3] == ["dear+", "dear+ (views 0)", "ensemble"]


def test_many_images_are_tried_without_random_views_and_many_classes_with_one_method(clip: Clip) -> None:
    candidates = list_candidates(clip, with_roles=True)
    plain = ["dear+ (views 0)", "ensemble (views 0)", "zero-shot"]
    for images, classes, present, expected in (
        (5_000, 500, None, [*map(name_candidate, candidates)]),
        (5_001, 10, None, plain),
        (1_000, 2_501, None, ["ensemble"]),
        (5_001, 500, "coop", ["ensemble (views 0)"]),
        (5_001, 500, "dear+", ["dear+ (views 0)"]),
    ):
        limited = limit_candidates(candidates, images, classes, present)
        assert [*map(name_candidate, limited)] == expected


def test_a_method_that_is_not_compared_is_cross_validated(
    task: Dataset, clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "MOST_TRIED", 0)
    choice = choose_method(LeftOut(*arguments(clip, task)))
    assert choice.method == "ensemble"
    assert "not compared" in choice.reason
    [tried] = choice.candidates
    alone = LeftOut(*arguments(clip, task))
    expected = alone.scores(alone.build(MethodSetup("ensemble")))
    assert tried.accuracy == pytest.approx(float(expected.right.mean()))
    assert choice.scores is not None
    assert torch.equal(choice.scores.scores, expected.scores)


def test_fit_says_what_it_chose_from(
    task: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dear.adapters.leftout.ENOUGH", 1)
    options: dict[str, Any] = {"model": "tiny", "shots": 2, "device": "cpu", "review": False}
    made = fit(task, tmp_path / "bundle", **options)
    assert f"{made.verdict}\n" == capsys.readouterr().out
    bundle = Bundle.from_pretrained(tmp_path / "bundle")
    accuracies = {tried.method: tried.accuracy or 0.0 for tried in bundle.training.candidates}
    assert [*accuracies] == ["dear+", "dear+ (views 0)", "ensemble", "zero-shot"]  # roles are known
    assert name_candidate(MethodSetup(bundle.method, views_of(bundle))) in accuracies
    card = (tmp_path / "bundle" / "README.md").read_text(encoding="utf-8")
    for name, accuracy in accuracies.items():
        assert f"| {name} | {100 * accuracy:.1f}%" in card
        assert re.search(rf"^  {re.escape(name)} +{100 * accuracy:.1f}%", made.verdict, re.MULTILINE)
    named = fit(task, method=bundle.method, settings=views_of(bundle), **options)
    assert named.training.candidates == ()
    assert all(torch.equal(named.tensors[name], bundle.tensors[name]) for name in named.tensors)


def views_of(bundle: Bundle) -> dict[str, Any]:
    """The settings of a bundle that a candidate has."""
    return {"views": 0} if getattr(bundle.settings, "views", None) == 0 else {}
