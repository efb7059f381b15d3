"""Class names for folders or labels that are WordNet ids, such as n01440764: "tench"."""

import re
from collections import Counter
from dataclasses import replace

from dear.data.sources.benchmarks import wordnet_names
from dear.data.sources.listing import Listing, first_few

WORDNET_ID = re.compile(r"n\d{8}")


def name_wordnet_ids(listing: Listing) -> Listing:
    """The listing with CoOp's names of ImageNet's classes in place of WordNet ids, and a note about them.

    Two ids of one name (sunglasses, missile) keep the id in brackets. Ids that are not ImageNet's stay.
    Source: CoOp's classnames.txt.
    """
    ids = [key for key in listing.keys if WORDNET_ID.fullmatch(key)]
    if not ids or listing.keys != listing.classnames:
        return listing
    known = wordnet_names()
    times = Counter(known.get(key) for key in listing.keys)
    names = [
        key if key not in known else known[key] if times[known[key]] == 1 else f"{known[key]} ({key})"
        for key in listing.keys
    ]
    notes = list(listing.notes)
    if named := [f"{key} is {name}" for key, name in zip(listing.keys, names, strict=True) if name != key]:
        notes.append(
            f"{len(named)} of its {len(names)} classes are WordNet ids and take the names that CoOp has for "
            f"ImageNet: {first_few(named)}; --dataset.classnames FILE gives others"
        )
    if unknown := [key for key in ids if key not in known]:
        notes.append(
            f"{len(unknown)} classes are WordNet ids that are not ImageNet's 1000 and stay as they are: "
            f"{first_few(unknown)}; name them with --dataset.classnames FILE"
        )
    return replace(listing, classnames=tuple(names), notes=tuple(notes))
