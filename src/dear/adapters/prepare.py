"""What comes before a training: read the data, pick the images, load the backbone, find the roles, resolve
the settings. `fit` and `review_data` begin with it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dear.adapters.bundle import require_distinct_names
from dear.adapters.facts import FEWEST_TO_CALIBRATE, TrainingFacts
from dear.adapters.scoring import without_fitted_images
from dear.backbone.clip import Clip, fill
from dear.backbone.names import BackboneName, warn_of_toy
from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset, draw_few, uneven
from dear.data.images.photos import group_names, image_hashes
from dear.data.loading import as_dataset
from dear.data.settings import DataSettings
from dear.data.sources.class_names import with_spaces
from dear.errors import DataError, RoleTableError, SettingsError, warn
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.resolve import MethodSetup, ResolvedRun, Select
from dear.evaluation.session import Session
from dear.evaluation.trial import check_prompts, find_longest_name
from dear.methods.optional import LeavesOut
from dear.methods.registry import check_towers, method_class
from dear.roles.discover import DISCOVER, discover_at_hand
from dear.roles.table import WITHOUT, RoleTable, known_by_name
from dear.text import fingerprint


@dataclass(frozen=True)
class FitImages:
    """A data set and the images of it that a bundle is fitted on.

    Attributes:
        dataset: The data set, without test images that the bundle is fitted on.
        shots: How many images of each class are picked from it; if all are, the size of the largest class.
        calibration: The images that the temperature is fitted on; None if it is not.
        hashes: The hashes of all images that the bundle is fitted on, sorted and joined.
        facts: What the bundle says of them.
        unlabeled: Images without labels to learn from too.
    """

    dataset: Dataset
    shots: int
    calibration: Images | None
    hashes: bytes
    facts: TrainingFacts
    unlabeled: Images | None = None


def read_data(
    data: Any, settings: DataSettings | None, shots: int | None, names: Mapping[str, str] | None = None
) -> Dataset:
    """Read the data set. Unreadable images are skipped, unless the settings say otherwise, and a split that
    is made here leaves as many images to train on as there are shots. ``names`` are as in `load_dataset`.
    """
    if shots is not None and shots < 1:
        raise SettingsError(f"shots is {shots}: it must be at least 1; omit it to use all images.")
    settings = (settings or DataSettings()).skip_broken()
    settings = replace(settings, least_train=max(settings.least_train, shots or 1))
    dataset = as_dataset(data, settings, names=names)
    require_distinct_names(dataset.classnames, dataset.name)
    if len(dataset.classnames) == 1:
        warn(f"{dataset.name}: it has a single class, so every image will be {dataset.classnames[0]!r}")
    if shots is None and not len(dataset.train):
        raise DataError(f"{dataset.name} has no training images: it can only be tested on.")
    return dataset


def add_named(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """The data set with further classes, by their names alone. Raises DataError for one that it has."""
    if not names:
        return dataset
    classes = require_distinct_names((*dataset.classnames, *map(with_spaces, names)), "the classes")
    keys = (*dataset.keys, *names) if dataset.keys else ()
    identity = fingerprint(dataset.identity, "added", *names)
    return replace(dataset, classnames=classes, keys=keys, identity=identity)


def prepare_data(
    dataset: Dataset,
    setup: MethodSetup,
    shots: int | None,
    seed: int,
    select: Select,
) -> FitImages:
    """Pick the images to train and calibrate on, and leave them out of the test."""
    declared, of_each = setup.declared, shots
    if of_each is None:
        dataset, of_each = replace(dataset, allow_fewer=True), int(dataset.train.labels.bincount().max())
    picked = draw_few(dataset, of_each, seed)[0].indices if declared.trains else ()
    labels = dataset.train.labels[[*picked]].tolist()
    if shots is None and picked and (warning := uneven(labels, dataset.classnames)):
        repeats = not (issubclass(method_class(setup.method), LeavesOut) or dataset.balance)
        hint = ": --dataset.balance repeats the images of the smaller ones" if repeats else ""
        warn(f"{dataset.name}: {warning}{hint}")
    trained_on = range(len(dataset.train)) if declared.unlabeled else picked
    calibration = calibration_images(dataset, trained_on)
    trained = Subset(dataset.train, torch.tensor([*trained_on], dtype=torch.int64))
    fitted_on = filter(None, (trained, calibration, dataset.val if select == "val" else None))
    hashes = b"".join(sorted({digest for part in fitted_on for digest in image_hashes(part)}))
    dataset, _ = without_fitted_images(dataset, "test", hashes, need_others=False)
    facts = TrainingFacts(
        data=dataset.name,
        data_identity=dataset.identity,
        shots=shots,
        train_images=len(picked),
        unlabeled_images=len(trained_on) if declared.unlabeled else 0,
    )
    return FitImages(dataset, of_each, calibration, hashes, facts)


def calibration_images(dataset: Dataset, picked: Collection[int]) -> Images | None:
    """Images to calibrate on: validation images, else the unused training images that are no copies of those
    used, nor in a group with them; None if they are of fewer groups than `FEWEST_TO_CALIBRATE`.
    """
    held_out = dataset.val
    if held_out is None or not len(held_out):
        names = group_names(dataset.train)
        used = {names[item] for item in picked}
        unused = [item for item, name in enumerate(names) if name not in used]
        held_out = Subset(dataset.train, torch.tensor(unused)) if unused else None
    is_enough = held_out is not None and len({*group_names(held_out)}) >= FEWEST_TO_CALIBRATE
    return held_out if is_enough else None


def resolve_roles(
    session: Session, clip: Clip, roles: Path | str | None, dataset: Dataset, setup: MethodSetup
) -> RoleTable | None:
    """As `Session.roles`, or a table from the training images. Raises RoleTableError if there is none."""
    if str(roles) == DISCOVER and setup.declared.roles:
        return discover_at_hand(clip, dataset, session.cache.progress)
    try:
        return session.roles(clip, setup, roles)
    except RoleTableError as error:
        if roles is not None:
            raise
        raise RoleTableError(
            f"no role table is known for {clip.identity}{known_by_name(clip.identity)}: --roles {DISCOVER} "
            f"finds one from the {len(dataset.train)} training images; --method {WITHOUT} needs none."
        ) from error


def prepare_run(
    session: Session,
    backbone: BackboneName,
    images: FitImages,
    setup: MethodSetup,
    roles: Path | str | None,
    settings: DataSettings | None,
    **options: Any,
) -> ResolvedRun:
    """Load the backbone, find the roles, resolve all settings of the training, and check that the class names
    and settings can be used; ``options`` are further ones of `ResolvedRun`.
    """
    warn_of_toy(backbone.model, world=images.dataset.world)
    clip = session.clip(*backbone)
    (settings or DataSettings()).require_short_side(clip.image_size)
    check_towers(setup.method, clip)
    options |= {"roles": resolve_roles(session, clip, roles, images.dataset, setup), "shots": images.shots}
    run = ResolvedRun(protocol=FewShot(), clip=clip, datasets=(images.dataset,), setup=setup, **options)
    return check_run(session, session.complete(run))


def check_run(session: Session, run: ResolvedRun) -> ResolvedRun:
    """The run, whose class names and settings can be used. Raises DearError."""
    names, templates, clip = run.source.classnames, run.source.templates, run.clip
    check_prompts(session, run, names[find_longest_name(clip, names)], templates)
    clip.check_prompts(names, [fill(template, names) for template in templates])
    run.settings.check_classes(names, names)
    run.settings.without_files()
    return run
