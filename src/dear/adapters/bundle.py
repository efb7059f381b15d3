"""The adapter bundle: a folder with everything of an adapted model except its backbone."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, NotRequired, Self, TypedDict

import torch
from torch import Tensor

from dear.adapters import bundle_files as files
from dear.adapters.bundle_config import CONFIG, SCHEMA, Metrics, Training, check_unchanged, is_hub_id
from dear.adapters.model_card import model_card, without_folders
from dear.adapters.results import verdict
from dear.backbone.choice import is_published, may_be_folder
from dear.backbone.clip import Clip, Identity, tensors_hash
from dear.backbone.load import folder_for, load_clip, named_weights
from dear.data.dataset import fingerprint
from dear.data.images.hashes import HASH_BYTES
from dear.data.settings import checked_templates
from dear.data.sources.listing import require_distinct
from dear.errors import BundleError, DataError, DearError, listing
from dear.methods.base import Method
from dear.methods.declaration import MethodSettings
from dear.methods.registry import METHODS, build_method, known_method
from dear.reading.files import ReadingError, expanded
from dear.reading.typed import Range, shown, typed
from dear.roles.table import RoleTable
from dear.training.seeding import generator

TEMPERATURES = Range(1e-6, 1e6)  # calibration returns those from 0.01 to 100


class Backbone(TypedDict):
    """The backbone in config.json."""

    model: str
    pretrained: str | None
    weights: Identity


class Config(TypedDict):
    """The fields of config.json that a bundle is built from."""

    method: str
    settings: dict[str, Any]
    backbone: Backbone
    classes: list[str]
    keys: NotRequired[list[str]]
    templates: list[str]
    temperature: Annotated[float, TEMPERATURES]
    metrics: Metrics
    training: Training
    roles: dict[str, Any] | None
    image_hashes: NotRequired[str]


@dataclass(frozen=True, repr=False)
class Bundle:
    """An adapted model without its backbone: what was trained, and everything needed to use it.

    Attributes:
        method: The method's name.
        settings: The settings that it was trained with.
        model, pretrained: The backbone, as arguments of `load_clip`.
        weights: Identity of the tensors that the backbone must have.
        roles: The role table, for the methods that need one.
        classes: Class names in label order.
        keys: Folders or labels of the classes in the data set, in label order; empty if these are the class
            names.
        templates: Prompts with one {} for the class name.
        tensors: The trained parameters of the method, by name.
        temperature: Divisor of the logits before the softmax; 1 if not calibrated.
        metrics: Measured results, as plain values; accuracies are fractions.
        training: What it was trained on and how, as plain values.
        image_hashes: Those of the images that it was fitted on (`dear.data.images.hashes`), sorted, in one;
            empty if unknown.
        source: The folder that it was read from; "" for one that was made here.
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
    keys: tuple[str, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    image_hashes: bytes = field(default=b"", repr=False)
    source: str = field(default="", compare=False)

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"the bundle {self.source}" if self.source else f"the bundle of {self.method}"

    @property
    def verdict(self) -> str:
        """What its measurements on test images mean, in lines as `dear fit` prints them."""
        sentences = self._verdict()
        if self.metrics and not sentences:
            return "What was measured cannot be read: measure it again with `dear eval`."
        if not sentences:
            return "Not tested: no image was left for testing."
        return "\n  ".join([f"On {self.training['test_images']} test images:", *sentences])

    def _verdict(self) -> list[str]:
        """The sentences, the most important first; none without measurements that can be read."""
        try:
            return verdict(self.metrics, self.training["test_images"]) if self.metrics else []
        except (LookupError, TypeError, ValueError, ArithmeticError):  # a file may hold anything
            return []

    def __repr__(self) -> str:
        details = ("Most confused", "Probabilities")
        measured = (
            " ".join(line for line in self._verdict() if not line.startswith(details)) or "Not measured."
        )
        return f"<{self.title}: {self.method} on {self.weights}, {len(self.classes)} classes. {measured}>"

    @property
    def parameters(self) -> int:
        """How many numbers were learned, or stored of the training images."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    @property
    def features_identity(self) -> str:
        """Hash of what image features depend on: the backbone's weights, the method, its parameters, settings
        and roles, and the resizing of pictures. Classes, templates and temperature are left out.
        """
        heads = () if self.roles is None else self.roles.heads
        roles = [repr((head.layer, head.head, head.role, head.attribute)) for head in heads]
        return fingerprint(
            self.weights.sha256,
            self.method,
            repr(sorted(asdict(self.settings).items())),
            tensors_hash(dict(self.tensors)),
            *(() if self.roles is None else self.roles.attributes),
            *roles,
        )

    def load_backbone(self, device: str | torch.device = "cpu", pretrained: str | None = None) -> Clip:
        """The bundle's backbone, its identity checked; ``pretrained`` gives another location of its weights,
        or of its folder if it is one.

        Raises WeightsError, UnknownNameError, BundleError.
        """
        for key, path in (("model", self.model), ("pretrained", self.pretrained or "")):
            try:
                expanded(path)
            except ReadingError as error:
                raise BundleError(
                    f"{self.title}: its backbone.{key} is {shown(path)}, a folder of a user whom this machine"
                    " lacks."
                ) from error
        model = self.model
        if may_be_folder(model) and may_be_folder(self.weights.model):
            model = folder_for(model, pretrained, self.title)
            pretrained = pretrained if model == self.model else None
        weights = pretrained or named_weights(self.model, self.pretrained, self.title)
        clip = load_clip(model, weights, device=device, named_by=self.title)
        self.check(clip)
        return clip

    def check(self, clip: Clip) -> None:
        """Raise BundleError unless the backbone is the one that the bundle was fitted on, and has the heads
        of its role table.
        """
        if clip.identity != self.weights:
            raise BundleError(
                f"this bundle was fitted on {self.weights}, but the backbone here is {clip.identity}: its "
                "weights, configuration or tokenizer differ. Give the right weights with --pretrained."
            )
        tower = clip.image
        for head in () if self.roles is None else self.roles.heads:
            if tower.access == "heads" and not (head.layer <= tower.depth and head.head < tower.heads):
                raise BundleError(
                    f"{self.title}: its role table has layer {head.layer} head {head.head}, but {self.model} "
                    f"has {tower.depth} layers of {tower.heads} heads."
                )

    def build(self, clip: Clip) -> Method:
        """The adapted method on its backbone, its classes set. Raises BundleError if they do not fit: before
        anything is allocated, unless the method is of another package.
        """
        self.check(clip)
        if METHODS[self.method].module is None:
            self._with_room(clip.outline())
        method = self._with_room(clip)
        with torch.no_grad():  # into parameters whose memory is aligned, unlike that of a file's tensors
            for name, parameter in method.stored_tensors().items():
                parameter.copy_(self.tensors[name])
        return method

    def _with_room(self, clip: Clip) -> Method:
        """The method, into which the tensors fit. On an outline those whose size depends on the classes may
        be missing. Raises BundleError.
        """
        is_outline = clip.image.projection.is_meta
        try:
            method = build_method(
                self.method, clip, generator(0, "parameters"), roles=self.roles, settings=self.settings
            )
            if is_outline:
                method.classnames = self.classes
            else:
                method.set_classes(self.classes, self.templates)
            method.make_room(self.tensors)
        except (DearError, TypeError, ValueError, RuntimeError, IndexError, ArithmeticError) as error:
            raise BundleError(f"{self.title} cannot be built: {error}") from error
        parameters, tensors = method.stored_tensors(), self.tensors
        common = parameters.keys() & tensors.keys()
        mismatches = {
            "lacks the tensors": parameters.keys() - tensors.keys(),
            "has the unknown tensors": set() if is_outline else tensors.keys() - parameters.keys(),
            "has wrong shapes for the tensors": {
                name for name in common if parameters[name].shape != tensors[name].shape
            },
            "has other kinds of numbers in the tensors": {
                name for name in common if not _alike(parameters[name].dtype, tensors[name].dtype)
            },
        }
        for mismatch, names in mismatches.items():
            if names:
                raise BundleError(
                    f"the adapter of {self.title} {mismatch} {listing(sorted(names), 5)}: it does not match "
                    f"{self.method} with these settings. Fit it again with `dear fit`."
                )
        return method

    def predict(self, images: Any, top: int = 5, classes: Sequence[str] | None = None) -> Any:
        """`Predictor.predict` with these images, for a single call: each loads the backbone again."""
        from dear.adapters.predictor import Predictor  # which needs this module

        return Predictor(self).predict(images, top, classes)

    def save_pretrained(self, folder: Path | str) -> Path:
        """Write the bundle into a folder, each file atomically; other files there stay.

        Raises OutputError for a folder with other contents, or one that cannot be written to.
        """
        path = expanded(folder).resolve()
        files.write(path, self.tensors, self.config(), self.model_card(path.name))
        return path

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
        folder = expanded(folder_or_hub_id)
        if not folder.exists() and is_hub_id(str(folder_or_hub_id)):
            folder = files.download(
                str(folder_or_hub_id), revision=revision, token=token, cache_dir=cache_dir
            )
        config, tensors = files.read(folder)
        bundle = cls._from_config(config, tensors, folder / CONFIG)
        check_unchanged(config, folder / CONFIG)
        return bundle

    def without_paths(self) -> "Bundle":
        """The bundle without the paths on this machine of its backbone's folder or file."""
        pretrained, roles = self.pretrained, self.roles
        if pretrained is not None and not is_published(self.model, pretrained):
            pretrained = PureWindowsPath(pretrained).name  # takes both separators
        if roles is not None:
            of_roles = replace(roles.weights, model=without_folders(roles.weights.model))
            roles = replace(roles, weights=of_roles)
        weights = replace(self.weights, model=without_folders(self.weights.model))
        # OWNER/NAME may be a repository, which the identity tells.
        model = without_folders(self.model) if may_be_folder(self.weights.model) else self.model
        return replace(self, model=model, pretrained=pretrained, weights=weights, roles=roles)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str = "Upload the adapter",
    ) -> str:
        """Upload the bundle to a repository of the hub, created if missing. A backbone's folder is named
        without the path to it.

        Returns the commit's address. Raises BundleError with the hub's reason.
        """
        bundle = self.without_paths()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "bundle"
            files.write(folder, bundle.tensors, bundle.config(), bundle.model_card(repo_id))
            return files.upload(
                folder, repo_id, private=private, token=token, revision=revision, message=commit_message
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
            },
            "classes": [*self.classes],
            **({"keys": [*self.keys]} if self.keys else {}),
            "templates": [*self.templates],
            "temperature": self.temperature,
            "metrics": dict(self.metrics),
            "training": dict(self.training),
            "roles": roles,
            **({"image_hashes": self.image_hashes.hex()} if self.image_hashes else {}),
        }

    def model_card(self, title: str) -> str:
        """The model card in Markdown, with YAML front matter as the hub reads it."""
        return model_card(self.config(), self.parameters, title)

    @classmethod
    def _from_config(cls, content: dict[str, Any], tensors: Mapping[str, Tensor], file: Path) -> Self:
        try:
            config = typed(content, Config, file)
            backbone, roles = config["backbone"], config["roles"]
            method = known_method(config["method"])
            keys = tuple(config.get("keys", ()))
            if keys and len(keys) != len(config["classes"]):
                raise BundleError(f"it has {len(keys)} keys for {len(config['classes'])} classes.")
            if len({*keys}) < len(keys):
                raise BundleError("it has a key of two classes.")
            hashes = config.get("image_hashes", "")
            if len(hashes) % (2 * HASH_BYTES) or {*hashes} - {*"0123456789abcdef"}:
                raise BundleError(f"image_hashes is not a row of {2 * HASH_BYTES} hexadecimal digits each.")
            settings = typed(config["settings"], METHODS[method].settings, file, "settings")
            if settings != settings.without_files():
                raise BundleError(
                    f"{listing(settings.paths, 5)} of its settings name files, which no bundle does."
                )
            return cls(
                method=method,
                settings=settings,
                model=backbone["model"],
                pretrained=backbone["pretrained"],
                weights=backbone["weights"],
                roles=None if roles is None else RoleTable.from_json(roles, str(file)),
                classes=distinct(config["classes"]),
                templates=checked_templates(config["templates"], "templates"),
                tensors=tensors,
                temperature=config["temperature"],
                keys=keys,
                metrics=config["metrics"],
                training=config["training"],
                image_hashes=bytes.fromhex(hashes),
                source=str(file.parent),
            )
        except DearError as error:
            reason = f"{error.reason}." if isinstance(error, ReadingError) else str(error)
            raise BundleError(f"{file} is not the configuration of a bundle: {reason}") from error


def _alike(*dtypes: torch.dtype) -> bool:
    """True for the same dtype, and for floating-point numbers of any precision that models are run with."""
    return len({*dtypes}) == 1 or {*dtypes} <= {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def distinct(classes: Iterable[str], source: str = "the classes") -> tuple[str, ...]:
    """Class names as a tuple. Raises DataError for an empty list, a duplicate or an empty name."""
    names = tuple(classes)
    if not names:
        raise DataError(f"{source}: there are no classes. Give at least one name.")
    require_distinct(source, names, names)
    return names
