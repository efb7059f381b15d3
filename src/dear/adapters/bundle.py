"""The adapter bundle: a folder with everything of an adapted model except its backbone."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, Self, TypedDict

import torch
from torch import Tensor

from dear.adapters import bundle_files as files
from dear.adapters.bundle_config import CONFIG, SCHEMA, is_hub_id
from dear.adapters.model_card import model_card
from dear.backbone.clip import Clip, Identity
from dear.backbone.load import load_clip
from dear.data.settings import checked_templates
from dear.data.sources.listing import require_distinct
from dear.errors import BundleError, DataError, DearError
from dear.methods.base import Method
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS, build_method, known_method
from dear.reading.files import ReadingError
from dear.reading.typed import Range, typed
from dear.roles.table import RoleTable
from dear.training.seeding import generator

LEAST = 1e-6  # smallest temperature accepted; calibration returns much larger ones


class Backbone(TypedDict):
    """The backbone in config.json."""

    model: str
    pretrained: str | None
    weights: Identity
    short_side: Annotated[int, Range(1, 2**15)]


class Config(TypedDict):
    """The fields of config.json that a bundle is built from."""

    method: str
    settings: dict[str, Any]
    backbone: Backbone
    classes: list[str]
    keys: NotRequired[list[str]]
    templates: list[str]
    temperature: Annotated[float, Range(LEAST)]
    metrics: dict[str, Any]
    training: dict[str, Any]
    roles: dict[str, Any] | None


@dataclass(frozen=True)
class Bundle:
    """An adapted model without its backbone: what was trained, and everything needed to use it.

    Attributes:
        method: The method's name.
        settings: The settings that it was trained with.
        model, pretrained: The backbone, as arguments of `load_clip`.
        weights: Identity of the tensors that the backbone must have.
        roles: The role table, for the methods that need one.
        classes: Class names in label order.
        keys: What the classes were called in the data set: folders or labels, in label order; empty if they
            had no other names there.
        templates: Prompts with one {} for the class name.
        tensors: What the method keeps of its training, by name: the trained parameters.
        temperature: Divisor of the logits before the softmax; 1 if not calibrated.
        short_side: Length of the short side, in pixels, to which larger pictures are reduced, as in training.
        metrics: Measured results, as plain values; accuracies are fractions.
        training: What it was trained on and how, as plain values.
    """

    method: str
    settings: MethodSettings
    model: str
    pretrained: str | None
    weights: Identity
    roles: RoleTable | None
    classes: tuple[str, ...]
    templates: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    temperature: float = 1.0
    short_side: int = 256
    keys: tuple[str, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """How many numbers were learned, or kept of the training images."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def load_backbone(self, device: str | torch.device = "cpu", pretrained: str | None = None) -> Clip:
        """The bundle's backbone, its identity checked; ``pretrained`` gives another location of its weights.

        Raises WeightsError, UnknownNameError, BundleError.
        """
        clip = load_clip(
            self.model, pretrained or self.pretrained, device=device, named_by=f"the bundle of {self.method}"
        )
        self.check(clip)
        return clip

    def check(self, clip: Clip) -> None:
        """Raise BundleError unless the backbone is the one that the bundle was fitted on."""
        if clip.identity != self.weights:
            raise BundleError(
                f"this bundle was fitted on {self.weights}, but the backbone here is {clip.identity}: "
                "give the file with the right weights with --pretrained."
            )

    def build(self, clip: Clip) -> Method:
        """The adapted method on its backbone, its classes set. Raises BundleError if they do not fit."""
        self.check(clip)
        try:
            method = build_method(
                self.method, clip, generator(0, "parameters"), roles=self.roles, settings=self.settings
            )
            method.set_classes(self.classes, self.templates)
            method.make_room(self.tensors)
        except (DearError, TypeError, ValueError, RuntimeError) as error:  # settings of wrong types
            raise BundleError(f"this bundle cannot be built: {error}") from error
        wanted, given = method.kept(), self.tensors
        shared = wanted.keys() & given.keys()
        wrong = {
            "lacks the tensors": wanted.keys() - given.keys(),
            "has the unknown tensors": given.keys() - wanted.keys(),
            "has wrong shapes for the tensors": {n for n in shared if wanted[n].shape != given[n].shape},
        }
        for what, names in wrong.items():
            if names:
                raise BundleError(
                    f"the adapter {what} {', '.join(sorted(names))}: it does not match {self.method} with "
                    "these settings. Fit it again with `dear fit`."
                )
        with torch.no_grad():  # into parameters whose memory is aligned, unlike that of a file's tensors
            for name, own in wanted.items():
                own.copy_(given[name])
        return method

    def save_pretrained(self, folder: Path | str) -> Path:
        """Write the bundle into a folder, each file atomically; other files there are kept.

        Raises OutputError for a folder with other contents, or one that cannot be written to.
        """
        place = Path(folder).expanduser().resolve()
        files.write(place, self.tensors, self.config(), model_card(self, place.name))
        return place

    @classmethod
    def from_pretrained(
        cls,
        folder_or_hub_id: Path | str,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: Path | str | None = None,
    ) -> Self:
        """Read a bundle from a folder or, given OWNER/NAME, from the hub. No code in it is executed.

        Raises BundleError for a bundle that is missing, damaged or of another schema.
        """
        place = Path(folder_or_hub_id).expanduser()
        if not place.exists() and is_hub_id(str(folder_or_hub_id)):
            place = files.download(str(folder_or_hub_id), revision=revision, token=token, cache_dir=cache_dir)
        config, tensors = files.read(place)
        return cls._of(config, tensors, place)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str = "Upload the adapter",
    ) -> str:
        """Upload the bundle to a repository of the hub, created if missing.

        Returns the commit's address. Raises BundleError with the hub's reason.
        """
        with tempfile.TemporaryDirectory() as made:
            place = Path(made) / "bundle"
            files.write(place, self.tensors, self.config(), model_card(self, repo_id))
            return files.upload(
                place, repo_id, private=private, token=token, revision=revision, message=commit_message
            )

    def config(self) -> dict[str, Any]:
        """The contents of config.json, without the entry about the adapter's file."""
        roles = None if self.roles is None else replace(self.roles, evidence={}).to_json()
        return {
            "schema": SCHEMA,
            "method": self.method,
            "settings": asdict(self.settings),
            "backbone": {
                "model": self.model,
                "pretrained": self.pretrained,
                "weights": asdict(self.weights),
                "short_side": self.short_side,
            },
            "classes": [*self.classes],
            **({"keys": [*self.keys]} if self.keys else {}),
            "templates": [*self.templates],
            "temperature": self.temperature,
            "metrics": dict(self.metrics),
            "training": dict(self.training),
            "roles": roles,
        }

    @classmethod
    def _of(cls, config: dict[str, Any], tensors: Mapping[str, Tensor], place: Path) -> Self:
        where = place / CONFIG
        try:
            facts = typed(config, Config, where)
            backbone, roles = facts["backbone"], facts["roles"]
            method = known_method(facts["method"])
            kind = METHODS[method].settings
            keys = tuple(facts.get("keys", ()))
            if keys and len(keys) != len(facts["classes"]):
                raise BundleError(f"it has {len(keys)} keys for {len(facts['classes'])} classes.")
            return cls(
                method=method,
                settings=typed(facts["settings"], kind, where, "settings"),
                model=backbone["model"],
                pretrained=backbone["pretrained"],
                weights=backbone["weights"],
                roles=None if roles is None else RoleTable.from_json(roles, str(where)),
                classes=distinct(facts["classes"]),
                templates=checked_templates(facts["templates"], "templates"),
                tensors=tensors,
                temperature=facts["temperature"],
                short_side=backbone["short_side"],
                keys=keys,
                metrics=facts["metrics"],
                training=facts["training"],
            )
        except ReadingError as error:
            raise BundleError(f"{where} is not the configuration of a bundle: {error.reason}.") from error
        except DearError as error:
            raise BundleError(f"{where} is not the configuration of a bundle: {error}") from error


def distinct(classes: Iterable[str], source: str = "the classes") -> tuple[str, ...]:
    """Class names as a tuple. Raises DataError for an empty list, a duplicate or an empty name."""
    names = tuple(classes)
    if not names:
        raise DataError(f"{source}: there are no classes. Give at least one name.")
    require_distinct(source, names, names)
    return names
