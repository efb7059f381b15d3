"""What the runs of a process share, and looking up what a run names."""

from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from dear.backbone.clip import Clip
from dear.backbone.device import find_device, half
from dear.backbone.loading.load import load_clip, named_weights
from dear.backbone.names import HALF, Precision
from dear.data.dataset import Dataset
from dear.data.image_check import leave_out_copies
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.errors import DearError
from dear.evaluation.experiment import Run
from dear.evaluation.resolve import MethodSetup, ResolvedRun
from dear.methods.registry import check_towers
from dear.roles.table import RoleTable, find_role_table, role_table
from dear.training.cache import Cache, ReadoutStore
from dear.training.settings import check_training

T = TypeVar("T")


class Session:
    """Backbones, data sets and all that runs compute for later ones, each held once.

    Attributes:
        device: Where backbones are computed.
        run_device: The device that runs are resolved for: another one if other processes make them.
        cache: What was computed of images and class names.
        trained: The state, the epochs and the seconds of trained methods that other runs use again, by
            `training_key`: teachers, and the source's methods of transfer protocols.
        records: The records made or read so far, and their files, by the key of their run.
    """

    def __init__(
        self,
        device: str | torch.device = "cpu",
        *,
        run_device: torch.device | None = None,
        cache: Cache | None = None,
    ) -> None:
        self.device, self.cache = find_device(device), cache or Cache()
        self.run_device = run_device or self.device
        self.trained = dict[str, tuple[dict[str, Tensor], list[dict[str, Any]], float]]()
        self.records = dict[str, tuple[dict[str, Any], Path | None]]()
        self._made = dict[tuple[Any, ...], Any]()

    def _once(self, kind: str, *key: Hashable, make: Callable[[], T]) -> T:
        """What is made for a key, once; an error that this raises is raised again."""
        if (kind, *key) not in self._made:
            try:
                self._made[kind, *key] = make()
            except DearError as error:
                self._made[kind, *key] = error
        made = self._made[kind, *key]
        if isinstance(made, DearError):
            raise made.with_traceback(None)
        return made  # type: ignore[no-any-return]

    def clip(self, model: str, pretrained: str | None, named_by: str = "") -> Clip:
        """A backbone; ``named_by`` is the file that names it, if the user does not. Raises as `load_clip`."""
        pretrained = named_weights(model, pretrained, named_by)
        load = partial(load_clip, model, pretrained, device=self.device, named_by=named_by)
        return self._once("clip", model, pretrained, make=load)

    def in_precision(self, clip: Clip, precision: Precision) -> Clip:
        """The backbone, with weights in float16 for the precision 16-true."""
        return self._once("half", clip, make=partial(half, clip)) if precision == HALF else clip

    def dataset(self, name: str, settings: DataSettings, source: str) -> Dataset:
        """A data set by name, without copies of the images of the source, which is trained on. One that is
        not the source and has no split is tested on as a whole.
        """

        def load() -> Dataset:
            used = settings if name == source else replace(settings, test_share=1.0)
            loaded = load_dataset(name, used.of_dataset(name)).require_single_labels()
            trained_on = loaded if name == source else self.dataset(source, settings, source)
            return leave_out_copies(loaded, trained_on)

        return self._once("dataset", name, source, settings, make=load)

    def release_datasets(self, but: Collection[str]) -> None:
        """Let go of the data sets with other names, each of which keeps pictures in memory, and of errors, so
        that what was missing is looked for again.
        """
        self._made = {
            key: made
            for key, made in self._made.items()
            if not isinstance(made, DearError) and (key[0] != "dataset" or key[1] in but)
        }

    def roles(self, clip: Clip, setup: MethodSetup, table: Path | str | None) -> RoleTable | None:
        """The role table of a backbone for a method: its own, the named one, or that of the package. None for
        a method that needs none, or that can do without and there is none. Raises RoleTableError.
        """
        if setup.declared.roles is None:
            return None
        table = setup.roles or table
        if table is None and setup.can_lack_roles:
            return self._once("found roles", clip, make=partial(find_role_table, clip))
        return self._once("roles", clip, table, make=partial(role_table, clip, table))

    def resolve_run(self, run: Run) -> ResolvedRun:
        """A run of an experiment with all its settings, and with what they name. Raises DearError."""
        shared, setup = run.experiment, run.setup
        self.cache.readouts = self.cache.readouts or ReadoutStore(shared.dataset.cache_folder())
        datasets = tuple(self.dataset(name, shared.dataset, run.data[0]) for name in run.data)
        clip = self.clip(*shared.backbone, shared.named_by)
        shared.dataset.require_short_side(clip.image_size)
        check_towers(setup.method, clip)
        resolved = ResolvedRun(
            protocol=shared.protocol,
            clip=clip,
            datasets=datasets,
            setup=setup,
            seed=run.seed,
            shots=run.shots,
            roles=self.roles(clip, setup, shared.roles),
            train=shared.train,
            select=shared.select,
        )
        return self.complete(resolved, shared.named_by)

    def complete(self, run: ResolvedRun, named_by: str = "") -> ResolvedRun:
        """A run with its teacher's run, if it has a teacher, and its candidates' runs; all their settings are
        checked. ``named_by`` is as in `clip`. Raises SettingsError, and the errors of `clip` for a
        teacher's backbone.
        """
        if run.setup.each:
            candidates = [self.complete(replace(run, setup=one), named_by) for one in run.setup.candidates()]
            return replace(candidates[0], setup=run.setup, candidates=tuple(candidates))
        train = check_training(run.train)
        run = replace(run, train=train, device=self.run_device, teacher=None, candidates=())
        _ = run.settings, run.target_settings, run.training  # raises what is wrong with them
        if (name := run.setup.declared.teacher) is not None:
            model, weights = run.settings.teacher_backbone()
            teacher = replace(
                run,
                setup=MethodSetup(name),
                clip=self.clip(model, weights, named_by) if model else run.clip,
                student=run.authors,
            )
            return replace(run, teacher=self.complete(teacher, named_by))
        return run
