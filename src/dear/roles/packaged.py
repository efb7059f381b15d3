"""Role tables in the package, looked up by the identity of their weights."""

from importlib.resources import files
from pathlib import Path

from dear.backbone.clip import Clip, Identity
from dear.backbone.names import REAL
from dear.errors import Detail, RoleTableError, warn
from dear.roles.settings import KINDS
from dear.roles.table import RoleTable

FOLDER = Path(str(files("dear.roles").joinpath("tables")))
WITHOUT = "promptsrc"
"""A method without head roles, for messages."""


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
