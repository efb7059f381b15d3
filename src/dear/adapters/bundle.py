"""The adapter bundle: a folder that holds all of an adapted model but its backbone."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypedDict

import torch
from torch import Tensor

from dear.adapters import bundle_files as files
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

SCHEMA = 1
LEAST = 1e-6  # of temperatures: what a calibration gives is far above it


class Backbone(TypedDict):
    """What config.json says of the backbone."""

    model: str
    pretrained: str | None
    weights: Identity
    short_side: Annotated[int, Range(1, 2**15)]


class Config(TypedDict):
    """What config.json says that a bundle is made of."""

    method: str
    settings: dict[str, Any]
    backbone: Backbone
    classes: list[str]
    templates: list[str]
    temperature: Annotated[float, Range(LEAST)]
    metrics: dict[str, Any]
    training: dict[str, Any]
    roles: dict[str, Any] | None


@dataclass(frozen=True)
class Bundle:
    """An adapted model without its backbone: what was trained, and all that is needed to use it.

    Attributes:
        method: The method's name.
        settings: The settings that it ran with.
        model, pretrained: The backbone, as `load_clip` takes it.
        weights: Which tensors that backbone must have.
        roles: The role table, for the methods that need one.
        classes: Class names in label order.
        templates: Prompts with one {} for the class name.
        tensors: What the method keeps of its training, by name: the trained parameters.
        temperature: What logits are divided by before the softmax; 1 if not calibrated.
        short_side: Pixels of the short side that larger pictures are brought down to, as in training.
        metrics: What was measured of it, as plain values; accuracies are fractions.
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
    metrics: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> int:
        """How many numbers were learned, or kept of the training images."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def load_backbone(self, device: str | torch.device = "cpu", pretrained: str | None = None) -> Clip:
        """The bundle's backbone, its identity checked; ``pretrained`` names other places of its weights.

        Raises WeightsError, UnknownNameError, BundleError.
        """
        clip = load_clip(self.model, pretrained or self.pretrained, device=device)
        self.check(clip)
        return clip

    def check(self, clip: Clip) -> None:
        """Raise BundleError unless the backbone is the one that the bundle was fitted on."""
        if clip.identity != self.weights:
            raise BundleError(
                f"this bundle was fitted on {self.weights}, and the backbone here is {clip.identity}: "
                "name the file of the right weights with --pretrained."
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
            "has other shapes of the tensors": {n for n in shared if wanted[n].shape != given[n].shape},
        }
        for what, names in wrong.items():
            if names:
                raise BundleError(
                    f"the adapter {what} {', '.join(sorted(names))}: it is not of {self.method} with these "
                    "settings. Fit it again with `dear fit`."
                )
        with torch.no_grad():  # into parameters that are aligned already: a file's own are not
            for name, own in wanted.items():
                own.copy_(given[name])
        return method

    def save_pretrained(self, folder: Path | str) -> Path:
        """Write the bundle into a folder, each file whole or not at all; other files there are left.

        Raises OutputError for a folder of other things, or a place that cannot be written to.
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
        """Read a bundle from a folder or, given OWNER/NAME, from the hub. No code in it is run.

        Raises BundleError for one that is missing, damaged or of another schema.
        """
        place = Path(folder_or_hub_id).expanduser()
        if not place.exists() and files.is_hub_id(str(folder_or_hub_id)):
            place = files.download(str(folder_or_hub_id), revision=revision, token=token, cache_dir=cache_dir)
        config, tensors = files.read(place, SCHEMA)
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
        """Upload the bundle to a repository of the hub, made if it is not there.

        Returns the commit's address. Raises BundleError with the hub's reason.
        """
        with tempfile.TemporaryDirectory() as made:
            place = Path(made) / "bundle"
            files.write(place, self.tensors, self.config(), model_card(self, repo_id))
            return files.upload(
                place, repo_id, private=private, token=token, revision=revision, message=commit_message
            )

    def config(self) -> dict[str, Any]:
        """What config.json says, but for what it says of the adapter's file."""
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
            "templates": [*self.templates],
            "temperature": self.temperature,
            "metrics": dict(self.metrics),
            "training": dict(self.training),
            "roles": roles,
        }

    @classmethod
    def _of(cls, config: dict[str, Any], tensors: Mapping[str, Tensor], place: Path) -> Self:
        where = place / files.CONFIG
        try:
            told = typed(config, Config, where)
            backbone, roles = told["backbone"], told["roles"]
            kind = METHODS[known_method(told["method"])].settings
            return cls(
                method=told["method"],
                settings=typed({**kind.defaults_of_old, **told["settings"]}, kind, where, "settings"),
                model=backbone["model"],
                pretrained=backbone["pretrained"],
                weights=backbone["weights"],
                roles=None if roles is None else RoleTable.from_json(roles, str(where)),
                classes=distinct(told["classes"]),
                templates=checked_templates(told["templates"], "templates"),
                tensors=tensors,
                temperature=told["temperature"],
                short_side=backbone["short_side"],
                metrics=told["metrics"],
                training=told["training"],
            )
        except ReadingError as error:
            raise BundleError(f"{where} is not the configuration of a bundle: {error.reason}.") from error
        except DearError as error:
            raise BundleError(f"{where} is not the configuration of a bundle: {error}") from error


def distinct(classes: Iterable[str], source: str = "the classes") -> tuple[str, ...]:
    """Class names as a tuple. Raises DataError for none, for one twice, and for an empty one."""
    names = tuple(classes)
    if not names:
        raise DataError(f"{source}: there is no class to tell apart. Give at least one name.")
    require_distinct(source, names, names)
    return names
