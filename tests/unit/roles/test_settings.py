"""Presets of the step from phrases to roles."""

import pytest

from dear.roles.assign import build_table
from dear.roles.settings import RoleSettings, with_preset
from dear.roles.table import named_table

FIVE = ("color", "shape", "texture", "object", "location")


def test_what_the_user_sets_replaces_the_preset_even_by_its_default() -> None:
    assert with_preset("default", {}) == RoleSettings()
    paper = with_preset("paper", {"space": "discriminants", "quantile": 0.3})
    assert (paper.space, paper.clustered, paper.entropy_over) == ("discriminants", "heads", "attributes")
    assert paper.quantile == 0.3


@pytest.mark.parametrize(("overrides", "clusters"), [({}, (11, 12)), ({"min_samples": 5}, (2,))])
def test_the_paper_s_twelve_clusters_of_a_public_result_and_those_of_hdbscan_s_own_settings(
    overrides: dict[str, int], clusters: tuple[int, ...]
) -> None:
    """How processors round decides whether there are eleven or twelve."""
    textspan = named_table("textspan")
    heads = {(head.layer, head.head): head.phrases for head in textspan.heads}
    settings = with_preset("paper", {"attributes": FIVE, **overrides})
    table = build_table(heads, textspan.weights, source="by the paper's words", settings=settings)
    assert len(table.evidence["clusters"]) in clusters
