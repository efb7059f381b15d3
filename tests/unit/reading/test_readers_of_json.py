"""Which limit of keys and values each reader of a small JSON file has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dear.backbone.sharded import weight_files

from dear.adapters.bundle_config import check_bundle
from dear.backbone.repository import Repository
from dear.backbone.tiny import WordTokenizer
from dear.backbone.tokenizer_file import file_tokenizer
from dear.limits import LIMITS, LimitError
from dear.roles.settings import check_table


@pytest.mark.parametrize(
    ("name", "read", "limit"),
    [
        ("config.json", lambda path: check_bundle(path.parent), "config_values"),
        ("open_clip_config.json", lambda path: Repository("x", path.parent).config(), "config_values"),
        ("preprocessor_config.json", lambda path: Repository("x", path.parent).pixels(), "config_values"),
        ("model.safetensors.index.json", weight_files, "config_values"),
        ("roles.json", lambda path: check_table(str(path)), "config_values"),
        ("vocabulary.json", WordTokenizer.load, "tokenizer_values"),
        (
            "tokenizer.json",
            lambda path: file_tokenizer(path, None, context=8, words=9, clean="", strip_sep_token=False),
            "tokenizer_values",
        ),
    ],
)
def test_a_small_file_has_a_small_limit(
    name: str, read: Callable[[Path], Any], limit: str, tmp_path: Path
) -> None:
    maximum = LIMITS[limit].default
    (tmp_path / name).write_text("[" + "0," * maximum + "0]")
    with pytest.raises(LimitError, match=f"{maximum + 1:,} keys and values in .*limit of {maximum:,}"):
        read(tmp_path / name)
