"""Learned context: what stands where in a prompt, where it starts, and what does not fit."""

from typing import Any

import pytest
import torch

from dear.backbone.clip import Clip
from dear.errors import SettingsError
from dear.methods.cocoop.method import CoCoOp
from dear.methods.context import PLACEHOLDER, context_ids, context_prompts, initial_context
from dear.methods.registry import build_method
from dear.training.loop import train
from dear.training.settings import TrainSettings
from tests.helpers.data import few

CLASSES = ["house", "red_circle", "tree on the sea"]


def test_what_stands_where(small_clip: Clip) -> None:
    # start, context 1 to 3, name, full stop, end; a number is a word's place, c a context vector
    orders = ["0 c0 c1 c2 4 5 6", "0 c0 c1 c2 4 5 6 7", "0 c0 c1 c2 4 5 6 7 8 9"]
    prompts = context_prompts(small_clip, CLASSES, "", 3)
    assert prompts.end.tolist() == [6, 7, 9]
    assert prompts.ids.shape == (3, 10)
    context = torch.randn(3, 22, generator=torch.Generator().manual_seed(1))
    trunk = prompts.trunk(context)
    ids = small_clip.tokenize(
        [f"{PLACEHOLDER} {PLACEHOLDER} {PLACEHOLDER} {name.replace('_', ' ')}." for name in CLASSES]
    )
    for row, order in enumerate(orders):
        for place, what in enumerate(order.split()):
            vector = (
                context[int(what[1:])]
                if what.startswith("c")
                else small_clip.text.token_embedding(ids[row, int(what)])
            )
            want = vector + small_clip.text.positional_embedding[place]
            torch.testing.assert_close(trunk.tokens[row, place], want, rtol=0, atol=1e-6)


def test_a_context_for_each_row(small_clip: Clip) -> None:
    prompts = context_prompts(small_clip, CLASSES, "", 2)
    contexts = torch.randn(5, 2, 22, generator=torch.Generator().manual_seed(2))
    rows = torch.tensor([2, 0, 1, 1, 2])
    trunk = prompts.trunk(contexts, rows)
    for i, row in enumerate(rows.tolist()):
        one = prompts.trunk(contexts[i])
        assert torch.equal(trunk.tokens[i], one.tokens[row])
        assert trunk.end[i] == one.end[row]


def test_words_are_kept_and_start_the_context(small_clip: Clip) -> None:
    ids = context_ids(small_clip, ["house"], "a photo of a", 2)
    assert torch.equal(ids, small_clip.tokenize(["a photo of a house."]))
    embedded = small_clip.text.token_embedding(ids[0])
    start = initial_context(small_clip, "a photo of a", 2, 0.02, torch.Generator())
    assert torch.equal(start, embedded[1:3])
    start.add_(1)  # a copy: the vocabulary stays as it is
    assert not torch.equal(start, small_clip.text.token_embedding(ids[0])[1:3])


def test_a_name_is_cut_and_the_context_is_not(small_clip: Clip) -> None:
    """Of 13 tokens the start, three of context, eight of a name of twelve, the end."""
    with pytest.warns(UserWarning, match="class names cut"):
        prompts = context_prompts(small_clip, [" ".join(["green"] * 12)], "", 3)
    context = [13, 14, 15]  # they follow the 13 words
    assert prompts.order[0].tolist() == [0, *context, *range(4, 12), 12]


def test_prompts_that_do_not_fit(small_clip: Clip) -> None:
    assert context_ids(small_clip, ["tree on the sea"], "", 6).shape == (1, 13)  # 1 + 6 + 4 + 2 of 13
    with pytest.warns(UserWarning, match="reads 11 tokens: 'tree on the sea'$"):
        ids = context_ids(small_clip, ["house", "tree on the sea"], "", 7)  # without its full stop
    assert ids.shape == (2, 13)
    with pytest.raises(SettingsError, match="11 tokens of context leave no room for class names"):
        context_ids(small_clip, ["house"], "", 11)
    with pytest.raises(SettingsError, match="12 context tokens do not fit: the text tower takes 13"):
        context_ids(small_clip, ["house"], "", 12)


def test_text_chunk_bounds_the_prompts_of_cocoop(small_clip: Clip, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 4 images and 3 classes has 12 prompts: all at once, or 5, 5 and 2. Seven images are 21."""
    sizes, text = list[int](), CoCoOp._text

    def counted(self: CoCoOp, contexts: Any, classes: Any) -> Any:
        if torch.is_grad_enabled():  # not where the last step is looked at
            sizes.append(len(classes))
        return text(self, contexts, classes)

    monkeypatch.setattr(CoCoOp, "_text", counted)
    losses = []
    for chunk, forwards in ((0, {12, 9}), (5, {5, 2, 4})):
        sizes.clear()
        method = build_method("cocoop", small_clip, torch.Generator().manual_seed(1))
        method.set_classes(CLASSES, ["a photo of a {}"])
        settings = TrainSettings(epochs=2, batch=4, text_chunk=chunk, optimizer="sgd")
        losses.append([epoch["loss"] for epoch in train(method, few(), settings, seed=1)])
        assert {*sizes} == forwards
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
