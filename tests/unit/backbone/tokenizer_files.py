"""Small tokenizers of each kind, in the two files that the hub has of one."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from dear.backbone import openclip

PIECES = ["▁a", "▁photo", "▁of", "▁cat", "▁two", "▁tree", "s", "▁", *"abctophern"]


def bert() -> tuple[Tokenizer, dict[str, Any]]:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += ["a", "photo", "of", "cat", "two", "tree", "##s", "##e"]
    rust = Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    rust.normalizer = normalizers.BertNormalizer()
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    rust.add_special_tokens(words[:5])
    return rust, {"do_lower_case": True, "tokenizer_class": "BertTokenizer"}


def t5() -> tuple[Tokenizer, dict[str, Any]]:
    scores = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    scores += [(piece, -1.0 - at / 100) for at, piece in enumerate(PIECES)]
    rust = Tokenizer(models.Unigram(scores, unk_id=2, byte_fallback=False))
    rust.normalizer = normalizers.Sequence([normalizers.Replace(Regex(" {2,}"), " ")])
    rust.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "always", True),
    ])  # fmt: skip
    rust.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    rust.add_special_tokens(["<pad>", "</s>", "<unk>"])
    return rust, {"pad_token": "</s>", "eos_token": "</s>", "extra_ids": 0, "tokenizer_class": "T5Tokenizer"}


def gemma() -> tuple[Tokenizer, dict[str, Any]]:
    words = [*["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], *dict.fromkeys("▁photcasw")]
    words += ["ca", "cat", "▁p", "ph", "ot"]
    merges = [("c", "a"), ("ca", "t"), ("▁", "p"), ("p", "h"), ("o", "t")]
    rust = Tokenizer(models.BPE(
        {word: at for at, word in enumerate(words)}, merges, unk_token="<unk>", fuse_unk=True,
        byte_fallback=True,
    ))  # fmt: skip
    rust.normalizer = normalizers.Replace(" ", "▁")
    rust.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    rust.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 1)])
    rust.add_special_tokens(words[:5])
    return rust, {
        "add_bos_token": False, "add_eos_token": True, "padding_side": "right",
        "tokenizer_class": "GemmaTokenizer",
        **{f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk", "mask")},
    }  # fmt: skip


def clips(**changes: Any) -> dict[str, Any]:
    """The contents of CLIP's `tokenizer.json`, as transformers 5 writes it."""
    theirs = openclip.SimpleTokenizer()
    special = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    words = {special.get(word, word): number for word, number in theirs.encoder.items()}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    start, end = ({"id": words[name], "content": name} | flags for name in special.values())
    pattern = r"""'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"""
    steps = {
        "normalizers": [
            {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Lowercase"},
        ],
        "pretokenizers": [
            {
                "type": "Split", "pattern": {"Regex": rf"<\|startoftext\|>|<\|endoftext\|>|{pattern}"},
                "behavior": "Removed", "invert": True,
            },
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }  # fmt: skip
    model = {
        "type": "BPE", "dropout": None, "unk_token": "<|endoftext|>", "continuing_subword_prefix": "",
        "end_of_word_suffix": "</w>", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": words, "merges": [[*pair] for pair in theirs.bpe_ranks],
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [start, end],
        "normalizer": {"type": "Sequence", "normalizers": steps["normalizers"]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps["pretokenizers"]},
        "post_processor": {
            "type": "RobertaProcessing", "sep": [end["content"], end["id"]],
            "cls": [start["content"], start["id"]], "trim_offsets": False, "add_prefix_space": False,
        },
        "model": model,
    } | changes  # fmt: skip


KINDS = {"BERT": bert, "T5": t5, "Gemma": gemma}


def write_tokenizer(kind: str, folder: Path, **changes: Any) -> Path:
    """Write the two files of a kind; returns `tokenizer.json`."""
    rust, settings = KINDS[kind]()
    rust.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | changes))
    return folder / "tokenizer.json"
