"""The identity of a bundle: what its predictions depend on, in a hash."""

from dear.adapters.bundle import Bundle
from dear.adapters.bundle_config import config_hash
from dear.backbone.clip import tensors_hash
from dear.text import fingerprint

DIGITS = 12
"""Of the hash that answers of a server name."""


def identify_bundle(bundle: Bundle) -> str:
    """A hash, in hexadecimal digits, of a bundle's configuration and of its tensors."""
    known = bundle.known.tensors() if bundle.known else {}
    tensors = {
        f"{part}.{name}": tensor
        for part, of in (("adapter", bundle.tensors), ("known", known))
        for name, tensor in of.items()
    }
    return config_hash(bundle.config()) + tensors_hash(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    )


def short_identity(bundle: Bundle) -> str:
    """The first `DIGITS` of the identity's own hash, for people and logs."""
    return fingerprint(identify_bundle(bundle))[:DIGITS]
