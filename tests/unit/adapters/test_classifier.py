"""DearClassifier: scikit-learn's own tools take it, and it computes what fit and Predictor compute."""

import inspect
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip
from dear.data.settings import DataSettings
from dear.errors import DataError
from dear.methods.registry import AUTO
from tests.helpers.errors import refuses

pytest.importorskip("sklearn", reason="scikit-learn comes with the extra roles")

from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from dear.adapters.classifier import DearClassifier

ONCE = {"epochs": 1, "warmup_epochs": 0}


@pytest.fixture
def classifier(only_clip: Clip, tmp_path: Path) -> DearClassifier:  # noqa: ARG001
    """Zero-shot: nothing to train."""
    return DearClassifier(method="zero-shot", dataset=DataSettings(cache=tmp_path), device="cpu")


def noise(count: int = 12) -> list[np.ndarray]:
    return [*np.random.default_rng(7).integers(0, 256, (count, 23, 29, 3), dtype=np.uint8)]


LABELS = ["house", "tree", "sea"] * 4


def test_it_computes_what_fit_and_predictor_compute(classifier: DearClassifier, tmp_path: Path) -> None:
    """On all images: the tensors of a fit on a table whose images are the same, all to train on."""
    images = noise()
    classifier.set_params(method="coop", settings={"tokens": 3}, train=ONCE, seed=3)
    assert classifier.fit(images, LABELS) is classifier
    for number, (image, _) in enumerate(zip(images, LABELS, strict=True)):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    paths = [str(tmp_path / f"{number}.png") for number in range(12)]
    assert classifier.bundle_.training.train_images == 12
    assert classifier.bundle_.classes == ("house", "sea", "tree")
    predictor = Predictor(classifier.bundle_, "cpu")
    assert classifier.classes_.tolist() == [*predictor.classes]
    shares = classifier.predict_proba(paths)
    np.testing.assert_array_equal(shares, predictor.predict_proba(images))
    names = [prediction.best.name for prediction in predictor.predict(images)]
    assert classifier.predict(images).tolist() == names
    hits = [name == label for name, label in zip(names, LABELS, strict=True)]
    assert classifier.score(images, LABELS) == pytest.approx(np.mean(hits))
    read = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(read.predict_proba(images), shares)


def test_a_picture_with_two_labels_is_refused(classifier: DearClassifier) -> None:
    images = noise()
    images[10] = images[3]
    refuses(DataError, ("'house'", "'tree'"), classifier.fit, images, LABELS)


def test_labels_are_numbers_with_names(classifier: DearClassifier) -> None:
    """The columns are in the order of the labels, not of the names; gaps are allowed."""
    numbers = [{"house": 10, "tree": 9, "sea": 2}[label] for label in LABELS]
    named = clone(classifier).set_params(classnames={9: "tree", 10: "house", 2: "sea"}).fit(noise(), numbers)
    assert named.classes_.tolist() == [2, 9, 10]
    assert named.bundle_.classes == ("sea", "tree", "house")
    by_name = classifier.fit(noise(), LABELS)
    np.testing.assert_allclose(
        named.predict_proba(noise()), by_name.predict_proba(noise())[:, [1, 2, 0]], rtol=1e-6
    )
    assert set(named.predict(noise())) <= {2, 9, 10}


def test_scikit_learns_tools_take_it(classifier: DearClassifier) -> None:
    images = noise()
    assert is_classifier(classifier)
    copied = clone(classifier.set_params(seed=5))
    assert copied is not classifier
    assert {**copied.get_params(), "dataset": None} == {**classifier.get_params(), "dataset": None}
    with pytest.raises(NotFittedError):
        copied.predict(images)
    scores = cross_val_score(copied, images, LABELS, cv=2)
    assert scores.shape == (2,)
    assert all(score * 6 == pytest.approx(round(score * 6)) for score in scores)  # of six images
    mirrored = FunctionTransformer(lambda arrays: [array[:, ::-1] for array in arrays])
    pipeline = make_pipeline(mirrored, copied).fit(images, LABELS)
    flipped = [array[:, ::-1] for array in images]
    np.testing.assert_array_equal(pipeline.predict_proba(images), pipeline[-1].predict_proba(flipped))
    search = GridSearchCV(copied, {"seed": [1, 2]}, cv=2).fit(images, LABELS)
    assert search.best_params_["seed"] in (1, 2)


@pytest.mark.filterwarnings("ignore")
def test_its_parameters_are_those_of_fit_and_pass_scikit_learns_checks() -> None:
    for check in (
        estimator_checks.check_estimator_cloneable, estimator_checks.check_estimator_repr,
        estimator_checks.check_no_attributes_set_in_init, estimator_checks.check_get_params_invariance,
        estimator_checks.check_parameters_default_constructible, estimator_checks.check_set_params,
    ):  # fmt: skip
        check("DearClassifier", DearClassifier())
    names = {*DearClassifier().get_params()} - {"classnames"}
    assert names <= {*inspect.signature(fit).parameters}
    assert DearClassifier().method == AUTO


@pytest.mark.parametrize(
    "labels",
    [[0.0, np.nan, 1.0], ["a", None, "b"], ["a", 1, "b"], [0.5, 1.5, 2.5], np.eye(3)],
    ids=["nan", "none", "mixed", "fractions", "one-hot"],
)
def test_what_is_not_one_label_an_image_is_refused(labels: object, classifier: DearClassifier) -> None:
    with pytest.raises(DataError):
        classifier.fit(noise(3), labels)


def test_labels_in_a_column_are_those_in_a_row(classifier: DearClassifier) -> None:
    frame = pytest.importorskip("pandas").DataFrame({"label": ["b", "a", "b"]})
    for column in (frame[["label"]], frame["label"], frame.to_numpy()):
        assert [*classifier.fit(noise(3), column).classes_] == ["a", "b"]
        assert Counter(classifier.bundle_.classes) == {"a": 1, "b": 1}
    assert [*classifier.fit(noise(3), [True, False, True]).classes_] == [False, True]
