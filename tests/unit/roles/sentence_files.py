"""A small sentence model of the BERT family, in the files that sentence-transformers writes."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from dear.roles.sentences import Bert, Config
from tests.unit.backbone.tokenizer_files import write_tokenizer

CONFIG: Config = {
    "model_type": "bert", "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2,
    "num_attention_heads": 3, "vocab_size": 13, "max_position_embeddings": 9, "type_vocab_size": 2,
    "layer_norm_eps": 1e-12, "hidden_act": "gelu",
}  # fmt: skip


def write_model(folder: Path, pooling: str = "mean") -> Path:
    """Write it with random weights; returns the folder."""
    (folder / "1_Pooling").mkdir(parents=True)
    write_tokenizer("BERT", folder, model_max_length=9)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    for name, content in {
        "config.json": {**CONFIG, "architectures": ["BertModel"]},
        "modules.json": [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (kind, path) in enumerate(kinds.items())
        ],
        "config_sentence_transformers.json": {"prompts": {"query": "", "document": "x"}},
        "sentence_bert_config.json": {"max_seq_length": 7, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": 12,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
        },
    }.items():
        (folder / name).write_text(json.dumps(content))
    generator = torch.Generator().manual_seed(3)
    state = Bert(CONFIG).state_dict()
    save_file(
        {name: torch.randn(value.shape, generator=generator) / 3 for name, value in state.items()},
        folder / "model.safetensors",
    )
    return folder
