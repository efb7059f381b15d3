"""Limits on what comes from others: images, weights and bundles of a hub, requests, class names.

A reader compares with its limit before it unpacks, allocates or loops. A variable changes a limit for the
command line, the Python API, worker processes and the server alike.
"""

import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from dear.errors import DearError, SettingsError


@dataclass(frozen=True)
class Limit:
    """A limit: its default, what it limits, in the plural with its unit ("bytes of a JSON file"), and what
    happens without it.
    """

    default: int
    what: str
    without: str = ""


class LimitError(DearError):
    """Input beyond a limit; the message names the variable that changes the limit."""


LIMITS: Final = MappingProxyType({
    "image_bytes": Limit(512 * 2**20, "bytes of an image file", "one file of a folder fills the memory"),
    "image_pixels": Limit(120_000_000, "pixels of an image", "40 KB are decoded to gigabytes"),
    "image_scans": Limit(64, "scans of a progressive JPEG", "a small upload is decoded for minutes"),
    "unpacked_ratio": Limit(25, "times the size of a zip, unpacked", "a small zip fills the disk"),
    "json_bytes": Limit(128 * 2**20, "bytes of a JSON file", "a model's configuration fills the memory"),
    "tensor_bytes": Limit(8 * 2**30, "bytes of a file of tensors", "a model of a hub fills the memory"),
    "bundle_bytes": Limit(2**30, "bytes of a bundle's tensors", "a bundle of a hub fills the memory"),
    "parameters": Limit(5_000_000_000, "parameters of a model", "a small configuration allocates terabytes"),
    "mask_values": Limit(
        2**28, "values in the masks of a method: layers times heads times squared tokens",
        "the settings of a bundle allocate terabytes",
    ),
    "classes": Limit(25_000, "class names", "a list of names is encoded for hours"),
    "class_name": Limit(1000, "characters of a class name", "one name is tokenized for minutes"),
    "prompts": Limit(25_000, "prompts, templates times class names", "they are encoded for hours"),
    "request_classes": Limit(1000, "class names in one request", "one client holds up the others"),
    "request_text": Limit(
        50_000, "characters of a list in a request, such as class names", "one client holds up the others"
    ),
    "json_values": Limit(8_000_000, "keys and values in a JSON file"),
    "config_values": Limit(1_000_000, "keys and values in a configuration, role table or header of tensors"),
    "tokenizer_values": Limit(4_000_000, "keys and values in the file of a tokenizer"),
    "hub_bytes": Limit(16 * 2**20, "bytes of an answer of the hub that is no file"),
    "hub_values": Limit(1_000_000, "keys and values in an answer of the hub"),
    "json_depth": Limit(64, "levels of nesting in JSON or YAML"),
    "yaml_bytes": Limit(256 * 2**10, "bytes of a YAML file"),
    "yaml_values": Limit(100_000, "values in a YAML file, aliases expanded"),
    "text_bytes": Limit(128 * 2**20, "bytes of a text file or table"),
    "text_lines": Limit(5_000_000, "lines of a text file"),
    "table_rows": Limit(2_000_000, "rows of a table"),
    "columns": Limit(5000, "columns of a table or a Hugging Face data set"),
    "dataset_files": Limit(10_000, "files of a Hugging Face data set"),
    "parquet_bytes": Limit(8 * 2**30, "bytes of a Parquet file"),
    "parquet_footer": Limit(16 * 2**20, "bytes of the description at the end of a Parquet file"),
    "folder_depth": Limit(64, "levels of folders"),
    "image_side": Limit(2**16 - 1, "pixels of a side of an image"),
    "role_heads": Limit(2048, "heads in a role table"),
    "moments": Limit(2**29, "values in the moments of heads: heads times squared numbers of an embedding"),
    "role_points": Limit(10_000, "points on the map of phrases of a role table"),
    "role_phrases": Limit(50_000, "phrases in a role table, or in a file of phrases"),
    "role_settings": Limit(20_000, "characters of the settings of a role table"),
    "role_names": Limit(200, "attributes, concepts, features or factors"),
    "record_name": Limit(300, "characters of a name or a phrase"),
    "epochs": Limit(20_000, "epochs of a run record or a bundle"),
    "record_parts": Limit(1000, "data sets, or parts of mistakes, in a run record"),
    "record_values": Limit(1_000_000, "keys and values in a run record"),
    "record_text": Limit(50_000, "characters of a text in a run record"),
    "record_settings": Limit(100_000, "characters of the settings and the environment in a run record"),
    "record_confusions": Limit(100_000, "confusions in a part of a run record"),
    "record_tables": Limit(100_000_000, "bytes of the tables of mistakes that a run record makes"),
    "record_examples": Limit(1000, "examples of mistakes in a part of a run record"),
    "methods": Limit(500, "methods of a recipe or a command, times role variants"),
    "data_sets": Limit(500, "data sets of a recipe"),
    "shots": Limit(1_000_000, "training images per class (shots)"),
    "runs": Limit(20_000, "runs: methods times data sets times numbers of shots times seeds"),
    "run_roles": Limit(200_000_000, "characters of role tables, one for each run with head roles"),
    "report_cells": Limit(100_000, "methods times data sets times numbers of shots"),
    "unpacking_bytes": Limit(2 * 2**30, "bytes of memory to unpack a Hugging Face data set"),
    "templates": Limit(100, "templates"),
    "template": Limit(1000, "characters of a template"),
    "request_classes_per_image": Limit(100, "class names in one request, encoded anew for each image"),
    "prompt_lines": Limit(5, "line ends in a prompt"),
    "mojibake": Limit(300, "characters of a prompt times those in a wrong encoding"),
    "marks": Limit(30, "combining marks in a row in a class name, a prompt or a listed path"),
    "repairs": Limit(2, "repairs of a prompt, such as of &amp;amp; for &"),
    "descriptions": Limit(100_000, "sentences that describe classes"),
    "description": Limit(1000, "characters of a sentence that describes a class"),
    "training_prompts": Limit(2**28, "values of the prompts of a training: prompts times tokens times width"),
    "text_features": Limit(2**26, "values of text features: prompts times numbers of an embedding"),
    "prompt_text": Limit(5_000_000, "bytes of all prompts; those that may need repairs count more"),
    "model_name": Limit(1000, "characters of the name of a model or of its weights"),
    "vocabulary": Limit(1_000_000, "words of a vocabulary"),
    "added_tokens": Limit(10_000, "tokens beside the vocabulary of a tokenizer"),
    "context": Limit(1024, "tokens of a prompt"),
    "model_side": Limit(1024, "pixels of a side of a model's pictures"),
    "patches": Limit(4096, "patches of a model's pictures"),
    "weight_tensors": Limit(100_000, "tensors of a model's weights in several files"),
    "weight_files": Limit(1000, "files of a model's weights"),
    "layers": Limit(128, "layers of a tower"),
    "heads": Limit(128, "heads in a layer"),
    "image_attention": Limit(2**31, "values of attention for a picture: all heads times squared patches"),
    "text_attention": Limit(2**26, "values of attention for a prompt: all heads times squared tokens"),
    "image_layer": Limit(2**26, "values of a layer for a picture, such as tokens times the MLP's width"),
    "text_layer": Limit(2**21, "values of a layer for a prompt: tokens times the MLP's width"),
    "embedding": Limit(8192, "numbers in an embedding"),
    "attributes": Limit(128, "attributes of a role table"),
    "learned_tokens": Limit(256, "learned tokens of a method"),
    "setting": Limit(10_000, "as the value of a whole-number setting of a method"),
    "index_facts": Limit(32 * 2**20, "bytes of the facts of an index"),
    "index_values": Limit(1_200_000, "values in the facts of an index"),
    "index_rows": Limit(100_000_000, "rows of an index"),
    "index_width": Limit(16_384, "numbers in a vector of an index"),
    "index_features": Limit(1_000, "features of an index"),
})  # fmt: skip
"""Those that say what happens without them are on the page docs/limits.md."""


def limit(name: str) -> int:
    """The limit in force: its environment variable, or its default. Raises SettingsError."""
    text = os.environ.get(variable(name))
    if text is None:
        return LIMITS[name].default
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 18 and int(text) > 0):
        raise SettingsError(f"{variable(name)} is {text[:40]!r}: it must be a whole number above 0.")
    return int(text)


def variable(name: str) -> str:
    """The environment variable that changes a limit."""
    return f"DEAR_LIMIT_{name.upper()}"


def at_most(name: str, value: int, where: object) -> None:
    """Raise LimitError for a value above a limit; ``where`` names the input."""
    maximum = limit(name)
    if value > maximum:
        number = f"{value:,}" if value < 2**63 else "2^63 or more"
        raise LimitError(
            f"{where}: {number} {LIMITS[name].what}, above the limit of {maximum:,}. "
            f"Set {variable(name)} to raise it."
        )
