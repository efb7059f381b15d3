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
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

PATIENCE = 300.0


def make_images(count: int, side: int) -> list[bytes]:
    """JPEG files of noise."""
    files = []
    for seed in range(count):
        noise = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(noise).save(stream := io.BytesIO(), "JPEG", quality=90)
        files.append(stream.getvalue())
    return files


async def send(url: str, files: list[bytes], requests: int, concurrent: int) -> dict[str, Any]:
    """Send requests, so many at a time; how they were answered."""
    gate, seconds, statuses = asyncio.Semaphore(concurrent), list[float](), Counter[str]()
    limits = httpx.Limits(max_connections=concurrent)

    async def ask(client: httpx.AsyncClient, number: int) -> None:
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
        await asyncio.gather(*(ask(client, number) for number in range(requests)))
        whole = time.perf_counter() - started
        batches = (await client.get("/api/info")).json()["batches"]
    median, most = (round(1000 * float(np.quantile(seconds, share))) for share in (0.5, 0.95))
    result = {"answers": dict(statuses), "median ms": median, "95% below ms": most}
    return result | {"requests a second": round(requests / whole, 1), "batches": batches}


def read_memory(pid: int, kind: str) -> int:
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
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "dear.cli.main", "serve", options.bundle, "--port", str(port)]
    server = subprocess.Popen([*command, "--no-page"])
    url = f"http://127.0.0.1:{port}"
    try:
        while server.poll() is None:
            with suppress(httpx.HTTPError):
                httpx.get(f"{url}/api/info", trust_env=False).raise_for_status()
                break
            time.sleep(0.2)
        files = make_images(32, options.side)
        asyncio.run(send(url, files, 4, 2))  # the first requests pay the one-time costs
        before = read_memory(server.pid, "VmRSS")
        result = asyncio.run(send(url, files, options.requests, options.concurrent))
        result |= {"memory before MiB": before, "memory at peak MiB": read_memory(server.pid, "VmHWM")}
        print(json.dumps(result, indent=1))
    finally:
        server.terminate()
        server.wait(30)


if __name__ == "__main__":
    main()
