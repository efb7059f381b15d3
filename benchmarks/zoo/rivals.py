"""Five classifiers of ten lines each on the same features: what `dear fit` has to be as good as."""

import warnings
from collections.abc import Callable, Mapping

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier

STRENGTHS = (1, 10, 100, 1000, 10000)
"""Inverse strengths of the penalty of a logistic regression, by cross-validation in five parts at most."""
SHRINKAGE = 0.3
Array = np.ndarray


def regress(features: Array, labels: Array, others: Array) -> Array:
    """Logistic regression with a cross-validated penalty; 100 where a class has a single image."""
    folds, strength = min(5, min(np.unique(labels, return_counts=True)[1])), 100
    if folds > 1:
        parts = StratifiedKFold(folds, shuffle=True, random_state=0)
        right = [
            cross_val_score(LogisticRegression(C=strength, max_iter=300), features, labels, cv=parts).mean()
            for strength in STRENGTHS
        ]
        strength = STRENGTHS[int(np.argmax(right))]
    return LogisticRegression(C=strength, max_iter=1000).fit(features, labels).predict(others)


def discriminate(features: Array, labels: Array, others: Array) -> Array:
    """Linear discriminants with a shrunk covariance and equal priors."""
    classes = len(np.unique(labels))
    if len(features) <= classes:
        return take_nearest_mean(features, labels, others)
    priors = np.full(classes, 1 / classes)
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=SHRINKAGE, priors=priors)
    return model.fit(features, labels).predict(others)


def take_nearest_mean(features: Array, labels: Array, others: Array) -> Array:
    """The class whose mean feature has the largest cosine."""
    classes = np.unique(labels)
    means = as_units(np.stack([features[labels == label].mean(axis=0) for label in classes]))
    return classes[(others @ means.T).argmax(axis=1)]


def take_nearest_standardized_mean(features: Array, labels: Array, others: Array) -> Array:
    """The class of the nearest mean, of features with mean 0 and deviation 1."""
    classes, center, deviation = np.unique(labels), features.mean(axis=0), features.std(axis=0) + 1e-6
    features, others = (features - center) / deviation, (others - center) / deviation
    means = np.stack([features[labels == label].mean(axis=0) for label in classes])
    return classes[((others[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)]


def ask_neighbors(features: Array, labels: Array, others: Array) -> Array:
    """The nearest five images, by distance."""
    model = KNeighborsClassifier(min(5, len(features)), weights="distance")
    return model.fit(features, labels).predict(others)


RIVALS: Mapping[str, Callable[[Array, Array, Array], Array]] = {
    "logistic regression": regress,
    "LDA": discriminate,
    "means": take_nearest_mean,
    "standardized means": take_nearest_standardized_mean,
    "neighbors": ask_neighbors,
}


def as_units(features: Array) -> Array:
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def score_rivals(features: Array, labels: Array, others: Array, classes: Array) -> dict[str, float]:
    """The share of ``others`` that each of them gives its class, in percent."""
    features, others = as_units(features), as_units(others)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a solver that stops early is one of the ten lines
        return {
            name: 100 * float((predict(features, labels, others) == classes).mean())
            for name, predict in RIVALS.items()
        }
