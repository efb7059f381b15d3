"""What a reader should know before trusting a role table: flat tables, unclear heads, ties, and attributes
without heads.
"""

from dear.roles.ablation import LITTLE, LayerCurve, layers_in_words
from dear.roles.table import HeadRole, RoleTable
from dear.text import plural

CLEAR = 0.45
"""Share of its dominant concept below which a head is too unclear to trust [ours]: on a real TEXTSPAN result
11 of 20 such heads have the published concept, of those from 0.65 on 11 of 13 (docs/roles.md).
"""
FLAT = 0.75
"""Share of unclear heads above which a table is flat [ours]: with random weights of ViT-B/16 all 48 heads are
unclear, on a real TEXTSPAN result 22 of 48 are. The DBCV of the clusters does not tell the two apart: 0.13
and 0.26 for random weights and two sets of images, 0.26 to 0.30 for the real result (docs/roles.md).
"""


def top_share(head: HeadRole) -> float | None:
    """The share of the dominant concept, a fraction; None if a head's shares are not known."""
    return max(head.share.values(), default=None)


def tied(head: HeadRole) -> bool:
    """True if several concepts have the largest share; the dominant one is the first in TEXTSPAN's order."""
    return list(head.share.values()).count(top_share(head) or 0.0) > 1


def unclear(head: HeadRole) -> bool:
    """True if the share of its dominant concept is below `CLEAR`."""
    share = top_share(head)
    return share is not None and share < CLEAR


def share_mark(head: HeadRole) -> str:
    """The largest share in percent, with "=" for a tie and "?" for an unclear head; "" if it is not known."""
    share = top_share(head)
    if share is None:
        return ""
    return f"{100 * share:.0f}%{' =' * tied(head)}{' ?' * unclear(head)}"


def notes(table: RoleTable) -> list[str]:
    """One line for each kind of doubt."""
    lines = []
    shares = [head for head in table.heads if head.share]
    if (flat := sum(map(unclear, shares))) > FLAT * len(shares):
        lines.append(
            f"The table is flat: {flat} of {len(shares)} heads have no clear concept, as with random "
            "weights. Do not rely on it."
        )
    owned = {head.attribute for head in table.heads}
    if missing := [attribute for attribute in table.attributes if attribute not in owned]:
        lines.append(
            f"No core head: {', '.join(missing)}. The tokens of such an attribute have no head of their own; "
            "give others where the table is made (`dear roles discover --settings.attributes`)."
        )
    if ties := sum(tied(head) for head in table.heads):
        lines.append(f"=: in {plural(ties, 'head')} another concept has the same share as the dominant one.")
    if doubtful := sum(unclear(head) for head in table.heads):
        lines.append(
            f"?: in {plural(doubtful, 'head')} the dominant concept has a share below {100 * CLEAR:.0f}%: "
            "too little to trust it."
        )
    return lines


def doubts(table: RoleTable, curve: LayerCurve | None = None) -> list[str]:
    """What to know of a discovery: the warning that its heads carry little of the embedding, then `notes`."""
    lines = notes(table)
    if curve and curve.carry_little:
        lost = f"{100 * curve.analyzed.lost:.0f}% of it is lost (below {100 * LITTLE:.0f}%)"
        lines.insert(
            0,
            "Roles will do little, for the analyzed heads carry little of the embedding: with those of "
            f"{layers_in_words(curve.which)} replaced by their means over the images, {lost}.",
        )
    return lines
