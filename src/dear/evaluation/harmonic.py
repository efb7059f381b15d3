"""The harmonic mean of base and novel accuracy. Light to import: the report uses it too."""


def harmonic_mean(base: float, novel: float) -> float:
    """2 b n / (b + n), in the unit of the two; 0 if either is 0. Source: the paper, base-to-novel."""
    return 2 * base * novel / (base + novel) if base and novel else 0.0
