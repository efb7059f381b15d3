"""Seeds that torch's generators accept. Cheap to import."""

from dear.errors import SettingsError

LEAST_SEED, MOST_SEED = -(2**63), 2**64 - 1


def checked_seed(seed: int) -> int:
    """The seed, unchanged. Raises SettingsError if torch does not accept it."""
    if not LEAST_SEED <= seed <= MOST_SEED:
        raise SettingsError(f"the seed is {seed}: it must be from {LEAST_SEED} to {MOST_SEED}.")
    return seed
