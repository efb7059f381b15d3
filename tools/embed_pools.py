"""Write the sentence embeddings of the package's pools, after their words have changed:
`python -m tools.embed_pools`, in the root of the repository.

Pools that have not changed keep their embeddings, bit for bit.
"""

import json

import torch
from safetensors.torch import load_file, save

from dear.roles.phrases import STORED, embed_phrases, general_pool, pool_hash, stored_embeddings, world_pool
from dear.writing import atomic_write


def main() -> None:
    """Embed the phrases that are new, and write all."""
    known, kept = stored_embeddings(), load_file(STORED)
    pools = (general_pool(), world_pool())
    found = {
        pool.name: kept[pool.name]
        if all(phrase in known for phrase in pool.phrases) and len(kept[pool.name]) == len(pool)
        else embed_phrases(pool.phrases).to(torch.float16)
        for pool in pools
    }
    facts = {"phrases": json.dumps({pool.name: pool_hash(pool) for pool in pools})}
    with atomic_write(STORED) as file:
        file.write(save(found, metadata=facts))


if __name__ == "__main__":
    main()
