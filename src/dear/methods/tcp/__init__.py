"""Settings and declaration of TCP."""

from dataclasses import dataclass
from types import MappingProxyType

from dear.methods.declaration import AT_LEAST_0, COUNT, Declaration
from dear.methods.shared_settings import TemplateSettings, templates_of


@dataclass(frozen=True)
class TcpSettings(TemplateSettings):
    """Settings of TCP; the defaults are the published ones.

    Attributes:
        tokens: Number of context tokens, and of the class-aware tokens that replace them.
        layer: The layer of the text tower, of 12, at whose input the class-aware tokens enter.
        reduction: Width of the text feature, divided by the hidden width of the network that makes these.
        text_weight: Weight of the distance of text features from the frozen ones.
        templates: "per-dataset" uses the authors' two templates for each data set, and where they have none
            the data set's own; "dataset" always uses the data set's own; the name of a data set uses the
            authors' for it.
        share: Scale layers of 12 to towers of other depths [ours]; if not, use their numbers as they are.
        token_std: Standard deviation of the context's initial values.
    """

    training = MappingProxyType({"optimizer": "adam", "lr": 0.002, "epochs": 50, "batch": 32})
    bounds = MappingProxyType(
        {"tokens": COUNT, "reduction": COUNT, "text_weight": AT_LEAST_0, "token_std": AT_LEAST_0}
        | {"layer": ("from 2 to 12", lambda value: 2 <= value <= 12)}
        | {"templates": templates_of("tcp")}
    )

    tokens: int = 4
    layer: int = 9
    reduction: int = 4
    text_weight: float = 8.0
    share: bool = True
    token_std: float = 0.02


METHOD = Declaration("tcp", "2311.18231", "TCP", TcpSettings, image="features", text="layers")
