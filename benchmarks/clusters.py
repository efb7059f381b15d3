"""Spaces for concept clusters, judged without any role table: DBCV, clusters, stability over seeds.

    python benchmarks/clusters.py TEXTSPAN.txt --layers 9-12

For each space: HDBSCAN on the heads' phrases alone and with the package's pool; the number of clusters,
the share of phrases left unassigned, DBCV (comparable within a space's dimension only), and the mean
adjusted Rand index between clusterings of seeded 80% subsamples of the phrases. UMAP is included if it is
installed; it is not a dependency.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from dear.errors import DataError
from dear.roles.clusters import _best_clustering, reduce
from dear.roles.phrases import embed_phrases, general_pool
from dear.roles.settings import RoleSettings
from dear.roles.textspan_format import in_layers, layer_range, read_textspan

SPACES = ("concepts", "pca", "none", "umap")


def rows_of(
    space: str, phrases: torch.Tensor, named: torch.Tensor, concepts: list[str], s: RoleSettings, seed: int
) -> np.ndarray[Any, Any]:
    """Coordinates of the heads' phrases, then the named ones."""
    if space == "umap":
        from umap import UMAP

        both = torch.cat([phrases, named]).numpy()
        return np.asarray(
            UMAP(n_components=5, metric="cosine", random_state=seed, n_jobs=1).fit_transform(both)
        )
    known = sorted(set(concepts))
    numbers = torch.tensor([known.index(one) for one in concepts])
    settings = RoleSettings(reduction=space, min_sizes=s.min_sizes)  # type: ignore[arg-type]
    return reduce(phrases, named, numbers, len(known), settings)


def evaluate_bundle(
    rows: np.ndarray[Any, Any], heads: int, s: RoleSettings
) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
    try:
        labels, dbcv, _ = _best_clustering(rows, s)
    except DataError:
        return np.full(len(rows), -1), {"clusters": 0}
    left_out = round(float((labels[:heads] < 0).mean()), 3)
    return labels, {"clusters": int(labels.max()) + 1, "dbcv": round(dbcv, 3), "left_out": left_out}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spans", type=Path)
    parser.add_argument("--layers", default="9-12")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--spaces", nargs="+", default=SPACES, choices=SPACES)
    a = parser.parse_args()
    warnings.filterwarnings("ignore")
    heads = in_layers(read_textspan(a.spans), layer_range(a.layers))
    texts = list(dict.fromkeys(text for phrases in heads.values() for text in phrases))
    pool = general_pool()
    phrases, named = embed_phrases(texts), embed_phrases(pool.phrases)
    for space in a.spaces:
        for what in ("heads alone", "with the pool"):
            s = RoleSettings(min_sizes=(5, 8, 12) if what == "heads alone" else (15, 40))
            found, parts = [], []
            for seed in range(a.seeds):
                kept = np.random.default_rng(seed).permutation(len(texts))[: int(0.8 * len(texts))]
                kept.sort()
                try:
                    rows = rows_of(space, phrases[kept], named, list(pool.concepts), s, seed)
                except ImportError:
                    break
                rows = rows[: len(kept)] if what == "heads alone" else rows
                labels, facts = evaluate_bundle(rows, len(kept), s)
                found.append(dict(zip(kept.tolist(), labels[: len(kept)].tolist(), strict=True)))
                parts.append(facts)
            if not parts:
                continue
            scores = []
            for i, one in enumerate(found):
                for other in found[:i]:
                    both = sorted(one.keys() & other.keys())
                    scores.append(adjusted_rand_score([one[k] for k in both], [other[k] for k in both]))
            row = {
                "space": space,
                "phrases": what,
                "runs": parts,
                "mean_ari": round(float(np.mean(scores)), 3),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
