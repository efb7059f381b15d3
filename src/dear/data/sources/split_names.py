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
USUAL = frozenset(["train", "training", "val", "valid", "validation", "test"])
SUFFIX = re.compile(r"[ _-]?(?:set|data|images?)$")


@lru_cache(1000)  # each row of a table has one
def split_of(name: str) -> str | None:
    """The split that a name means, "train" for "Training" or "training_set"; None for any other name."""
    return SPLITS.get(SUFFIX.sub("", name.strip().lower()))


def names_of_splits(names: Sequence[str], where: object) -> dict[str, str]:
    """The name of each split, in the order of the names. Of several for one split, such as validation and
    dev, the usual one counts; raises DataError for two usual or two others, such as train and Train.
    """
    by_split = dict[str, list[str]]()
    for name in names:
        if split := split_of(name):
            by_split.setdefault(split, []).append(name)
    names_by_split = dict[str, str]()
    for split, candidates in by_split.items():
        usual = [name for name in candidates if name.lower() in USUAL] or candidates
        if len(usual) > 1:
            raise DataError(f"{where}: {usual[0]} and {usual[1]} are both the {split} split: merge them.")
        names_by_split[split] = usual[0]
    return names_by_split
