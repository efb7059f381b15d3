"""A bundle from whatever has one, and a run as it was tested, from its record and the trained parameters
beside it (--keep-weights).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dear.adapters.bundle import Bundle
from dear.backbone.clip import Clip, Identity, tensors_hash
from dear.backbone.names import LITE, RANDOM, TINY, is_architecture
from dear.errors import BundleError, DearError
from dear.evaluation.records import WEIGHTS, may_be_record, read_record
from dear.methods.base import Method
from dear.methods.optional import keep_known_scores
from dear.methods.registry import METHODS, known_method
from dear.reading.files import ReadingError, expanded
from dear.reading.tensors import read_tensors
from dear.reading.typed import typed


@dataclass(frozen=True)
class SavedRun:
    """A run that is loaded.

    Attributes:
        bundle: What was trained, with the classes of training: `Bundle.save_pretrained` writes it, and
            ``Predictor(run.bundle, clip=run.clip)`` predicts with it. It keeps the tensors of the run when
            ``method`` is trained further.
        clip: The frozen backbone.
        method: The trained method on it, in evaluation mode; its parameters can be trained further.
    """

    bundle: Bundle
    clip: Clip
    method: Method

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that the method was trained on, and is set to."""
        return self.bundle.classes


def load_bundle(source: Bundle | Path | str, **options: Any) -> Bundle:
    """A bundle itself, or that of a folder, of the record of a run (.json) or, given OWNER/NAME, of the hub.
    ``options`` are those of `Bundle.from_pretrained`. Raises BundleError, and DataError for a damaged record.
    """
    if isinstance(source, Bundle):
        return source
    if not isinstance(source, str | Path):
        raise BundleError(f"not a bundle, its folder or a record, but a {type(source).__name__}.")
    path = expanded(source)
    return bundle_of_run(path) if may_be_record(path) else Bundle.from_pretrained(source, **options)


def load_run(
    record: Path | str,
    device: str | torch.device = "cpu",
    *,
    clip: Clip | None = None,
    pretrained: str | None = None,
) -> SavedRun:
    """Load the method of a run from its record, which was made with `--keep-weights`: it gives the scores
    that were recorded. ``clip`` is its backbone if already loaded, else ``pretrained`` says where the weights
    are if they are a file, or a folder that has moved. Raises BundleError for a record without its trained
    parameters, and for another backbone; DataError for a file that is no record.
    """
    bundle = bundle_of_run(expanded(record))
    clip = clip or bundle.load_backbone(device, pretrained)
    method = bundle.build(clip)
    keep_known_scores(method, keep=False)  # all classes are scored alike, as in the run
    return SavedRun(bundle, clip, method)


def bundle_of_run(path: Path) -> Bundle:
    """The bundle of a record and of the tensors beside it. Raises BundleError, DataError."""
    record, file = read_record(path), path.with_suffix(WEIGHTS)
    adapter = record.get("adapter")
    if not adapter or not file.is_file():
        raise BundleError(
            f"{path} has no trained parameters beside it ({file.name}): give the command of the run again, "
            "with --keep-weights."
        )
    try:
        tensors = read_tensors(file, "bundle_bytes")
    except ReadingError as error:
        raise BundleError(f"{file}: {error.reason}: copy it again, or make the run again.") from error
    if tensors_hash(tensors) != adapter.get("sha256"):
        raise BundleError(f"{file} is not that of its record (its hash differs): copy both again.")
    try:
        config = _config(record, adapter, path)
    except (DearError, KeyError, TypeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise BundleError(f"{path} does not describe an adapted model: {reason}") from error
    bundle = Bundle.from_config(config, tensors, path)
    return replace(bundle, source=str(path))


def _config(record: Mapping[str, Any], adapter: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The configuration that the bundle of a run has."""
    method, roles = known_method(record["method"]), record.get("roles")
    weights = typed(record["weights"], Identity, path, "weights")
    settings = typed(record["settings"]["method"], METHODS[method].settings, path, "settings.method")
    brings_weights = weights.model in (TINY, LITE) or not is_architecture(weights.model)
    has_label = not brings_weights or weights.pretrained.startswith(RANDOM)
    return {
        "method": method,
        "settings": asdict(settings.without_files()),
        "backbone": {
            "model": weights.model,
            "pretrained": weights.pretrained if has_label else None,
            "weights": record["weights"],
        },
        "classes": adapter["classes"],
        "templates": adapter["templates"],
        "temperature": 1.0,
        "refuse": 0.0,
        "scores": None,
        "training": _training(record),
        "roles": roles and roles["table"],
    }


def _training(record: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the training of a run."""
    pick, dataset, teacher = record.get("fewshot"), record["dataset"], record.get("teacher")
    return {
        "data": dataset["name"],
        "data_identity": dataset["identity"],
        "shots": record["shots"] or None,
        "train_images": len(pick["indices"]) if pick else 0,
        "seed": record["seed"],
        "epoch": record["selection"]["epoch"],
        "epochs": [
            {name: epoch[name] for name in ("epoch", "loss", "val") if name in epoch}
            for epoch in record["train"]["epochs"]
        ],
        "seconds": record["seconds"]["train"],
        "train": record["settings"]["train"],
        "overrides": record["overrides"],
        "teacher": teacher and {name: teacher[name] for name in teacher if name != "train"},
        "environment": record["environment"],
    }
