"""Bad files: seeded changes of good ones, and what is no plain file at all."""

import io
import json
import os
import random
import re
import sqlite3
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import yaml

from tests.fuzz.readers.tables import forged_parquet, forged_stream
from tests.unit.retrieval.shared_pages import share_pages

DEEP = 20_000
LINES = 300_000
HOLE = 2**30
SPARSE = 8 * 2**30  # bytes that a file claims without having them on disk

# Stand for what json.dumps does not write; put in after it.
RAW = {
    "@digits@": "9" * 5000,
    "@negative digits@": "-" + "9" * 5000,
    "@NaN@": "NaN",
    "@Infinity@": "-Infinity",
    "@1e999@": "1e999",
    "@lists@": "[" * DEEP + "]" * DEEP,
    "@objects@": '{"a":' * DEEP + "1" + "}" * DEEP,
    "@hundred@": "[" * 100 + "]" * 100,
    "@twice@": '{"a": 1, "a": 2}',
}
VALUES: tuple[Any, ...] = (
    *RAW, None, True, False, 0, 1, -1, 2**31, 10**30, -(10**9), 10**9, 0.5, 1e308, "", "01", "true",
    "x" * 10_000,
    "\ud800", "\0", "\x1b[31m", "=1+1", "../../etc/passwd", "{:>1000000000}", "{0.__class__}", [], {}, [[]],
    [None], [1], ["a", "a"], {"a": {}}, {"": None}, [{}] * 1000, "1e3", "tiny", "all",
)  # fmt: skip
TEXTS = (
    "Layer " + "9" * 5000 + ", Head 0",
    "Layer 1000000000, Head 1000000000",
    "Layer 0, Head " + "9" * 5000,
    "a.png,01,train",
    "a.png,1000000000,train",
    "a.png," + "9" * 5000 + ",train",
    "a.png,-1,train",
    "a.png,true,",
    '{"path": "a.png", "label": ' + "9" * 5000 + "}",
    '{"path": "a.png", "label": 1000000000}',
    '{"path": "a.png", "label": true}',
    '{"path": "a.png", "label": "01"}',
    "[" * DEEP,
    '{"path": ' * DEEP,
    '"',
    'a,"b',
    "\0",
    "\ufeff",
    "{" * 1000,
    "{:>1000000000}",
    "{0!r:{1}}",
    "x" * 200_000,
    "x," * 200_000,
    "1000000000 name",
    "\u0663",
    "\x1b]0;title\x07",
)
NINE = [*zip("abcdefgh", "bcdefghi", strict=True)]
YAMLS = (
    "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{n}: &{n} [{','.join([f'*{p}'] * 9)}]\n" for p, n in NINE),
    "a: &a {x: 1}\n" + "".join(f"{n}: &{n} {{<<: [{','.join([f'*{p}'] * 9)}]}}\n" for p, n in NINE),
    "about: &a [*a]\n",
    "about: &a {a: *a}\n",
    "about: " + "[" * DEEP,
    "about: " + "[" * 200 + "]" * 200,
    "- " * DEEP,
    "".join(" " * i + f"{i}:\n" for i in range(1200)),
    "about: !!int ''\n",
    "about: !!bool maybe\n",
    "about: !!timestamp never\n",
    "about: !!python/object/apply:os.system ['true']\n",
    "about: 2026-13-45\n",
    "about: " + "9" * 5000 + "\n",
    "about: " + ":".join(["59"] * 5000) + "\n",
    "about: .nan\nshots: .inf\n",
    "shots: -1\n",
    "seeds: 01\n",
    "? [a]\n: b\n",
    "about: {? {a: b} : c}\n",
    "about: [" + "a, " * 100_000 + "]\n",
    "about: '" + "x" * 3_000_000 + "'\n",
    "%YAML 9.9\n---\n",
    "a: 1\n---\nb: 2\n",
    "about: *nobody\n",
    "<<: 3\n",
)


def mutated(form: str, good: bytes, path: Path, rng: random.Random) -> str:
    """Put a bad file at ``path`` in the place of the good one with this content; what was done, in words."""
    if path.is_symlink() or path.exists():
        path.unlink()
    if rng.random() < 0.08:
        return _no_plain_file(good, path, rng)
    if form == "safetensors" and rng.random() < 0.05:
        return _hole(path, rng)
    done, content = FORMS[form](good, rng) if rng.random() < 0.8 else _bytes(good, rng)
    path.write_bytes(content)
    if form == "sqlite" and done == "facts":
        return _facts(path, rng)
    return done


def _no_plain_file(good: bytes, path: Path, rng: random.Random) -> str:
    kind = rng.choice(("fifo", "zeros without end", "sparse", "folder", "missing", "empty", "link to itself"))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zeros without end":
        path.symlink_to("/dev/zero")
    elif kind == "sparse":
        with path.open("wb") as file:
            file.write(good)
            file.truncate(SPARSE)
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "link to itself":
        path.symlink_to(path.name)
    return kind


def _hole(path: Path, rng: random.Random) -> str:
    """A file of one tensor without a byte on the disk, which takes up to four times its size in float32."""
    dtype, width = rng.choice((("F8_E4M3", 1), ("BF16", 2), ("F32", 4)))
    entry = {"dtype": dtype, "shape": [HOLE // width], "data_offsets": [0, HOLE]}
    header = json.dumps({"logit_scale": entry}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + HOLE)
    return f"a hole of {dtype}"


def _bytes(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    data = bytearray(good)
    kind = rng.choice(("flip", "cut", "zeros", "twice", "noise", "byte order mark", "UTF-16"))
    at = rng.randrange(len(data) + 1)
    if kind == "flip":
        for _ in range(rng.choice((1, 3, 31))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "zeros":
        data[at : at + 997] = bytes(len(data[at : at + 997]))
    elif kind == "twice":
        data *= 2
    elif kind == "noise":
        data[at : at + 101] = rng.randbytes(101)
    elif kind == "byte order mark":
        data = bytearray(b"\xef\xbb\xbf") + data
    else:
        data = bytearray(good.decode("utf-8", "replace").encode("utf-16"))
    return kind, bytes(data)


def _json(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    return _changed(json.loads(good), rng)


def _changed(value: Any, rng: random.Random) -> tuple[str, bytes]:
    """The text of a value with some of its places changed; raw tokens are put in as they are."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        value, what = _replaced(value, rng)
        done.append(what)
    text = json.dumps(value)
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return "; ".join(done), text.encode()


def _replaced(value: Any, rng: random.Random) -> tuple[Any, str]:
    places = [*_places(value)]
    holder, key = rng.choice(places) if places else (None, None)
    new = deepcopy(rng.choice(VALUES))  # a later change in it is of this file alone
    if holder is None or rng.random() < 0.02:
        return new, f"all is {str(new)[:30]!r}"
    if isinstance(holder, dict) and rng.random() < 0.15:
        del holder[key]
        return value, f"without {key!r}"
    if isinstance(holder, dict) and rng.random() < 0.1:
        holder["unheard of"] = new
        return value, "a new key"
    holder[key] = new
    return value, f"{key!r} is {str(new)[:30]!r}"


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every holder and key. Where one holds many, some: what stands above them is to be met as often."""
    found: list[tuple[Any, Any]] = []
    keys = [*value] if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in [*keys][:24]:
        found.append((value, key))
        found += _places(value[key])
    return found


def _yaml(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    if rng.random() < 0.5:
        bad = rng.choice(YAMLS)
        return bad[:30], (good if rng.random() < 0.5 else b"") + b"\n" + bad.encode()
    return _changed(yaml.safe_load(good), rng)


def _text(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = good.decode().splitlines()
    kind = rng.choice(("line", "line", "line", "word", "twice", "without", "many", "shuffled"))
    at, bad = rng.randrange(len(lines)), rng.choice(TEXTS)
    if kind == "line":
        lines.insert(at, bad)
    elif kind == "word":
        words = re.split(r"(\W)", lines[at])
        words[rng.randrange(len(words))] = bad
        lines[at] = "".join(words)
    elif kind == "twice":
        lines.insert(at, lines[at])
    elif kind == "without":
        del lines[at]
    elif kind == "many":
        lines += [lines[at].replace("0", str(number)) for number in range(LINES)]
    else:
        rng.shuffle(lines)
    return f"{kind} {bad[:30]!r}", "\n".join(lines).encode("utf-8", "surrogatepass")


def _safetensors(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    if rng.random() < 0.2:
        return _of_other_tensors(good, rng)
    size = int.from_bytes(good[:8], "little")
    header, data = good[8 : 8 + size], bytearray(good[8 + size :])
    if rng.random() < 0.5:  # not a number, or an infinite one, in float32
        at = 4 * rng.randrange(max(1, len(data) // 4))
        data[at : at + 4] = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f"))
        return "no number", good[: 8 + size] + bytes(data)
    done, header = _changed(json.loads(header), rng)
    length = rng.choice((len(header), len(header), 2**63, 0, 10**8))
    return done, length.to_bytes(8, "little") + header + bytes(data)


def _of_other_tensors(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A tensor that claims many rows without a byte, or of another kind of numbers."""
    from safetensors.torch import load, save

    tensors = load(good)
    name = rng.choice(sorted(tensors))
    shape = rng.choice(((3_000_000, 0), (0, 3_000_000), (2**40, 0), (), (0,)))
    dtype = rng.choice((torch.bool, torch.int64, torch.complex64, torch.float8_e4m3fn, torch.float64))
    other = tensors[name].new_zeros(shape) if rng.random() < 0.5 else tensors[name].to(dtype)
    return f"{name} is {other.dtype} of {tuple(other.shape)}", save({**tensors, name: other})


def _checkpoint(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A checkpoint whose tensors or archive are far smaller than what they claim, or of odd kinds."""
    kind = rng.choice(("repeated", "shared", "compressed", "complex", "sparse", "bytes", "steps"))
    if kind == "bytes":
        return _bytes(good, rng)
    if kind == "steps":
        return _pickled(rng)
    ones = torch.ones(1000)
    state = {
        "repeated": {"a": ones[:1].expand(10**6, 10**5)},
        "shared": {str(number): ones for number in range(1000)},
        "compressed": {"a": torch.zeros(10**7)},
        "complex": {"a": ones.to(torch.complex64)},
        "sparse": {"a": torch.sparse_coo_tensor(torch.zeros(2, 1).long(), ones[:1], (10**6, 10**6))},
    }[kind]
    stream = io.BytesIO()
    torch.save(state, stream)
    if kind != "compressed":
        return kind, stream.getvalue()
    small = io.BytesIO()
    with zipfile.ZipFile(stream) as stored, zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in stored.namelist():
            archive.writestr(entry, stored.read(entry))
    return kind, small.getvalue()


def _pickled(rng: random.Random) -> tuple[str, bytes]:
    """An archive whose pickle is of steps that torch's reader takes, in a random order."""
    names = ("collections OrderedDict", "collections Counter", "torch Size", "_codecs encode")
    made = [b"}", b"]", b")", b"K\x01", b"X\x01\0\0\0a", b"\x8a\x09" + b"\xff" * 8 + b"\x1f", b"("]
    made += [b"c" + name.replace(" ", "\n").encode() + b"\n" for name in names]
    used = [b"\x85", b"\x86", b"R", b"b", b"a", b"e", b"s", b"u", b"t", b"Q", b"\x81"]
    used += [step + bytes([number]) for step in (b"q", b"h") for number in range(3)]
    steps = b"".join(rng.choice(made if rng.random() < 0.6 else used) for _ in range(rng.choice((5, 60))))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(rng.choice(("a/data.pkl", "a/DATA.PKL")), b"\x80\x02" + steps + b".")
        archive.writestr("a/version", "3\n")
    return f"steps {steps[:30]!r}", stream.getvalue()


def _view(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A view of the view cache: its checksum fits whatever it holds now."""
    done, content = _safetensors(good[4:], rng)
    return done, zlib.crc32(content).to_bytes(4, "little") + content


def _npy(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    start = good.index(b"{")
    end = good.index(b"\n", start)
    header = rng.choice((
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 1000000000, 1000000000), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 0, 0), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 5, 5), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5, 5), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '|u1', 'fortran_order': True, 'shape': (3, 23, 29), }",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (), }",
        "{'descr': '|u1', 'shape': " + "(" * 300 + ")" * 300,
        "{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (3, 5, 5), }",
    ))  # fmt: skip
    return header, good[:start] + header.encode()[: end - start].ljust(end - start) + good[end:]


def _arrow(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    kind, content = forged_stream(good, rng)
    return (kind, content) if rng.random() < 0.5 else _bytes(content, rng)


def _parquet(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    kind, content = forged_parquet(good, rng, _changed)
    return (kind, content) if rng.random() < 0.5 else _bytes(content, rng)


def _sqlite(good: bytes, rng: random.Random) -> tuple[str, bytes]:
    return ("facts" if rng.random() < 0.8 else "as it was"), good


def _facts(path: Path, rng: random.Random) -> str:
    """Change a row of the facts or of the files of an index, or let a tree's pages have several parents."""
    if rng.random() < 0.1:
        tree = rng.choice(("sqlite_master", "files", "facts", "by_row", "by_content"))
        share_pages(path, tree)
        return f"{tree} has shared pages"
    with closing(sqlite3.connect(path)) as database, database:
        if rng.random() < 0.7:
            (key, value), *_ = rng.sample(database.execute("SELECT key, value FROM facts").fetchall(), 1)
            done, new = _changed(json.loads(value), rng)
            if rng.random() < 0.1:
                database.execute("DELETE FROM facts WHERE key = ?", (key,))
            else:
                database.execute("UPDATE facts SET value = ? WHERE key = ?", (new.decode(), key))
            return f"{key}: {done}"
        column = rng.choice(("path", "size", "sha256", "row", "reason"))
        new = rng.choice((None, "x", b"\xff", -1, 2**62, 0.5, "../../etc/passwd", ""))
        try:
            database.execute(f"UPDATE files SET {column} = ? WHERE rowid = 1", (new,))
        except sqlite3.Error:  # a constraint of the table holds
            return "nothing"
        return f"files.{column} is {new!r}"


FORMS: dict[str, Callable[[bytes, random.Random], tuple[str, bytes]]] = {
    "json": _json, "yaml": _yaml, "text": _text, "safetensors": _safetensors, "view": _view, "npy": _npy,
    "sqlite": _sqlite, "arrow": _arrow, "parquet": _parquet, "binary": _bytes, "checkpoint": _checkpoint,
}  # fmt: skip
