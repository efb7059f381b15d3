"""Files around a model: bundles, indexes, vocabularies, weights and configurations."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dear.adapters.bundle_config import config_hash
from dear.adapters.predictor import Predictor
from dear.backbone import hub
from dear.backbone.clip import tensors_hash
from dear.backbone.clip_tokenizer import is_clips
from dear.backbone.load import load_clip
from dear.backbone.tiny import WordTokenizer
from dear.backbone.tokenizer_file import file_tokenizer
from dear.backbone.weights import fill_weights, read_weights
from dear.errors import DataError, DearError
from dear.methods.tac import TacSettings
from dear.reading.plain import read_json
from dear.retrieval.build import build_index
from dear.retrieval.database import FILE, JOURNAL_MAGIC
from dear.retrieval.encoder import HeadEncoder, encoder_for
from dear.retrieval.query import Index, Shards, by_text
from dear.retrieval.scan import Shard
from dear.retrieval.shards import merge_index
from dear.roles.sentences import load_sentence_model
from tests.conftest import WORDS
from tests.fuzz.readers.target import TakenOver, clip, written
from tests.standin_hub import COMMIT
from tests.unit.backbone.sharded_files import write_sharded
from tests.unit.backbone.tokenizer_files import clips, write_tokenizer
from tests.unit.retrieval.solid import Plain, gallery
from tests.unit.roles.sentence_files import write_model
from tests.unit.serving.small import small_predictor
from tests.unit.training.world import role_table


def bundle(folder: Path) -> Path:
    fitted = replace(small_predictor(clip()).bundle, image_hashes=bytes(range(24)))
    fitted.save_pretrained(folder / "bundle")
    return folder / "bundle" / "config.json"


def tensors(folder: Path) -> Path:
    return bundle(folder).parent / "adapter.safetensors"


def sealed(file: Path) -> None:
    """Make the configuration say what the tensors are."""
    from safetensors.torch import load

    config = file.parent / "config.json"
    found = load(file.read_bytes())
    told = json.loads(config.read_text())
    told["adapter"] |= {
        "sha256": tensors_hash(found),
        "shapes": {name: [*tensor.shape] for name, tensor in found.items()},
    }
    config.write_text(json.dumps(told))
    signed(config)


def signed(file: Path) -> None:
    """Give a bundle's configuration the hash of what it is now."""
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"sha256": config_hash(told)}))


def use_bundle(file: Path) -> None:
    predictor = Predictor(file.parent, clip=clip())
    if not predictor.logits(torch.rand(2, 3, 20, 20)).isfinite().all():
        raise TakenOver("a score is no number")


def index(folder: Path) -> Path:
    build_index(Plain(), gallery(folder / "images"), folder / "index")
    return folder / "index" / FILE


def journal(folder: Path) -> Path:
    """That of an index; it names no other file."""
    return written(index(folder).with_name(f"{FILE}-journal"), JOURNAL_MAGIC + bytes(504))


def shard(folder: Path) -> Path:
    """The first of two; both are of one folder of images."""
    images = gallery(folder / "images")
    for number in (1, 2):
        build_index(Plain(), images, folder / "shards", shard=Shard(number, 2))
    return Shard(1, 2).folder(folder / "shards") / FILE


def shard_vectors(folder: Path) -> Path:
    return shard(folder).parent / "vectors-1" / "0.f16"


def merge(place: Path) -> None:
    """Search the shards in a folder together, and merge them."""
    query = {name: torch.eye(5)[0] for name in ("class", "color")}
    with suppress(DearError):
        opened = Shards.open(place)
        opened.check(Plain())
        opened.query(query, {"class": 1.0, "color": 0.5})
    out = place.with_name("merged")
    shutil.rmtree(out, ignore_errors=True)
    merge_index(place, out)
    ask(out)


def vectors(folder: Path) -> Path:
    return index(folder).parent / "vectors-1" / "0.f16"


def ask(place: Path) -> None:
    opened = Index.open(place)
    opened.check(Plain())
    query = {name: torch.eye(5)[0] for name in ("class", "color")}
    hits = opened.query(query, {"class": 1.0, "color": 0.5}) + opened.query({"class": query["class"]})
    if not all(np.isfinite(hit.score) for hit in hits):
        raise TakenOver("a score is no number")


def index_of_heads(folder: Path) -> Path:
    """Of the small CLIP, by a table in which color and object own a head each."""
    images, out = gallery(folder / "images"), folder / "index"
    build_index(encoder_for(clip(), role_table(clip()), images, out), images, out)
    return out / FILE


def ask_heads(file: Path) -> None:
    opened = Index.open(file.parent)
    encoder = HeadEncoder(clip(), opened.metadata["heads"]) if "heads" in opened.metadata else Plain()
    opened.check(encoder)
    hits = by_text(opened, encoder, "a red circle", {"class": 1.0, "color": 0.5})
    if not all(np.isfinite(hit.score) for hit in hits):
        raise TakenOver("a score is no number")


def vocabulary(folder: Path) -> Path:
    return written(folder / "vocabulary.json", json.dumps({"context_length": 13, "words": WORDS}))


def use_vocabulary(file: Path) -> None:
    WordTokenizer.load(file)(["a photo of a zebra"])


def weights(folder: Path) -> Path:
    from safetensors.torch import save_file

    path = folder / "weights.safetensors"
    save_file({name: one.contiguous() for name, one in clip().state_dict().items()}, path)
    return path


def index_of_weights(folder: Path) -> Path:
    """Of two files of tensors."""
    return write_sharded(folder, {name: one.contiguous() for name, one in clip().state_dict().items()})


def use_weights(file: Path) -> None:
    found = read_weights(file)
    network = torch.nn.Module()
    for name, one in clip().state_dict().items():
        network.register_buffer(name.replace(".", "_"), torch.empty_like(one))
    fill_weights(network, {name.replace(".", "_"): one for name, one in found.items()}, file)


def checkpoint(folder: Path) -> Path:
    torch.save({"conv1.weight": torch.zeros(7, 11)}, folder / "weights.pt")
    return folder / "weights.pt"


def use_checkpoint(file: Path) -> None:
    load_clip("ViT-B-32", str(file))


def architecture(folder: Path) -> Path:
    config = {
        "model_cfg": {
            "embed_dim": 32,
            "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "patch_size": 16},
            "text_cfg": {
                "context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2,
                "hf_tokenizer_name": "someone/words",
                "tokenizer_kwargs": {"clean": "canonicalize", "strip_sep_token": False},
            },
        },
        "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    }  # fmt: skip
    write_tokenizer("T5", folder)
    return written(folder / "open_clip_config.json", json.dumps(config))


def use_architecture(file: Path) -> None:
    load_clip(str(file.parent), "random:0")


def merges(folder: Path) -> Path:
    """Those of a model with CLIP's words."""
    saved_by_transformers("vocab.json", clips()["model"]["vocab"])(folder)
    return written(folder / "merges.txt", "#version: 0.2\nc a\nca t</w>\n")


def saved_by_transformers(file: str, content: dict[str, Any]) -> Callable[[Path], Path]:
    """A model's folder with such a file."""

    def make(folder: Path) -> Path:
        sizes = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
        towers = {"text_config": sizes, "vision_config": sizes | {"image_size": 32, "patch_size": 16}}
        written(folder / "config.json", json.dumps({"model_type": "clip", "projection_dim": 8} | towers))
        return written(folder / file, json.dumps(content))

    return make


def clips_tokenizer(folder: Path) -> Path:
    """With few words, so that most changes are in other parts."""
    content = clips()
    content["model"] |= {"vocab": {"a</w>": 320, "ca": 1234}, "merges": [["c", "a"], "a t</w>"]}
    return written(folder / "tokenizer.json", json.dumps(content))


def use_clips_tokenizer(file: Path) -> None:
    if is_clips(read_json(file, "tokenizer_values"), file):
        raise TakenOver("other words than CLIP's")


def branch(folder: Path) -> Path:
    """The note of a branch's commit in the hub's cache."""
    repository = folder / "models--someone--clip"
    for part in ("refs", f"snapshots/{COMMIT}"):
        (repository / part).mkdir(parents=True)
    written(repository / "snapshots" / COMMIT / "config.json", "{}")
    return written(repository / "refs" / "main", COMMIT)


def use_branch(file: Path) -> None:
    if hub.cached("someone/clip", ["config.json"], cache_dir=file.parents[2]) is None:
        raise DataError("no commit of this name")


def descriptions(folder: Path) -> Path:
    return written(folder / "tac.json", json.dumps({"red cup": ["a red cup", "a cup"], "key": ["a key"]}))


def use_descriptions(file: Path) -> None:
    TacSettings(descriptions=str(file)).described(["red_cup", "key"])


def tokenizer(folder: Path) -> Path:
    return write_tokenizer("T5", folder)


def use_tokenizer(file: Path) -> None:
    settings = file.parent / "tokenizer_config.json"
    read = file_tokenizer(
        file.parent / "tokenizer.json",
        settings,
        context=13,
        words=1000,
        clean="canonicalize",
        strip_sep_token=True,
    )
    ids = read(["a photo of a cat", "a" * 1000, "two  trees " * 90])
    if ids.shape != (3, 13) or not 0 <= int(ids.min()) <= int(ids.max()) < 1000:
        raise TakenOver("ids that the text tower does not have")


def tokenizer_settings(folder: Path) -> Path:
    write_tokenizer("BERT", folder)
    return folder / "tokenizer_config.json"


def sentence_model(file: str) -> Callable[[Path], Path]:
    """A file of a sentence model."""
    return lambda folder: write_model(folder / "model") / file


def use_sentence_model(file: Path) -> None:
    folder = next(parent for parent in file.parents if parent.name == "model")
    rows = load_sentence_model(str(folder))(["a photo of a cat", "a" * 1000, ""], 2)
    if rows.shape != (3, 12):
        raise TakenOver("embeddings of another shape")
