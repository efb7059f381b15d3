"""Bundles: what is saved is what is loaded; whatever does not fit is refused."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from dear.adapters import bundle_files
from dear.adapters.bundle import Bundle, distinct
from dear.adapters.bundle_files import ADAPTER, CARD, CONFIG
from dear.adapters.predictor import Predictor
from dear.backbone.clip import Clip, tensors_hash
from dear.backbone.load import load_clip
from dear.errors import BundleError, DataError, OutputError
from dear.methods.base import Method
from dear.methods.dear import DearSettings
from dear.methods.registry import METHODS, build_method
from dear.roles.packaged import role_table
from tests.contract.test_methods import CLASSES, SETTINGS, TEMPLATE, all_images, images, make, table

MakeClip = Callable[..., Clip]


def fitted(name: str, clip: Clip, settings: Any = None) -> tuple[Bundle, Method]:
    """A method with parameters moved away from where they start, as training does, and its bundle."""
    mine = settings or SETTINGS.get(name) or METHODS[name].settings()
    method = build_method(name, clip, torch.Generator().manual_seed(1), roles=table(clip), settings=mine)
    if (teacher := METHODS[name].teacher) is not None:
        method.set_teacher(make(teacher, clip))
    method.set_classes(CLASSES, TEMPLATE)
    method.before_training(all_images(method))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in method.trainable:
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    bundle = Bundle(
        method=name,
        settings=mine,
        model="small",
        pretrained="random",
        weights=clip.identity,
        roles=table(clip) if METHODS[name].needs_roles else None,
        classes=tuple(CLASSES),
        templates=tuple(TEMPLATE),
        tensors={k: v.detach().clone() for k, v in method.stored_tensors().items()},
        temperature=1.7,
        metrics={"accuracy": 0.5},
        training={"data": "by hand", "shots": 3, "seed": 1, "test_images": 7},
    )
    return bundle, method


@torch.no_grad()
def scores(method: Method) -> Tensor:
    return method.logits(method.image_features(method.image_trunk(images())), method.text_features())


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
    """Write other values into config.json."""
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_the_card_shows_names_literally(make_small_clip: MakeClip) -> None:
    bundle = fitted("dear", make_small_clip())[0]
    classes = (
        "<script>alert(1)</script>", "[free](javascript:alert)", "https://evil.example", "www.evil.example",
        "a\u202egnp.exe", "\u200fmark", "# title\n# more", "a|b", "*bold* ![x](y)",
    )  # fmt: skip
    name = 'x"); import os #\n![a](b)`'
    card = replace(bundle, classes=classes, templates=("a `{}` | <b>",)).model_card(name)
    # In CommonMark a backslash before a sign of ASCII makes it literal.
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in card
    assert r"\[free\](javascript\:alert)" in card
    assert r"https\://evil.example, www\.evil.example" in card
    assert r"a\\u202egnp.exe" in card
    assert r"\# title\\n\# more, a\|b, \*bold\* \!\[x\](y)" in card
    assert r"a \`{}\` \| &lt;b&gt;" in card
    assert not {"\u202e", "\u200f"} & {*card}
    assert "<script" not in card
    lines = card.splitlines()
    assert r'predictor = dear.Predictor(dear.Bundle.from_pretrained("x\"); import os #\\n![a](b)`"))' in lines
    assert lines.count("```") == 2


def test_only_trained_tensors_are_saved_and_no_pickle(folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    assert set(config["adapter"]["shapes"]) == {"attribute_tokens", "text_tokens", "projection", "fusion"}
    # By hand: 2 attribute tokens of 21, 5 text tokens of 22, 21 x 17, 3 fusion weights.
    assert config["adapter"]["parameters"] == 42 + 110 + 357 + 3
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".md"}
    assert config["roles"]["evidence"] == {}
    card = (folder / CARD).read_text()
    assert card.startswith("---\nlibrary_name: dear-vlm\n")
    assert all(name in card for name in (*CLASSES, *TEMPLATE))
    assert "| accuracy | 0.5 |" in card


@pytest.mark.long
def test_a_bundle_for_vit_b_16_is_under_2_mb(tmp_path: Path) -> None:
    """By hand: 5 tokens of 768 and 5 of 512, a projection of 768 x 512, 6 fusion weights."""
    clip = load_clip("ViT-B-16", "random:0")
    settings = DearSettings(roles_from_other_weights=True)
    roles = role_table(clip, "published")
    method = build_method("dear", clip, torch.Generator(), roles=roles, settings=settings)
    bundle = Bundle(
        method="dear",
        settings=settings,
        model="ViT-B-16",
        pretrained="random:0",
        weights=clip.identity,
        roles=roles,
        classes=("cat", "dog"),
        templates=("a photo of a {}.",),
        tensors=method.stored_tensors(),
    )
    folder = bundle.save_pretrained(tmp_path / "bundle")
    assert bundle.parameters == 5 * 768 + 5 * 512 + 768 * 512 + 6 == 399_622
    assert 4 * 399_622 < (folder / ADAPTER).stat().st_size < 1_600_000
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2_000_000


def test_saving_again_leaves_other_files_and_refuses_foreign_folders(
    folder: Path, make_small_clip: MakeClip, tmp_path: Path
) -> None:
    (folder / "notes.txt").write_text("mine")
    bundle, _ = fitted("zero-shot", make_small_clip())
    bundle.save_pretrained(folder)
    assert Bundle.from_pretrained(folder).method == "zero-shot"
    assert (folder / "notes.txt").read_text() == "mine"
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    with pytest.raises(OutputError, match="files that are not a bundle's"):
        bundle.save_pretrained(other)
    with pytest.raises(OutputError, match="is a file"):
        bundle.save_pretrained(other / "thesis.tex")
    for closed in ("thesis.tex/bundle", "thesis.tex/new/bundle", "x" * 300):
        with pytest.raises(OutputError, match="cannot write the bundle"):
            bundle_files.check_writable(other / closed)
    bundle_files.check_writable(tmp_path / "new/bundle")
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(
        ["bundle", ADAPTER, CONFIG, CARD, "notes.txt", "other", "thesis.tex"]
    )


def test_an_empty_folder_takes_a_bundle(make_small_clip: MakeClip, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    bundle = fitted("zero-shot", make_small_clip())[0]
    replace(bundle, training={"data": "ol\udce9"}).save_pretrained(tmp_path / "empty")
    assert Bundle.from_pretrained(tmp_path / "empty").classes == tuple(CLASSES)


def test_damage_is_refused(folder: Path, tmp_path: Path) -> None:
    path = folder / ADAPTER
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(BundleError, match="not a complete safetensors file"):
        Bundle.from_pretrained(folder)
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(BundleError, match="was changed after the bundle was written"):
        Bundle.from_pretrained(folder)
    save_file({"other": torch.zeros(3)}, path)
    with pytest.raises(BundleError, match=r"does not hold the tensors that config\.json lists"):
        Bundle.from_pretrained(folder)
    path.unlink()
    with pytest.raises(BundleError, match=r"adapter\.safetensors: No such file"):
        Bundle.from_pretrained(folder)
    with pytest.raises(BundleError, match="there is no bundle at"):
        Bundle.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"the hub repository of that name is unavailable"):
        Bundle.from_pretrained("owner/no--name")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"schema": 0, "library": {"name": "dear-vlm", "version": "0.0.7"}},
            r"schema 0, .* fit it again .*dear-vlm==0\.0\.7",
        ),
        ({"schema": 99, "library": {"name": "dear-vlm", "version": "9.0"}}, r"schema 99, .*dear-vlm==9\.0"),
        ({"library": {"name": "peft"}}, "belongs to another program"),
        ({"schema": "1"}, "belongs to another program"),
        ({"method": "dearest"}, "unknown method 'dearest'"),
        ({"settings": {"betta": 1}}, "settings has the unknown key 'betta'"),
        ({"settings": {"beta": 7}}, "beta is 7"),
        ({"classes": ["Oak", "oak"]}, "have the same name"),
        ({"classes": []}, "there are no classes"),
        ({"backbone": {}}, "not the configuration of a bundle"),
        ({"roles": {"schema": 1}}, "not a role table"),
        ({"temperature": "hot"}, "not the configuration of a bundle"),
        ({"temperature": 0}, r"temperature is 0(\.0)?: it must be a number from"),
        ({"temperature": -1}, r"temperature is -1(\.0)?: it must be a number from"),
        ({"temperature": 1e300}, r"temperature is 1e\+300: it must be a number from"),
        ({"temperature": math.nan}, "NaN is not a finite number"),
        ({"temperature": math.inf}, "Infinity is not a finite number"),
        ({"classes": "abc"}, "classes is 'abc': it must be a list"),
        ({"classes": ["a", 1]}, r"classes\[1\] is 1: it must be text"),
        ({"templates": []}, "contains no template"),
        ({"templates": "a {}."}, "templates is 'a {}.': it must be a list"),
        ({"templates": ["{} {}"]}, r"needs exactly one \{\}"),
        ({"adapter": 3}, "does not hold the tensors"),
    ],
)
def test_a_configuration_that_is_none_is_refused(folder: Path, changes: Any, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Bundle.from_pretrained(change(folder, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": 5}, "backbone.model is 5: it must be text"),
        ({"pretrained": 5}, "backbone.pretrained is 5: it must be text or null"),
        ({"weights": {"model": "tiny", "pretrained": "world", "sha256": 5}}, "sha256 is 5: it must be text"),
    ],
)
def test_a_backbone_that_is_none_is_refused(folder: Path, changes: Any, message: str) -> None:
    told = json.loads((folder / CONFIG).read_text())["backbone"] | changes
    with pytest.raises(BundleError, match=message):
        Bundle.from_pretrained(change(folder, backbone=told))


def test_settings_of_wrong_types_are_refused(folder: Path) -> None:
    told = json.loads((folder / CONFIG).read_text())["settings"] | {"tokens": 2.5}
    with pytest.raises(BundleError, match=r"settings\.tokens is 2\.5: it must be a whole number"):
        Bundle.from_pretrained(change(folder, settings=told))


@pytest.mark.parametrize("content", ["", "{", "[]", "7", "\x00\xff", "[" * 100_000])
def test_a_configuration_that_is_no_json_is_refused(folder: Path, content: str) -> None:
    (folder / CONFIG).write_bytes(content.encode("latin-1"))
    with pytest.raises(BundleError, match=r"config\.json"):
        Bundle.from_pretrained(folder)


def test_other_weights_are_refused(folder: Path, make_small_clip: MakeClip) -> None:
    with pytest.raises(BundleError, match=r"was fitted on small/random .*, but the backbone here is"):
        Predictor(folder, clip=make_small_clip(seed=1))


def test_tensors_of_other_settings_are_refused(make_small_clip: MakeClip) -> None:
    clip = make_small_clip()
    bundle, _ = fitted("dear", clip)
    with pytest.raises(BundleError, match="has wrong shapes for the tensors text_tokens"):
        replace(bundle, settings=replace(bundle.settings, text_tokens=2)).build(clip)
    fewer = {name: one for name, one in bundle.tensors.items() if name != "fusion"}
    with pytest.raises(BundleError, match="lacks the tensors fusion"):
        replace(bundle, tensors=fewer).build(clip)
    with pytest.raises(BundleError, match="has the unknown tensors more"):
        replace(bundle, tensors={**bundle.tensors, "more": torch.zeros(1)}).build(clip)
    with pytest.raises(BundleError, match="cannot be built: DeAR needs a role table"):
        replace(bundle, roles=None).build(clip)


def test_one_feature_describes_a_class_without_images(make_small_clip: MakeClip) -> None:
    """The covariance of a single feature is taken as it is, not divided by zero."""
    clip = make_small_clip()
    bundle = fitted("gda", clip)[0]
    one = replace(bundle, tensors={**bundle.tensors, "vectors": bundle.tensors["vectors"][:1]})
    assert Predictor(one, clip=clip).logits(images(), ["blue square"]).isfinite().all()


def test_a_class_that_is_stored_twice_is_refused(make_small_clip: MakeClip) -> None:
    for name in ("gda", "dear+"):
        bundle = fitted(name, clip := make_small_clip())[0]
        trained = bundle.tensors["trained"].clone()
        trained[1] = trained[0]
        with pytest.raises(BundleError, match="its tensor trained holds a class twice"):
            replace(bundle, tensors={**bundle.tensors, "trained": trained}).build(clip)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_of_no_class_is_refused(label: int, make_small_clip: MakeClip) -> None:
    bundle = fitted("tip-adapter", clip := make_small_clip())[0]
    labels = torch.full_like(bundle.tensors["labels"], label)
    with pytest.raises(BundleError, match="its tensor labels holds other numbers than 0 to 2"):
        replace(bundle, tensors={**bundle.tensors, "labels": labels}).build(clip)


def test_other_kinds_of_numbers_are_refused(make_small_clip: MakeClip) -> None:
    bundle = fitted("gda", clip := make_small_clip())[0]
    for name, dtype in (("trained", torch.bool), ("trained", torch.float32), ("bias", torch.int64)):
        changed = {**bundle.tensors, name: bundle.tensors[name].to(dtype)}
        if name == "trained":
            changed[name] = torch.arange(len(changed[name])).to(dtype)
        with pytest.raises(BundleError, match=r"numbers in the tensors (trained|bias)|a class twice"):
            replace(bundle, tensors=changed).build(clip)


def test_results_that_are_no_numbers_name_the_bundle(make_small_clip: MakeClip, tmp_path: Path) -> None:
    bundle = fitted("linear-probe", clip := make_small_clip())[0]
    large = {name: torch.full_like(tensor, 3e38) for name, tensor in bundle.tensors.items()}
    folder = replace(bundle, tensors=large).save_pretrained(tmp_path / "large")
    predictor = Predictor(folder, clip=clip)
    with pytest.raises(BundleError, match=r"the bundle .*/large gives no numbers: its parameters"):
        predictor.logits(images())
    with pytest.raises(BundleError, match=r"the bundle .*/large gives no numbers"):
        predictor.candidates(predictor.encode(images()), predictor.vocabulary(), top=1)


def test_to_the_hub(make_small_clip: MakeClip, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, Any] = {}

    class Hub:
        def __init__(self, **options: Any) -> None:
            sent.update(options)

        def create_repo(self, repository: str, **options: Any) -> None:
            sent.update(options, repository=repository)

        def upload_folder(self, **options: Any) -> str:
            place = Path(options["folder_path"])
            sent["files"] = sorted(path.name for path in place.iterdir())
            sent["card"] = (place / CARD).read_text()
            return "https://hub/commit/1"

    bundle, _ = fitted("zero-shot", make_small_clip())
    with pytest.raises(BundleError, match="cannot upload to"):
        bundle.push_to_hub("someone/cards")
    monkeypatch.setattr("dear.backbone.hub.require_answer", lambda: None)
    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    assert bundle.push_to_hub("someone/cards", private=True, token="t") == "https://hub/commit/1"
    assert (sent["repository"], sent["private"], sent["token"]) == ("someone/cards", True, "t")
    assert 'from_pretrained("someone/cards")' in sent["card"]
    assert sent["files"] == sorted([CONFIG, ADAPTER, CARD])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_tensors_that_are_no_numbers_are_refused_though_their_hash_fits(folder: Path, bad: float) -> None:
    config = json.loads((folder / CONFIG).read_text())
    tensors = load_file(folder / ADAPTER)
    tensors["fusion"][1] = bad
    save_file(tensors, folder / ADAPTER)
    change(folder, adapter=config["adapter"] | {"sha256": tensors_hash(tensors)})
    with pytest.raises(BundleError, match="values of 'fusion' are not finite"):
        Bundle.from_pretrained(folder)


def test_names_are_distinct() -> None:
    assert distinct(["a", "b"]) == ("a", "b")
    for wrong in (
        ["a", "b", "A"],
        ["a", " "],
        [],
        ["tree_house", "tree house"],
        ["ol\xe9", "ole\u0301"],
        ["ol\udce9"],
    ):
        with pytest.raises(DataError, match="the classes"):
            distinct(wrong)
