"""A model's files in one place: a repository of the Hugging Face hub, or a folder with the same files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dear.backbone.loading import hub, weights
from dear.backbone.names import HUB, hub_name, is_architecture
from dear.limits import at_most
from dear.reading.files import expanded
from dear.text import printable


@dataclass
class Repository:
    """The source of a model's files.

    Attributes:
        name: ``hf-hub:OWNER/NAME`` or a folder.
        folder: the folder; None for the hub.
        named_by: the file that names it ("the bundle NAME"), or "" if the user does. If a file names it, the
            announcement of the download says so, and no format with pickle is fetched.
        commit: the commit of the first file found on the hub; all other files are taken from it too.
    """

    name: str
    folder: Path | None
    named_by: str = ""
    commit: str | None = None

    @property
    def id(self) -> str:
        """Its name on the hub."""
        return self.name.removeprefix(HUB)

    def find(self, files: Sequence[str], title: str = "") -> Path:
        """The first of these files that exists. Raises WeightsError, MissingError if there is none."""
        if self.folder is None:
            safe_only = bool(self.named_by)
            path = hub.fetch(self.id, files, title=title, safe_only=safe_only, revision=self.commit)
            self.commit = self.commit or hub.commit_of(path)
            return path
        for file in files:
            if os.path.lexists(self.folder / file):  # a broken link is not missing
                return self.folder / file
        raise hub.MissingError(
            f"{self.folder} holds no {' and no '.join(files)}: it is not the folder of a CLIP."
        )

    def find_if_any(self, file: str) -> Path | None:
        """The path of a file, or None if there is none."""
        try:
            return self.find((file,))
        except hub.MissingError:
            return None

    def weights(self, files: Sequence[str]) -> Path:
        """The first of these files that exists; if it is an index, also those that it lists."""
        title = self.name if not self.named_by else f"{self.name}, which {printable(self.named_by)} names,"
        path, size = self.find(files, title=title), 0
        for name in weights.list_shards(path) if path.name.endswith(weights.INDEX) else ():
            size += self.find((name,), title=title).stat().st_size
            at_most("tensor_bytes", size, path)
        return path


def find_repository(model: str, named_by: str = "") -> Repository | None:
    """The repository that a model's name stands for, or None for the name of an architecture, which comes
    before a folder of that name.
    """
    if is_architecture(model):
        return None
    folder = expanded(model)
    if not model.startswith(HUB) and os.path.isdir(folder):
        return Repository(model, folder, named_by)
    name = hub_name(model)
    return None if name is None else Repository(name, None, named_by)
