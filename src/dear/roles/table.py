"""The role table: the role of each analyzed head, tied to the weights it was computed from; and the tables in
the package, looked up by these.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from dear.backbone.clip import Clip, Identity
from dear.backbone.names import REAL
from dear.errors import Detail, RoleTableError, warn
from dear.reading.files import ReadingError
from dear.reading.typed import NonNegativeInt, Number, PositiveInt, Share, shown, typed
from dear.roles.settings import KINDS, read_table
from dear.writing import output_file

SCHEMA = 1
"""The number of the structure of role tables; no other is read."""

Role = Literal["core", "other-specialized", "mixed", "generalization"]
ROLES: Mapping[Role, tuple[str, str]] = {
    "core": ("core", ""),
    "mixed": ("mixed", "#D5D9DE"),
    "other-specialized": ("other", "#8A919C"),
    "generalization": ("general", "#444B57"),
}
"""A short word for each role, and its color in figures: core heads have that of their attribute."""
UNIT = "nats"
"""Of concept entropy, for all that print it."""
FOLDER = Path(str(files("dear.roles").joinpath("tables")))
WITHOUT = "promptsrc"
"""A method without head roles, for messages."""
Head = tuple[int, int]
"""A head: its layer, counted from 1, and its number, counted from 0."""


@dataclass(frozen=True)
class HeadRole:
    """One head's role. Layers are counted from 1, heads from 0.

    Attributes:
        attribute: The core attribute of a core head, else None.
        concept: The head's dominant concept, whatever its role.
        entropy: Concept entropy in nats.
        share: The distribution over concepts, of which the entropy is, unless it is over the attributes.
        phrases: The phrases that span the head, in order, if it was discovered from phrases.
    """

    layer: PositiveInt
    head: NonNegativeInt
    role: Role
    attribute: str | None = None
    concept: str | None = None
    entropy: Number | None = None
    share: Mapping[str, Share] = field(default_factory=dict)
    phrases: tuple[str, ...] = ()


@dataclass(frozen=True)
class RoleTable:
    """Roles of all heads of the analyzed layers of one set of weights.

    Attributes:
        source: How the roles were found ("ground-truth factors", "published", "shuffled ...").
        weights: The weights they belong to.
        attributes: The core attributes, in the order of the attribute tokens.
        settings: Settings of the computation.
        evidence: Intermediate results: clusters, DBCV, thresholds and counts of phrases.
    """

    source: str
    weights: Identity
    attributes: tuple[str, ...]
    heads: tuple[HeadRole, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = Counter((head.layer, head.head) for head in self.heads)
        if doubles := [head for head, count in counts.items() if count > 1]:
            raise RoleTableError(
                f"a head has two roles in the table {self.source!r}: {doubles[0]} (layer, head)."
            )
        if len({*self.attributes}) < len(self.attributes):
            raise RoleTableError(f"an attribute is listed twice in the table {self.source!r}.")
        for head in self.heads:
            if head.attribute not in (self.attributes if head.role == "core" else (None,)):
                raise RoleTableError(
                    f"layer {head.layer} head {head.head}: a core head needs one of the attributes "
                    f"{', '.join(self.attributes)}, others none; it has {head.attribute!r}."
                )

    def layer(self, layer: int, heads: int) -> list[HeadRole]:
        """Roles of a layer's heads in order. Raises RoleTableError unless they are exactly ``heads``."""
        roles = {head.head: head for head in self.heads if head.layer == layer}
        if sorted(roles) != list(range(heads)):
            missing = sorted(set(range(heads)) - set(roles))
            raise RoleTableError(
                f"the role table {self.source!r} does not fit layer {layer}, which has {heads} heads: "
                f"missing heads {missing}, unknown heads {sorted(set(roles) - set(range(heads)))}."
            )
        return [roles[head] for head in range(heads)]

    def fits(self, weights: Identity) -> bool:
        """True if the table belongs to these weights: by hash, or by name if the table has no hash."""
        if self.weights.sha256:
            return self.weights.sha256 == weights.sha256
        return (self.weights.model, self.weights.pretrained) == (weights.model, weights.pretrained)

    def check(
        self,
        weights: Identity,
        *,
        allow_other: bool = False,
        option: str | None = None,
    ) -> None:
        """Raise RoleTableError, which names the ``option`` that allows it, if the table belongs to other
        weights, unless ``allow_other``.
        """
        if not (allow_other or self.fits(weights)):
            way_out = f", or give {option} to use it anyway" if option else ""
            raise RoleTableError(
                f"this role table belongs to {self.weights}, not to {weights}: head numbers have no "
                f"common meaning across weights. Find the roles of these weights with `dear roles discover`"
                f"{way_out}."
            )

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}

    @cached_property
    def text(self) -> str:
        """The table as JSON with sorted keys, made once: the key of each run is a hash over it."""
        fields = {key: value for key, value in vars(self).items() if key in self.__dataclass_fields__}
        return json.dumps({"schema": SCHEMA, **fields}, sort_keys=True, default=vars)  # without copies

    def save(self, path: Path) -> None:
        """Write the table as JSON, atomically. Raises OutputError."""
        text = json.dumps(self.to_json(), indent=1) + "\n"
        with output_file(path, "the role table") as file:
            file.write(text.encode())

    @classmethod
    def load(cls, path: Path) -> "RoleTable":
        """Read a table. Raises RoleTableError for a missing or invalid file."""
        return cls.from_json(read_table(path), str(path))

    @classmethod
    def from_json(cls, saved: Any, source: str) -> "RoleTable":
        """The inverse of ``to_json``. Raises RoleTableError that names ``source`` and the key."""
        try:
            data = {**typed(saved, dict[str, Any], source)}
            if (schema := data.pop("schema", SCHEMA)) != SCHEMA:
                raise RoleTableError(
                    f"{source} is a role table of another schema, {shown(schema)}: this version reads "
                    f"schema {SCHEMA}."
                )
            table = typed(data, cls, source)
        except ReadingError as error:
            raise RoleTableError(f"{source} is not a role table: {error.reason}.") from error
        if not table.heads:
            raise RoleTableError(f"{source} is a role table without heads.")
        if reserved := {"cls", "class", "rest"} & {*table.attributes}:
            name = min(reserved)
            raise RoleTableError(
                f"{source} has an attribute called {name!r}, as parts of scores are: rename it."
            )
        return table


def packaged_tables() -> list[tuple[str, RoleTable]]:
    """All tables in the package in order of `KINDS`, with their kinds, which begin their files' names."""
    tables = [(path.name.partition(".")[0], RoleTable.load(path)) for path in sorted(FOLDER.glob("*.json"))]
    return sorted(tables, key=lambda pair: KINDS.index(pair[0]))


def known_by_name(weights: Identity) -> str:
    """A clause on a table for weights of this architecture that have no published hash, which says how a file
    of them is recognized; "" if there is none.
    """
    unhashed = [table.weights for _, table in packaged_tables() if not table.weights.sha256]
    name = next((identity.pretrained for identity in unhashed if identity.model == weights.model), None)
    return "" if name is None else f"; a file of {name} is known by its name, {name}.safetensors"


def role_table(clip: Clip, path: Path | str | None = None) -> RoleTable:
    """Load the table from a file, or the package's table for these weights if ``path`` is a kind or None.

    Kinds: `KINDS`; None selects the first available one. "published" may also return a table of other
    weights, which `RoleTable.check` refuses later. Raises RoleTableError if there is
    none, the file is invalid, or the CLIP has no heads.
    """
    weights, kind = clip.identity, None if path is None else str(path)
    if clip.image.access == "features":
        raise RoleTableError(
            f"{weights.model} has no attention heads to give roles to: its image tower gives features only. "
            f"Choose a backbone with heads, as --model {REAL.model}."
        )
    if kind is not None and kind not in KINDS:
        return RoleTable.load(Path(kind))
    tables = [table for of_kind, table in packaged_tables() if kind in (None, of_kind)]
    if fitting := [table for table in tables if table.fits(weights)]:
        return fitting[0]
    if kind == "published":
        return named_table(kind)
    with_table = "; ".join(str(table.weights) for table in tables) or "none"
    raise RoleTableError(
        f"no {f'{kind} ' if kind else ''}role table is known for {weights} (known: {with_table}"
        f"{known_by_name(weights)}). Give one with --roles FILE, create one with `dear roles discover`, or "
        f"choose a method that needs none, such as {WITHOUT}."
    )


def find_role_table(clip: Clip) -> RoleTable | None:
    """The package's table for these weights; None, which is a detail, if there is none."""
    try:
        return role_table(clip)
    except RoleTableError:
        warn(
            f"no role table is known for {clip.identity}: dear+ takes the whole image feature in place of "
            "attributes",
            Detail,
        )
        return None


def named_table(name_or_path: str) -> RoleTable:
    """A table for display: a file, or one of `KINDS` ("discovered" and "ground-truth" are the tiny CLIP's).

    Raises RoleTableError if there is none or the file is invalid.
    """
    if name_or_path not in KINDS:
        return RoleTable.load(Path(name_or_path))
    table = next((table for kind, table in packaged_tables() if kind == name_or_path), None)
    if table is None:
        raise RoleTableError(f"the package has no {name_or_path} role table.")
    return table
