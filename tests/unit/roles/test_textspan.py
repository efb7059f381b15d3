"""TEXTSPAN against the published algorithm, written out in plain numpy, one head at a time."""

import numpy as np
import pytest
import torch

from dear.errors import DataError, SettingsError
from dear.roles.textspan import Moments, textspan
from tests.unit.roles.samples import Array, published


def heads_and_text(seed: int, n: int = 211, d: int = 29, m: int = 97) -> tuple[Array, Array]:
    """Contributions of decaying variance with a mean (2 layers, 3 heads); phrases of unequal length."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(d, d)) * np.exp(-np.arange(d) / 5)[:, None]
    data = rng.normal(size=(n, 2, 3, d)) @ shared + 3 * rng.normal(size=(2, 3, d))
    return data, rng.normal(size=(m, d)) * rng.uniform(0.5, 2, size=(m, 1))


def moments(data: Array, chunk: int = 53) -> Moments:
    found = Moments(*data.shape[1:-1], embed=data.shape[-1])
    for start in range(0, len(data), chunk):
        found.add(torch.from_numpy(data[start : start + chunk]))
    return found


@pytest.mark.parametrize("rank", [7, 19, 29])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_phrases_in_the_same_order_as_the_published_algorithm(seed: int, rank: int) -> None:
    data, text = heads_and_text(seed)
    span = textspan(moments(data), torch.from_numpy(text), rank=rank, top=7)
    for layer in range(2):
        for head in range(3):
            assert span.phrases[layer, head].tolist() == published(data[:, layer, head], text, 7, rank)


def test_the_direction_of_the_first_phrase() -> None:
    """The phrase projected onto the row space, of length 1; zero for a head that contributes nothing."""
    data, text = heads_and_text(1)
    data[:, 1, 2] = 0
    span = textspan(moments(data), torch.from_numpy(text), rank=7, top=2)
    for layer, head in ((0, 0), (0, 2), (1, 1)):
        rows = np.linalg.svd(data[:, layer, head], full_matrices=False)[2][:7]
        wanted = text[int(span.phrases[layer, head, 0])] @ rows.T @ rows
        np.testing.assert_allclose(span.first[layer, head], wanted / np.linalg.norm(wanted), atol=1e-9)
    assert not span.first[1, 2].any()


def test_contributions_of_few_dimensions() -> None:
    """With rank 5 data and r = 17, the published one in the data's own 5 dimensions: the rest is rounding."""
    rng = np.random.default_rng(3)
    data = (rng.normal(size=(101, 5)) @ rng.normal(size=(5, 29)))[:, None]
    text = rng.normal(size=(61, 29))
    span = textspan(moments(data), torch.from_numpy(text), rank=17, top=5)
    assert span.phrases[0].tolist() == published(data[:, 0], text, 5, 5)
    more = textspan(moments(data), torch.from_numpy(text), rank=17, top=11).phrases[0].tolist()
    assert len(set(more)) == 11


def test_one_direction_by_hand() -> None:
    # The data vary along (1, 0) four times as much as along (0, 1): phrase 2 wins there with a variance of 2,
    # and phrase 1 has 1.125.
    data = np.array([[2.0, 0], [-2, 0], [0, 1], [0, -1]])[:, None]
    text = np.array([[0.0, 0.1], [0.0, 1.5], [1.0, 0.0]])
    span = textspan(moments(data), torch.from_numpy(text), rank=2, top=2)
    assert span.phrases.tolist() == [[2, 1]]


def test_a_phrase_is_not_normalized() -> None:
    data = np.array([[1.1, 0.0], [-1.1, 0], [0, 1], [0, -1]])[:, None]
    text = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    assert textspan(moments(data), text, rank=2, top=1).phrases.tolist() == [[1]]


def test_what_cannot_be_spanned() -> None:
    data, text = heads_and_text(7, n=13)
    phrases = torch.from_numpy(text)
    with pytest.raises(DataError, match="13 images"):
        textspan(moments(data), phrases, rank=17, top=3)
    textspan(moments(data), phrases, rank=13, top=3)  # as many images as dimensions are enough
    for top in (0, 12):
        with pytest.raises(SettingsError, match="from 1 to 11"):
            textspan(moments(data), phrases, rank=11, top=top)
    data[3, 1, 1, 4] = np.nan
    with pytest.raises(DataError, match="finite"):
        textspan(moments(data), phrases, rank=11, top=3)


@pytest.mark.gpu
def test_the_gpu_finds_the_same() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    data, text = heads_and_text(10)
    there = Moments(2, 3, embed=29, device="cuda")
    there.add(torch.from_numpy(data).cuda())
    span = textspan(there, torch.from_numpy(text), rank=19, top=11)
    assert torch.equal(span.phrases, textspan(moments(data), torch.from_numpy(text), rank=19, top=11).phrases)
