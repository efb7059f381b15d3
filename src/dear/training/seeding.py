"""Independent generators from one seed, so that no part's draws depend on how many another part made."""

import hashlib

import torch


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator for one purpose of a run, the same on every machine: ``generator(1, "views",
    epoch)``.
    """
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
