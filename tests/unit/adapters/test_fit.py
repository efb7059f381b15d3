"""fit: what it trains on, what it measures, what it refuses; the temperature against a grid."""

import inspect
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from dear.adapters.bundle import Bundle
from dear.adapters.calibration import best_temperature
from dear.adapters.facts import BundleScores
from dear.adapters.fit import fit
from dear.adapters.fit_plan import FitPlan
from dear.adapters.model_card import model_card
from dear.adapters.predictor import Predictor
from dear.adapters.scoring import evaluate_bundle
from dear.backbone.clip import Clip
from dear.data.fewshot import Subset
from dear.errors import BundleError, DataError, OutputError, RoleTableError, SettingsError, WeightsError
from dear.roles.phrases import Pool
from dear.roles.table import RoleTable
from dear.writing import UNFINISHED
from tests.helpers.data import Noise, noise_dataset
from tests.helpers.errors import refuses
from tests.helpers.methods import role_table

SHORT: dict[str, Any] = {"method": "dear", "settings": {"first": 8}, "train": {"epochs": 2}}
"""A fit of DeAR of two epochs, besides its data and roles."""


def test_a_plan_has_the_arguments_of_a_fit_and_their_defaults() -> None:
    arguments = {name: each.default for name, each in inspect.signature(fit).parameters.items()}
    planned = {name: each.default for name, each in inspect.signature(FitPlan).parameters.items()}
    assert planned == arguments


def test_what_is_trained_in_float16_is_kept_in_float32(roles: Path, tmp_path: Path) -> None:
    half = {"epochs": 2, "precision": "16-true", "optimizer": "sgd"}
    bundle = fit(noise_dataset(), tmp_path / "bundle", roles=roles, **SHORT | {"train": half})
    assert {one.dtype for one in bundle.tensors.values()} == {torch.float32}
    assert all(torch.equal(one, one.half().float()) for one in bundle.tensors.values())
    read = Bundle.from_pretrained(tmp_path / "bundle")
    assert evaluate_bundle(Predictor(read), noise_dataset()) == bundle.scores


@pytest.mark.parametrize(("method", "is_told"), [("dear+", False), ("linear-probe", True)])
def test_balance_is_proposed_where_it_changes_the_fit(method: str, is_told: bool, roles: Path) -> None:
    data = noise_dataset()
    first = (data.train.labels == 0).nonzero().flatten()[:1]
    rest = (data.train.labels > 0).nonzero().flatten()
    uneven = replace(data, train=Subset(data.train, torch.cat([first, rest])))
    fits, notes = [], []
    for balance in (False, True):
        with warnings.catch_warnings(record=True) as caught:
            fits.append(fit(replace(uneven, balance=balance), roles=roles, method=method, review=False))
        notes.append([str(note.message) for note in caught if "are uneven" in str(note.message)])
    assert [len(told) for told in notes] == [1, 0]
    assert ("--dataset.balance" in notes[0][0]) == is_told
    same = all(torch.equal(fits[0].tensors[name], values) for name, values in fits[1].tensors.items())
    assert same != is_told


def test_all_images_or_some(roles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the verdict is printed unless it is told not to be."""
    data = noise_dataset()
    every = fit(data, tmp_path / "bundle", roles=roles, verbose=False, **SHORT)
    assert capsys.readouterr().out == ""
    assert every.training.train_images == 12
    assert (every.training.shots, scores_of(every).images) == (None, 24)
    assert every.classes == data.classnames
    assert every.temperature == 1
    few = fit(data, roles=roles, shots=2, **SHORT)
    assert capsys.readouterr().out == f"{few.verdict}\n"
    assert few.verdict.startswith("On 24 test images:\n  ")
    assert few.training.train_images == 8
    assert not torch.equal(few.tensors["projection"], every.tensors["projection"])
    loaded = Bundle.from_pretrained(tmp_path / "bundle")
    assert (loaded.scores, loaded.training) == (every.scores, every.training)
    assert loaded.training.train["epochs"] == 2


def test_what_is_measured_is_what_the_bundle_predicts(roles: Path) -> None:
    """And stands beside zero-shot and chance, on other splits too."""
    data = noise_dataset()
    bundle, frozen = fit(data, roles=roles, **SHORT), fit(data, method="zero-shot", refuse=0)
    predictor = Predictor(bundle)
    guesses = predictor.logits(pixels_of(predictor, data.test)).argmax(dim=1)
    hits = (guesses == data.test.labels).double()
    measured = scores_of(bundle)
    assert measured.accuracy == pytest.approx(float(hits.mean()))
    assert measured.top5 == 1  # of four classes
    for label, name in enumerate(data.classnames):
        wanted = float(hits[data.test.labels == label].mean())
        assert measured.per_class[name] == pytest.approx(wanted)
    assert measured.chance == pytest.approx(float(data.test.labels.bincount().max()) / len(data.test))
    said = ['No image will be "none of these"' in found.verdict for found in (bundle, frozen)]
    assert said == [True, False]  # of fewer than 20 images; as was asked for
    assert measured.zero_shot == scores_of(frozen).accuracy == scores_of(frozen).zero_shot
    scores = evaluate_bundle(predictor, data, split="train")
    assert scores.images == 12
    assert scores.zero_shot == evaluate_bundle(Predictor(frozen), data, split="train").accuracy
    refuses(DataError, ("noise", "val"), evaluate_bundle, predictor, data, split="val")


@pytest.mark.parametrize("method", ["dear+", "zero-shot"])
def test_losses_that_are_told_are_those_of_the_probabilities_that_are_written(
    method: str, roles: Path, tmp_path: Path
) -> None:
    """Log-loss and calibration error of test images, from the folder of the bundle alone, by plain loops."""
    data = replace(noise_dataset(), train=Noise([0, 1, 2, 3] * 8, 1))
    fitted = fit(data, tmp_path / "bundle", roles=roles, method=method, verbose=False)
    read = Bundle.from_pretrained(tmp_path / "bundle")
    assert read.temperature != 1
    pictures = [picture.permute(1, 2, 0).numpy() for picture in data.test.load(torch.arange(24))]
    probabilities = Predictor(read).predict_proba(pictures).tolist()
    labels = data.test.labels.tolist()
    losses = [-math.log(row[label]) for row, label in zip(probabilities, labels, strict=True)]
    assert scores_of(fitted).log_loss == pytest.approx(sum(losses) / 24, rel=1e-4)
    bins = dict[int, list[tuple[float, bool]]]()
    for row, label in zip(probabilities, labels, strict=True):
        bins.setdefault(min(int(15 * max(row)), 14), []).append((max(row), row.index(max(row)) == label))
    gaps = [abs(sum(sure - right for sure, right in part)) for part in bins.values()]
    assert scores_of(fitted).calibration_error == pytest.approx(sum(gaps) / 24, abs=1e-4)
    read_scores = scores_of(read)
    assert (read_scores.log_loss, read_scores.calibration_error) == (
        scores_of(fitted).log_loss,
        scores_of(fitted).calibration_error,
    )


def pixels_of(predictor: Predictor, images: Any) -> torch.Tensor:
    return torch.stack([predictor.preprocess(one) for one in images.load(torch.arange(len(images)))])


def test_classes_by_name_alone_are_in_the_bundle() -> None:
    data, options = noise_dataset(), {"method": "zero-shot", "model": "tiny", "verbose": False}
    bundle = fit(data, shots=1, add_classes=["sea_horse"], **options)  # type: ignore[arg-type]
    assert bundle.classes == (*data.classnames, "sea horse")
    logits = Predictor(bundle).logits(torch.rand(1, 3, 48, 48, generator=torch.Generator().manual_seed(1)))
    assert logits.shape == (1, len(data.classnames) + 1)
    again = [data.classnames[0].upper()]
    refuses(DataError, repr(data.classnames[0]), fit, data, add_classes=again, **options)


def test_calibration_takes_validation_images_or_those_that_were_not_picked(roles: Path) -> None:
    data, options = noise_dataset(), {"roles": roles, **SHORT}
    rest = fit(data, shots=2, **options)
    assert (rest.temperature, rest.training.calibration_images) == (1, 0)  # 4 images are too few
    spared = fit(replace(data, train=Noise([0, 1, 2, 3] * 8, 1)), shots=2, **options)
    assert spared.temperature != 1
    assert spared.training.calibration_images == 24
    val = Noise([0, 1, 2, 3] * 5, 7)
    bundle = fit(replace(data, val=val), shots=2, **options)
    assert same_tensors(bundle, rest)
    assert bundle.training.calibration_images == 20
    predictor = Predictor(bundle)
    want = best_temperature(predictor.logits(pixels_of(predictor, val)), val.labels)
    assert bundle.temperature == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("options", [{"method": "zero-shot"}, SHORT], ids=["zero-shot", "dear"])
def test_calibration_takes_left_out_images_where_none_are_spared(
    roles: Path, options: dict[str, Any]
) -> None:
    """Those of zero-shot are all training images; what is trained in steps is not left out."""
    train = Noise([0, 1, 2, 3] * 5, 7)
    bundle = fit(replace(noise_dataset(), train=train), roles=roles, verbose=False, **options)
    predictor = Predictor(bundle)
    want = best_temperature(predictor.logits(pixels_of(predictor, train)), train.labels)
    left_out = bundle.method == "zero-shot"
    assert bundle.temperature == pytest.approx(want if left_out else 1, rel=1e-3)
    assert bundle.training.calibration_images == (20 if left_out else 0)


def scores_of(bundle: Bundle) -> BundleScores:
    assert bundle.scores is not None
    return bundle.scores


def same_tensors(one: Bundle, other: Bundle) -> bool:
    return one.tensors.keys() == other.tensors.keys() and all(
        torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items()
    )


@pytest.mark.parametrize(
    ("options", "error", "key"),
    [
        ({"shots": 0}, SettingsError, "shots is 0"),
        ({"shots": 4}, DataError, "fewer than 4 shots"),
        ({"method": "dear", "settings": {"token": 3}}, SettingsError, "did you mean 'tokens'"),
        ({"method": "dear", "settings": {"tokens": 0}}, SettingsError, "its tokens is 0"),
        ({"train": {"epoch": 3}}, SettingsError, "did you mean 'epochs'"),
        (
            {"method": "auto", "settings": {"tokens": 3}},
            SettingsError,
            "settings are those of one method, which is not named",
        ),
        ({"settings": {"tokens": 3}}, SettingsError, "settings are those of one method, which is not named"),
        ({"train": None}, DataError, "only be tested on"),
        ({"out": "thesis/a.tex/bundle"}, OutputError, "a.tex"),
        ({"seed": 2**64}, SettingsError, "seed"),
        ({"refuse": 1}, SettingsError, "refuse is 1"),
        ({"refuse": -0.1}, SettingsError, "refuse is -0.1"),
    ],
)
def test_what_is_refused_before_training(
    options: dict[str, Any], error: type[Exception], key: str, roles: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("dear.adapters.fit.Trial", None)  # so nothing can be trained
    monkeypatch.chdir(tmp_path)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/a.tex").write_text("x")
    data = replace(noise_dataset(), train=Noise([])) if "train" in options else noise_dataset()
    refuses(error, key, fit, data, roles=roles, **options)


def test_the_backbone_follows_the_data(monkeypatch: pytest.MonkeyPatch, small_clip: Clip) -> None:
    asked = []

    def load(model: str, pretrained: str | None, **_options: object) -> Clip:
        asked.append((model, pretrained))
        return small_clip

    for module in ("evaluation.session", "adapters.bundle"):
        monkeypatch.setattr(f"dear.{module}.load_clip", load)
    options: dict[str, Any] = {"method": "zero-shot", "settings": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        real = fit(noise_dataset(), **options)
        drawn = fit(replace(noise_dataset(), world=True), **options)
    assert asked == [("ViT-B-16", "laion2b_s34b_b88k"), ("tiny", None)]
    assert (real.model, drawn.model) == ("ViT-B-16", "tiny")
    with pytest.warns(UserWarning, match="the tiny CLIP is only for trying things out") as caught:
        toy = fit(noise_dataset(), model="tiny", **options)
    assert len([one for one in caught if "tiny" in str(one.message)]) == 1
    predictor = Predictor(toy)
    with pytest.warns(UserWarning, match="photographs mean nothing"):
        evaluate_bundle(predictor, noise_dataset())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor.predict(noise_dataset().test.load(torch.tensor([0]))[0])  # fit has said it
    assert "**Not for photographs.**" in model_card(toy, "toy")
    assert "Not for photographs" not in model_card(real, "real")


def test_an_interrupted_fit_goes_on(roles: Path, tmp_path: Path) -> None:
    """To the same bits: tests/e2e/test_kills.py."""
    out, options = tmp_path / "bundle", {"roles": roles, **SHORT}

    def stop(name: str, done: int, _of: int) -> None:
        if (name, done) == ("training", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(noise_dataset(), out, progress=stop, **options)
    (checkpoint,) = (out / UNFINISHED).iterdir()
    refuses(BundleError, "unfinished", Bundle.from_pretrained, out)
    told: list[tuple[str, int, int]] = []
    with pytest.warns(UserWarning, match="continuing after epoch 1 of 2"):
        fit(noise_dataset(), out, progress=lambda *step: told.append(step), **options)
    assert told[0] == ("training", 1, 2)
    images = len(noise_dataset().train)
    assert ("encoding images", images, images) in told  # which the review has them for
    assert not (out / UNFINISHED).exists()
    files = ["README.md", "adapter.safetensors", "config.json", "review.csv", "review.html"]
    assert sorted(path.name for path in out.iterdir()) == files
    checkpoint.parent.mkdir()
    # A damaged state is set aside, and the training starts over.
    checkpoint.write_bytes(b"cut")
    with pytest.warns(UserWarning, match="is damaged"):
        fit(noise_dataset(), out, overwrite=True, **options)
    assert [path.read_bytes() for path in (out / UNFINISHED).iterdir()] == [b"cut"]
    with pytest.raises(KeyboardInterrupt):
        fit(noise_dataset(), tmp_path / "other", progress=stop, **options)
    with pytest.warns(UserWarning, match="other options is replaced"):
        fit(noise_dataset(), tmp_path / "other", seed=2, **options)
    assert not (tmp_path / "other" / UNFINISHED).exists()


def test_weights_are_looked_for_before_images_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(name: str, pretrained: str, _tag: object) -> Path:
        raise WeightsError(f"cannot download {name}/{pretrained}")

    monkeypatch.setattr("dear.backbone.loading.load.download", unavailable)
    (tmp_path / "photos").mkdir()  # in which nothing could be read
    refuses(WeightsError, "ViT-B-16/laion2b_s34b_b88k", fit, tmp_path / "photos")
    refuses(DataError, ("photos", "classes"), fit, tmp_path / "photos", model="tiny")


@pytest.mark.usefixtures("only_clip")
def test_without_a_role_table_fit_says_how_to_get_one(small_clip: Clip) -> None:
    given = str(small_clip.identity), "--roles discover", "--method promptsrc"
    refuses(RoleTableError, given, fit, noise_dataset(), **SHORT)
    scarce = replace(noise_dataset(), train=Noise([0, 1, 2, 3]))
    refuses(DataError, "at least 10", fit, scarce, roles="discover")  # 7 dimensions, 3 constants


def test_roles_from_the_images_of_the_fit(only_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    flat = role_table(only_clip)
    shares = {"color": 0.3, "object": 0.2, "place": 0.2, "texture": 0.3}
    flat = replace(flat, heads=tuple(replace(head, share=shares) for head in flat.heads))
    asked: list[Any] = []

    def discover(clip: Clip, images: Any, pool: Pool, **_options: object) -> RoleTable:
        asked.append((clip, len(images), pool.name))
        return flat

    monkeypatch.setattr("dear.roles.discover.discover", discover)
    with pytest.warns(UserWarning, match="12 images may be too few") as caught:
        bundle = fit(noise_dataset(), roles="discover", **SHORT)
    assert asked == [(only_clip, 12, "general")]
    assert bundle.roles == flat
    assert any("The table is flat: 6 of 6 heads have no clear concept" in str(one.message) for one in caught)


def test_judging_other_classes(roles: Path) -> None:
    data = noise_dataset()
    predictor = Predictor(fit(data, roles=roles, **SHORT))
    turned = replace(data, classnames=tuple(reversed([name.upper() for name in data.classnames])))
    guesses = predictor.logits(pixels_of(predictor, data.test)).argmax(dim=1)
    hits = 3 - guesses == data.test.labels  # label 0 means the last class, and so on
    assert evaluate_bundle(predictor, turned).accuracy == pytest.approx(float(hits.double().mean()))
    names = ("ol\xe9", *data.classnames[1:])
    composed = Predictor(replace(predictor.bundle, classes=names), clip=predictor.clip)
    decomposed = replace(data, classnames=("ole\u0301", *data.classnames[1:]))
    assert evaluate_bundle(composed, decomposed) == evaluate_bundle(composed, replace(data, classnames=names))
    other = replace(data, classnames=("sea", *data.classnames[1:]))
    refuses(DataError, "'sea'", evaluate_bundle, predictor, other)
    assert set(evaluate_bundle(predictor, other, own_classes=False).per_class) == {*other.classnames}


def test_the_best_temperature_is_that_of_a_grid() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(211, 7, generator=generator)
    labels = torch.multinomial((logits / 3).softmax(dim=1), 1, generator=generator).flatten()
    grid = torch.logspace(-1, 1.5, 2001).tolist()
    want = min(grid, key=lambda t: cross_entropy(logits / t, labels))
    assert best_temperature(logits, labels) == pytest.approx(want, rel=2e-3)
    logits = torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    assert best_temperature(logits, torch.tensor([1, 0])) == pytest.approx(100, rel=1e-6)  # all wrong


def test_images_and_labels_are_a_pair() -> None:
    refuses(SettingsError, ("list", "fit("), fit, ["a.jpg"], ["cup"])


def test_a_bundle_inside_of_its_data_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    refuses(SettingsError, ("model", "inside"), fit, folder, folder / "model", model="tiny")
    assert not [*folder.iterdir()]


@pytest.mark.usefixtures("only_clip")
@pytest.mark.parametrize("method", ["linear-probe", "zero-shot"])
def test_settings_of_training_without_effect_are_named(method: str) -> None:
    with pytest.warns(UserWarning, match=r"--train\.lr.* no effect"):
        fit(noise_dataset(), method=method, train={"lr": 0.5, "crop": 0.9}, review=False, verbose=False)
