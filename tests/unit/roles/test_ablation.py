"""Mean ablation against a slow reference that keeps everything."""

import pytest
import torch

from dear.backbone.clip import Clip
from dear.backbone.head_contributions import head_contributions
from dear.data.images.transforms import eval_views
from dear.errors import SettingsError
from dear.roles.ablation import by_head, by_layer, by_role, head_set, mean_ablation
from dear.roles.table import HeadRole, RoleTable
from tests.unit.training.world import Noise


def test_accuracies_are_those_of_the_slow_reference(small_clip: Clip) -> None:
    images = Noise([i % 4 for i in range(53)])
    text = torch.randn(4, 17, generator=torch.Generator().manual_seed(3))
    sets = {"one": [(4, 1)], "three": [(2, 0), (5, 2), (5, 0)], "all of 3": [(3, 0), (3, 1), (3, 2)]}
    found = mean_ablation(small_clip, images, text, sets, batch=11)
    pixels = small_clip.normalize_pixels(eval_views(images.load(torch.arange(53)), 20))
    embedded = small_clip.encode_image(pixels)

    def accuracy(features: torch.Tensor) -> float:
        scores = torch.nn.functional.normalize(features, dim=1) @ text.T
        return float((scores.argmax(dim=1) == images.labels).double().mean())

    assert found.whole == pytest.approx(accuracy(embedded))
    for name, heads in sets.items():
        changed = embedded.clone()
        for layer, head in heads:
            terms = head_contributions(small_clip.image, pixels, [layer]).heads[:, 0, head]
            changed += terms.mean(dim=0) - terms
        assert found.ablated[name] == pytest.approx(accuracy(changed)), name
    assert len({found.whole, *found.ablated.values()}) > 1  # the reference sees a difference at all
    assert found.images == 53


def test_sets(small_clip: Clip) -> None:
    assert by_layer(small_clip, [5]) == {"layer 5": [(5, 0), (5, 1), (5, 2)]}
    assert [*by_head(small_clip, [4, 5])][3:] == ["layer 5 head 0", "layer 5 head 1", "layer 5 head 2"]
    assert head_set(["9.0", "10.11"]) == {"9.0, 10.11": [(9, 0), (10, 11)]}
    table = RoleTable(
        "by hand",
        small_clip.identity,
        ("color",),
        (HeadRole(5, 0, "core", "color"), HeadRole(5, 1, "mixed"), HeadRole(5, 2, "core", "color")),
    )
    assert by_role(table) == {"core": [(5, 0), (5, 2)], "core: color": [(5, 0), (5, 2)], "mixed": [(5, 1)]}


def test_heads_that_are_not_there(small_clip: Clip) -> None:
    text = torch.ones(1, 17)
    for heads, message in (([(6, 0)], "no layer 6 head 0"), ([(5, 3)], "heads 0 to 2"), ([], "is empty")):
        with pytest.raises(SettingsError, match=message):
            mean_ablation(small_clip, Noise([0]), text, {"odd": heads})
    with pytest.raises(SettingsError, match="at least one set"):
        mean_ablation(small_clip, Noise([0]), text, {})
    for name in ("9", "nine.0", "9.x", "9.-1"):
        with pytest.raises(SettingsError, match=r"LAYER\.HEAD"):
            head_set([name])
