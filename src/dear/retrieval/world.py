"""Retrieval on the Attribute World, where all factors are known: which feature finds which factor?"""

from typing import Any

from dear.data.world.factors import FACTORS
from dear.data.world.tasks import WorldImages
from dear.methods.base import Method
from dear.retrieval.panels import retrieval_panels

QUERIES = (3, 170, 431)


def world_retrieval(method: Method, images: WorldImages) -> dict[str, Any]:
    """Retrieve among a task's images with each feature of an adapted method, as data for the report."""
    values = {name: factor.values for name, factor in FACTORS.items()}
    return retrieval_panels(method, images, images.factors, values, queries=QUERIES)
