"""The Attribute World: a procedural image world with five factors; an image follows from (seed, index)."""
