"""What the runs of an experiment share: the model, its roles, training settings and caches."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from dear.backbone.choice import HALF
from dear.backbone.clip import Clip
from dear.backbone.load import load_clip, named_weights
from dear.backbone.precision import half, precision_for
from dear.data.dataset import Dataset
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.resolve import MethodSetup, ResolvedRun, Select, resolve
from dear.methods.base import Method
from dear.methods.declaration import Published
from dear.roles.table import RoleTable
from dear.training.cache import Cache
from dear.training.settings import check_training


@dataclass
class RunContext:
    """What the runs of an experiment share.

    Attributes:
        roles: The role table of the weights, for the methods that need one.
        training: The training settings that the user sets, over those that each method is published with.
        select: Which epoch is tested: the last, or the best on validation images of the training classes.
        trained: The state, the epochs and the seconds of trained methods that other runs use again, by
            `training_key`: teachers, and the source's methods of transfer protocols.
        records: The records made or read so far, and their files, by the key of their run.
        named_by: The recipe that names the models; "" if the user does.
        half_clips: The copy in float16 of a model.
        teacher_clips: The backbones of teachers, by name and weights.
        device: The device that runs are resolved for, where it is not that of the model.
    """

    clip: Clip
    roles: RoleTable | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    select: Select = "last"
    cache: Cache = field(default_factory=Cache)
    trained: dict[str, tuple[dict[str, torch.Tensor], list[dict[str, Any]], float]] = field(
        default_factory=dict
    )
    records: dict[str, tuple[dict[str, Any], Path | None]] = field(default_factory=dict)
    named_by: str = ""
    half_clips: dict[Clip, Clip] = field(default_factory=dict)
    teacher_clips: dict[tuple[str, str | None], Clip] = field(default_factory=dict)
    device: torch.device | None = None

    def clip_in(self, precision: str) -> Clip:
        """The model, with weights in float16 for the precision 16-true."""
        if precision != HALF:
            return self.clip
        if self.clip not in self.half_clips:
            self.half_clips[self.clip] = half(self.clip)
        return self.half_clips[self.clip]

    def frozen_text(
        self, frozen: Method, classnames: Sequence[str], templates: Sequence[str]
    ) -> Float[Tensor, "class embed"]:
        """The text features of classes by the frozen backbone."""
        weights, like = frozen.clip.identity.sha256, frozen.clip.image.projection

        def compute() -> Tensor:
            frozen.set_classes(classnames, templates)
            return frozen.frozen_text

        key = weights, like.dtype, like.device, tuple(classnames), tuple(templates)
        return self.cache.get("text", key, compute)

    def resolve(
        self,
        protocol: Protocol,
        datasets: Sequence[Dataset],
        setup: MethodSetup,
        *,
        seed: int,
        shots: int = 16,
        published: Published = MappingProxyType({}),
    ) -> ResolvedRun:
        """A run with all its settings filled in. The first data set is trained on, the others are only tested
        on. ``published`` replaces training settings of the method's authors. Raises UnknownNameError for the
        method, SettingsError, and the errors of `load_clip` for a teacher's backbone.
        """
        source = datasets[0].name
        settings = resolve(protocol, setup, source, shots, self.training, published, datasets[0].templates)
        run = ResolvedRun(
            protocol,
            setup,
            seed,
            shots,
            tuple(datasets),
            settings.method.with_files(source),
            replace(
                settings.training,
                precision=precision_for(self.clip, settings.training.precision, self.device),
            ),
            self.select,
            setup.table(self.roles, seed),
            asdict(self.clip.identity),
            settings.rows,
        )
        if (name := setup.declared.teacher) is None:
            return run
        context, published = self.teacher_context(run), run.settings.teacher_training
        teacher = context.resolve(
            protocol, datasets, MethodSetup(name), seed=seed, shots=shots, published=published
        )
        return replace(run, teacher=teacher)

    def overrides(self, setup: MethodSetup) -> dict[str, dict[str, Any]]:
        """The settings of a setup's method, and of its training, that the user set."""
        return {"method": dict(setup.settings), "train": check_training(self.training)}

    def teacher_context(self, run: ResolvedRun) -> Self:
        """This context with the backbone of the teacher of a run's method. Raises as `load_clip` does."""
        model, weights = key = run.settings.teacher_backbone()
        if not model:
            return self
        if key not in self.teacher_clips:
            weights, device = named_weights(model, weights, self.named_by), self.clip.image.projection.device
            self.teacher_clips[key] = load_clip(model, weights, device=device, named_by=self.named_by)
        return replace(self, clip=self.teacher_clips[key])
