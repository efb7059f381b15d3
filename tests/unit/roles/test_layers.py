"""Ablation by layer against brute force, and the warning for a model whose late heads carry nothing."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.backbone.load import load_clip
from dear.data.images.transforms import eval_views
from dear.errors import SettingsError
from dear.roles.ablation import LITTLE, by_layer, layer_curve, layers_in_words, mean_ablation
from dear.roles.world import WorldScenes
from tests.unit.training.world import Noise

TEXT = torch.randn(4, 17, generator=torch.Generator().manual_seed(3))


def test_every_value_is_that_of_brute_force(small_clip: Clip) -> None:
    images = Noise([i % 4 for i in range(23)])
    curve = layer_curve(small_clip, images, [5, 4], TEXT, batch=7)
    pixels = small_clip.normalize_pixels(eval_views(images.load(torch.arange(23)), 20))
    embedded = small_clip.encode_image(pixels)
    terms = {layer: head_contributions(small_clip.image, pixels, [layer]) for layer in range(1, 6)}

    def without(layers: list[int]) -> torch.Tensor:
        """The sum of all terms, image by image, with means in place of those of the heads."""
        changed = embedded.clone()
        for row in range(23):
            for layer in layers:
                for head in range(3):
                    every = terms[layer].heads[:, 0, head]
                    changed[row] += sum(every) / 23 - every[row]
        return changed

    mean = embedded.mean(dim=0).expand_as(embedded)
    floor = float(cosine_similarity(embedded, mean).mean())
    assert curve.floor == pytest.approx(floor, abs=1e-5)
    assert (curve.images, curve.which) == (23, (4, 5))
    pairs = [(one.alone, [one.layer]) for one in curve.layers]
    pairs += [(one.onwards, [*range(one.layer, 6)]) for one in curve.layers]
    pairs += [(curve.analysed, [4, 5])]
    for got, layers in pairs:
        cosine = float(cosine_similarity(embedded, without(layers)).mean())
        assert got.cosine == pytest.approx(cosine, abs=1e-4), layers
        assert got.lost == pytest.approx((1 - cosine) / (1 - floor), rel=1e-2), layers
    # Accuracies are those of `dear roles ablate --by layer`.
    reference = mean_ablation(small_clip, images, TEXT, by_layer(small_clip, range(1, 6)))
    assert curve.whole == pytest.approx(reference.whole)
    assert [one.alone.accuracy for one in curve.layers] == pytest.approx([*reference.ablated.values()])
    assert curve.layers[3].onwards == curve.analysed
    plain = layer_curve(small_clip, images, [4, 5])
    assert (plain.whole, plain.analysed.accuracy) == (None, None)
    assert layer_curve(small_clip, images, [5], sample=10).images == 10


def test_the_warning() -> None:
    """None for the tiny CLIP; one where the heads of its last third are cut, and for random weights."""
    scenes = WorldScenes(120, 48)
    clip = load_clip("tiny")
    whole = layer_curve(clip, scenes, [9, 10, 11, 12])
    assert (whole.carry_little, whole.warning()) == (False, None)
    assert whole.analysed.lost > 0.9
    random = layer_curve(load_clip("tiny", "random:1"), scenes, [9, 10, 11, 12])
    assert 0.2 < random.analysed.lost < LITTLE
    with torch.no_grad():
        for block in clip.image.blocks[8:]:
            block.out_proj.weight.zero_()
    cut = layer_curve(clip, scenes, [9, 10, 11, 12])
    assert cut.analysed.cosine == pytest.approx(1)
    warning = cut.warning()
    assert warning is not None
    assert "\n" not in warning
    assert "heads carry little" in warning
    assert "layers 9 to 12" in warning


def test_words_and_bad_input(small_clip: Clip) -> None:
    assert layers_in_words([7]) == "layer 7"
    assert layers_in_words([2, 5]) == "layers 2, 5"
    for images, layers in ((Noise([0]), []), (WorldScenes(0, 20), [5])):
        with pytest.raises(SettingsError, match="needs images and layers"):
            layer_curve(small_clip, images, layers)
