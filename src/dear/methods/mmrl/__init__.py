"""Settings and declaration of MMRL."""

from dataclasses import dataclass

from dear.methods.declaration import Declaration
from dear.methods.shared_settings import RepresentationSettings


@dataclass(frozen=True)
class MmrlSettings(RepresentationSettings):
    """Settings of MMRL; the defaults are the published ones."""


METHOD = Declaration(
    "mmrl",
    "2503.08497",
    "MMRL",
    MmrlSettings,
    decoupled_on=("classes", "data"),
    image="layers",
    text="layers",
)
