"""Independent generators derived from one seed, so that one part's draws do not depend on another's."""

import hashlib

import torch


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose of a run, for example ``generator(1, "views", epoch)``; identical on
    every machine.
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
