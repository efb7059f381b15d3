"""The review of a fit, and images of none of the classes: folders with a flipped label and strangers."""

import csv
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dear.adapters.bundle import Bundle
from dear.adapters.fit import fit
from dear.adapters.labels import apply_labels
from dear.adapters.leftout import LeftOut
from dear.adapters.operating import OperatingPoint
from dear.adapters.predictor import Predictor
from dear.adapters.results import write_predictions
from dear.adapters.review import find_label_issues, review_data
from dear.adapters.scoring import evaluate_bundle, measure_others
from dear.backbone.clip import Clip
from dear.cli.main import main
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import BundleError, DataError, OutputError, SettingsError
from dear.methods.base import Method
from tests.conftest import small_clip_of
from tests.helpers.clips import load_always
from tests.helpers.errors import refuses
from tests.helpers.pictures import save_picture

COLORS = {"red": (220, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 220)}
EACH = 14


def save(path: Path, color: tuple[int, ...], number: int) -> None:
    save_picture(path, np.random.default_rng(number).integers(-25, 26, (24, 24, 3)) + color)


def write_photos(folder: Path) -> Path:
    """Three classes by color; red/5.png is a blue one."""
    for place, (name, color) in enumerate(COLORS.items()):
        for number in range(EACH):
            shown = COLORS["blue"] if (name, number) == ("red", 5) else color
            save(folder / "train" / name / f"{number}.png", shown, 100 * place + number)
            save(folder / "test" / name / f"{number}.png", color, 1000 + 100 * place + number)
    return folder


@pytest.fixture
def photos(tmp_path: Path, only_clip: Clip) -> Path:  # noqa: ARG001
    return write_photos(tmp_path / "photos")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """DeAR+ on such photos."""
    with pytest.MonkeyPatch.context() as patch:
        load_always(small_clip_of(), patch)
        photos = write_photos(tmp_path_factory.mktemp("fitted") / "photos")
        return fit(photos, method="dear+", review=False, verbose=False)


def test_a_flipped_label_is_found_and_its_correction_goes_into_the_next_fit(
    photos: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"method": "dear+"}
    copied = photos / "test/blue/copy.png"  # of other bytes
    Image.open(photos / "train/green/0.png").convert("RGBA").save(copied)
    bundle = fit(photos, tmp_path / "bundle", **options)
    assert bundle.review is not None
    issue, copy = bundle.review
    assert (Path(issue.image), issue.label, issue.suggested) == (photos / "train/red/5.png", "red", "blue")
    assert (Path(copy.other), copy.label, copy.suggested) == (copied, "green", "blue")
    assert "1 of 42 training labels looks wrong, 1 image is there twice, in two classes." in bundle.verdict
    doubt = "1 of 42 training labels looks wrong: test labels may be wrong too"
    assert doubt in bundle.verdict
    assert "labels may be wrong too" in (tmp_path / "bundle" / "README.md").read_text()
    assert doubt in Bundle.from_pretrained(tmp_path / "bundle").verdict
    table = tmp_path / "bundle" / "review.csv"
    rows = [*csv.DictReader(table.read_text(encoding="utf-8-sig").splitlines())]
    assert [(row["label"], row["suggested"], row["predicted"]) for row in rows] == [
        ("red", "blue", "red"),
        ("green", "blue", "green"),
    ]
    assert "5.png" in (tmp_path / "bundle" / "review.html").read_text()
    answered = table.read_text(encoding="utf-8-sig").replace(",red,blue,", ",blue,blue,")
    table.write_text(answered.replace(",green,\n", ",green,yes\n"))
    text = table.read_bytes()
    # Which has what somebody corrected.
    refuses(OutputError, "review.csv", fit, photos, tmp_path / "bundle", overwrite=True, **options)
    refuses(OutputError, "review.csv", review_data, photos, tmp_path / "bundle", method="dear+")
    assert fit(photos, tmp_path / "bundle", review=False, overwrite=True, **options).review is None
    assert table.read_bytes() == text
    done = apply_labels(table, photos)
    assert (done.answers, done.table) == (2, photos / "corrections.csv")
    assert load_dataset(photos).train.labels.bincount().tolist() == [15, 14, 13]  # blue, green, red
    # Nothing is lost now, and what somebody looked at is not named again.
    assert fit(photos, tmp_path / "bundle", overwrite=True, **options).review == ()


def test_a_review_shows_pictures_with_two_labels_and_corrects_them(photos: Path, tmp_path: Path) -> None:
    """`fit` refuses them, and takes them once somebody has said what they are."""
    copied = photos / "train/blue/copy.png"
    copied.write_bytes((photos / "train/green/0.png").read_bytes())
    refuses(DataError, "several labels", fit, photos, method="dear+")
    _, issues = review_data(photos, tmp_path / "review", method="dear+")
    (twin,) = (issue for issue in issues if issue.other)
    assert {Path(twin.image), Path(twin.other)} == {copied, photos / "train/green/0.png"}
    table = tmp_path / "review" / "review.csv"
    [row] = [
        row for row in csv.DictReader(table.read_text(encoding="utf-8-sig").splitlines()) if row["other"]
    ]
    table.write_text(f"path,label,predicted\n{row['path']},{row['suggested']},{row['label']}\n")
    apply_labels(table, photos)
    bundle = fit(photos, method="dear+", verbose=False)
    assert bundle.training.train_images == 3 * EACH + 1


def test_a_review_judges_by_the_views_of_a_fit(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(photos, method="dear+")
    encoded, trunk = list[int](), Method.image_trunk
    monkeypatch.setattr(
        Method, "image_trunk", lambda self, images: encoded.append(len(images)) or trunk(self, images)
    )
    review_data(photos, method="dear+")
    assert encoded == []


def test_classes_that_look_alike_are_named_for_wrong_labels_that_hide_between_them(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(EACH):
        save(photos / "train" / "azure" / f"{number}.png", COLORS["blue"], 500 + number)
    review, _ = review_data(photos, tmp_path / "review", method="dear+")
    ((first, second, taken, images),) = review.confused_pairs
    assert {first, second} == {"azure", "blue"}
    assert images == 2 * EACH
    assert images / 5 <= taken <= images
    sentence = f"often confused: {first} and {second}."
    assert sentence in (tmp_path / "review" / "review.html").read_text()
    bundle = fit(photos, method="dear+")
    assert bundle.training.confused == review.confused_pairs
    assert sentence in bundle.verdict
    assert main(["review", str(photos), "--out", str(tmp_path / "again"), "--method", "dear+"]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("only_clip")
def test_names_come_from_the_earlier_bundle(tmp_path: Path) -> None:
    """A new folder keeps its name."""
    folder, options = tmp_path / "photos", {"method": "zero-shot", "review": False, "refuse": 0}
    for number, color in enumerate(COLORS.values()):
        save(folder / str(number + 1) / "a.png", color, number)
    (tmp_path / "names.json").write_text('{"1": "red", "2": "green", "3": "blue"}')
    named = DataSettings(classnames=tmp_path / "names.json", test_share=0)
    fit(folder, tmp_path / "bundle", dataset=named, **options)
    save(folder / "4" / "a.png", (240, 240, 20), 4)
    plain = DataSettings(test_share=0)
    bundle = fit(folder, dataset=plain, continue_from=tmp_path / "bundle", **options)
    assert (bundle.classes, bundle.keys) == (("red", "green", "blue", "4"), ("1", "2", "3", "4"))
    other = replace(plain, classnames=tmp_path / "others.json")
    (tmp_path / "others.json").write_text('{"1": "a", "2": "b", "3": "c", "4": "d"}')
    assert fit(folder, dataset=other, continue_from=tmp_path / "bundle", **options).classes == (*"abcd",)


def test_a_class_by_name_alone_is_suggested_for_no_image(photos: Path) -> None:
    for name in ("a blue thing", "red", "red thing"):
        (photos / "train" / name).mkdir(exist_ok=True)
    review, _ = review_data(photos, method="zero-shot")
    names = {review.dataset.classnames[number] for number in review.scores.suggested.tolist()}
    assert names <= {"blue", "green", "red"}


def test_labels_in_the_form_of_cleanlab(photos: Path) -> None:
    found = find_label_issues(photos, method="dear+")
    assert len(found) == 3 * EACH  # without those of the test split
    [worst] = found[found.is_label_issue].itertuples()
    assert (worst.given_label, worst.predicted_label) == ("red", "blue")
    assert worst.label_score == found.label_score.min() < 0.5
    assert (found.given_label == found.predicted_label)[~found.is_label_issue].all()


@pytest.mark.usefixtures("only_clip")
def test_images_in_memory_are_named_by_their_place_in_what_was_given() -> None:
    """In a review and in find_label_issues, whichever part of them is trained on."""
    draw = np.random.default_rng(1)
    colors = [color for color in COLORS.values() for _ in range(EACH)]
    images = [(np.array(color) + draw.integers(-25, 26, (24, 24, 3))).clip(0, 255) for color in colors]
    images, labels = [image.astype(np.uint8) for image in images], [*np.repeat([*COLORS], EACH)]
    wrong = [3, EACH + 7, 2 * EACH]
    for item in wrong:
        labels[item] = "green" if labels[item] == "red" else "red"
    settings = DataSettings(split_seed=2)  # not all of them are tested on
    bundle = fit((images, labels), method="linear-probe", dataset=settings, refuse=0, verbose=False)
    assert bundle.review
    for issue in bundle.review:
        assert int(issue.image) in wrong
        assert issue.label == labels[int(issue.image)]
    found = find_label_issues((images, labels), method="linear-probe")
    assert sorted(map(int, found.path[found.is_label_issue])) == wrong
    assert found.given_label.tolist() == [labels[int(path)] for path in found.path]


@pytest.mark.parametrize("method", ["linear-probe", "dear"])
def test_images_of_other_kinds_are_none_of_these(
    method: str, photos: Path, roles: Path, tmp_path: Path
) -> None:
    """Also from the folder, in a table, and as measured; for a class by name alone nothing is refused."""
    options = {"roles": roles} if method == "dear" else {}
    bundle = fit(photos, tmp_path / "bundle", method=method, review=False, **options)  # type: ignore[arg-type]
    assert bundle.scores is not None
    assert (bundle.scores.refused or 0) < 0.3
    for number in range(5):
        save(tmp_path / "others" / f"{number}.png", (250, 240, 30), number)
    others = sorted((tmp_path / "others").iterdir())
    predictor = Predictor(Bundle.from_pretrained(tmp_path / "bundle"))
    assert predictor.none_of_these(others).all()
    assert predictor.predict(others[0]).none_of_these
    assert measure_others(predictor, tmp_path / "others") == (0, 5, None)
    sure = replace(predictor.bundle.training, operating=OperatingPoint(0.9, 0.0))
    tested = str(photos / "test")
    share, count, decided = measure_others(Predictor(replace(predictor.bundle, training=sure)), tested)
    assert (decided, decided) == (round(share * count), count - round((bundle.scores.refused or 0) * count))
    scores = evaluate_bundle(predictor, load_dataset(photos))
    tests = sorted((photos / "test").rglob("*.png"))
    assert scores.refused == pytest.approx(predictor.none_of_these(tests).mean())
    assert bundle.scores.refused == scores.refused  # as the fit has measured it
    write_predictions(tmp_path / "found.csv", predictor.predict_each([tests[0], others[0]], 1))
    rows = csv.DictReader((tmp_path / "found.csv").read_text(encoding="utf-8-sig").splitlines())
    assert [row["none_of_these"] for row in rows] == ["", "yes"]
    if predictor.method.open_vocabulary:
        assert not predictor.none_of_these(others, ["house", "tree"]).any()
    assert not Predictor(bundle, refuse=0).none_of_these(others).any()
    strict = Predictor(bundle, refuse=0.5).none_of_these(tests).mean()
    assert strict > predictor.none_of_these(tests).mean()


@pytest.mark.parametrize("named", [[], ["owl"]])
def test_a_class_by_name_alone_is_said_to_let_other_images_through(
    named: list[str], photos: Path, fitted: Bundle
) -> None:
    bundle = fit(photos, method="dear+", review=False, add_classes=named) if named else fitted
    predictor = Predictor(bundle, "cpu")
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        evaluate_bundle(predictor, load_dataset(photos))
    told = [str(note.message) for note in notes if "none of these" in str(note.message)]
    assert [("owl" in note, "green" in note) for note in told] == [(True, False)] * len(named)


def test_a_name_takes_images_and_changes_no_other_prediction(photos: Path, fitted: Bundle) -> None:
    """Given at the fit or afterwards; what it costs is said both times."""
    predictor, images = Predictor(fitted, "cpu"), sorted((photos / "test").rglob("*.png"))
    plain, names = predictor.predict(images, 1), ["owl", "cyan"]
    grown = fit(photos, add_classes=names, method="dear+", review=False, verbose=False)
    assert grown.training.named == (*names,)
    cost = grown.training.name_cost
    assert cost is not None
    assert cost.images == predictor.bundle.training.train_images
    assert f"{cost.found:.1%} of its images" in grown.verdict
    with pytest.warns(UserWarning, match="owl, cyan are known by their names alone"):
        later = predictor.predict(images, 1, [*predictor.classes, *names])
    for predictions in (Predictor(grown, "cpu").predict(images, 1), later):
        changed = [
            after.best.name
            for before, after in zip(plain, predictions, strict=True)
            if after.best.name != before.best.name
        ]
        assert {*changed} <= {*names}
        logits = [
            (before.best.logit, after.best.logit)
            for before, after in zip(plain, predictions, strict=True)
            if after.best.name == before.best.name
        ]
        for before, after in logits:
            assert after == pytest.approx(before, rel=1e-4, abs=1e-4)


def test_notes_of_a_fit_are_warnings_that_filters_silence(photos: Path, capfd: pytest.CaptureFixture) -> None:
    (photos / "train" / "owl").mkdir()
    with pytest.warns(UserWarning, match="owl"):
        fit(photos, method="zero-shot", verbose=False)
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(photos, method="zero-shot", verbose=False)
    assert capfd.readouterr() == ("", "")


def test_a_review_that_fails_takes_none_of_these_from_no_bundle(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DataError("by hand.")

    monkeypatch.setattr(LeftOut, "scores", fail)
    with pytest.warns(UserWarning, match="review of labels is left out: by hand"):
        bundle = fit(photos, tmp_path / "bundle", method="zero-shot")
    assert bundle.review is None
    assert "4.7% of new images" in bundle.verdict  # the second of 42 images: 2 / 43
    save(tmp_path / "other.png", (250, 240, 30), 0)
    assert (
        Predictor(Bundle.from_pretrained(tmp_path / "bundle")).predict(tmp_path / "other.png").none_of_these
    )


def test_nothing_is_refused_with_few_images_or_if_not_asked(photos: Path) -> None:
    few = fit(photos, method="dear+", shots=3, review=False)  # 9 images: 5% of them is none
    assert few.scores is not None
    assert few.scores.refused is None
    refuses(SettingsError, "refuse", Predictor, few, refuse=0.01)
    assert fit(photos, method="dear+", refuse=0, review=False).known is None


@pytest.mark.usefixtures("only_clip")
def test_known_classes_that_do_not_fit_are_refused(fitted: Bundle, tmp_path: Path) -> None:
    known = fitted.known
    assert known is not None
    for changed in (
        replace(known, means=known.means[1:]), replace(known, center=known.center * torch.nan),
        replace(known, classes=known.classes + 7), replace(known, left_out=known.left_out[:0]),
    ):  # fmt: skip
        replace(fitted, known=changed).save_pretrained(tmp_path / "bundle")
        with pytest.raises(BundleError, match="known"):
            Bundle.from_pretrained(tmp_path / "bundle")
