"""What differs between the libraries that write a model's files: one class for each library; and the bounds
of numbers in all configurations.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from torch import Tensor, nn

from dear.backbone.loading.hub import Repository
from dear.backbone.preprocess import Preprocess
from dear.reading.typed import Range, Share

Side = Annotated[int, Range(1, 1024)]
Layers = Annotated[int, Range(1, 128)]
Heads = Annotated[int, Range(1, 128)]
Context = Annotated[int, Range(1, 1024)]
Words = Annotated[int, Range(1, 1_000_000)]
Ratio = Annotated[float, Range(1e-3, 1e3)]
Epsilon = Share
Shift = Annotated[float, Range(-1e3, 1e3)]


class Format(ABC):
    """A model as its configuration describes it. Its modules are open_clip's, whatever the library.

    Attributes:
        LIBRARY: Who writes such files, as a message names them.
        CONFIG: The name of the configuration's file.
        FILES: Names of weights files; the first that exists is read.
        name: Architecture, repository or folder.
        facts: What features depend on beside the tensors and the name, as JSON: part of the identity.
        folder: The folder of the tokenizer's files; None if they are on the hub or beside the weights.
        commit: The commit of the tokenizer's files on the hub; None for the latest.
        is_bounded: Whether the size of the model is limited, since the user has not chosen it by name.
    """

    LIBRARY: ClassVar[str]
    CONFIG: ClassVar[str]
    FILES: ClassVar[tuple[str, ...]]
    name: str
    facts: Mapping[str, Any]
    folder: Path | None = None
    commit: str | None = None
    is_bounded = True

    @classmethod
    @abstractmethod
    def read(cls, source: Repository, path: Path) -> Self:
        """The format of a repository or folder, from its configuration. Raises ReadingError, WeightsError."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The open_clip model with its initial weights."""

    def outline(self) -> nn.Module:
        """The same tensors on the meta device, where they are made."""
        return self.build()

    @abstractmethod
    def rename(self, network: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file under the network's names."""

    @property
    @abstractmethod
    def text(self) -> Mapping[str, Any]:
        """The text configuration that `find_tokenizer` takes, in open_clip's form."""

    @abstractmethod
    def preprocess(self, size: int) -> Preprocess:
        """How a picture becomes the ``size`` x ``size`` pixels that the image tower was trained on."""
