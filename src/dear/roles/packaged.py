"""Role tables that come with the package, found by the identity of the weights they belong to."""

from importlib.resources import files
from pathlib import Path

from dear.backbone.clip import Clip, Identity
from dear.errors import RoleTableError
from dear.roles.table import RoleTable

FOLDER = Path(str(files("dear.roles").joinpath("tables")))


def packaged_table(weights: Identity) -> RoleTable:
    """The package's table for these weights. Raises RoleTableError naming the weights that have one."""
    tables = [RoleTable.load(path) for path in sorted(FOLDER.glob("*.json"))]
    for table in tables:
        if table.fits(weights):
            return table
    known = "; ".join(str(table.weights) for table in tables) or "none"
    raise RoleTableError(
        f"no role table is known for {weights} (known: {known}). Give one with --roles FILE."
    )


def role_table(clip: Clip, path: Path | None = None) -> RoleTable:
    """The table in a file, or else the package's own for these weights. Raises RoleTableError."""
    return packaged_table(clip.identity) if path is None else RoleTable.load(path)
