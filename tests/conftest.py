"""A small CLIP with prime dimensions, for every test that needs a model but not its knowledge.

What takes seconds to import is imported where it is used: the process that hands out tests needs none of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING

# Before huggingface_hub is imported: no test reaches the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Before torch is: threads that wait for work cost more than small models take. Child processes have it too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from dear.methods import registry
from tests.standin_hub import standin  # noqa: F401 (a fixture)

if TYPE_CHECKING:
    import torch
    from open_clip.model import CLIP

    from dear.backbone.clip import Clip

WORDS = ["a", "photo", "of", "red", "green", "blue", "circle", "square", "house", "tree", "on", "the", "sea"]
CONTEXT = 13
MEAN, STD = (0.31, 0.41, 0.53), (0.23, 0.29, 0.37)

MakeModel = Callable[..., "CLIP"]
MakeClip = Callable[..., "Clip"]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Iterator[str]]:
    """Names of cache folders that do not exist yet; the first is for what several tests share."""
    folder, before = tmp_path_factory.mktemp("caches"), os.environ.get("DEAR_CACHE")
    names = (str(folder / str(number)) for number in count())
    os.environ["DEAR_CACHE"] = next(names)
    yield names
    del os.environ["DEAR_CACHE"]
    if before is not None:
        os.environ["DEAR_CACHE"] = before


@pytest.fixture(autouse=True)
def _own_cache(_caches: Iterator[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A test finds nothing that another one computed."""
    monkeypatch.setenv("DEAR_CACHE", next(_caches))


@pytest.fixture(autouse=True)
def _same_methods() -> Iterator[None]:
    """A test that registers a method from outside the package leaves it to no other test."""
    before = dict(registry._methods)
    yield
    registry._methods.clear()
    registry._methods.update(before)


@pytest.fixture(scope="session")
def make_small_model() -> MakeModel:
    """``make(dtype=, depth=, text_depth=, seed=, quick_gelu=, layer_scale=)``: an open_clip CLIP, randomized.

    Vision: 3 heads of 7, 5 layers, 25 patches of 4 x 4 pixels. Text: 2 heads of 11, 4 layers, 13 tokens.
    Embedding: 17. All parameters differ from their defaults, biases and LayerNorm gains too, so that none can
    be forgotten.
    """
    return small_model


@pytest.fixture(scope="session")
def make_small_clip() -> MakeClip:
    """``make(dtype=, **as make_small_model)``: the same as a frozen dear Clip with a word tokenizer."""
    return small_clip_of


@pytest.fixture
def small_clip() -> Clip:
    """The small CLIP in float32, a fresh one for each test."""
    return small_clip_of()


def small_model(
    *, dtype: torch.dtype | None = None, depth: int = 5, text_depth: int = 4, seed: int = 0,
    quick_gelu: bool = False, layer_scale: float | None = None,
) -> CLIP:  # fmt: skip
    import torch
    from open_clip.model import CLIP

    from dear.backbone.loading.tiny import WordTokenizer

    vision = {"image_size": 20, "patch_size": 4, "width": 21, "head_width": 7, "layers": depth}
    text = {"context_length": CONTEXT, "vocab_size": WordTokenizer(WORDS, CONTEXT).vocab_size}
    text |= {"width": 22, "heads": 2, "layers": text_depth}
    scale = {"ls_init_value": layer_scale}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = CLIP(17, vision | scale, text | scale, quick_gelu=quick_gelu)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval().to(dtype or torch.float32)


def small_clip_of(*, dtype: torch.dtype | None = None, **options: object) -> Clip:
    import torch

    from dear.backbone.loading.convert import to_clip
    from dear.backbone.loading.tiny import WordTokenizer
    from tests.helpers.clips import usual_view

    model = small_model(**options)  # type: ignore[arg-type]
    preprocess = usual_view(model, MEAN, STD)
    clip = to_clip(
        model, WordTokenizer(WORDS, CONTEXT), name="small", pretrained="random", preprocess=preprocess
    )
    return clip.to(dtype or torch.float32)
