"""What is particular to ATPrompt: its words, where they stand, and what is refused before the first run."""

from typing import Any

import open_clip
import pytest
import torch

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.methods.atprompt import AtPromptSettings
from dear.methods.declaration import read_published_rows
from tests.helpers.methods import build, check_before_runs

CLASSES = ["house", "green tree"]
PETS = "OxfordPets"


def made(clip: Clip, **options: Any) -> Any:
    return build("atprompt", clip, CLASSES, **{"attributes": "sea, tree", "tokens": 1} | options)


def test_all_published_words_but_one_are_one_token() -> None:
    rows = {row.name: row for row in read_published_rows("atprompt")}
    published = [values["attributes"] for values in rows["attribute words"].by_data.values()]
    assert len(published) == 10
    words = sorted({word for some in [*published, "color, shape"] for word in some.split(", ")})
    tokens = open_clip.get_tokenizer("ViT-B-32")(words).argmax(dim=-1) - 1
    several = {word: count for word, count in zip(words, tokens.tolist(), strict=True) if count > 1}
    assert several == {"playfulness": 2}


def test_a_word_of_several_tokens_is_told_before_the_first_run(small_clip: Clip) -> None:
    with pytest.raises(SettingsError, match=r"the attribute word 'bay' is 3 tokens"):
        check_before_runs(small_clip, "atprompt", AtPromptSettings(attributes="tree, bay", tokens=1))


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({}, "0 c0 sea c1 tree c2 house . end"),
        ({"attributes": "sea", "tokens": 2}, "0 c0 c1 sea c2 c3 house . end"),
        # b a y are three tokens, of which two are in the places of what comes after
        ({"attributes": "bay, tree", "by_position": True}, "0 c0 b c1 y c2 tree x house . end"),
    ],
)
def test_what_stands_where(options: dict[str, Any], order: str, small_clip: Clip) -> None:
    method = made(small_clip, **options)
    learned = torch.cat([method.attribute_context.flatten(0, 1), method.context]).detach()
    with torch.no_grad():
        learned += torch.arange(len(learned)).unsqueeze(1)  # told apart
        trunk = method.prompts_of_classes.trunk(learned)
    words = [place for place in order.split() if not place.startswith("c") and place not in ("0", "end")]
    ids = iter(small_clip.tokenize([" ".join(words)])[0, 1:])
    for place, what in enumerate(order.split()[:-1]):
        got = trunk.tokens[0, place] - small_clip.text.positional_embedding[place]
        if what.startswith("c"):
            want = learned[int(what[1:])]
        else:
            number = small_clip.tokenize(["sea"])[0, 0] if what == "0" else next(ids)
            want = small_clip.text.token_embedding(number)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5, msg=f"at {place}")
    assert int(trunk.end[0]) == len(order.split()) - 1


def test_later_layers_of_maple_replace_the_tokens_of_the_class_alone(small_clip: Clip) -> None:
    method = made(small_clip, base="maple", share=False, depth=3)
    inject = method.text_injection(method.class_position)
    assert (method.class_position, inject.at, tuple(inject.tokens.shape)) == (5, 5, (3, 1, 22))
    assert (method.image_from, method.text_from) == (1, 1)
