"""Weights as the hub keeps large models: two safetensors files and their index."""

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_sharded(folder: Path, state: dict[str, Tensor], stem: str = "model") -> Path:
    """Every other tensor in the second file. Returns the index."""
    folder.mkdir(exist_ok=True)
    names = [f"{stem}-0000{number}-of-00002.safetensors" for number in (1, 2)]
    weight_map = {tensor: names[number % 2] for number, tensor in enumerate(sorted(state))}
    for name in names:
        save_file({key: state[key] for key, file in weight_map.items() if file == name}, folder / name)
    index = folder / f"{stem}.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index
