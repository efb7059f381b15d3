"""Every reader of files from outside, with a good file for it and what is done with it once it is read."""

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tests.conftest import WORDS, small_clip_of
from tests.unit.report import samples
from tests.unit.retrieval.solid import Plain, gallery
from tests.unit.serving.small import small_predictor

from dear.adapters.bundle import Bundle
from dear.backbone import hub, tiny
from dear.backbone.clip import Clip, tensors_hash
from dear.backbone.load import load_clip
from dear.backbone.tokenizer import WordTokenizer
from dear.cli.main import main
from dear.cli.predict import _names
from dear.data.image_check import broken_images
from dear.data.images.decode_cache import DecodeCache
from dear.data.loading import load_dataset
from dear.data.settings import DataSettings
from dear.data.sources.coop import read_coop
from dear.data.sources.listing import Listing
from dear.errors import DearError
from dear.evaluation.recipe import load_recipes
from dear.evaluation.records import read_record
from dear.report.folder import write_folder_report
from dear.retrieval.build import build_index
from dear.retrieval.catalogue import FILE
from dear.retrieval.query import Index
from dear.roles.packaged import FOLDER as TABLES
from dear.roles.phrases import load_pool
from dear.roles.table import RoleTable
from dear.roles.textspan_format import in_layers, read_textspan
from dear.training.viewcache import ViewCache, ViewFingerprint


class TakenOver(Exception):
    """What no reader may let through: a bad value that was used as if it were good."""


ROOT = Path(__file__).parents[3]
NOWHERE = ("train", "test")


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        form: of its files, which says how they are changed.
        make: writes what it needs into a folder; returns the file that is to be changed.
        read: reads that file and uses it as a command would. Anything but a DearError is a fault.
        seal: after a change, makes fit what a careful attacker would make fit (a checksum).
    """

    form: str
    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    seal: Callable[[Path], object] | None = None


@cache
def clip() -> Clip:
    return small_clip_of()


def command(*words: object) -> None:
    """Run a command; its error is raised again."""
    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        code = main([str(word) for word in words])
    if code == 2:
        raise DearError(told.getvalue())


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def record(folder: Path) -> Path:
    table = samples.role_table()
    one = samples.record("tools", "dear", 0.8, 0.6, roles={"source": "by hand", "table": table})
    return written(folder / "record.json", json.dumps(one))


def report(file: Path) -> None:
    with contextlib.suppress(DearError):
        read_record(file)
    shutil.rmtree(file.parent / "out", ignore_errors=True)
    write_folder_report(file.parent, file.parent / "out")


def transfer(folder: Path) -> Path:
    results = {"source": {"accuracy": 0.5}, "targets": {"toys": {"accuracy": 0.25}}}
    target = {"name": "toys", "title": "Toys", "identity": "of toys"}
    one = samples.record(
        "tools", "dear", 0, 0, protocol="cross-dataset", results=results, targets=[target], schema=2
    )
    return written(folder / "record.json", json.dumps(one))


def retrieval(folder: Path) -> Path:
    run = samples.record("tools", "dear", 0.8, 0.6)
    written(folder / "run.json", json.dumps(run))
    one = run | {"protocol": "retrieval", "results": samples.neighbours(), "key": "r"}
    return written(folder / "retrieval.json", json.dumps(one))


def recipe(folder: Path) -> Path:
    found = sorted(ROOT.glob("recipes/*/*.yaml"))
    return written(folder / "recipe.yaml", random.Random(len(str(folder))).choice(found).read_bytes())


def run_recipe(file: Path) -> None:
    for one in load_recipes(file):
        one.runs()


def options(folder: Path) -> Path:
    lines = {"data": ["tinted-signs"], "methods": ["dear"], "shots": 4, "train": {"epochs": 3, "lr": 0.001}}
    return written(folder / "options.yaml", json.dumps(lines | {"seeds": [1, 2], "select": "last"}))


def with_options(file: Path) -> None:
    command("run", "base-to-novel", "--config", file, "--data", "nowhere", "--out", file.parent / "out")


def with_train_options(file: Path) -> None:
    command("run", "base-to-novel", "--train", file, "--data", "nowhere", "--out", file.parent / "out")


def train_options(folder: Path) -> Path:
    return written(folder / "train.yaml", json.dumps({"epochs": 3, "lr": 0.001, "precision": "32-true"}))


def roles(folder: Path) -> Path:
    return written(folder / "roles.json", (TABLES / "tiny_discovered.json").read_bytes())


def show_roles(file: Path) -> None:
    table = RoleTable.load(file)
    for layer in (9, 12):
        with contextlib.suppress(DearError):
            table.layer(layer, 6)
    table.shuffled(1).random(2)
    command("roles", "show", file, "--html", file.parent / "roles.html")


def spans(folder: Path) -> Path:
    heads = ((layer, head) for layer in (8, 9) for head in range(3))
    lines = [f"{'-' * 18}\nLayer {a}, Head {b}\n{'-' * 18}\na photo\na sea at {a}\n" for a, b in heads]
    return written(folder / "spans.txt", "".join(lines))


def read_spans(file: Path) -> None:
    in_layers(read_textspan(file), (9, 10))


def phrases(folder: Path) -> Path:
    return written(folder / "phrases.txt", "".join(f"a photo of {word}\n" for word in WORDS))


def photo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (7, 5)).save(path)


PHOTOS = [(f"{name}/{at}.png", at % 2, name) for at in (0, 1) for name in ("red", "sea")]


def split(folder: Path) -> Path:
    rows = [["red/0.png", 0, "red"], ["sea/0.png", 1, "sea"]]
    for path, *_ in rows:
        photo(folder / "images" / str(path))
    return written(folder / "split_zhou_Photos.json", json.dumps({part: rows for part in NOWHERE}))


def csv(folder: Path) -> Path:
    lines = [f"{at}.png,{at % 2},{part}" for at, part in enumerate(("train", "train", "test", "test"))]
    return written(folder / "table.csv", "\n".join(["path,label,split", *lines]) + "\n")


def jsonl(folder: Path) -> Path:
    rows = [{"path": f"{at}.png", "label": at % 2, "split": part} for at, part in enumerate(NOWHERE * 2)]
    return written(folder / "table.jsonl", "".join(json.dumps(row) + "\n" for row in rows))


def read_table(file: Path) -> None:
    for name in ("0", "1", "2", "3"):
        photo(file.parent / f"{name}.png")
    load_dataset(str(file), DataSettings(cache=file.parent / "cache"))


def names_json(folder: Path) -> Path:
    csv(folder)
    return written(folder / "names.json", json.dumps({"0": "red", "1": "sea"}))


def names_csv(folder: Path) -> Path:
    csv(folder)
    return written(folder / "names.csv", "0,red\n1,sea\n")


def names_text(folder: Path) -> Path:
    csv(folder)
    return written(folder / "names.txt", "0 red\n1 blue sea\n")


def read_names(file: Path) -> None:
    settings = DataSettings(classnames=file, cache=file.parent / "cache")
    for name in ("0", "1", "2", "3"):
        photo(file.parent / f"{name}.png")
    load_dataset(str(file.parent / "table.csv"), settings)


def templates(folder: Path) -> Path:
    return written(folder / "templates.txt", "a photo of a {}.\na {} at sea.\n")


def bundle(folder: Path) -> Path:
    small_predictor(clip()).bundle.save_pretrained(folder / "bundle")
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


def use_bundle(file: Path) -> None:
    Bundle.from_pretrained(file.parent).build(clip())


def index(folder: Path) -> Path:
    build_index(Plain(), gallery(folder / "images"), folder / "index")
    return folder / "index" / FILE


def vectors(folder: Path) -> Path:
    return index(folder).parent / "vectors-1" / "0.f16"


def ask(place: Path) -> None:
    opened = Index.open(place)
    opened.check(Plain())
    query = {name: torch.eye(5)[0] for name in ("class", "color")}
    hits = opened.query(query, {"class": 1.0, "color": 0.5}) + opened.query({"class": query["class"]})
    if not all(np.isfinite(hit.score) for hit in hits):
        raise TakenOver("a score is no number")


def picture(folder: Path) -> Path:
    DecodeCache(folder, 23).put("ab" * 32, torch.randint(0, 256, (3, 23, 29), dtype=torch.uint8))
    return DecodeCache(folder, 23)._path("ab" * 32)


def use_picture(file: Path) -> None:
    found = DecodeCache(file.parents[3], 23).get("ab" * 32)
    if found is not None and (found.dtype != torch.uint8 or found.ndim != 3 or len(found) != 3):
        raise TakenOver("it is no picture")


def checked(folder: Path) -> Path:
    photo(folder / "images" / "a.png")
    look_again(folder)
    (found,) = (folder / "cache" / "checked").iterdir()
    return written(found, json.dumps({"a.png": "it is torn"}))


def look_again(folder: Path) -> None:
    listing = Listing("x", folder / "images", ("a",), ("a",), {"test": ()}, "by hand")
    from dear.data.sources.listing import Row

    listing = Listing("x", listing.folder, ("a",), ("a",), {"test": (Row("a.png", 0),)}, "by hand")
    found = broken_images(listing, DataSettings(cache=folder / "cache"))
    if not all(isinstance(one, str) for pair in found.items() for one in pair):
        raise TakenOver("a reason is no text")


FACTS = ViewFingerprint("w", "i", 1, 20, "32", "cpu")


def view(folder: Path) -> Path:
    store = ViewCache(folder, 2**20, torch.float32)
    store.begin(FACTS, 3)
    store.put(1, [0], torch.rand(1, 5, 7))
    (found,) = folder.rglob("*.view")
    return found


def use_view(file: Path) -> None:
    store = ViewCache(file.parents[4], 2**20, torch.float32)
    store.begin(FACTS, 3)
    found = store.get(1, [0])
    if found is not None and not found[1].isfinite().all():
        raise TakenOver("a trunk output is no number")


def vocabulary(folder: Path) -> Path:
    return written(folder / "vocabulary.json", json.dumps({"context_length": 13, "words": WORDS}))


def use_vocabulary(file: Path) -> None:
    WordTokenizer.load(file)(["a photo of a zebra"])


def weights(folder: Path) -> Path:
    from safetensors.torch import save_file

    path = folder / "weights.safetensors"
    save_file({name: one.contiguous() for name, one in clip().state_dict().items()}, path)
    return path


def use_weights(file: Path) -> None:
    found = tiny.read_tensors(file)
    network = torch.nn.Module()
    for name, one in clip().state_dict().items():
        network.register_buffer(name.replace(".", "_"), torch.empty_like(one))
    tiny.fill_weights(network, {name.replace(".", "_"): one for name, one in found.items()}, file)


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
            },
        },
        "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
    }  # fmt: skip
    return written(folder / "open_clip_config.json", json.dumps(config))


def use_architecture(file: Path) -> None:
    hub.fetch = lambda _repository, _files: file
    load_clip("hf-hub:someone/something", "random:0")


TARGETS = {
    "run record": Target("json", record, report),
    "transfer record": Target("json", transfer, report),
    "retrieval record": Target("json", retrieval, report),
    "recipe": Target("yaml", recipe, run_recipe),
    "options (--config)": Target("yaml", options, with_options),
    "options of a group": Target("yaml", train_options, with_train_options),
    "role table": Target("json", roles, show_roles),
    "TEXTSPAN file": Target("text", spans, read_spans),
    "phrase pool": Target("text", phrases, lambda file: load_pool(str(file))),
    "split list": Target("json", split, lambda file: read_coop(file.parent)),
    "CSV table": Target("text", csv, read_table),
    "JSONL table": Target("text", jsonl, read_table),
    "class names (JSON)": Target("json", names_json, read_names),
    "class names (CSV)": Target("text", names_csv, read_names),
    "class names (text)": Target("text", names_text, read_names),
    "classes to predict": Target("text", phrases, _names),
    "templates": Target("text", templates, lambda file: DataSettings(template=str(file)).templates()),
    "bundle's facts": Target("json", bundle, use_bundle),
    "bundle's tensors": Target("safetensors", tensors, use_bundle, sealed),
    "index's catalogue": Target("sqlite", index, lambda file: ask(file.parent)),
    "index's vectors": Target("binary", vectors, lambda file: ask(file.parents[1])),
    "decode cache": Target("npy", picture, use_picture),
    "finding about images": Target("json", checked, lambda file: look_again(file.parents[2])),
    "view cache": Target("view", view, use_view),
    "vocabulary": Target("json", vocabulary, use_vocabulary),
    "weights (safetensors)": Target("safetensors", weights, use_weights),
    "weights (.pt)": Target("binary", checkpoint, use_checkpoint),
    "hub's configuration": Target("json", architecture, use_architecture),
}
