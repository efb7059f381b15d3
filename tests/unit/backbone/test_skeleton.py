"""A plain CLIP without open_clip is open_clip's own, bit for bit."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dear.backbone import openclip
from dear.backbone.loading import tiny, weights
from dear.backbone.loading.convert import to_clip
from dear.backbone.loading.open_clip_format import build_from
from dear.backbone.loading.skeleton import Skeleton, fits_skeleton
from dear.backbone.loading.tiny import WordTokenizer
from tests.helpers.clips import usual_view

TEXTS = ["a photo of a red circle.", "striped", "a blue square in the snow, drawn"]


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return weights.read_weights(tiny.FOLDER / tiny.WEIGHTS)


@pytest.fixture(scope="module")
def original(state: dict[str, Tensor]) -> Any:
    """open_clip's model with the embedded weights."""
    tokenizer = WordTokenizer.load(tiny.FOLDER / tiny.VOCABULARY)
    model = tiny.build(tokenizer)
    weights.fill_weights(model, state, tiny.FOLDER)
    return model.eval()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_its_towers_compute_what_open_clips_do(original: Any, kind: torch.dtype) -> None:
    plain = tiny.load()
    view = usual_view(original, tiny.MEAN, tiny.STD)
    other = to_clip(original, plain.tokenizer, name="tiny", pretrained="world", preprocess=view)
    assert plain.identity == other.identity
    images = torch.rand(3, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=kind is torch.bfloat16):
        found, wanted = ((one.encode_image(images), one.encode_text(TEXTS)) for one in (plain, other))
    assert all(map(torch.equal, found, wanted))
    assert torch.equal(plain.scale, other.scale)


PLAIN = [name for name in open_clip.list_models() if fits_skeleton(open_clip.get_model_config(name))]


def test_which_architectures_are_plain() -> None:
    assert {"ViT-B-16", "ViT-B-32-quickgelu", "ViT-L-14-336", "ViT-H-14", "ViT-bigG-14"} <= {*PLAIN}
    assert not {"RN50", "coca_ViT-B-32", "ViT-B-16-SigLIP", "EVA02-B-16", "roberta-ViT-B-32"} & {*PLAIN}


@pytest.mark.parametrize("name", ["ViT-B-32", "ViT-B-16-quickgelu", "ViT-L-14-336", "ViT-S-16-alt"])
def test_it_has_the_tensors_of_open_clips(name: str) -> None:
    config = open_clip.get_model_config(name)
    with torch.device("meta"):
        original: Any = build_from(name, open_clip.get_model_config(name))
    plain = Skeleton(**config)
    shapes = [{key: x.shape for key, x in model.state_dict().items()} for model in (plain, original)]
    assert shapes[0] == shapes[1]
    quick = type(original.visual.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    assert quick == config.get("quick_gelu", False)


def test_what_is_read_of_open_clip_is_what_it_says() -> None:
    assert {*openclip._configs()} == {*open_clip.list_models()}
    assert all(openclip._configs()[name] == open_clip.get_model_config(name) for name in PLAIN)
    text = ["A photo of a <b>Caf\u00e9</b>, it's 12:30!"]
    alone = openclip._load_standalone("tokenizer").SimpleTokenizer()
    assert torch.equal(alone(text), open_clip.SimpleTokenizer()(text))
    for name in PLAIN:
        tags = openclip._load_standalone("pretrained").list_pretrained_tags_by_model(name)
        assert tags == open_clip.list_pretrained_tags_by_model(name)


def test_weights_at_hand_do_not_load_open_clip(tmp_path: Path) -> None:
    name = "ViT-S-32-alt"
    with torch.device("meta"):
        state = Skeleton(**open_clip.get_model_config(name)).state_dict()
    save_file({key: torch.zeros(x.shape) for key, x in state.items()}, tmp_path / "w.safetensors")
    code = (
        "import sys; from dear import load_clip; "
        f"clip = load_clip({name!r}, {str(tmp_path / 'w.safetensors')!r}); clip.encode_text(['a dog']); "
        "print([m for m in ('open_clip', 'transformers', 'torchvision', 'timm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
