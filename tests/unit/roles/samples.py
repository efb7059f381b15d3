"""Heads of two layers whose phrases come from the package's own pool."""

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
