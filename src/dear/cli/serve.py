"""`dear serve`: serve a bundle as a web page and an HTTP API."""

import atexit
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from dear.reading.files import expanded
from dear.serving.limits import Limits

TOKEN = "DEAR_TOKEN"


@dataclass(frozen=True)
class RequestLimits:
    """The limits of the server that have an option; `dear.serving.limits` has all.

    Attributes:
        upload: Size of an uploaded file, in MiB.
        megapixels: Size of a picture, read from its header before its pixels are unpacked.
        rate: Units of work (a request with a body, a further image or megapixel, ten new class names) that
            one client (address) may ask for per minute, and at once; 0 for no limit.
        batch: Images that go through the model at once.
    """

    upload: float = Limits.upload
    megapixels: float = Limits.megapixels
    rate: int = Limits.rate
    batch: int = Limits.batch


@dataclass(frozen=True)
class Served:
    """What was served before it stopped: images that went through the model, and in how many batches."""

    url: str
    images: int
    batches: int


def command(
    bundle: str,
    *,
    index: Path | None = None,
    examples: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 7860,
    token: str | None = None,
    page: bool = True,
    origin: str | None = None,
    access_log: bool = False,
    pretrained: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    limits: RequestLimits = RequestLimits(),
) -> Served:
    """Serve a bundle until Ctrl-C: a page for people, and /api for programs (docs/use.md).

    Args:
        bundle: Folder of the bundle, or its name on the hub.
        index: Index of images for neighbours, built with this bundle or, of heads' features, on its backbone.
        examples: Folder of images to try on the page; everyone who may use the page sees them. By default
            none, but for a bundle of a task of the Attribute World images of it.
        host: Address to listen on. Any but this machine's own needs a token.
        port: Port to listen on; 0 picks a free one.
        token: Token that clients must send. By default the environment variable DEAR_TOKEN, which other users
            of this machine cannot see.
        page: Serve the page. Without it only the API.
        origin: Public address if a proxy is in front of the server, such as https://clip.example.
        access_log: Write a line for each request to stderr: time, method, route, status, milliseconds.
        pretrained: Location of the backbone's weights, if they have moved.
        device: Where to compute; auto uses the GPU if there is one.
        limits: Limits of requests.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.serving.memory import return_freed_memory

    return_freed_memory()
    check_bundle(bundle)
    from dear.adapters.predictor import Predictor  # loads torch: what can be refused without it is
    from dear.cli.output import progress_console
    from dear.retrieval.index import open_index
    from dear.serving.examples import examples_of
    from dear.serving.server import address, checked_origin, listen, require_app, run
    from dear.serving.service import Service

    require_app()
    bounds = Limits(**vars(limits), bodies=max(Limits.bodies, limits.upload))
    token = token or os.environ.get(TOKEN) or None
    origin = checked_origin(origin)
    socket = listen(host, port, token)
    url = address(socket, host)

    def ready() -> None:
        link = f"{url}?token=..." if token else url
        progress_console().print(
            f"serving {bundle} at {link} (press Ctrl-C to stop)", markup=False, soft_wrap=True
        )

    with socket:
        predictor = Predictor(bundle, device, pretrained=pretrained)
        path = expanded(bundle)
        name = path.resolve().name if path.exists() else bundle
        pictures = examples_of(predictor.bundle, examples) if page else ()
        service = Service(predictor, bounds, None if index is None else open_index(index), name, pictures)
        run(
            service,
            socket,
            host=host,
            token=token,
            page=page,
            origin=origin,
            access_log=access_log,
            ready=ready,
        )
    # Unloading torch takes Python seconds at exit; do not make whoever stopped the server wait for it.
    atexit.register(end_at_once)
    return Served(url, service.batches.items, service.batches.batches)


def end_at_once() -> None:
    """End the process at once, after flushing all output."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def render(result: Served, console: Console) -> None:
    """Show what was done."""
    console.print(f"served {result.images} images in {result.batches} batches at {result.url}", markup=False)
