"""Bundles: what is saved is what is loaded, from the hub too; whatever does not fit is refused."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from dear.adapters.bundle import Bundle, require_distinct_names
from dear.adapters.bundle_config import ADAPTER, CARD, CONFIG, check_bundle, check_writable, config_hash
from dear.adapters.facts import TrainingFacts
from dear.adapters.predictor import Predictor
from dear.adapters.saved_run import load_bundle
from dear.backbone.clip import tensors_hash
from dear.backbone.loading import hub
from dear.errors import BundleError, DataError, OutputError
from dear.methods.base import Method
from dear.methods.registry import METHODS
from tests.conftest import MakeClip
from tests.helpers.bundles import bundle_scores, fitted
from tests.helpers.data import CLASSES
from tests.helpers.errors import refuses
from tests.helpers.methods import images
from tests.standin_hub import COMMIT, StandIn

SCORES = asdict(bundle_scores())


@torch.no_grad()
def scores(method: Method) -> Tensor:
    return method(images())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_saved_bundle_gives_the_same_bits(name: str, make_small_clip: MakeClip, tmp_path: Path) -> None:
    bundle, method = fitted(name, make_small_clip())
    folder = bundle.save_pretrained(tmp_path / "a bundle")
    assert sorted(path.name for path in folder.iterdir()) == sorted([CONFIG, ADAPTER, CARD])
    assert [*tmp_path.iterdir()] == [folder]
    predictor = Predictor(folder, clip=make_small_clip())
    assert torch.equal(predictor.logits(images()), scores(method))
    loaded = Bundle.from_pretrained(folder)
    assert loaded.tensors.keys() == bundle.tensors.keys()
    assert all(torch.equal(loaded.tensors[key], bundle.tensors[key]) for key in bundle.tensors)
    assert replace(loaded, tensors={}) == replace(bundle, tensors={})


@pytest.fixture
def folder(make_small_clip: MakeClip, tmp_path: Path) -> Path:
    return fitted("dear", make_small_clip())[0].save_pretrained(tmp_path / "bundle")


def change(folder: Path, **changes: Any) -> Path:
    """Write other values into config.json, with a hash that fits."""
    path = folder / CONFIG
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(config | {"sha256": config_hash(config)}))
    return folder


def test_only_trained_tensors_are_saved_and_no_pickle(folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    assert set(config["adapter"]["shapes"]) == {"attribute_tokens", "text_tokens", "projection", "fusion"}
    # By hand: 2 attribute tokens of 21, 5 text tokens of 22, 21 x 17, 3 fusion weights.
    assert config["adapter"]["parameters"] == 42 + 110 + 357 + 3
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".md"}
    assert config["roles"]["evidence"] == {}


def test_saving_again_leaves_other_files_and_refuses_foreign_folders(
    folder: Path, make_small_clip: MakeClip, tmp_path: Path
) -> None:
    (folder / "notes.txt").write_text("mine")
    bundle = replace(fitted("zero-shot", make_small_clip())[0], training=TrainingFacts(data="ol\udce9"))
    bundle.save_pretrained(folder)
    assert Bundle.from_pretrained(folder).method == "zero-shot"
    assert (folder / "notes.txt").read_text() == "mine"
    (tmp_path / "other").mkdir()
    (tmp_path / "other/thesis.tex").write_text("x")
    for name in ("other", "other/thesis.tex/new/bundle"):
        with pytest.raises(OutputError):
            bundle.save_pretrained(tmp_path / name)
    check_writable(tmp_path / "new/bundle")
    assert not (tmp_path / "new").exists()
    refuses(OutputError, "--overwrite", check_writable, folder, overwrite=False)


def test_a_folder_without_a_bundle_is_refused_before_anything_is_loaded(folder: Path, tmp_path: Path) -> None:
    check_bundle(folder)
    check_bundle("owner/name")  # may be on the hub, which is not asked here
    for place in (tmp_path, tmp_path / "nowhere", "nowhere"):
        with pytest.raises(BundleError):
            check_bundle(place)


@pytest.mark.parametrize("read", [check_bundle, load_bundle])
def test_a_file_name_of_json_is_a_record_and_no_repository(
    read: Callable[[Path | str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "fetch", lambda *_, **__: pytest.fail("the hub was asked"))
    Path("runs").mkdir()
    Path("runs/notes.json").write_text("[]")
    refuses(DataError, "runs/missing.json", read, "runs/missing.json")
    refuses(DataError, "runs/notes.json", read, "runs/notes.json")


def test_the_order_of_keys_is_free_and_names_that_are_no_unicode_can_be_written(folder: Path) -> None:
    bundle = replace(Bundle.from_pretrained(folder), image_hashes=bytes(range(24)))
    config = json.loads((bundle.save_pretrained(folder) / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(dict(reversed(config.items()))))
    assert Bundle.from_pretrained(folder).image_hashes == bytes(range(24))
    replace(bundle, classes=("\udcff", *bundle.classes[1:])).save_pretrained(folder)
    assert Bundle.from_pretrained(folder).classes == ("?", *bundle.classes[1:])


DAMAGE: list[tuple[Callable[[bytes], bytes], str, str]] = [
    *[(lambda _, text=text: text, CONFIG, "cannot be read") for text in (b"[]", b"\0\xff", b"[" * 100_000)],
    (lambda content: content.replace(b"sha256", b"sha512"), CONFIG, "was changed"),
    (lambda content: content.replace(b'"dear-vlm"', b'"peft"'), CONFIG, "another program"),
    (lambda content: content[: len(content) // 2], CONFIG, "cannot be read"),
    (lambda _: save({"other": torch.zeros(3)}), ADAPTER, "was changed"),
    (lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:], ADAPTER, "was changed"),
]


@pytest.mark.parametrize(("damage", "name", "key"), DAMAGE)
def test_damage_is_refused(damage: Callable[[bytes], bytes], name: str, key: str, folder: Path) -> None:
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    refuses(BundleError, (key, str(folder)), Bundle.from_pretrained, folder)
    (folder / name).unlink()
    refuses(BundleError, name, Bundle.from_pretrained, folder)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"schema": 0, "library": {"name": "dear-vlm", "version": "0.0.7"}}, "dear-vlm==0.0.7"),
        ({"schema": "1"}, "another program"),
        ({"method": "dearest"}, "dearest"),
        ({"settings": {"betta": 1}}, "betta"),
        ({"settings": {"beta": 7}}, "beta"),
        ({"settings": {"text_tokens": 2.5}}, "settings.text_tokens"),
        ({"classes": ["Oak", "oak"]}, "have the same name"),
        ({"classes": []}, "no classes"),
        ({"classes": ["a", 1]}, "classes[1]"),
        ({"keys": ["a", "a", "b"]}, "key"),
        ({"keys": ["a"]}, "key"),
        *[({"image_hashes": value}, "image_hashes") for value in ("00" * 9, "zz" * 8, "AB" * 8)],
        ({"backbone": {}}, "backbone"),
        ({"roles": {"schema": 1}}, "role table"),
        *[({"temperature": value}, "temperature") for value in (0, 1e300)],
        *[({"temperature": value}, "finite") for value in (math.nan, math.inf)],
        *[({"templates": value}, "template") for value in ([], "a {}.", ["{} {}"])],
        ({"scores": SCORES | {"accuracy": 2}}, "scores.accuracy"),
        ({"scores": SCORES | {"gained": 8}}, "gained"),
        ({"training": {"left_out": None}}, "left_out"),
        ({"training": {"epochs": [{"epoch": 1, "loss": 1e308}]}}, "training.epochs"),
        ({"adapter": 3}, "adapter"),
    ],
)
def test_a_configuration_of_a_stranger_is_refused(folder: Path, changes: Any, key: str) -> None:
    refuses(BundleError, key, Bundle.from_pretrained, change(folder, **changes))


def test_tensors_that_are_no_numbers_are_refused_though_their_hash_fits(folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    tensors = load_file(folder / ADAPTER)
    tensors["fusion"][1] = math.inf
    save_file(tensors, folder / ADAPTER)
    change(folder, adapter=config["adapter"] | {"sha256": tensors_hash(tensors)})
    refuses(BundleError, "fusion", Bundle.from_pretrained, folder)


def repeat_first(tensor: Tensor) -> Tensor:
    return torch.cat([tensor[:1], tensor[:1], tensor[2:]])


@pytest.mark.parametrize(
    ("method", "name", "change", "key"),
    [
        ("dear", "fusion", None, "fusion"),
        ("dear", "more", torch.zeros(1), "more"),
        ("dear", "text_tokens", lambda tensor: tensor[:1], "text_tokens"),
        ("gda", "trained", repeat_first, "trained"),
        ("dear+", "trained", repeat_first, "trained"),
        ("gda", "trained", lambda tensor: tensor.float(), "trained"),
        ("gda", "trained", lambda tensor: tensor.bool(), "trained"),
        ("gda", "bias", lambda tensor: tensor.long(), "bias"),
        ("tip-adapter", "labels", lambda tensor: torch.full_like(tensor, -1), "labels"),
        ("tip-adapter", "labels", lambda tensor: torch.full_like(tensor, 3), "labels"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    method: str, name: str, change: Any, key: str, make_small_clip: MakeClip
) -> None:
    bundle, _ = fitted(method, clip := make_small_clip())
    tensors = dict(bundle.tensors)
    if callable(change):
        tensors[name] = change(tensors[name])
    elif change is None:
        del tensors[name]
    else:
        tensors[name] = change
    refuses(BundleError, key, lambda: replace(bundle, tensors=tensors).build(clip))


def test_settings_roles_and_weights_that_do_not_fit_are_refused(make_small_clip: MakeClip) -> None:
    bundle, _ = fitted("dear", clip := make_small_clip())
    settings, other = replace(bundle.settings, text_tokens=2), make_small_clip(seed=1)
    rows = ({"settings": settings}, clip, "text_tokens"), ({"roles": None}, clip, "role table")
    for changes, backbone, key in (*rows, ({}, other, "small/random")):
        refuses(BundleError, key, replace(bundle, **changes).build, backbone)


def test_results_that_are_no_numbers_name_the_bundle(make_small_clip: MakeClip, tmp_path: Path) -> None:
    bundle, _ = fitted("linear-probe", clip := make_small_clip())
    large = {name: torch.full_like(tensor, 3e38) for name, tensor in bundle.tensors.items()}
    folder = replace(bundle, tensors=large).save_pretrained(tmp_path / "large")
    predictor = Predictor(folder, clip=clip)
    refuses(BundleError, "large", predictor.logits, images())
    encoded, vocabulary = predictor.encode(images()), predictor.vocabulary()
    refuses(BundleError, "large", predictor.best_classes, encoded, vocabulary, top=1)


def test_from_the_hub(folder: Path, tmp_path: Path, standin: StandIn) -> None:
    files = {file: (folder / file).read_bytes() for file in (CONFIG, ADAPTER, CARD)}
    standin.files |= {"someone/cards": files, "someone/cards@v2": files}
    for _ in range(2):
        loaded = Bundle.from_pretrained("someone/cards", revision="v2", cache_dir=tmp_path / "elsewhere")
        assert loaded.classes == tuple(CLASSES)
        assert len(standin.downloads()) == 1
    assert all(  # the second file of the commit of the first
        "v2" in path or COMMIT in path for _, path, _ in standin.requests if path.startswith("/someone/")
    )
    standin.faults.corrupt = True
    refuses(BundleError, ADAPTER, Bundle.from_pretrained, "someone/cards", cache_dir=tmp_path / "cache")


def test_to_the_hub_and_back(folder: Path, standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # which has no stand-in
    bundle = Bundle.from_pretrained(folder)
    assert bundle.push_to_hub("someone/cards") == f"{standin.endpoint}/someone/cards/commit/{COMMIT}"
    sent = standin.files["someone/cards"]
    assert sorted(sent) == sorted([ADAPTER, CARD, CONFIG])
    assert sent[ADAPTER] == (folder / ADAPTER).read_bytes()
    loaded = Bundle.from_pretrained("someone/cards")
    assert loaded.config() == bundle.config()
    assert all(torch.equal(loaded.tensors[name], tensor) for name, tensor in bundle.tensors.items())


def test_without_the_hub(folder: Path) -> None:
    refuses(BundleError, ("someone/cards", "HF_HUB_OFFLINE"), Bundle.from_pretrained, "someone/cards")
    refuses(BundleError, "upload", lambda: Bundle.from_pretrained(folder).push_to_hub("someone/cards"))


@pytest.mark.parametrize(
    "wrong",
    [["a", "b", "A"], ["a", " "], [], ["tree_house", "tree house"], ["ol\xe9", "ole\u0301"], ["ol\udce9"]],
)
def test_names_are_distinct(wrong: list[str]) -> None:
    assert require_distinct_names(["a", "b"]) == ("a", "b")
    with pytest.raises(DataError, match="the classes"):
        require_distinct_names(wrong)
