"""The settings of each method and the table of methods. Light to import, so that commands can show them
without loading torch.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from types import MappingProxyType
from typing import ClassVar, Literal, Self, get_args

from dear.errors import SettingsError, UnknownNameError

FusionLoss = Literal["linear", "log"]
Position = Literal["end", "middle", "front"]
Published = Mapping[str, float | int | str]

PROMPT = "a photo of a"


@dataclass(frozen=True)
class MethodSettings:
    """Settings of a method; the base is those of a method that has none.

    ``training`` holds what the method's authors train with in base-to-novel, where it differs from
    :class:`dear.training.settings.TrainSettings`: its fields by name.
    """

    training: ClassVar[Published] = MappingProxyType({})

    def for_data(self, dataset: str) -> Self:
        """The settings on a data set, for a method whose authors set some for each."""
        del dataset
        return self

    def _check(self, wrong: Mapping[str, str | Literal[False]]) -> None:
        """Raise SettingsError for the first field with bounds; False is a field within them."""
        for name, bounds in wrong.items():
            if bounds:
                groups = [
                    group
                    for group, method in option_groups().items()
                    if METHODS[method].settings is type(self)
                ]
                called = ".".join([*groups, name])
                raise SettingsError(f"{called} is {getattr(self, name)!r}: it must be {bounds}.")

    def _weights(self, *names: str) -> dict[str, str | Literal[False]]:
        """Checks of weights of a loss."""
        return {name: not 0 <= getattr(self, name) < math.inf and "at least 0" for name in names}


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
        lambda_reg: Weight of L_reg.
        lambda_fusion: Weight of L_fusion.
        fusion_loss: Form of L_fusion, "linear" or "log" [ours].
        copy_projection: Start the attribute projection as a copy of CLIP's, else at random [ours].
        roles_from_other_weights: Accept a role table that was computed from other weights.
    """

    first: int = 9
    beta: float = 0.9
    tokens: int = 1
    text_tokens: int = 5
    token_std: float = 0.02
    alpha_cls: float = 0.7
    learn_fusion: bool = True
    lambda_reg: float = 1.0
    lambda_fusion: float = 0.7
    fusion_loss: FusionLoss = "linear"
    copy_projection: bool = True
    roles_from_other_weights: bool = False

    def __post_init__(self) -> None:
        self._check(
            {
                "first": not 1 <= self.first <= 12 and "from 1 to 12",
                "beta": not 0 <= self.beta <= 1 and "from 0 to 1",
                "tokens": self.tokens < 1 and "at least 1",
                "text_tokens": self.text_tokens < 0 and "at least 0",
                "token_std": not 0 <= self.token_std < math.inf and "at least 0",
                "alpha_cls": not 0 < self.alpha_cls < 1 and "between 0 and 1, both excluded",
                **self._weights("lambda_reg", "lambda_fusion"),
                "fusion_loss": self.fusion_loss not in get_args(FusionLoss)
                and f"one of {', '.join(get_args(FusionLoss))}",
            }
        )


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

    tokens: int = 4
    words: str = PROMPT
    position: Position = "end"
    class_specific: bool = False
    token_std: float = 0.02

    def __post_init__(self) -> None:
        positions = get_args(Position)
        self._check(
            {
                "tokens": self.tokens < 1 and "at least 1",
                "position": self.position not in positions and f"one of {', '.join(positions)}",
                "token_std": not 0 <= self.token_std < math.inf and "at least 0",
            }
        )


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

    tokens: int = 4
    words: str = PROMPT
    reduction: int = 16
    chunk: int = 256
    token_std: float = 0.02

    def __post_init__(self) -> None:
        self._check(
            {
                "tokens": self.tokens < 1 and "at least 1",
                "reduction": self.reduction < 1 and "at least 1",
                "chunk": self.chunk < 1 and "at least 1",
                "token_std": not 0 <= self.token_std < math.inf and "at least 0",
            }
        )


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

    depth: int = 9
    tokens: int = 2
    words: str = PROMPT
    share: bool = True
    token_std: float = 0.02

    def __post_init__(self) -> None:
        self._check(
            {
                "depth": not 1 <= self.depth <= 12 and "from 1 to 12",
                "tokens": self.tokens < 1 and "at least 1",
                "token_std": not 0 <= self.token_std < math.inf and "at least 0",
            }
        )


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

    def __post_init__(self) -> None:
        self._check(
            {
                "image_depth": not 1 <= self.image_depth <= 12 and "from 1 to 12",
                "text_depth": not 1 <= self.text_depth <= 12 and "from 1 to 12",
                "image_tokens": self.image_tokens < 1 and "at least 1",
                "text_tokens": self.text_tokens < 1 and "at least 1",
                **self._weights("text_weight", "image_weight", "logit_weight"),
                "average_mean": not math.isfinite(self.average_mean) and "a number",
                "average_std": not 0 < self.average_std < math.inf and "above 0",
                "teacher": self.teacher not in ("imagenet", "dataset") and "one of imagenet, dataset",
                "token_std": not 0 <= self.token_std < math.inf and "at least 0",
            }
        )


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

    first: int = 6
    tokens: int = 5
    space: int = 512
    alpha: float = 0.7
    regularisation: Literal["per-dataset", "uniform"] = "per-dataset"
    reg_weight: float = 1.0
    scale: float | None = 100.0
    share: bool = True
    token_std: float = 0.02

    def __post_init__(self) -> None:
        kinds = ("per-dataset", "uniform")
        self._check(
            {
                "first": not 1 <= self.first <= 12 and "from 1 to 12",
                "tokens": self.tokens < 1 and "at least 1",
                "space": self.space < 1 and "at least 1",
                "alpha": not 0 <= self.alpha <= 1 and "from 0 to 1",
                "regularisation": self.regularisation not in kinds and f"one of {', '.join(kinds)}",
                **self._weights("reg_weight"),
                "scale": self.scale is not None and self.scale <= 0 and "above 0, or none",
                "token_std": not 0 <= self.token_std < math.inf and "at least 0",
            }
        )

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

    beta: float = 0.9
    residual_rank: int = 4
    projection_rank: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(
            {
                "beta": not 0 <= self.beta <= 1 and "from 0 to 1",
                "residual_rank": self.residual_rank < 1 and "at least 1",
                "projection_rank": self.projection_rank < 1 and "at least 1",
            }
        )


@dataclass(frozen=True)
class Registered:
    """A method: its class as "module:Class" in this package, loaded when it is used, and its settings."""

    implementation: str
    settings: type[MethodSettings]


# A new method is its own file, its settings above and a line here.
METHODS: Mapping[str, Registered] = MappingProxyType(
    {
        "zero-shot": Registered("zero_shot:ZeroShot", MethodSettings),
        "coop": Registered("coop:CoOp", CoOpSettings),
        "cocoop": Registered("cocoop:CoCoOp", CoCoOpSettings),
        "maple": Registered("maple:MaPLe", MapleSettings),
        "promptsrc": Registered("promptsrc:PromptSRC", PromptSrcSettings),
        "mmrl": Registered("mmrl:MMRL", MmrlSettings),
        "mmrl++": Registered("mmrlpp:MMRLPlus", MmrlPlusSettings),
        "dear": Registered("dear:Dear", DearSettings),
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
