"""The adapter bundle: a folder with everything of an adapted model except its backbone.

It may come from a stranger: nothing in it is executed, and its settings, names, tensors and backbone are
checked before they are used.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PureWindowsPath
from typing import Annotated, Any, NotRequired, Self, TypedDict

import huggingface_hub  # loads its parts when they are used
import torch
from safetensors.torch import save
from torch import Tensor

from dear import __version__
from dear.adapters import wording
from dear.adapters.bundle_config import (
    ADAPTER,
    CARD,
    CONFIG,
    LIBRARY,
    SCHEMA,
    check_writable,
    config_hash,
    download_bundle,
    is_hub_id,
    read_config,
    without_folders,
)
from dear.adapters.facts import BundleScores, TrainingFacts
from dear.adapters.model_card import model_card
from dear.backbone.clip import Clip, Identity, tensors_hash
from dear.backbone.loading import hub
from dear.backbone.loading.load import folder_for, load_clip, named_weights
from dear.backbone.names import is_published, may_be_folder
from dear.curation.issues import REFUSED_SHARE, Issue, RefusedShare
from dear.curation.outliers import PREFIX, OutlierModel, describe_refusal
from dear.data.images.forms import HASH_BYTES
from dear.data.settings import checked_templates
from dear.data.sources.class_names import require_distinct
from dear.errors import BundleError, DataError, DearError, first_line
from dear.methods.base import Method
from dear.methods.declaration import MethodSettings
from dear.methods.optional import ResizesTensors, keep_known_scores
from dear.methods.registry import METHODS, build_method, known_method
from dear.reading.files import ReadingError, expanded
from dear.reading.tensors import read_tensors
from dear.reading.typed import Range, typed
from dear.roles.table import RoleTable
from dear.text import list_names, plural, printable
from dear.training.seeding import generator
from dear.writing import output_folder

TEMPERATURES = Range(1e-6, 1e6)  # calibration returns those from 0.01 to 100
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


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
    scores: BundleScores | None
    training: TrainingFacts
    roles: dict[str, Any] | None
    image_hashes: NotRequired[str]
    refuse: NotRequired[RefusedShare]


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
        scores: What was measured on test images; None if there were none.
        training: What it was trained on and how.
        image_hashes: Those of the images that it was fitted on (`dear.data.images.photos`), sorted and
            joined; empty if unknown.
        known, refuse: The outlier model, and the share of images of the classes that it may refuse.
        source: The folder that it was read from; "" for one that was made here.
        review: The rows of review.csv; None if it was read from a folder.
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
    scores: BundleScores | None = None
    training: TrainingFacts = field(default_factory=TrainingFacts)
    image_hashes: bytes = field(default=b"", repr=False)
    known: OutlierModel | None = field(default=None, repr=False)
    refuse: float = REFUSED_SHARE
    source: str = field(default="", compare=False)
    review: tuple[Issue, ...] | None = field(default=None, compare=False, repr=False)

    @property
    def title(self) -> str:
        """What messages call it."""
        kind = "run" if self.source.endswith(".json") else "bundle"
        return f"the {kind} {self.source}" if self.source else f"the bundle of {self.method}"

    @property
    def verdict(self) -> str:
        """What was measured and how the method was chosen in lines, as `dear fit` prints them."""
        facts, scores = self.training, self.scores
        tested = () if scores is None else (scores.refused, scores.images)
        lines = wording.describe_test(scores, facts)
        with_images = [name for name in self.classes if name not in facts.named]
        lines += wording.describe_names(facts.name_cost, self.classes, with_images)
        lines += wording.describe_fit(self.method, facts, scores)
        lines += describe_refusal(self.known, self.refuse, *tested)
        return "\n".join(lines + wording.describe_review(self.review, facts))

    def __repr__(self) -> str:
        measured = ["Not measured."] if self.scores is None else wording.describe_accuracy(self.scores)
        about = f"{self.method} on {self.weights}, {plural(len(self.classes), 'class')}"
        return f"<{self.title}: {about}. {' '.join(measured)}>"

    @property
    def parameters(self) -> int:
        """How many numbers were learned, or stored of the training images."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def load_backbone(self, device: str | torch.device = "cpu", pretrained: str | None = None) -> Clip:
        """The bundle's backbone, its identity checked; ``pretrained`` gives another location of its weights,
        or of its folder if it is one. Raises WeightsError, UnknownNameError, BundleError.
        """
        model = self.model
        if may_be_folder(model) and may_be_folder(self.weights.model):
            model = folder_for(model, pretrained, self.title)
            pretrained = pretrained if model == self.model else None
        weights = pretrained or named_weights(self.model, self.pretrained, self.title)
        clip = load_clip(model, weights, device=device, named_by=self.title)
        self.check(clip)
        return clip

    def check(self, clip: Clip) -> None:
        """Raise BundleError unless the backbone is the one that the bundle was fitted on."""
        if clip.identity != self.weights:
            raise BundleError(
                f"{self.title} was fitted on {self.weights}, but the backbone here is {clip.identity}: its "
                "weights, configuration or tokenizer differ. Give the right weights with --pretrained."
            )

    def build(self, clip: Clip) -> Method:
        """The adapted method on its backbone, its classes set. Raises BundleError if they do not fit: before
        anything is allocated, unless the method is of another package.
        """
        self.check(clip)
        if METHODS[self.method].module is None:
            self._build_empty(clip.outline())
        method = self._build_empty(clip)
        with torch.no_grad():  # into parameters whose memory is aligned, unlike that of a file's tensors
            for name, parameter in method.stored_tensors().items():
                parameter.copy_(self.tensors[name])
        keep_known_scores(method)
        return method

    def _build_empty(self, clip: Clip) -> Method:
        """The method, into which the tensors fit. On an outline those whose size depends on the classes may
        be missing. Raises BundleError.
        """
        is_outline, weights = clip.image.projection.is_meta, generator(0, "parameters")
        try:
            method = build_method(self.method, clip, weights, roles=self.roles, settings=self.settings)
            if is_outline:
                method.classnames = self.classes
            else:
                method.set_classes(self.classes, self.templates)
            if isinstance(method, ResizesTensors):
                method.resize_to(self.tensors)
        except (DearError, TypeError, ValueError, RuntimeError, IndexError, ArithmeticError) as error:
            raise BundleError(f"{self.title} cannot be built: {error}") from error
        expected, stored = method.stored_tensors(), self.tensors
        unfit = set(expected) - set(stored) if is_outline else set(expected) ^ set(stored)
        unfit |= {name for name in {*expected} & {*stored} if not _fits(stored[name], expected[name])}
        if unfit:
            raise BundleError(
                f"the adapter of {self.title} does not match {self.method} with these settings: its tensors "
                f"{list_names(sorted(unfit), 5)} are missing, unknown, or of another shape or kind of "
                "numbers. Fit it again with `dear fit`."
            )
        return method

    def save_pretrained(self, folder: Path | str) -> Path:
        """Write the bundle into a folder, each file atomically; other files there stay. Raises OutputError
        for a folder with other contents, or one that cannot be written to.
        """
        path = expanded(folder).resolve()
        check_writable(path)
        output_folder(path, self._files(path.name), "the bundle", "for it")
        return path

    def _files(self, title: str) -> dict[str, bytes]:
        """The contents of the bundle's files by name; ``title`` is that of the model card."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self._all_tensors()}
        adapter = {
            "file": ADAPTER,
            "sha256": tensors_hash(tensors),
            "shapes": {name: [*tensor.shape] for name, tensor in tensors.items()},
            "parameters": self.parameters,
        }
        library = {"name": LIBRARY, "version": __version__}
        # Names of files may not be valid Unicode: the hash is of what is read again.
        config = json.loads(_json(self.config() | {"library": library, "adapter": adapter}))
        return {
            ADAPTER: save(tensors, metadata={"format": "pt"}),
            CARD: model_card(self, title).encode(errors="backslashreplace"),
            CONFIG: _json(config | {"sha256": config_hash(config)}),
        }

    def _all_tensors(self) -> Iterable[tuple[str, Tensor]]:
        known = self.known.tensors() if self.known else {}
        return [*self.tensors.items(), *((PREFIX + name, tensor) for name, tensor in known.items())]

    @classmethod
    def from_pretrained(
        cls,
        folder_or_hub_id: Path | str,
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: Path | str | None = None,
    ) -> Self:
        """Read a bundle from a folder, or from the hub, given OWNER/NAME; `load_bundle` also takes the record
        of a run. No code in it is executed. Raises BundleError for one that is missing, damaged or of another
        schema.
        """
        folder = expanded(folder_or_hub_id)
        if not folder.exists() and is_hub_id(str(folder_or_hub_id)):
            folder = download_bundle(str(folder_or_hub_id), revision, token=token, cache_dir=cache_dir)
        config, path = read_config(folder), folder / ADAPTER
        try:
            tensors = read_tensors(path, "bundle_bytes")
        except ReadingError as error:
            raise BundleError(f"{path}: {error.reason}: copy the bundle again.") from error
        adapter = config.get("adapter")
        if not isinstance(adapter, dict) or tensors_hash(tensors) != adapter.get("sha256"):
            raise BundleError(f"{path} was changed after {CONFIG} (its hash differs): copy the bundle again.")
        return cls.from_config(config, tensors, folder / CONFIG)

    def without_paths(self) -> "Bundle":
        """The bundle without the paths on this machine: of its backbone's folder or file, and its command."""
        pretrained, roles = self.pretrained, self.roles
        if pretrained is not None and not is_published(self.model, pretrained):
            pretrained = PureWindowsPath(pretrained).name  # takes both separators
        if roles is not None:
            of_roles = replace(roles.weights, model=without_folders(roles.weights.model))
            roles = replace(roles, weights=of_roles)
        weights = replace(self.weights, model=without_folders(self.weights.model))
        # OWNER/NAME may be a repository, which the identity tells.
        model = without_folders(self.model) if may_be_folder(self.weights.model) else self.model
        facts = replace(self.training, command="")
        return replace(self, model=model, pretrained=pretrained, weights=weights, roles=roles, training=facts)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str = "Upload the adapter",
    ) -> str:
        """Upload the bundle to a repository of the hub, created if missing, and return the commit's address.
        A backbone's folder is named without the path to it. Raises BundleError with the hub's reason.
        """
        files = self.without_paths()._files(repo_id)
        try:
            hub.require_answer()
            client = huggingface_hub.HfApi(token=token, library_name=LIBRARY)
            client.create_repo(repo_id, private=private, exist_ok=True)
            operations = [huggingface_hub.CommitOperationAdd(*file) for file in files.items()]
            commit = client.create_commit(
                repo_id, operations, commit_message=commit_message, revision=revision
            )
        except Exception as error:  # the network and the hub share no exception class
            raise BundleError(
                f"cannot upload to https://huggingface.co/{repo_id} ({first_line(error)}). Check the name "
                "and that you are logged in (`hf auth login`), or copy the folder yourself."
            ) from error
        return printable(str(commit))

    def config(self) -> dict[str, Any]:
        """The contents of config.json, without the entry about the adapter's file."""
        roles = None if self.roles is None else replace(self.roles, evidence={}).to_json()
        weights = asdict(self.weights)
        return {
            "schema": SCHEMA,
            "method": self.method,
            "settings": asdict(self.settings),
            "backbone": {"model": self.model, "pretrained": self.pretrained, "weights": weights},
            "classes": [*self.classes],
            **({"keys": [*self.keys]} if self.keys else {}),
            "templates": [*self.templates],
            "temperature": self.temperature,
            "scores": None if self.scores is None else asdict(self.scores),
            "training": asdict(self.training),
            "roles": roles,
            **({} if self.known is None and self.refuse == REFUSED_SHARE else {"refuse": self.refuse}),
            **({"image_hashes": self.image_hashes.hex()} if self.image_hashes else {}),
        }

    @classmethod
    def from_config(cls, content: dict[str, Any], tensors: Mapping[str, Tensor], file: Path) -> Self:
        """The bundle of a configuration and tensors; ``file`` is where they are from. Raises BundleError that
        names the first wrong key.
        """
        try:
            config = typed(content, Config, file)
            keys, hashes = tuple(config.get("keys", ())), config.get("image_hashes", "")
            if keys and not len(keys) == len({*keys}) == len(config["classes"]):
                raise DataError("it has a key twice, or not as many keys as classes.")
            if len(hashes) % (2 * HASH_BYTES) or {*hashes} - {*"0123456789abcdef"}:
                raise DataError(f"image_hashes is not a row of {2 * HASH_BYTES} hexadecimal digits each.")
            method, backbone, roles = known_method(config["method"]), config["backbone"], config["roles"]
            settings = typed(config["settings"], METHODS[method].settings, file, "settings")
            if settings != settings.without_files():
                raise DataError(
                    f"{list_names(settings.paths, 5)} of its settings name files, as no bundle may."
                )
            parts = {name: part for name, part in tensors.items() if name.startswith(PREFIX)}
            return cls(
                method=method,
                settings=settings,
                model=backbone["model"],
                pretrained=backbone["pretrained"],
                weights=backbone["weights"],
                roles=None if roles is None else RoleTable.from_json(roles, str(file)),
                classes=require_distinct_names(config["classes"]),
                templates=checked_templates(config["templates"], "templates"),
                tensors={name: part for name, part in tensors.items() if name not in parts},
                temperature=config["temperature"],
                keys=keys,
                scores=config["scores"],
                training=config["training"],
                image_hashes=bytes.fromhex(hashes),
                known=OutlierModel.of(parts, len(config["classes"])) if parts else None,
                refuse=config.get("refuse", REFUSED_SHARE),
                source=str(file.parent),
            )
        except DearError as error:
            reason = f"{error.reason}." if isinstance(error, ReadingError) else str(error)
            raise BundleError(f"{file} does not describe an adapted model: {reason}") from error


def require_distinct_names(classes: Iterable[str], source: str = "the classes") -> tuple[str, ...]:
    """Class names as a tuple. Raises DataError for an empty list, a duplicate or an empty name."""
    names = tuple(classes)
    if not names:
        raise DataError(f"{source}: there are no classes. Give at least one name.")
    require_distinct(source, names, names)
    return names


def _json(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode(errors="replace")


def _fits(stored: Tensor, expected: Tensor) -> bool:
    """True for the same shape and dtype, or floating-point numbers of any precision that models run with."""
    same_kind = stored.dtype == expected.dtype or {stored.dtype, expected.dtype} <= FLOATS
    return stored.shape == expected.shape and same_kind
