"""Images without labels beside those that a method was trained on."""

from typing import Any

import torch

from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset, Unlabeled, draw_few
from dear.data.images.photos import image_hashes
from dear.data.loading import load_unlabeled
from dear.data.settings import DataSettings
from dear.data.sources.objects import each_image
from dear.errors import DataError, SettingsError, warn
from dear.evaluation.trial import Trial
from dear.methods.optional import LearnsUnlabeled
from dear.methods.registry import FIT_METHOD, method_class
from dear.training.batches import training_images


def read_unlabeled(images: Any, dataset: Dataset, settings: DataSettings) -> Images:
    """The images of a folder, at any depth, or in any form that `Predictor.predict` takes, without copies of
    the data set's own. Unreadable ones are skipped, unless the settings say otherwise. Raises DataError if
    none is left.
    """
    pictures = [*each_image(images)]
    if not pictures:
        raise DataError("there are no images without labels.")
    of_files = DataSettings(broken=settings.broken).skip_broken()
    unlabeled = load_unlabeled(pictures, of_files)
    parts = (part for part in (dataset.train, dataset.val, dataset.test) if part is not None)
    in_dataset = {digest for part in parts for digest in image_hashes(part)}
    is_new = [digest not in in_dataset for digest in image_hashes(unlabeled)]
    if not all(is_new):
        warn(f"{len(is_new) - sum(is_new)} of {len(is_new)} images without labels are in the data set too")
    if not any(is_new):
        raise DataError("all images without labels are in the data set too: there is nothing to add.")
    return Unlabeled(Subset(unlabeled, torch.tensor(is_new).nonzero().flatten()))


def require_taken(method: str) -> None:
    """Raise SettingsError for a method that learns from labeled images alone."""
    if not issubclass(method_class(method), LearnsUnlabeled):
        raise SettingsError(f"{method} learns from labeled images alone: only {FIT_METHOD} takes others.")


def add_unlabeled(trial: Trial, others: Images) -> dict[str, Any]:
    """Let the method of a trial, which is trained, learn from other images too, if images that are left out
    gain by it; what a bundle says of that. Nothing happens if the method cannot (`LearnsUnlabeled`).
    """
    dataset, run, method = trial.source, trial.run, trial.method
    if not isinstance(method, LearnsUnlabeled):
        return {"images": len(others)}
    picked = draw_few(dataset, run.shots, run.seed, range(len(dataset.classnames)))[1]
    labeled, unlabeled = (
        training_images(method, images, run.training, run.seed, trial.session.cache)
        for images in (picked, others)
    )
    return {"images": len(others), **method.add_unlabeled(labeled, unlabeled)}
