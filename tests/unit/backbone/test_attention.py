"""Both forms of attention agree, biases act on their own head, and what is blocked is exactly zero."""

import math

import pytest
import torch
from torch import Tensor

from dear.backbone.attention import (
    ComputedBiases,
    aligned,
    attend,
    attend_written_out,
    attention_weights,
    causal_bias,
)

BATCH, HEADS, TOKENS, DIM, KEYS = 2, 3, 5, 7, 11


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def qkv(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.randn(BATCH, HEADS, TOKENS, DIM, generator=generator, dtype=torch.float64)
    key = torch.randn(BATCH, HEADS, KEYS, DIM, generator=generator, dtype=torch.float64)
    return query, key, torch.randn(BATCH, HEADS, KEYS, DIM, generator=generator, dtype=torch.float64)


def slow(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Attention by loops over every index, from the definition."""
    out = torch.zeros_like(query)
    for b in range(BATCH):
        for h in range(HEADS):
            for q in range(query.shape[2]):
                scores = [
                    float(query[b, h, q] @ key[b, h, k]) / math.sqrt(DIM) + float(bias[b, h, q, k])
                    for k in range(key.shape[2])
                ]
                shares = [math.exp(score) for score in scores]
                for k, share in enumerate(shares):
                    out[b, h, q] += share / sum(shares) * value[b, h, k]
    return out


def test_both_forms_equal_the_definition(
    qkv: tuple[Tensor, Tensor, Tensor], generator: torch.Generator
) -> None:
    bias = torch.randn(BATCH, HEADS, TOKENS, KEYS, generator=generator, dtype=torch.float64)
    bias[0, 1, 2, 3] = bias[1, 2, 0, 10] = float("-inf")
    expected = slow(*qkv, bias)
    torch.testing.assert_close(attend(*qkv, bias), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(attend_written_out(*qkv, bias), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", [attend, attend_written_out])
def test_a_blocked_key_has_no_influence_at_all(form: object, qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = qkv
    bias = torch.zeros(TOKENS, KEYS, dtype=torch.float64)
    bias[:, 4] = float("-inf")
    other_key, other_value = key.clone(), value.clone()
    other_key[:, :, 4], other_value[:, :, 4] = 1e3, -1e6
    before, after = form(query, key, value, bias), form(query, other_key, other_value, bias)  # type: ignore[operator]
    assert torch.equal(before, after)


def test_blocked_weights_are_exactly_zero_and_rows_sum_to_one(qkv: tuple[Tensor, Tensor, Tensor]) -> None:
    bias = torch.zeros(HEADS, TOKENS, KEYS, dtype=torch.float64)
    bias[2, 1, 7] = bias[0, 3, 0] = float("-inf")
    weights = attention_weights(qkv[0], qkv[1], bias)
    assert weights.shape == (BATCH, HEADS, TOKENS, KEYS)
    assert torch.equal(weights == 0, torch.isinf(bias).expand(BATCH, -1, -1, -1))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, HEADS, TOKENS, dtype=torch.float64))


def test_causal_bias_by_hand() -> None:
    blocked = float("-inf")
    expected = torch.tensor([[0, blocked, blocked], [0, 0, blocked], [0, 0, 0]], dtype=torch.float64)
    assert torch.equal(causal_bias(3, torch.empty(0, dtype=torch.float64)), expected)


@pytest.mark.parametrize("keys", [5, 8, 202])
def test_an_aligned_bias_has_the_same_numbers_in_rows_at_multiples_of_eight(keys: int) -> None:
    bias = torch.randn(3, 7, keys)
    rows = aligned(bias)
    assert torch.equal(rows, bias)
    assert all(stride % 8 == 0 for stride in rows.stride()[:-1])
    assert rows.stride(-1) == 1


def test_biases_are_made_once_in_the_type_that_is_computed_in() -> None:
    masks = [torch.zeros(3, 5, 5), torch.full((3, 5, 5), float("-inf"))]
    biases = ComputedBiases()
    exact = biases(masks)
    assert [bias.dtype for bias in exact] == [torch.float32] * 2
    with torch.autocast("cpu", torch.bfloat16):
        rounded = biases(masks)
        assert biases(masks) is rounded
    assert [bias.dtype for bias in rounded] == [torch.bfloat16] * 2
    assert all(map(torch.equal, [bias.float() for bias in rounded], masks))
    assert biases(masks)[0].dtype == torch.float32
