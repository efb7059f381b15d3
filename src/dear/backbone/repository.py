"""A model's files in one place: a repository of the Hugging Face hub, or a folder with the same files."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dear.backbone import from_transformers, hub
from dear.backbone.choice import HUB
from dear.backbone.model_config import model_config
from dear.errors import WeightsError, printable
from dear.reading.files import ReadingError
from dear.reading.plain import read_json
from dear.reading.typed import typed


@dataclass(frozen=True)
class Repository:
    """Where a model's files are.

    Attributes:
        name: as the user gave it: ``hf-hub:OWNER/NAME`` or a folder.
        folder: the folder; None for the hub.
        named_by: the file that names it ("the bundle NAME"), or "" if the user does. A file's name is
            announced before anything is fetched for it, and no format with pickle is fetched.
    """

    name: str
    folder: Path | None
    named_by: str = ""

    def find(self, files: Sequence[str]) -> Path:
        """The first of some files that is there. Raises WeightsError."""
        if self.folder is None:
            title = self.name if any(Path(file).suffix != ".json" for file in files) else ""
            return hub.fetch(self.id, files, title=title, safe_only=bool(self.named_by))
        for file in files:
            if (self.folder / file).is_file():
                return self.folder / file
        raise WeightsError(f"{self.folder} holds no {' and no '.join(files)}: it is not a folder of a CLIP.")

    @property
    def id(self) -> str:
        """The hub's name of it."""
        return self.name.removeprefix(HUB)

    def config(self) -> tuple[bool, dict[str, Any]]:
        """Whether it is in transformers' form, and its configuration. Raises WeightsError if that is neither
        open_clip's nor transformers'.
        """
        files = (hub.CONFIG, from_transformers.CONFIG)
        if self.named_by and self.folder is None and hub.cached(self.id, files) is None:
            print(
                f"dear: {printable(self.named_by)} names the backbone {printable(self.name)}, which is "
                "fetched from the hub now, its weights as safetensors only",
                file=sys.stderr,
            )
        path = self.find(files)
        theirs = path.name == from_transformers.CONFIG
        try:
            read = read_json(path)
            if theirs:
                return True, dict(typed(_known(read), from_transformers.Config, path))
            return False, dict(model_config(read, path))
        except ReadingError as error:
            owner = "transformers'" if theirs else "open_clip's"
            raise WeightsError(
                f"{self.name} does not fit: its {path.name} is not {owner} ({error.reason})."
            ) from error

    def pixels(self) -> dict[str, Any]:
        """transformers' normalisation of pixels; empty if there is no file for it."""
        try:
            path = self.find((from_transformers.PIXELS,))
            read = read_json(path)
            known = {key: read[key] for key in ("image_mean", "image_std") if key in read}
            return dict(typed(known, from_transformers.PixelConfig, path))
        except (WeightsError, ReadingError, TypeError):
            return {}


def repository(model: str, named_by: str = "") -> Repository | None:
    """The repository that a model's name stands for, or None for the name of an architecture."""
    if model.startswith(HUB):
        return Repository(model, None, named_by)
    folder = Path(model).expanduser()
    return Repository(model, folder, named_by) if folder.is_dir() else None


def _known(config: Any) -> Any:
    """A configuration without the many keys that do not matter here."""
    if not isinstance(config, dict):
        return config
    towers = {
        name: {
            key: value
            for key, value in config[name].items()
            if key in from_transformers.TowerConfig.__annotations__
        }
        for name in ("text_config", "vision_config")
        if isinstance(config.get(name), dict)
    }
    own = {key: config[key] for key in ("model_type", "projection_dim") if key in config}
    return own | towers
