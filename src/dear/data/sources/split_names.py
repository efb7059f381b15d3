"""Names that mean a split: of folders, of the splits of a Hugging Face data set, and in tables."""

import re
from collections.abc import Sequence
from functools import lru_cache

from dear.errors import DataError

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validate": "val",
    "validation": "val",
    "dev": "val",
    "eval": "val",
    "evaluation": "val",
    "test": "test",
    "testing": "test",
}
SUFFIX = re.compile(r"[ _-]?(?:set|data|images?)$")


@lru_cache(1000)  # each row of a table has one
def split_of(name: str) -> str | None:
    """The split that a name means, "train" for "Training" or "training_set"; None for any other name."""
    return SPLITS.get(SUFFIX.sub("", name.strip().lower()))


def require_one_name_each(names: Sequence[str], where: object) -> None:
    """Raise DataError for two names of one split, such as train and Train."""
    by_split = dict[str, str]()
    for name in names:
        split = split_of(name)
        if split is not None and (first := by_split.setdefault(split, name)) != name:
            raise DataError(f"{where}: {first} and {name} are both the {split} split: merge them.")
