"""Plain values from JSON and YAML: nothing twice, nothing endless, no number that is none."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from dear.limits import at_most
from dear.reading.files import ReadingError, decoded, read_bytes

FEW: Final = 8  # values, which no limit forbids: a line of a table is looked at no further
DIGITS: Final = 19  # of a whole number of 64 bits
DIGITS_OF_YAML: Final = 400  # what a key takes is judged by whoever knows the key


def read_json(path: Path) -> Any:
    """What a JSON file holds, as `parse_json` gives it."""
    return parse_json(read_bytes(path), path)


def parse_json(content: bytes | str, where: object) -> Any:
    """The value of a JSON text.

    Raises ReadingError for what is no JSON, for NaN and Infinity, for whole numbers beyond 64 bits and for a
    key that stands twice; LimitError for too many values and for too many levels.
    """
    text = content if isinstance(content, str) else decoded(where, content)
    # Before anything is made of them: each is at least a comma, a bracket or a brace.
    values = sum(map(text.count, ",[{"))
    if values > FEW:
        at_most("json_values", values, where)
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ReadingError(where, "it is nested too deeply") from error
    except ValueError as error:
        raise ReadingError(where, f"it is not readable JSON: {error}") from error
    if values > FEW:
        require_shallow(value, where)
    return value


def require_shallow(value: Any, where: object) -> None:
    """Refuse values in values beyond the limit. Raises LimitError."""
    levels, level = 0, [value] if isinstance(value, dict | list) else []
    while level:
        levels += 1
        at_most("json_depth", levels, where)
        level = [one for holder in level for one in _held(holder) if isinstance(one, dict | list)]


def read_yaml(path: Path) -> Any:
    """What a YAML file holds.

    Raises ReadingError for what is no YAML of plain values, for numbers as `parse_json` does, for a key that
    stands twice and for an alias within its own value; LimitError for too many levels, or values with
    aliases written out.
    """
    text = decoded(path, read_bytes(path, "yaml_bytes"))
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _require_small(node, path)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ReadingError(path, f"it is not readable YAML: {_worded(error)}") from error
    except RecursionError as error:
        raise ReadingError(path, "it is nested too deeply") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # PyYAML's own for a text that its tag does not fit: `!!int ''`, `!!timestamp never`, 2026-13-45.
        raise ReadingError(path, f"it is not readable YAML: {error}") from error


def require_small_yaml(text: str, where: object) -> None:
    """Refuse a YAML text that `read_yaml` would refuse for its size, levels or aliases; what is no YAML
    passes, for whoever reads it to say so. Raises ReadingError, LimitError.
    """
    at_most("yaml_bytes", len(text), where)
    try:
        node = _Loader(text).get_single_node()
    except yaml.YAMLError:
        return
    except RecursionError as error:
        raise ReadingError(where, "it is nested too deeply") from error
    if node is not None:
        _require_small(node, where)


class _Loader(yaml.SafeLoader):
    """YAML's safe loader that refuses what `read_yaml` says it does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value[:40]!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > DIGITS_OF_YAML:
        raise ValueError(f"a whole number of {len(node.value):,} digits")
    return loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _int)


def _require_small(root: yaml.Node, path: object) -> None:
    """Refuse a document of too many levels or values, counting what aliases repeat each time: values that
    are shared take no room, but whoever walks through them, merges or prints them meets each.
    """
    sizes: dict[int, tuple[int, int]] = {}  # of a node: its values and its levels
    open_nodes: set[int] = set()
    todo: list[tuple[yaml.Node, bool]] = [(root, False)]
    while todo:  # not recursive: it is to say how deep it is, not to fail of it
        node, done = todo.pop()
        if id(node) in sizes and not done:
            continue
        held = _nodes(node)
        if done:
            open_nodes.discard(id(node))
            inside = [sizes[id(one)] for one in held]
            levels = max((one for _, one in inside), default=0) + isinstance(node, yaml.CollectionNode)
            sizes[id(node)] = 1 + sum(values for values, _ in inside), levels
            at_most("yaml_values", sizes[id(node)][0], path)
            at_most("json_depth", levels, path)
        elif id(node) in open_nodes:
            raise ReadingError(path, "an alias stands within the value that it names")
        else:
            open_nodes.add(id(node))
            todo += [(node, True), *((one, False) for one in held)]


def _nodes(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _held(holder: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return holder.values() if isinstance(holder, dict) else holder


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:40]!r} stands twice in one object")
    return found


def _whole(digits: str) -> int:
    if len(digits) > DIGITS + 1:  # and a sign
        raise ValueError(f"{digits[:20]}... is a whole number of {len(digits):,} digits")
    return _within(int(digits))


def _within(value: int) -> int:
    if abs(value) >= 2**63:
        raise ValueError("a whole number is beyond 64 bits")
    return value


def _finite(number: str | float) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{str(number)[:40]} is no finite number")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no finite number")


def _worded(error: yaml.YAMLError) -> str:
    """PyYAML's words in one line of at most 300 letters, without the name of a file that it does not have."""
    return " ".join(str(error).replace('in "<unicode string>", ', "in ").split())[:300]


_DECODER: Final = json.JSONDecoder(
    parse_int=_whole, parse_float=_finite, parse_constant=_no_number, object_pairs_hook=_object
)
