"""`dear serve`: serve a bundle as a web page and an HTTP API."""

import os
from functools import partial
from pathlib import Path
from typing import Any

from dear.cli.options import BundleName, BundleOptions
from dear.cli.output import PrintableConsole, progress_console
from dear.cli.parsing import Flat
from dear.errors import BundleError, DataError, SettingsError, installation
from dear.reading.files import expanded
from dear.serving.limits import Limits
from dear.text import plural

TOKEN, DEFAULTS = "DEAR_TOKEN", Limits()


def command(
    bundle: BundleName,
    *,
    index: Path | None = None,
    data: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 7860,
    token: str | None = None,
    page: bool = True,
    origin: str | None = None,
    options: Flat[BundleOptions] = BundleOptions(),
    limits: Limits = DEFAULTS,
) -> dict[str, Any]:
    """Serve a classifier until Ctrl-C: a page for people, and /api for programs (docs/serve.md).

    Args:
        index: Index of images, in which the page finds neighbors. The index must have been built with this
            bundle, or with --features heads on the bundle's backbone.
        data: Folder of the images that the bundle was fitted on. Corrections from the page or the API are
            written there, into corrections.csv; /review shows the images whose labels look wrong. Needs a
            token.
        host: Address to listen on. Any address but this machine's own needs a token.
        port: Port to listen on. 0 picks a free one.
        token: Token that clients must send. By default the value of the environment variable DEAR_TOKEN,
            which other users of this machine cannot see.
        page: Serve the page. Without it there is only the API.
        origin: Public address, if a proxy is in front of the server: https://clip.example, or
            https://example.org/clip if the proxy removes that path.
        limits: Limits of requests.
    """
    from dear.adapters.bundle_config import check_bundle
    from dear.serving.server import PublicAddress, check_token, listen, run, trusted_hosts

    token = token or os.environ.get(TOKEN) or None
    check_token(host, port, token)
    if data is not None and token is None:
        raise SettingsError(
            "--data lets visitors write corrections: give a token with --token or DEAR_TOKEN."
        )
    check_bundle(bundle)
    from dear.retrieval.index import open_index  # loads torch: what can be refused without it is

    try:
        from dear.serving.app import create_app
    except ImportError as error:
        raise SettingsError(f"serving needs {error.name}: {installation('app')}.") from error
    from dear.data.sources.corrections import corrections_file
    from dear.serving.review import review_of
    from dear.serving.service import Service

    if data is not None and corrections_file(data) is None:
        raise DataError(f"--data {data}: give the folder of the images.")
    public = None if origin is None else PublicAddress.parse(origin)
    hosts, socket = trusted_hosts(host, public), listen(host, port, token)
    with socket:
        name = expanded(bundle).resolve().name if expanded(bundle).exists() else bundle

        def load(earlier: Service | None = None) -> Service:
            try:  # with the backbone that is loaded
                predictor = options.load(bundle, clip=earlier and earlier.predictor.clip)
            except BundleError:
                predictor = options.load(bundle)
            found = open_index(index) if index else None
            return Service(predictor, limits, found, name, data, review_of(predictor.bundle, bundle, data))

        shown: dict[str, Any] = {"hosts": hosts, "origin": public and public.origin, "page": page}
        app = create_app(load(), token=token, load=load, **shown)
        address = f"[{host}]" if ":" in host else host
        url, hint = f"http://{address}:{socket.getsockname()[1]}/", "?token=..." if token else ""
        text = f"serving {bundle} at {url}{hint} (press Ctrl-C to stop)"
        say = partial(progress_console().print, text, markup=False, soft_wrap=True)
        run(app, socket, public.prefix if public else "", say)
    # Images that went through the model, and in how many batches.
    batches = app.state.served.now.batches
    return {"url": url, "images": batches.images, "batches": batches.batches}


def render(result: dict[str, Any], console: PrintableConsole) -> None:
    """Show what was done."""
    images, batches = plural(result["images"], "image"), plural(result["batches"], "batch")
    console.say(f"served {images} in {batches} at {result['url']}")
