"""Mean ablation against a slow reference that keeps everything."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.backbone.loading.load import load_clip
from dear.roles.ablation import (
    LITTLE,
    head_set,
    head_sets,
    layer_curve,
    mean_ablation,
    sets_by_role,
)
from dear.roles.table import HeadRole, RoleTable
from dear.roles.trust import doubts
from dear.world.render import WorldScenes
from tests.helpers.clips import eval_views
from tests.helpers.data import Noise


def test_accuracies_are_those_of_the_slow_reference(small_clip: Clip) -> None:
    images = Noise([i % 4 for i in range(53)])
    text = torch.randn(4, 17, generator=torch.Generator().manual_seed(3))
    sets = {"one": [(4, 1)], "three": [(2, 0), (5, 2), (5, 0)], "all of 3": [(3, 0), (3, 1), (3, 2)]}
    whole, ablated = mean_ablation(small_clip, images, text, sets, batch=11)
    pixels = small_clip.normalize_pixels(eval_views(images.load(torch.arange(53)), 20))
    embedded = small_clip.encode_image(pixels)

    def accuracy(features: torch.Tensor) -> float:
        scores = torch.nn.functional.normalize(features, dim=1) @ text.T
        return float((scores.argmax(dim=1) == images.labels).double().mean())

    assert whole == pytest.approx(accuracy(embedded))
    for name, heads in sets.items():
        changed = embedded.clone()
        for layer, head in heads:
            terms = head_contributions(small_clip.image, pixels, [layer]).heads[:, 0, head]
            changed += terms.mean(dim=0) - terms
        assert ablated[name] == pytest.approx(accuracy(changed)), name
    assert len({whole, *ablated.values()}) > 1  # the reference sees a difference at all


def test_sets(small_clip: Clip) -> None:
    assert head_sets(small_clip, "layer", [5]) == {"layer 5": [(5, 0), (5, 1), (5, 2)]}
    each = head_sets(small_clip, "head", [4, 5])
    assert [*each.items()][3:] == [(f"layer 5 head {head}", [(5, head)]) for head in range(3)]
    assert head_set(["9.0", "10.11"]) == {"9.0, 10.11": [(9, 0), (10, 11)]}
    heads = HeadRole(5, 0, "core", "color"), HeadRole(5, 1, "mixed"), HeadRole(5, 2, "core", "color")
    table, core = RoleTable("by hand", small_clip.identity, ("color",), heads), [(5, 0), (5, 2)]
    assert sets_by_role(table) == {"core": core, "core: color": core, "mixed": [(5, 1)]}


def test_every_value_is_that_of_brute_force(small_clip: Clip) -> None:
    images = Noise([i % 4 for i in range(23)])
    curve = layer_curve(small_clip, images, [5, 4], batch=7)
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
    pairs += [(curve.analyzed, [4, 5])]
    for got, layers in pairs:
        cosine = float(cosine_similarity(embedded, without(layers)).mean())
        assert got.cosine == pytest.approx(cosine, abs=1e-4), layers
        assert got.lost == pytest.approx((1 - cosine) / (1 - floor), rel=1e-2), layers
    assert curve.layers[3].onwards == curve.analyzed
    assert layer_curve(small_clip, images, [5], sample=10).images == 10


def test_the_warning() -> None:
    """None for the tiny CLIP; one where the heads of its last third are cut, and for random weights."""
    scenes = WorldScenes(60, 48)
    clip = load_clip("tiny")
    whole = layer_curve(clip, scenes, [9, 10, 11, 12])
    table = RoleTable("by hand", clip.identity, (), (HeadRole(9, 0, "mixed"),))
    assert (whole.carry_little, doubts(table, whole)) == (False, [])
    assert whole.analyzed.lost > 0.9
    random = layer_curve(load_clip("tiny", "random:1"), scenes, [9, 10, 11, 12])
    assert 0.2 < random.analyzed.lost < LITTLE
    with torch.no_grad():
        for block in clip.image.blocks[8:]:
            block.out_proj.weight.zero_()
    cut = layer_curve(clip, scenes, [9, 10, 11, 12])
    assert cut.analyzed.cosine == pytest.approx(1)
    (warning,) = doubts(table, cut)
    assert "heads carry little" in warning
    assert "layers 9 to 12" in warning
