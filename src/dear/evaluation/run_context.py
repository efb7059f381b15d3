"""What runs share: model, roles, training settings, caches."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import torch
from lightning_fabric import Fabric

from dear.backbone.choice import HALF
from dear.backbone.clip import Clip
from dear.backbone.load import load_clip, named_weights
from dear.backbone.precision import half, precision_for
from dear.data.dataset import Dataset
from dear.evaluation.plan import Plan, Select
from dear.evaluation.protocols.base import Protocol
from dear.evaluation.resolve import ResolvedRun, Training, resolve_settings
from dear.methods.base import Method
from dear.methods.declaration import Published
from dear.methods.registry import METHODS, frozen_clip
from dear.roles.table import RoleTable
from dear.training.settings import TrainOptions, TrainSettings
from dear.training.trunks import TrunkCache, ViewCache

CACHE_BYTES = 2 * 2**30


@dataclass
class RunContext:
    """What the runs of an experiment share.

    Attributes:
        roles: The role table of the weights, for the methods that need one.
        training: Training settings: complete ones, or overrides of those that each method is published with.
        select: Which epoch is tested: the last, or the best on validation images of the training classes.
        views: Trunk outputs of views on disk, for settings with a view seed.
        fabric: Where to train; one process on the model's device if None.
        keep: Keep the states of methods trained on base classes, for later tests.
        trained: States of trained methods: those trained on a whole data set, teachers, and those kept.
        halves: Copies of models with weights in float16, by model, made when a run asks for one.
        clips: Backbones of teachers, by name and weights.
        named_by: The recipe that names the models; "" if the user does.
        unadapted: The frozen backbones as methods, by model, with the classes that each was set to last.
        tables: Role tables of plans, by `roles` and what plans change in it.
    """

    clip: Clip
    roles: RoleTable | None = None
    training: Training = field(default_factory=TrainOptions)
    select: Select = "last"
    cache: TrunkCache = field(default_factory=lambda: TrunkCache(CACHE_BYTES))
    views: ViewCache | None = None
    fabric: Fabric | None = None
    keep: bool = False
    trained: dict[str, tuple[dict[str, torch.Tensor], list[dict[str, Any]]]] = field(default_factory=dict)
    named_by: str = ""
    halves: dict[Clip, Clip] = field(default_factory=dict)
    clips: dict[tuple[str, str | None], Clip] = field(default_factory=dict)
    unadapted: dict[Clip, tuple[Method, tuple[tuple[str, ...], tuple[str, ...]]]] = field(
        default_factory=dict
    )
    tables: dict[tuple[Any, ...], RoleTable | None] = field(default_factory=dict)

    @property
    def main(self) -> bool:
        """True if this process writes the results."""
        return self.fabric is None or self.fabric.is_global_zero

    def clip_in(self, precision: str) -> Clip:
        """The model in the type of weights that a precision has."""
        if precision != HALF:
            return self.clip
        if self.clip not in self.halves:
            self.halves[self.clip] = half(self.clip)
        return self.halves[self.clip]

    def frozen(self, classnames: Sequence[str], templates: Sequence[str], precision: str) -> Method:
        """The frozen backbone as a method, set to these classes."""
        clip, classes = self.clip_in(precision), (tuple(classnames), tuple(templates))
        method, before = self.unadapted.get(clip) or (frozen_clip(clip), None)
        if before != classes:
            method.set_classes(*classes)
        self.unadapted[clip] = method, classes
        return method

    def resolve(
        self, protocol: Protocol, datasets: Sequence[Dataset], plan: Plan, *, seed: int, shots: int = 16
    ) -> ResolvedRun:
        """Resolve a run on some data sets, the one that is trained on first. Raises UnknownNameError
        for the method, SettingsError and, for the backbone of a teacher, as `load_clip` does.
        """
        run = self._resolve(protocol, datasets, plan, seed, shots, self.clip, {})
        if (teacher := METHODS[plan.method].teacher) is None:
            return run
        clip, published = self.of_teacher(run).clip, run.settings.teacher_training
        return replace(
            run, teacher=self._resolve(protocol, datasets, Plan(teacher), seed, shots, clip, published)
        )

    def _resolve(
        self,
        protocol: Protocol,
        datasets: Sequence[Dataset],
        plan: Plan,
        seed: int,
        shots: int,
        clip: Clip,
        published: Published,
    ) -> ResolvedRun:
        """A run without its teacher; ``published`` replaces training settings of the method's authors."""
        source = datasets[0].name
        method, training = resolve_settings(protocol, plan, source, shots, self.training, published)
        return ResolvedRun(
            protocol,
            plan,
            seed,
            shots,
            tuple(datasets),
            method.settings.for_data(source),
            replace(training, precision=precision_for(clip, training.precision)),
            self.select,
            self._table(plan, seed),
            asdict(clip.identity),
            method.rows,
        )

    def set_by_user(self, plan: Plan) -> dict[str, list[str]]:
        """The names of the settings of a plan's method, and of its training, that the user set."""
        training = vars(self.training).items()
        is_complete = isinstance(self.training, TrainSettings)
        return {
            "method": sorted(plan.settings.set_by_user) if plan.settings else [],
            "train": sorted(name for name, value in training if is_complete or value is not None),
        }

    def _table(self, plan: Plan, seed: int) -> RoleTable | None:
        """The role table of a run; shuffled roles are a different permutation for each seed."""
        key = id(self.roles), plan.needs_roles, plan.role_variant, plan.quantile, plan.attributes
        if key not in self.tables:  # once for all seeds: a stranger's table may take long
            self.tables[key] = plan.table(self.roles)
        table = self.tables[key]
        return table.shuffled(seed) if table is not None and plan.role_variant == "shuffled" else table

    def of_teacher(self, run: ResolvedRun) -> Self:
        """The context that the teacher of a run's method is trained in. Raises as `load_clip` does."""
        model, _ = key = run.settings.teacher_backbone()
        if not model:
            return self
        if key not in self.clips:
            weights, device = named_weights(*key, self.named_by), self.clip.image.projection.device
            self.clips[key] = load_clip(model, weights, device=device, named_by=self.named_by)
        return replace(self, clip=self.clips[key])
