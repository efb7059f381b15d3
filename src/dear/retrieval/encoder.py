"""What an index needs of a model: unit features of pictures and of texts, and the model's identity."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from jaxtyping import Float, UInt8
from torch import Tensor


class Encoder(Protocol):
    """A CLIP, adapted or not, as an index sees it.

    Attributes:
        identity: Identity of the weights, and of the adapter or the heads: features of two identities are not
            comparable.
        features: Names of the image features.
        unowned: Those of them whose attribute owns no head: they are not to be searched by.
        embed: Their width.
        short_side: Length of the short side, in pixels, to which larger pictures are first reduced.
    """

    @property
    def identity(self) -> str: ...

    @property
    def features(self) -> tuple[str, ...]: ...

    @property
    def unowned(self) -> tuple[str, ...]: ...

    @property
    def embed(self) -> int: ...

    @property
    def short_side(self) -> int: ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """What an index records of the encoder beyond these: keys of `dear.retrieval.catalogue.Facts`."""

    def images(
        self, pictures: Sequence[UInt8[Tensor, "3 _height _width"]]
    ) -> Float[Tensor, "batch feature embed"]:
        """Unit features of pictures of any size."""

    def texts(self, texts: Sequence[str]) -> Float[Tensor, "text feature embed"]:
        """Unit features of texts, for each image feature in its space."""
