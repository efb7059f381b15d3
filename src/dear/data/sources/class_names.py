"""Labels and names of classes as text: how they are compared and ordered, and what labels are called by a
file of the user, by ImageNet for WordNet ids, or by their own spelling.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from unicodedata import normalize

from dear.errors import DataError
from dear.limits import require_at_most
from dear.reading.files import ReadingError, read_lines
from dear.reading.plain import read_csv, read_json
from dear.text import FEW, compose, list_names, plural, without_surrogates

NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?", re.ASCII)
WHOLE = re.compile(r"\d{1,15}", re.ASCII)
MOST_NAMED = 20  # classes that a note has with their names
INVISIBLE = re.compile("[\u00ad\u200b\u200e\u200f\u2060\ufeff]")
"""The soft hyphen, the zero-width space, marks of direction, the word joiner and the byte order mark."""
SPACES = re.compile(r"\s+")
WORDNET_ID = re.compile(r"n\d{8}")
CAMEL_CASE = re.compile(r"(?:[A-Z][a-z]{2,}){2,}")
HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
HEADERS = {*product(("folder", "label", "class", "id", "key"), ("name", "classname", "class_name"))}
"""Rows of a CSV file of class names that name its columns."""


def with_spaces(name: str) -> str:
    """A class name as written in a sentence: underscores become spaces, as in CoOp."""
    return name.replace("_", " ").strip()


def plain_name(name: str) -> str:
    """A key for comparing class names, ignoring case, underscores, zeros before a whole number, and what
    looks alike: the forms of Unicode (NFKC), invisible characters and kinds of spaces.
    """
    return without_zeros(normalize("NFKC", plain_label(with_spaces(name)).casefold()))


def plain_label(label: str) -> str:
    """A label without what nobody sees: spaces around it, several spaces in a row or other ones than the
    plain one, and invisible characters but joiners, on which the look of some scripts depends; its accents in
    one form.
    """
    return compose(SPACES.sub(" ", INVISIBLE.sub("", label)).strip())


def spelling_note(labels: Iterable[str]) -> tuple[str, ...]:
    """A note on labels that are written in several ways which look the same, and so are one class."""
    written = dict[str, set[str]]()
    for label in labels:
        written.setdefault(plain_label(label), set()).add(label.strip())
    several = [f"{label!r} in {len(ways)} ways" for label, ways in written.items() if len(ways) > 1]
    told = (
        "labels that look the same are one class, whatever spaces, invisible characters or accents they have"
    )
    return (f"{told}: {list_names(several, FEW)}",) if several else ()


def without_zeros(key: str) -> str:
    """A whole number without leading zeros; any other key as it is."""
    return str(int(key)) if WHOLE.fullmatch(key) else key


def sort_names(names: Iterable[str]) -> list[str]:
    """Names of folders or labels in their order: by value if all are numbers, else by their letters, in
    whatever form of Unicode.
    """
    in_order = sorted(names, key=lambda name: (compose(name), name))
    return sorted(in_order, key=float) if all(map(NUMBER.fullmatch, in_order)) else in_order


def label_note(numbers: Sequence[int]) -> tuple[str, ...]:
    """A note on labels, in their order, if they are other numbers than those from 0 without a gap."""
    gaps = ", with gaps" if numbers[-1] - numbers[0] >= len(numbers) else ""
    run = f"its {len(numbers)} labels are numbers from {numbers[0]} to {numbers[-1]}{gaps}"
    return () if [*numbers] == [*range(len(numbers))] else (f"{run}: they are taken in their order",)


def require_distinct(source: str, keys: Sequence[str], names: Sequence[str]) -> None:
    """Raise DataError for a class that is listed twice, two of the same `plain_name`, and a name that is
    empty or not in UTF-8; LimitError for too many or too long ones.
    """
    require_at_most("prompts", len(names), source)
    require_at_most("class_name", max(map(len, names), default=0), source)
    if len({*keys}) < len(keys):
        raise DataError(f"{source}: {with_spaces(Counter(keys).most_common(1)[0][0])!r} is listed twice.")
    seen: dict[str, str] = {}
    for key, name in zip(keys, names, strict=True):
        if name != without_surrogates(name):  # an undecodable byte of a file name
            raise DataError(f"{source}: the class name {name!r} is not in UTF-8. Rename it.")
        if not plain_name(name):
            raise DataError(f"{source}: the class {key!r} has an empty name.")
        if (other := seen.setdefault(plain_name(name), key)) != key:
            raise DataError(
                f"{source}: the classes {other!r} and {key!r} have the same name, {with_spaces(name)!r}. "
                "Merge them, or give each a name of its own, by its folder or label or with "
                "--dataset.classnames."
            )


def describe_new_class(source: str, data: str, name: str, classes: Sequence[str]) -> str:
    """A note on a class that only a later source has, or corrections: it may be mistyped."""
    nearest = nearest_class(name, classes)
    meant = f": is {nearest!r} meant?" if nearest else ""
    return f"{source} has a class that {data} does not have, {name!r}{meant}"


def nearest_class(name: str, classes: Iterable[str]) -> str | None:
    """The class that a name which is none may stand for, if one is spelled nearly so. A number stands for
    itself.
    """
    known = {plain_name(other): other for other in classes}
    nearest = [] if WHOLE.fullmatch(name) else get_close_matches(plain_name(name), known, n=1, cutoff=0.75)
    return known[nearest[0]] if nearest else None


def usual_names(keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The names of classes that nobody named, where they are not their keys, and notes about them."""
    names, notes = _wordnet_names(keys)
    spelled = {key: words for key in keys if key not in names and (words := split_words(key)) != key}
    uses = Counter(map(plain_name, (spelled.get(key, names.get(key, key)) for key in keys)))
    spelled = {key: words for key, words in spelled.items() if uses[plain_name(words)] == 1}
    if spelled:
        described = describe_names(spelled.items())
        notes.append(
            f"names in CamelCase are read as words: {described}; --dataset.classnames FILE gives others"
        )
    if keys and all(key.isascii() and key.isdigit() for key in keys):
        notes.append("its classes are numbers: name them with --dataset.classnames FILE")
    return names | spelled, notes


def split_words(name: str) -> str:
    """A name whose words in CamelCase stand apart: AnnualCrop is Annual Crop. McDonald and iPhone stay: each
    part needs a capital and two small letters. [ours]
    """
    words = re.split(r"([ _-])", name)
    return "".join(HUMP.sub(" ", word) if CAMEL_CASE.fullmatch(word) else word for word in words)


def _wordnet_names(keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """CoOp's names of ImageNet's classes for WordNet ids, and notes about them.

    Ids of one name (sunglasses, missile), or of that of another class, keep the id in brackets. Ids that are
    not ImageNet's stay. Source: CoOp's classnames.txt.
    """
    ids = [key for key in keys if WORDNET_ID.fullmatch(key)]
    if not ids:
        return {}, []
    imagenet = dict(zip(packaged_names("ImageNet.wnids.txt"), packaged_names("ImageNet.txt"), strict=True))
    uses = Counter(plain_name(imagenet.get(key, key)) for key in keys)
    names = {key: imagenet[key] for key in ids if key in imagenet}
    names = {key: f"{name} ({key})" if uses[plain_name(name)] > 1 else name for key, name in names.items()}
    notes = list[str]()
    if names:
        notes.append(
            f"{len(names)} of its {len(keys)} classes are WordNet ids and take the names that CoOp has "
            f"for ImageNet: {describe_names(names.items())}; --dataset.classnames FILE gives others"
        )
    if unknown := [key for key in ids if key not in imagenet]:
        notes.append(
            "WordNet ids that are not among ImageNet's 1000 stay as they are: "
            f"{list_names(unknown, FEW)}; name them with --dataset.classnames FILE"
        )
    return names, notes


def read_names(path: Path) -> dict[str, str] | list[str]:
    """Read a mapping of folders or labels to names, or names in label order. Raises DataError.

    The suffix .json or .csv determines the format; any other file has lines of a folder, a space and a name.
    """
    try:
        if path.suffix.lower() == ".json":
            content = read_json(path)
        elif path.suffix.lower() == ".csv":
            content = [row for _, row in read_csv(path)]
        else:
            content = [line.split(maxsplit=1) for line in read_lines(path) if line.strip()]
    except ReadingError as error:
        raise DataError(f"cannot read the class names {path}: {error.reason}.") from error
    if path.suffix.lower() == ".json":
        values = content.values() if isinstance(content, dict) else content
        if not isinstance(content, dict | list) or not all(isinstance(v, str) and v.strip() for v in values):
            raise DataError(f"{path} needs a list of class names, or an object of folder and class name.")
        return content
    names = dict[str, str]()
    for number, row in enumerate(content):
        pair = [cell.strip() for cell in row]
        if number == 0 and tuple(map(str.lower, pair)) in HEADERS:
            continue
        if len(pair) != 2 or not all(pair):
            raise DataError(f"{path}: {' '.join(pair)!r:.80} is not a folder and a class name.")
        if names.setdefault(*pair) != pair[1]:
            raise DataError(f"{path} names a folder twice: {pair[0]!r:.80}.")
    return names


def describe_names(pairs: Iterable[tuple[str, str]]) -> str:
    """Which folder or label has which name, for a note."""
    return list_names((f"{key} is {name}" for key, name in pairs), MOST_NAMED)


def match_names(
    keys: Sequence[str],
    names: Mapping[str, str] | Sequence[str],
    source: str,
    numbered: Sequence[Sequence[str]] = (),
) -> dict[str, str]:
    """The name of each class by its key, a folder or label; other keys may be there too.

    Of a list, the keys of data sets that number their classes (``numbered``) take as many names in order. Of
    other keys those that are whole numbers have a place in it: counted from 0 if one is 0, from 1 if the last
    is the number of names, else in their order if there are as many; the others must be among the names.
    Raises DataError for a key without a name, for numbers that could count from 0 or 1.
    """
    if isinstance(names, Mapping):
        spelled = {compose(key): compose(name) for key, name in names.items()}
        by_value = {without_zeros(key): name for key, name in spelled.items()}
        plain_names = {*map(plain_name, spelled.values())}
        by_key = {key: name for key in keys if (name := spelled.get(key, by_value.get(without_zeros(key))))}
        if missing := [key for key in keys if key not in by_key and plain_name(key) not in plain_names]:
            raise DataError(
                f"{source} has no name for {plural(len(missing), 'class')}; the first is {missing[0]!r}."
            )
        return spelled | by_key
    names, matched = [*map(compose, names)], dict[str, str]()
    for in_order in numbered:
        _require_as_many(in_order, names, source)
        matched |= zip(in_order, names, strict=True)
    keys = [key for key in keys if key not in matched]
    numbers = sorted({int(key) for key in keys if WHOLE.fullmatch(key)})
    if numbers:
        last = numbers[-1]
        if numbers[0] > 0 and last < len(names):
            raise DataError(
                f"{source} is a list of {plural(len(names), 'name')}, in which labels from {numbers[0]} to "
                f'{last} may count from 0 or from 1: give an object, {{"{last}": "name", ...}}.'
            )
        if last < len(names):
            numbers = [*range(len(names))]
        elif last == len(names) and numbers[0] > 0:
            numbers = [*range(1, len(names) + 1)]
        _require_as_many(numbers, names, source)
        matched |= zip(map(str, numbers), names, strict=True)
    by_name = {plain_name(name): name for name in names}
    matched |= {key: matched[without_zeros(key)] for key in keys if WHOLE.fullmatch(key)}
    keys = [key for key in keys if key not in matched]
    if len(names) < len(keys):
        _require_as_many(keys, names, source)
    if other := [key for key in keys if plain_name(key) not in by_name]:
        raise DataError(
            f"{source} is a list of names, which says nothing of the class {other[0]!r}: give an object that "
            f'names each class, {{"{other[0]}": "name", ...}}.'
        )
    return matched | {key: by_name[plain_name(key)] for key in keys}


def _require_as_many(keys: Sequence[object], names: Sequence[str], source: str) -> None:
    if len(names) != len(keys):
        raise DataError(f"{source} has {plural(len(names), 'name')} for {plural(len(keys), 'class')}.")


@cache
def packaged_names(file: str) -> tuple[str, ...]:
    """The lines of a file of class names in this package."""
    text = files(__package__).joinpath("classnames", file).read_text(encoding="utf-8")
    return tuple(text.splitlines())
