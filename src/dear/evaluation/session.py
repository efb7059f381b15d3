"""What runs share in a process, and how a run gets all its settings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.device import find_device, half, precision_for
from dear.backbone.loading.load import load_clip, named_weights
from dear.backbone.names import HALF, Precision
from dear.data.dataset import Dataset
from dear.data.image_check import leave_out_copies
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.evaluation.experiment import Experiment
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.resolve import MethodSetup, ResolvedRun, Select, resolve, with_templates_of
from dear.methods.declaration import NOT_PUBLISHED, PublishedValues
from dear.roles.table import RoleTable, find_role_table, role_table
from dear.training.cache import Cache
from dear.training.settings import check_training

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Session:
    """Backbones, data sets and all that runs compute for later ones, each held once.

    Attributes:
        device: Where backbones are computed.
        target: The device that runs are resolved for: another one if other processes make them.
        cache: What was computed of images and class names.
        trained: The state, the epochs and the seconds of trained methods that other runs use again, by
            `training_key`: teachers, and the source's methods of transfer protocols.
        records: The records made or read so far, and their files, by the key of their run.
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        *,
        target: torch.device | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.device, self.cache = find_device(device), cache or Cache()
        self.target = target or self.device
        self.trained = dict[str, tuple[dict[str, Tensor], list[dict[str, Any]], float]]()
        self.records = dict[str, tuple[dict[str, Any], Path | None]]()
        self._clips = dict[tuple[str, str | None], Clip]()
        self._half = dict[Clip, Clip]()
        self._datasets = dict[tuple[str, str, DataSettings], Dataset]()
        self._tables = dict[tuple[Clip, Path | str | None, bool], RoleTable | None]()

    def clip(self, model: str, pretrained: str | None, named_by: str = "") -> Clip:
        """A backbone; ``named_by`` is the file that names it, if the user does not. Raises as `load_clip`."""
        pretrained = named_weights(model, pretrained, named_by)
        if (model, pretrained) not in self._clips:
            loaded = load_clip(model, pretrained, device=self.device, named_by=named_by)
            self._clips[model, pretrained] = loaded
        return self._clips[model, pretrained]

    def in_precision(self, clip: Clip, precision: Precision) -> Clip:
        """The backbone, with weights in float16 for the precision 16-true."""
        if precision != HALF:
            return clip
        if clip not in self._half:
            self._half[clip] = half(clip)
        return self._half[clip]

    def dataset(self, name: str, settings: DataSettings, source: str) -> Dataset:
        """A data set by name, without copies of the images of the source, which is trained on. One that is
        not the source and has no split is tested on as a whole.
        """
        if (name, source, settings) not in self._datasets:
            used = settings if name == source else replace(settings, test_share=1.0)
            loaded = load_dataset(name, used).require_single_labels()
            trained_on = loaded if name == source else self.dataset(source, settings, source)
            self._datasets[name, source, settings] = leave_out_copies(loaded, trained_on)
        return self._datasets[name, source, settings]

    def release_datasets(self, but: Collection[str]) -> None:
        """Let go of the data sets with other names: each keeps pictures in memory."""
        self._datasets = {key: dataset for key, dataset in self._datasets.items() if key[0] in but}

    def roles(self, clip: Clip, setup: MethodSetup, table: Path | str | None) -> RoleTable | None:
        """The role table of a backbone for a method: its own, the named one, or that of the package. None for
        a method that needs none, or that can do without and there is none. Raises RoleTableError.
        """
        if not setup.declared.needs_roles:
            return None
        table = setup.roles or table
        key = clip, table, table is None and setup.can_lack_roles
        if key not in self._tables:
            self._tables[key] = find_role_table(clip) if key[2] else role_table(clip, table)
        return self._tables[key]

    def resolve_run(self, run: Experiment) -> ResolvedRun:
        """A single run of an experiment with all its settings. Raises DearError."""
        setup, seed, shots = run.single_run
        names = run.data if run.protocol.trained_on is None else (run.protocol.trained_on, *run.data)
        datasets = [self.dataset(name, run.dataset, names[0]) for name in names]
        clip = self.clip(*run.backbone, run.named_by)
        return self.resolve(
            clip,
            run.protocol,
            datasets,
            setup,
            seed=seed,
            shots=shots,
            roles=self.roles(clip, setup, run.roles),
            train=run.train,
            select=run.select,
            named_by=run.named_by,
        )

    def resolve(
        self,
        clip: Clip,
        protocol: Protocol,
        datasets: Sequence[Dataset],
        setup: MethodSetup,
        *,
        seed: int,
        shots: int = 16,
        roles: RoleTable | None = None,
        train: Mapping[str, Any] = NOTHING,
        select: Select = "last",
        student: PublishedValues = NOT_PUBLISHED,
        named_by: str = "",
    ) -> ResolvedRun:
        """A run with all its settings filled in, and that of its teacher. The first data set is trained on,
        the others are only tested on. ``student`` is what the authors of the method that this one is the
        teacher of set; ``named_by`` is as in `clip`. Raises SettingsError, and the errors of `clip` for a
        teacher's backbone.
        """
        source, train = datasets[0], check_training(train)
        values, *of_targets = (
            resolve(protocol, setup, data.name, shots, train, data.templates, student) for data in datasets
        )
        settings = values.method.with_files(source.name)
        target_settings = {
            target.name: for_target
            for target, of_target in zip(datasets[1:], of_targets, strict=True)
            if (for_target := with_templates_of(settings, of_target.method)) != settings
        }
        precision = precision_for(clip, values.training.precision, self.target)
        run = ResolvedRun(
            protocol,
            setup,
            seed,
            shots,
            clip,
            tuple(datasets),
            settings,
            target_settings,
            replace(values.training, precision=precision),
            train,
            select,
            roles,
            values.authors.rows,
        )
        if (name := setup.declared.teacher) is None:
            return run
        model, weights = settings.teacher_backbone()
        of_teacher = self.clip(model, weights, named_by) if model else clip
        return replace(
            run,
            teacher=self.resolve_method(
                run, MethodSetup(name), of_teacher, student=values.authors, named_by=named_by
            ),
        )

    def resolve_method(
        self, run: ResolvedRun, setup: MethodSetup, clip: Clip | None = None, **options: Any
    ) -> ResolvedRun:
        """The run of another method, in all else like ``run``; ``options`` are further ones of `resolve`."""
        return self.resolve(
            clip or run.clip,
            run.protocol,
            run.datasets,
            setup,
            seed=run.seed,
            shots=run.shots,
            roles=run.roles,
            train=run.train,
            select=run.select,
            **options,
        )
