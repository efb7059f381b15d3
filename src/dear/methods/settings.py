"""The settings of each method and the table of methods. Light to import, so that commands can show them
without loading torch.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, get_args, get_origin

from dear.errors import SettingsError, UnknownNameError
from dear.roles.settings import CoreMask

FusionLoss = Literal["linear", "log"]
Position = Literal["end", "middle", "front"]
Published = Mapping[str, float | int | str]

PROMPT = "a photo of a"

Bounds = tuple[str, Callable[[Any], bool]]
ANY: Bounds = ("", lambda _: True)
COUNT: Bounds = ("at least 1", lambda value: value >= 1)
LAYER: Bounds = ("from 1 to 12", lambda value: 1 <= value <= 12)
SHARE: Bounds = ("from 0 to 1", lambda value: 0 <= value <= 1)
AT_LEAST_0: Bounds = ("at least 0", lambda value: 0 <= value < math.inf)
ABOVE_0: Bounds = ("above 0", lambda value: 0 < value < math.inf)


@dataclass(frozen=True)
class MethodSettings:
    """Settings of a method; the base is those of a method that has none.

    ``training`` holds what the method's authors train with in base-to-novel, where it differs from
    :class:`dear.training.settings.TrainSettings`: its fields by name. ``bounds`` says what a field must be,
    in words and as a function; a Literal type says it itself. ``defaults_of_old`` are the values of fields
    that a bundle or record does not have because it was made before them.
    """

    training: ClassVar[Published] = MappingProxyType({})
    bounds: ClassVar[Mapping[str, Bounds]] = MappingProxyType({})
    defaults_of_old: ClassVar[Published] = MappingProxyType({})

    def for_data(self, dataset: str) -> Self:
        """The settings on a data set, for a method whose authors set some for each."""
        del dataset
        return self

    def __post_init__(self) -> None:
        """Raise SettingsError for the first value that is out of its bounds or not among its choices."""
        for field in fields(self):
            value = getattr(self, field.name)
            said, held = self.bounds.get(field.name, ANY)
            if get_origin(field.type) is Literal:
                choices = get_args(field.type)
                said, held = f"one of {', '.join(choices)}", choices.__contains__
            if not held(value):
                group = [one for one, name in option_groups().items() if METHODS[name].settings is type(self)]
                raise SettingsError(f"{'.'.join([*group, field.name])} is {value!r}: it must be {said}.")


@dataclass(frozen=True)
class DearSettings(MethodSettings):
    """Settings of DeAR; the defaults are the paper's where it states one.

    Attributes:
        first: J, the first layer of the span in a tower of 12; other depths keep the span's share.
        beta: Anchoring: 1 re-injects the raw tokens at each layer, 0 lets them evolve.
        tokens: Tokens an attribute.
        text_tokens: Learnable tokens on the text side.
        token_std: Standard deviation of the tokens' initial values [ours].
        alpha_cls: Initial fusion weight of the class feature; the others share the rest evenly [ours].
        learn_fusion: Train the fusion weights; if not they stay where they start.
        fusion_rate: Factor of the learning rate for the fusion weights [ours]; 1 is the paper's one rate, at
            which they hardly move in a hundred steps.
        lambda_reg: Weight of L_reg.
        lambda_fusion: Weight of L_fusion.
        fusion_loss: Form of L_fusion, "linear" or "log" [ours].
        copy_projection: Start the attribute projection as a copy of CLIP's, else at random [ours].
        core_mask: What tokens of other attributes read in a core head: "exclusive" is their own attribute's
            tokens alone (supplement B); "eq9" also the image (equation 9 alone). The paper states both; the
            default is [ours].
        roles_from_other_weights: Accept a role table that was computed from other weights.
    """

    defaults_of_old = MappingProxyType({"core_mask": "eq9", "fusion_rate": 1.0})

    bounds = MappingProxyType(
        {"first": LAYER, "beta": SHARE, "tokens": COUNT, "text_tokens": AT_LEAST_0, "token_std": AT_LEAST_0}
        | {"alpha_cls": ("between 0 and 1, both excluded", lambda value: 0 < value < 1)}
        | {"lambda_reg": AT_LEAST_0, "lambda_fusion": AT_LEAST_0, "fusion_rate": ABOVE_0}
    )

    first: int = 9
    beta: float = 0.9
    tokens: int = 1
    text_tokens: int = 5
    token_std: float = 0.02
    alpha_cls: float = 0.7
    learn_fusion: bool = True
    fusion_rate: float = 1.0
    lambda_reg: float = 1.0
    lambda_fusion: float = 0.7
    fusion_loss: FusionLoss = "linear"
    copy_projection: bool = True
    core_mask: CoreMask = "exclusive"
    roles_from_other_weights: bool = False


@dataclass(frozen=True)
class CoOpSettings(MethodSettings):
    """Settings of CoOp; the defaults are those of its base-to-novel runs (from CoCoOp's paper and scripts).

    The first CoOp paper's few-shot runs have 16 tokens, which start at random.

    Attributes:
        tokens: Context tokens; 4 and 16 are published.
        words: Words whose embeddings the context starts from; at random if they are fewer than the tokens.
        position: Where the class name stands: after the context, in its middle, or before it.
        class_specific: A context for each class; such a method cannot score other classes.
        token_std: Standard deviation of a random start.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.002, "epochs": 200, "batch": 32})
    bounds = MappingProxyType({"tokens": COUNT, "token_std": AT_LEAST_0})

    tokens: int = 4
    words: str = PROMPT
    position: Position = "end"
    class_specific: bool = False
    token_std: float = 0.02


@dataclass(frozen=True)
class CoCoOpSettings(MethodSettings):
    """Settings of CoCoOp; the defaults are the published ones.

    Attributes:
        tokens: Context tokens.
        words: Words whose embeddings the context starts from; at random if they are fewer than the tokens.
        reduction: Width of the image feature over the hidden width of the meta-net.
        chunk: Prompts (an image with a class) encoded at once: bounds the memory, not the result.
        token_std: Standard deviation of a random start.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.002, "epochs": 10, "batch": 1})
    bounds = MappingProxyType({"tokens": COUNT, "reduction": COUNT, "chunk": COUNT, "token_std": AT_LEAST_0})

    tokens: int = 4
    words: str = PROMPT
    reduction: int = 16
    chunk: int = 256
    token_std: float = 0.02


@dataclass(frozen=True)
class MapleSettings(MethodSettings):
    """Settings of MaPLe; the defaults are the published ones.

    Attributes:
        depth: Layers with prompts of their own, of 12: the first ones of both towers.
        tokens: Prompt tokens in each tower.
        words: Words whose embeddings the first text prompt starts from; at random if fewer than the tokens.
        share: Keep the share of 12 in towers of other depths [ours]; if not, count layers as they are.
        token_std: Standard deviation of random starts.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.0035, "epochs": 5, "batch": 4})
    bounds = MappingProxyType({"depth": LAYER, "tokens": COUNT, "token_std": AT_LEAST_0})

    depth: int = 9
    tokens: int = 2
    words: str = PROMPT
    share: bool = True
    token_std: float = 0.02


@dataclass(frozen=True)
class PromptSrcSettings(MethodSettings):
    """Settings of PromptSRC; the defaults are the published ones.

    Attributes:
        image_depth: Layers of the image tower with prompts of their own, of 12: the first ones.
        text_depth: The same of the text tower.
        image_tokens: Prompt tokens of the image tower.
        text_tokens: Prompt tokens of the text tower.
        words: Words whose embeddings the first text prompt starts from; at random if fewer than the tokens.
        text_weight: Weight of the distance of text features from the frozen ones.
        image_weight: Weight of the distance of image features from the frozen ones.
        logit_weight: Weight of the divergence of scores from the frozen ones.
        average_mean: Epoch that counts most in the average of the prompts over epochs.
        average_std: Epochs of one standard deviation around it.
        teacher: Templates of the frozen text features: CLIP's 60 for ImageNet, or the data set's own.
        share: Keep the share of 12 in towers of other depths [ours]; if not, count layers as they are.
        token_std: Standard deviation of random starts.
    """

    training = MappingProxyType({"optimizer": "sgd", "lr": 0.0025, "epochs": 20, "batch": 4})
    bounds = MappingProxyType(
        {"image_depth": LAYER, "text_depth": LAYER, "image_tokens": COUNT, "text_tokens": COUNT}
        | {"text_weight": AT_LEAST_0, "image_weight": AT_LEAST_0, "logit_weight": AT_LEAST_0}
        | {"average_mean": ("a number", math.isfinite), "average_std": ABOVE_0, "token_std": AT_LEAST_0}
    )

    image_depth: int = 9
    text_depth: int = 9
    image_tokens: int = 4
    text_tokens: int = 4
    words: str = PROMPT
    text_weight: float = 25.0
    image_weight: float = 10.0
    logit_weight: float = 1.0
    average_mean: float = 15.0
    average_std: float = 1.0
    teacher: Literal["imagenet", "dataset"] = "imagenet"
    share: bool = True
    token_std: float = 0.02


@dataclass(frozen=True)
class MmrlSettings(MethodSettings):
    """Settings of MMRL; the defaults are the published ones.

    Attributes:
        first: The first layer that representation tokens enter, of 12.
        tokens: Tokens of the representation space.
        space: Width of the representation space.
        alpha: Weight of the class feature in the loss and in the fused score.
        regularisation: "per-dataset" takes what the authors set for each data set, and the values given here
            on data sets without; "uniform" takes the values given here on all.
        reg_weight: Weight of the distance from the frozen features.
        scale: Factor of cosines in scores: the authors' constant; none takes the backbone's own.
        share: Keep the share of 12 in towers of other depths [ours]; if not, count layers as they are.
        token_std: Standard deviation of the tokens' start.
    """

    training = MappingProxyType({"batch": 4})
    method: ClassVar[str] = "mmrl"
    bounds = MappingProxyType(
        {"first": LAYER, "tokens": COUNT, "space": COUNT, "alpha": SHARE, "token_std": AT_LEAST_0}
        | {"reg_weight": AT_LEAST_0}
        | {"scale": ("above 0, or none", lambda value: value is None or 0 < value < math.inf)}
    )

    first: int = 6
    tokens: int = 5
    space: int = 512
    alpha: float = 0.7
    regularisation: Literal["per-dataset", "uniform"] = "per-dataset"
    reg_weight: float = 1.0
    scale: float | None = 100.0
    share: bool = True
    token_std: float = 0.02

    def for_data(self, dataset: str) -> Self:
        if self.regularisation == "uniform":
            return self
        file = files("dear.methods").joinpath("mmrl_per_dataset.json")
        published = json.loads(file.read_text(encoding="utf-8"))[self.method]
        return replace(self, **published.get(dataset, {}))


@dataclass(frozen=True)
class MmrlPlusSettings(MmrlSettings):
    """Settings of MMRL++; the defaults are the published ones.

    Attributes:
        beta: Weight of a layer's own tokens against the last layer's output of them.
        residual_rank: Rank of each layer's residual of the shared aligner.
        projection_rank: Rank of the update of CLIP's projection for the tokens.
    """

    method = "mmrl++"
    bounds = MappingProxyType(
        MmrlSettings.bounds | {"beta": SHARE, "residual_rank": COUNT, "projection_rank": COUNT}
    )

    beta: float = 0.9
    residual_rank: int = 4
    projection_rank: int = 64


@dataclass(frozen=True)
class Registered:
    """A method: its class as "module:Class" in this package, loaded when it is used, and its settings."""

    implementation: str
    settings: type[MethodSettings]


# A new method is its own file, its settings above and a line here.
METHODS: Mapping[str, Registered] = MappingProxyType(
    {
        "zero-shot": Registered("zero_shot.method:ZeroShot", MethodSettings),
        "coop": Registered("coop.method:CoOp", CoOpSettings),
        "cocoop": Registered("cocoop.method:CoCoOp", CoCoOpSettings),
        "maple": Registered("maple.method:MaPLe", MapleSettings),
        "promptsrc": Registered("promptsrc.method:PromptSRC", PromptSrcSettings),
        "mmrl": Registered("mmrl.method:MMRL", MmrlSettings),
        "mmrl++": Registered("mmrlpp.method:MMRLPlus", MmrlPlusSettings),
        "dear": Registered("dear.method:Dear", DearSettings),
    }
)


def known_method(name: str) -> str:
    """The name, if a method has it. Raises UnknownNameError, SettingsError for the name of its options."""
    if name not in METHODS and name in option_groups():
        raise SettingsError(f"{name} is how options of the method {option_groups()[name]} begin: give that.")
    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    return name


def option_groups() -> dict[str, str]:
    """The methods with settings, by the name of their options: "mmrlpp" is mmrl++, as --mmrlpp.beta."""
    named = [name for name, method in METHODS.items() if method.settings is not MethodSettings]
    return {name.replace("+", "p").replace("-", "_"): name for name in named}
