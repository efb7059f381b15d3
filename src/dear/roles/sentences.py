"""Sentence embeddings by a model of the BERT family, as sentence-transformers saves one: a folder, or its
files on the hub.

Its files are read as data. sentence-transformers itself is not used: the settings of a model choose the
classes that it imports, and turn off the protection of torch's reader against code in weights.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize, scaled_dot_product_attention

from dear.backbone import hub
from dear.backbone.tokenizer_file import FILE, SETTINGS, FileTokenizer, read_tokenizer
from dear.backbone.weights import fill_weights, read_weights
from dear.errors import DearError, WeightsError, first_line
from dear.limits import at_most
from dear.reading.files import ReadingError, expanded
from dear.reading.plain import read_json
from dear.reading.typed import Positive, Range, shown, typed

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
WEIGHTS = "model.safetensors"
PARTS = ("Transformer", "Pooling", "Normalize")
"""The modules of a model, in their order; a last one that makes unit vectors may be missing, as all are."""
STEPS = {
    "do_lower_case": ("A", "a"),
    "strip_accents": ("\u00e9", "e"),
    "tokenize_chinese_chars": ("\u65e5", " \u65e5 "),
}
"""Settings of a tokenizer, and what a text becomes if they are set."""
FOLDER = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)
UNUSED = ("pooler.", "embeddings.position_ids")  # tensors that embeddings do not depend on
WIDEST = 2**11  # twice the largest BERT: the covariance of each concept has its square
AT_ONCE = 2**25
"""Values of a layer at once, of which several are in memory: 8 texts of 512 tokens in the largest BERT."""

Most = Annotated[int, Range(1, WIDEST)]


class Module(TypedDict):
    """A module in `modules.json`."""

    path: str
    type: str


class Config(TypedDict):
    """The keys of `config.json` that are read."""

    model_type: Literal["bert"]
    hidden_size: Most
    intermediate_size: Annotated[int, Range(1, 4 * WIDEST)]
    num_hidden_layers: Annotated[int, Range(1, 128)]
    num_attention_heads: Annotated[int, Range(1, 128)]
    vocab_size: Annotated[int, Range(1, 1_000_000)]
    max_position_embeddings: Annotated[int, Range(2, 1024)]
    type_vocab_size: Annotated[int, Range(1, 16)]
    layer_norm_eps: Annotated[float, Range(1e-30, 1)]
    hidden_act: Literal["gelu"]
    position_embedding_type: NotRequired[Literal["absolute"]]
    is_decoder: NotRequired[Literal[False]]


class Modality(TypedDict, total=False):
    """How states are computed from texts."""

    method: Literal["forward"]
    method_output_name: Literal["last_hidden_state"]


class Modalities(TypedDict, total=False):
    """The inputs of a model: texts alone are given to it."""

    text: Modality


class Settings(TypedDict, total=False):
    """The keys of `sentence_bert_config.json` that are read."""

    max_seq_length: Positive | None
    do_lower_case: bool
    processing_kwargs: dict[str, dict[str, Any]] | None
    transformer_task: Literal["feature-extraction"]
    modality_config: Modalities
    module_output_name: Literal["token_embeddings"]


class Prompts(TypedDict, total=False):
    """The keys of `config_sentence_transformers.json` that are read."""

    prompts: dict[str, str | None]
    default_prompt_name: str | None
    truncate_dim: None


class TokenizerSettings(TypedDict, total=False):
    """The keys of `tokenizer_config.json` that are read here."""

    model_max_length: float  # 1e30 for any
    do_lower_case: bool | None
    strip_accents: bool | None
    tokenize_chinese_chars: bool | None


class Pooling(TypedDict, total=False):
    """The keys of the pooling's `config.json` that are read: the first, or one of the next two, says how."""

    pooling_mode: Literal["mean", "cls"]
    pooling_mode_mean_tokens: bool
    pooling_mode_cls_token: bool
    pooling_mode_max_tokens: Literal[False]
    pooling_mode_mean_sqrt_len_tokens: Literal[False]
    pooling_mode_weightedmean_tokens: Literal[False]
    pooling_mode_lasttoken: Literal[False]


class Bert(nn.Module):
    """The encoder of BERT (Devlin et al., 2019) after its last layer norm, its tensors named as in
    transformers.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        c, width = config, config["hidden_size"]
        self.heads = c["num_attention_heads"]
        self.widest = max(width, c["intermediate_size"])

        def norm() -> nn.Module:
            return nn.LayerNorm(width, eps=c["layer_norm_eps"])

        def output(inputs: int) -> nn.Module:
            return nn.ModuleDict({"dense": nn.Linear(inputs, width), "LayerNorm": norm()})

        def layer() -> nn.Module:
            parts = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
            attention = {"self": nn.ModuleDict(parts), "output": output(width)}
            return nn.ModuleDict(
                {
                    "attention": nn.ModuleDict(attention),
                    "intermediate": nn.ModuleDict({"dense": nn.Linear(width, c["intermediate_size"])}),
                    "output": output(c["intermediate_size"]),
                }
            )

        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(c["vocab_size"], width),
                "position_embeddings": nn.Embedding(c["max_position_embeddings"], width),
                "token_type_embeddings": nn.Embedding(c["type_vocab_size"], width),
                "LayerNorm": norm(),
            }
        )
        layers = nn.ModuleList([layer() for _ in range(c["num_hidden_layers"])])
        self.encoder = nn.ModuleDict({"layer": layers})

    def forward(
        self, ids: Int[Tensor, "text token"], real: Bool[Tensor, "text token"]
    ) -> Float[Tensor, "text token width"]:
        """States of the tokens; no token attends to those that are not ``real``."""
        tables: Any = self.embeddings
        positions = torch.arange(ids.shape[1])
        states = tables["word_embeddings"](ids) + tables["position_embeddings"](positions)
        states = tables["LayerNorm"](states + tables["token_type_embeddings"].weight[0])
        for layer in cast(Any, self.encoder["layer"]):
            attention = layer["attention"]
            query, key, value = (
                part(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for part in attention["self"].values()
            )
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=real[:, None, None, :])
            states = _added(attention["output"], mixed.transpose(1, 2).flatten(2), states)
            states = _added(layer["output"], gelu(layer["intermediate"]["dense"](states)), states)
        return cast(Tensor, states)


def _added(part: Any, inputs: Tensor, states: Tensor) -> Tensor:
    """States with a projection of ``inputs`` added, normalised."""
    return cast(Tensor, part["LayerNorm"](part["dense"](inputs) + states))


class SentenceModel:
    """Embeds texts: the mean of their tokens' states, or the state of the first, of unit length."""

    def __init__(self, bert: Bert, tokenizer: FileTokenizer, *, mean: bool) -> None:
        self.bert, self.tokenizer, self.mean = bert, tokenizer, mean

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], batch: int) -> Float[Tensor, "text width"]:
        """Unit embeddings, ``batch`` texts at a time, those of like length together; fewer if their layers
        had more than ``AT_ONCE`` values. Raises WeightsError if the tokenizer fails.
        """
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        rows: dict[int, Tensor] = {}
        for start in range(0, len(texts), batch):
            numbers = order[start : start + batch]
            ids = self.tokenizer([texts[number] for number in numbers])
            words = (ids != self.tokenizer.pad).long()
            words[:, 0] = 1  # a text without a token
            real = words.flip(1).cumsum(dim=1).flip(1) > 0  # a text may name the padding token
            longest = int(real.sum(dim=1).max())
            ids, real = ids[:, :longest], real[:, :longest]
            most = max(1, AT_ONCE // (longest * max(self.bert.widest, self.bert.heads * longest)))
            pairs = zip(ids.split(most), real.split(most), strict=True)
            pooled = torch.cat([self._pooled(*pair) for pair in pairs])
            rows |= dict(zip(numbers, normalize(pooled, dim=-1), strict=True))
        return torch.stack([rows[number] for number in range(len(texts))])

    def _pooled(
        self, ids: Int[Tensor, "text token"], real: Bool[Tensor, "text token"]
    ) -> Float[Tensor, "text width"]:
        states: Tensor = self.bert(ids, real)
        weights = real.unsqueeze(-1).to(states)
        return (states * weights).sum(dim=1) / weights.sum(dim=1) if self.mean else states[:, 0]


def load_sentence_model(source: str) -> SentenceModel:
    """The sentence model in a folder or, given OWNER/NAME, on the hub. Raises WeightsError for files that are
    missing, damaged or of another kind, LimitError.
    """
    try:
        return _load(source)
    except (DearError, ImportError, OSError) as error:
        reason = str(error) if isinstance(error, DearError) else f"{first_line(error)}."
        raise WeightsError(
            f"cannot load the sentence model {source}: {reason} Give a folder of "
            f"{MODEL}, or of another model of the BERT family with "
            f"{WEIGHTS} and {FILE}, with --sentence-model, or allow the download."
        ) from error


def _load(source: str) -> SentenceModel:
    modules_file = _file(source, "modules.json")
    file_of = partial(_file, source, commit=hub.commit_of(modules_file))  # all are of one commit
    modules = typed(read_json(modules_file), list[Module], modules_file)
    kinds = tuple(module["type"].rpartition(".")[2] for module in modules)
    if kinds not in (PARTS, PARTS[:2]) or modules[0]["path"] or not FOLDER.fullmatch(modules[1]["path"]):
        raise ReadingError(modules_file, f"its modules must be {', '.join(PARTS)}, each in its usual folder")
    pooling_file = file_of(f"{modules[1]['path']}/config.json")
    pooling = typed(read_json(pooling_file), Pooling, pooling_file)
    keys = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
    modes = [mode for mode, key in keys.items() if pooling.get(key) or pooling.get("pooling_mode") == mode]
    if len(modes) != 1:
        raise ReadingError(pooling_file, "it must pool by the mean of the tokens, or by the first one")
    settings_file = file_of("sentence_bert_config.json")
    settings = typed(read_json(settings_file), Settings, settings_file)
    if any((settings.get("processing_kwargs") or {}).values()):
        raise ReadingError(settings_file, "it has processing_kwargs, which are not followed here")
    _require_no_prompt(file_of)
    file = file_of("config.json")
    config = typed(read_json(file), Config, file)
    if config["hidden_size"] % config["num_attention_heads"]:
        raise ReadingError(file, "its hidden_size is no multiple of its num_attention_heads")
    with torch.device("meta"):
        bert = Bert(config)
    at_most("parameters", sum(parameter.numel() for parameter in bert.parameters()), file)
    words_file, lengths_file = file_of(FILE), file_of(SETTINGS)
    lengths = typed(read_json(lengths_file), TokenizerSettings, lengths_file)
    longest = settings.get("max_seq_length") or lengths.get("model_max_length", WIDEST)
    tokenizer = read_tokenizer(
        words_file, lengths_file, words=config["vocab_size"], clean="whitespace",
        context=max(2, int(min(longest, config["max_position_embeddings"]))),
        strip_sep_token=False,
    )  # fmt: skip
    for key, (text, normalized) in STEPS.items():
        setting, is_so = lengths.get(key), _normalized(tokenizer, text) == normalized
        if setting not in (None, is_so):
            raise ReadingError(lengths_file, f"its {key} contradicts {FILE}")
    clean = _lower if settings.get("do_lower_case", False) else str.strip
    if tokenizer.left:
        raise ReadingError(source, "its tokenizer pads on the left, which no model of the BERT family does")
    weights = file_of(WEIGHTS)
    state = {name.removeprefix("bert."): tensor for name, tensor in read_weights(weights).items()}
    fill_weights(bert, {name: state[name] for name in state if not name.startswith(UNUSED)}, weights)
    return SentenceModel(bert.eval(), replace(tokenizer, clean=clean), mean=modes == ["mean"])


def _require_no_prompt(file_of: Callable[[str], Path]) -> None:
    """Raise ReadingError for a model that puts a prompt before each text by itself."""
    try:
        file = file_of("config_sentence_transformers.json")
    except hub.MissingError:  # of a model before version 2.4
        return
    settings = typed(read_json(file), Prompts, file)
    if prompt := settings.get("prompts", {}).get(settings.get("default_prompt_name") or ""):
        raise ReadingError(file, f"it puts {shown(prompt)} before each text, which is not done here")


def _normalized(tokenizer: FileTokenizer, text: str) -> str:
    normalizer = tokenizer.rust.normalizer
    return text if normalizer is None else str(normalizer.normalize_str(text))


def _lower(text: str) -> str:
    return text.strip().lower()


def _file(source: str, name: str, commit: str | None = None) -> Path:
    """A file of the model, on the hub of a commit, by default the latest. `MODEL` is the hub's, whatever lies
    here: who names no model means that one. Raises WeightsError if the folder
    or the repository lacks it.
    """
    folder = expanded(source)
    if source == MODEL or not folder.is_dir():
        return hub.fetch(source, (name,), title="the sentence model", safe_only=True, revision=commit)
    if not (folder / name).is_file():
        raise hub.MissingError(f"the folder has no {name}.")
    return folder / name
