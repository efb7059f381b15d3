"""Heads of two layers whose phrases come from the package's own pool."""

import numpy as np
from numpy.typing import NDArray

from dear.backbone.clip import Identity

WEIGHTS = Identity("small", "random", "ab" * 32)
HEADS = {
    (5, 0): ("the color red", "the color teal", "an image with a blue color", "green tones"),
    (5, 1): ("a photo of a dog", "a horse", "a picture with a shark", "a photo of an eagle"),
    (5, 2): ("a photo taken in France", "a picture of Peru", "a castle", "a street in Vienna"),
    (6, 0): ("the color red", "a photo of a dog", "a picture of Peru", "a circle"),
    (6, 1): ("a circle", "a square", "a sphere", "a photo taken in France"),
    (6, 2): ("a hammer", "a table", "the color teal", "a horse"),
}


Array = NDArray[np.float64]


def published(data: Array, text: Array, iters: int, rank: int) -> list[int]:
    """The authors' procedure, step by step: project the text, center the data, pick, deflate both."""
    _, _, vh = np.linalg.svd(data, full_matrices=False)
    vh = vh[:rank]
    text = (vh.T @ np.linalg.inv(vh @ vh.T) @ vh @ text.T).T
    data = data - data.mean(axis=0, keepdims=True)
    picks = []
    for _ in range(iters):
        picks.append(int(np.argmax((data @ text.T).std(axis=0))))
        direction = text[picks[-1]].copy()
        square = direction @ direction
        data = data - np.outer(data @ direction / square, direction)
        text = text - np.outer(text @ direction / square, direction)
    return picks
