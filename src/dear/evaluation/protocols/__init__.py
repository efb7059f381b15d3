"""The protocols by name, in the order of their commands and tables. A file defines what is trained on, what
is tested, and what the results contain.
"""

from collections.abc import Mapping

from dear.evaluation.protocols.base import Protocol
from dear.evaluation.protocols.base_to_novel import BaseToNovel
from dear.evaluation.protocols.few_shot import FewShot
from dear.evaluation.protocols.retrieval import Retrieval
from dear.evaluation.protocols.transfer import CrossDataset, DomainGeneralization

PROTOCOLS: Mapping[str, type[Protocol]] = {
    kind.name: kind for kind in (BaseToNovel, CrossDataset, DomainGeneralization, FewShot, Retrieval)
}
"""The class of each protocol by its name in commands, recipes and records."""
