"""Load test of `dear serve`: many simultaneous requests, and the time and memory they take.

    python benchmarks/serve.py BUNDLE --requests 200 --concurrent 200

Starts the server itself at a free port, sends noise images to /api/predict, and prints errors by status,
latencies, throughput, batches, and the server's memory before and at its peak. Linux only (/proc).
"""

import argparse
import asyncio
import io
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

PATIENCE = 300.0


def pictures(count: int, side: int) -> list[bytes]:
    """JPEG files of noise."""
    found = []
    for seed in range(count):
        noise = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(noise).save(stream := io.BytesIO(), "JPEG", quality=90)
        found.append(stream.getvalue())
    return found


async def load(url: str, files: list[bytes], requests: int, concurrent: int) -> dict[str, Any]:
    gate, seconds, statuses = asyncio.Semaphore(concurrent), list[float](), Counter[str]()
    limits = httpx.Limits(max_connections=concurrent)

    async def one(client: httpx.AsyncClient, number: int) -> None:
        async with gate:
            started = time.perf_counter()
            try:
                answer = await client.post("/api/predict", content=files[number % len(files)])
                statuses[str(answer.status_code)] += 1
            except httpx.HTTPError as error:
                statuses[type(error).__name__] += 1
            seconds.append(time.perf_counter() - started)

    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=PATIENCE, trust_env=False) as client:
        started = time.perf_counter()
        await asyncio.gather(*(one(client, number) for number in range(requests)))
        whole = time.perf_counter() - started
        info = (await client.get("/api/info")).json()
    return {
        "requests": requests,
        "concurrent": concurrent,
        "answers": dict(statuses),
        "errors": requests - statuses["200"],
        "p50 ms": round(1000 * float(np.quantile(seconds, 0.5))),
        "p95 ms": round(1000 * float(np.quantile(seconds, 0.95))),
        "requests a second": round(requests / whole, 1),
        "batches": info["batches"],
    }


def memory(pid: int, kind: str) -> int:
    """Resident memory of a process in MiB: VmRSS, now; VmHWM, at its peak."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(lines[kind].split()[0]) // 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrent", type=int, default=200)
    parser.add_argument("--side", type=int, default=512, help="side length of an image in pixels")
    parser.add_argument("--page", action="store_true", help="load the page's modules too")
    a = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "dear.cli.main", "serve", a.bundle, "--port", str(port)]
    server = subprocess.Popen([*words, "--limits.rate", "0", "--page" if a.page else "--no-page"])
    url = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None:
            try:
                httpx.get(f"{url}/api/info", trust_env=False).raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        files = pictures(32, a.side)
        asyncio.run(load(url, files, 4, 2))  # the first requests pay the one-time costs
        before = memory(server.pid, "VmRSS")
        result = asyncio.run(load(url, files, a.requests, a.concurrent))
        result |= {"memory before MiB": before, "memory at peak MiB": memory(server.pid, "VmHWM")}
        print(json.dumps(result, indent=1))
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
