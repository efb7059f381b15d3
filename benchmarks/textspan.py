"""TEXTSPAN of many heads against the published algorithm in numpy, head by head: time, memory, same phrases.

    python benchmarks/textspan.py                     48 heads, 10,000 images, 3,500 phrases, embedding 512
    python benchmarks/textspan.py --reference-heads 2 time the reference on 2 of the heads, and scale it up

Contributions are random, like those of heads of 64 dimensions with decaying variances, in a memory-mapped
float32 file.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from dear.roles.textspan import Moments, textspan

CHUNK = 500


def contributions(path: Path, images: int, heads: int, head_width: int, embed: int) -> np.memmap:
    """A file of contributions (image, head, embed): each head writes to a subspace of its own."""
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(heads, head_width, embed)) / embed**0.5
    outputs *= np.exp(-np.arange(head_width) / 16)[:, None]
    mean = 0.3 * rng.normal(size=(heads, head_width))
    values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(images, heads, embed))
    for start in range(0, images, CHUNK):
        inner = rng.normal(size=(heads, min(CHUNK, images - start), head_width)) + mean[:, None]
        values[start : start + CHUNK] = (inner @ outputs).transpose(1, 0, 2)
    values.flush()
    return values


def reference(data: np.ndarray, text: np.ndarray, top: int, rank: int) -> list[int]:
    """The published procedure for one head, in numpy and in the data's own precision."""
    _, _, vh = np.linalg.svd(data, full_matrices=False)
    vh = vh[:rank]
    text = (vh.T @ np.linalg.inv(vh @ vh.T) @ vh @ text.T).T
    data = data - data.mean(axis=0, keepdims=True)
    picks = []
    for _ in range(top):
        picks.append(int(np.argmax((data @ text.T).std(axis=0))))
        direction = text[picks[-1]].copy()
        square = direction @ direction
        data = data - np.outer(data @ direction / square, direction)
        text = text - np.outer(text @ direction / square, direction)
    return picks


def ours(values: np.ndarray, text: np.ndarray, top: int, rank: int) -> np.ndarray:
    """All heads: moments chunk by chunk, then the span."""
    moments = Moments(values.shape[1], embed=values.shape[2])
    for start in range(0, len(values), CHUNK):
        moments.add(torch.from_numpy(np.array(values[start : start + CHUNK])))
    return textspan(moments, torch.from_numpy(text), rank=rank, top=top).phrases.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--heads", type=int, default=48)
    parser.add_argument("--phrases", type=int, default=3500)
    parser.add_argument("--embed", type=int, default=512)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--reference-heads", type=int, help="all heads if not given")
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    text = np.random.default_rng(1).normal(size=(a.phrases, a.embed)).astype(np.float32)
    text /= np.linalg.norm(text, axis=1, keepdims=True)
    with tempfile.TemporaryDirectory() as folder:
        values = contributions(Path(folder) / "contributions.npy", a.images, a.heads, a.head_width, a.embed)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        found = ours(values, text, a.top, a.rank)
        fast = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        count = a.reference_heads or a.heads
        start = time.perf_counter()
        wanted = [reference(np.array(values[:, head]), text, a.top, a.rank) for head in range(count)]
        slow = (time.perf_counter() - start) / count * a.heads
    same = [found[head].tolist() == wanted[head] for head in range(count)]
    print(
        json.dumps(
            {
                "seconds": round(fast, 2),
                "reference_seconds": round(slow, 2),
                "reference_scaled_from_heads": count,
                "ratio": round(slow / fast, 1),
                "peak_memory_mib": round(peak / 1024),
                "peak_memory_before_mib": round(before / 1024),
                "heads_with_the_same_phrases_in_the_same_order": f"{sum(same)} of {count}",
                "settings": vars(a),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
