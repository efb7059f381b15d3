"""TCP: which templates it takes, where its tokens enter, and that each class has its own."""

import pytest
import torch
from torch.nn.functional import normalize

from dear.backbone.attention import causal_bias
from dear.backbone.clip import fill
from dear.errors import SettingsError
from dear.methods.tcp.method import after_context
from tests.conftest import MakeClip
from tests.helpers.data import CLASSES
from tests.helpers.methods import TEMPLATE, build


@torch.no_grad()
def test_text_features_layer_by_layer(make_small_clip: MakeClip) -> None:
    """The prompt by hand: context, name; before layer 3 the tokens of the class take the context's places."""
    clip = make_small_clip(dtype=torch.float64)
    method, tower = build("tcp", clip, layer=3, share=False, tokens=2), clip.text
    frozen = normalize(clip.encode_text(fill(TEMPLATE[0], CLASSES)), dim=-1)
    hidden = frozen @ method.meta_net[0].weight.T + method.meta_net[0].bias
    hidden = hidden * torch.sigmoid(1.702 * hidden)
    made = (hidden @ method.meta_net[2].weight.T + method.meta_net[2].bias).view(3, 2, 22)
    for row, name in enumerate(CLASSES):
        ids = clip.tokenize([f"X X of a {name}"])  # "a photo" was there
        x = tower.token_embedding(ids)
        x[0, 1:3] = method.context
        x = x + tower.positional_embedding
        for layer in range(1, 5):
            if layer == 3:
                x[0, 1:3] = made[row]
            x = tower.layers(x, layer, layer, causal_bias(x.shape[1], x))
        want = normalize(tower.finish(x[:, ids.argmax()]), dim=-1)
        torch.testing.assert_close(method.text_features()[row : row + 1], want, rtol=0, atol=1e-12)


def test_where_the_tokens_enter(make_small_clip: MakeClip) -> None:
    tall = make_small_clip(text_depth=12)
    assert build("tcp", tall).layer == 9
    assert build("tcp", make_small_clip(text_depth=6)).layer == 5
    assert (
        build("tcp", make_small_clip(text_depth=2), layer=2).layer == 2
    )  # never before the first: no context then
    assert build("tcp", tall, layer=12, share=False).layer == 12
    with pytest.raises(SettingsError, match="layer is 9: the text tower has 4 layers only"):
        build("tcp", make_small_clip(), share=False)
    with pytest.raises(SettingsError, match="tcp needs a text tower of 2 layers or more"):
        build("tcp", make_small_clip(text_depth=1))


@pytest.mark.parametrize(
    ("template", "tokens", "want"),
    [
        ("a photo of a {}.", 4, "{}."),
        ("a photo of {}, a type of food.", 4, "{}, a type of food."),
        ("X X X X {} texture.", 2, "{} texture."),
        ("a centered satellite photo of {}.", 4, "of {}."),
        ("{}", 1, "{}"),
    ],
)
def test_what_follows_the_context(template: str, tokens: int, want: str) -> None:
    assert after_context(template, tokens) == want
