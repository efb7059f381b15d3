"""Sentence embeddings by sentence-transformers: its models in a folder, or on the hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
from jaxtyping import Float
from torch import Tensor

from dear.errors import SettingsError, WeightsError, first_line, installation
from dear.reading.files import expanded
from dear.reading.plain import read_json

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
FILES = ["*.json", "*.txt", "*.safetensors"]
"""What is downloaded of a model: no pickles and no code."""
SETTINGS = "sentence_bert_config.json"


def embed_sentences(source: str, texts: Sequence[str], batch: int) -> Float[Tensor, "text width"]:
    """Unit embeddings of texts by the model in a folder or, given OWNER/NAME, on the hub (`MODEL` is always
    the hub's). Raises WeightsError for a model that cannot be loaded, SettingsError without the library.
    """
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise SettingsError(
            f"embedding phrases needs sentence-transformers: {installation('roles')}"
        ) from error
    try:
        folder = expanded(source)
        if source == MODEL or not folder.is_dir():
            folder = Path(huggingface_hub.snapshot_download(source, allow_patterns=FILES))
        _refuse_arguments(folder / SETTINGS)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        model = SentenceTransformer(
            str(folder),
            device="cpu",
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs={"use_safetensors": True},
        )
        return model.encode(
            [*texts],
            batch_size=batch,
            convert_to_tensor=True,
            normalize_embeddings=True,
            show_progress_bar=False,
        ).clone()  # of an inference mode
    except Exception as error:  # of the hub, transformers, tokenizers and torch
        raise WeightsError(
            f"cannot load the sentence model {source}: {first_line(error)}. Give a folder or a model of "
            f"sentence-transformers with model.safetensors, such as {MODEL}, with --sentence-model, or allow "
            "the download."
        ) from error


def _refuse_arguments(path: Path) -> None:
    """Raise WeightsError for a model whose settings are arguments of transformers: they may turn off what
    protects from pickles and foreign code.
    """
    settings: dict[str, Any] = read_json(path) if path.is_file() else {}
    if given := [key for key, value in settings.items() if key.endswith("args") and value]:
        raise WeightsError(f"{path.name} has {', '.join(given)}, which are not followed here")
