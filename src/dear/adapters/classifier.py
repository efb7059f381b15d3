"""An adapted CLIP as a classifier of scikit-learn, which only this module needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from dear.adapters.fit import fit
from dear.adapters.predictor import Predictor
from dear.data.loading import load_for_training
from dear.data.settings import DataSettings
from dear.data.sources.objects import each_image, read_labels
from dear.methods.registry import AUTO

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError("DearClassifier needs scikit-learn: pip install scikit-learn") from error


@dataclass(eq=False, repr=False, kw_only=True)
class DearClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """`dear.fit` and a `Predictor` as a classifier of scikit-learn, for pipelines, cross-validation and
    searches of settings. It is trained on all images that `fit` gets.

    Of scikit-learn's `check_estimator` the checks of parameters hold: construction, get_params, set_params,
    clone, repr. The others do not apply: they fit on rows of random numbers, and an image is a path, a Pillow
    image, an array, a tensor or bytes (`Predictor`). The first axis of an array or tensor of images counts
    them: one of three axes has gray images.

    Args:
        classnames: The names of labels, for prompts; a label without one is its own name.
        method, model, pretrained, roles, shots, seed, settings, train, dataset, device: As of `dear.fit`.

    Attributes:
        classes_: The labels, sorted; the order of the columns of `predict_proba`.
        bundle_: The fitted bundle.
    """

    method: str = AUTO
    classnames: Mapping[Any, str] | None = None
    model: str | None = None
    pretrained: str | None = None
    roles: Path | str | None = None
    shots: int | None = None
    seed: int = 1
    settings: Mapping[str, Any] | None = None
    train: Mapping[str, Any] | None = None
    dataset: DataSettings | None = None
    device: str = "auto"

    def fit(self, X: Any, y: Any) -> Self:
        """Adapt to images and their labels, which are names, whole numbers, or True and False.
        Raises as `dear.fit`.
        """
        self.classes_, numbers = np.unique(np.asarray(read_labels(y, may_be_bool=True)), return_inverse=True)
        names = [str((self.classnames or {}).get(label, label)) for label in self.classes_]
        labels = [names[number] for number in numbers]
        images = load_for_training(
            [*each_image(X, several=True)], labels, names, self.dataset or DataSettings()
        )
        options = self.get_params(deep=False)
        del options["classnames"]
        self.bundle_ = fit(images, **options, review=False, verbose=False)
        self._predictor: Predictor | None = None
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, item x class. Raises DataError for an unreadable image."""
        return self._loaded().predict_proba([*each_image(X, several=True)])

    def none_of_these(self, X: Any) -> np.ndarray:
        """Whether each image looks like none of the classes. Raises DataError for an unreadable image."""
        return self._loaded().none_of_these([*each_image(X, several=True)])

    def _loaded(self) -> Predictor:
        check_is_fitted(self)
        if self._predictor is None:
            self._predictor = Predictor(self.bundle_, self.device)
        return self._predictor

    def predict(self, X: Any) -> np.ndarray:
        """The label of each image. Raises DataError for an unreadable image."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    def __getstate__(self) -> dict[str, Any]:
        """Without the loaded backbone, for pickle."""
        return {**super().__getstate__(), "_predictor": None}
