"""The page: drop an image; see classes with their reasons, where heads look, neighbours, and head roles.

Everything it needs comes from this server: no fonts, no analytics, nothing from elsewhere.
"""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from dear.errors import DearError
from dear.report.plots import head_role_map
from dear.serving import views
from dear.serving.api import words
from dear.serving.attention import overlay
from dear.serving.limits import MIB, check_upload
from dear.serving.service import Service, Upload, png_of

FONTS = ("system-ui", "sans-serif")
MONO = ("ui-monospace", "monospace")
KEEP = 3600  # seconds that an uploaded file is kept
EMPTY = views.note("Drop an image, or press the upload area to choose one.")


class Page:
    """What the page's controls do: HTML for each part. A request that is refused becomes an alert."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.depth = service.predictor.clip.image.depth
        self.heads = service.predictor.clip.image.heads
        self.attributes = list(service.predictor.method.layout.named)

    def take(self, path: str) -> Upload:
        """An uploaded file, checked by its size before it is read. Raises Refused."""
        check_upload(os.path.getsize(path), self.service.limits)
        return self.service.take(Path(path).read_bytes())

    def classify(self, path: str | None, classes: str, top: float) -> str:
        if not path:
            return EMPTY
        features = self.service.features(self.take(path)).result()
        return views.bars(self.service.classify(features, int(top), words(classes)))

    def look(self, path: str | None, layer: int, head: int, token: str) -> str:
        if not path:
            return ""
        upload = self.take(path)
        maps = self.service.attention(upload, layer, head)
        if token not in maps:
            return views.note(f"Layer {layer} has no {token} token: it enters later. Choose a later layer.")
        share = 100 * float(maps[token].sum())
        said = f"Layer {layer}, head {head}: {share:.0f} % of the {token} token's attention is on patches."
        return views.look(png_of(overlay(upload.pixels, maps[token])), said)

    def neighbours(self, path: str | None, count: float, *weights: float) -> str:
        if not path or self.service.index is None:
            return ""
        chosen = {n: w for n, w in zip(self.service.index.features, weights, strict=True) if w}
        upload = self.take(path)
        features = self.service.features(upload).result()
        hits = self.service.neighbours(
            features, [*chosen], [*chosen.values()], int(count), without=upload.sha256
        )
        pictures = [self.service.thumbnail(hit.path) for hit in hits]
        return views.tiles(hits, [png_of(picture) if picture else None for picture in pictures])

    def roles_of(self, layer: int) -> dict[int, str]:
        """The roles of a layer's heads, where they are known."""
        table = self.service.roles
        heads = () if table is None else (head for head in table.heads if head.layer == layer)
        return {head.head: head.attribute or head.role for head in heads}


def mount(app: FastAPI, service: Service) -> FastAPI:
    """Put the page at the root of the API's server."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported and when a page is made
    import gradio as gr

    theme = gr.themes.Default(font=FONTS, font_mono=MONO)
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        build(Page(service)),
        path="/",
        footer_links=[],
        max_file_size=service.limits.upload_bytes,
        ssr_mode=False,
        theme=theme,
        css_paths=views.STYLE,
    )
    return mounted


def build(page: Page) -> Any:
    """The page as Gradio blocks."""
    import gradio as gr

    service, limits = page.service, page.service.limits
    bundle = service.predictor.bundle
    with gr.Blocks(title="dear", analytics_enabled=False, delete_cache=(KEEP, KEEP)) as blocks:
        gr.Markdown(
            f"# dear\n{bundle.method} on {bundle.model}, {len(bundle.classes)} classes. Images up to "
            f"{limits.upload_bytes / MIB:g} MiB and {limits.megapixels:g} megapixels."
        )
        with gr.Row():
            with gr.Column(min_width=280):
                image = gr.Image(
                    label="Image",
                    sources=["upload", "clipboard"],
                    type="filepath",
                    height=300,
                    buttons=[],
                    elem_id="dear-image",
                )
                # Gradio would unpack the picture here; it has to be checked first.
                image.preprocess = lambda payload: payload and payload.path
                classes = gr.Textbox(
                    label="Other classes",
                    info="Names with commas between them; the bundle's own if empty.",
                    placeholder=", ".join(bundle.classes[:3]),
                )
                top = gr.Slider(1, 10, value=5, step=1, label="Classes to show")
            with gr.Column(min_width=280):
                gr.Markdown("## Classes and evidence")
                bars = gr.HTML(EMPTY, elem_id="dear-result")
        with gr.Row():
            with gr.Column(min_width=280):
                gr.Markdown("## Where a head looks")
                layer = gr.Dropdown([*range(1, page.depth + 1)], value=page.depth, label="Layer")
                head = gr.Dropdown(
                    views.head_names(page.roles_of(page.depth), page.heads), value=0, label="Head"
                )
                token = gr.Radio(["class", *page.attributes], value="class", label="Token that looks")
            with gr.Column(min_width=280):
                attention = gr.HTML()
        found, mixed = _neighbours(page)
        if service.roles is not None:
            gr.Markdown("## Head roles")
            gr.HTML(views.role_map(head_role_map(service.roles.to_json())))

        def heads_of(number: int) -> Any:
            return gr.Dropdown(choices=views.head_names(page.roles_of(number), page.heads))

        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
        classified = ([image, classes, top], bars)
        looked = ([image, layer, head, token], attention)
        for event in (image.change, classes.submit, top.release):
            event(told(page.classify), *classified, **quiet)
        for event in (image.change, layer.change, head.change, token.change):
            event(told(page.look), *looked, **quiet)
        layer.change(heads_of, layer, head, **quiet)
        if found is not None:
            for event in (image.change, *(slider.release for slider in mixed)):
                event(told(page.neighbours), [image, *mixed], found, **quiet)
    return blocks


def _neighbours(page: Page) -> tuple[Any, list[Any]]:
    """The part for neighbours: its output, then the sliders of the count and of each feature's weight."""
    import gradio as gr

    gr.Markdown("## Neighbours")
    if page.service.index is None:
        gr.Markdown("This server has no index of images: `dear serve DIR --index INDEX` shows neighbours.")
        return None, []
    with gr.Row():
        with gr.Column(min_width=280):
            count = gr.Slider(1, 24, value=8, step=1, label="Images")
            weights = [
                gr.Slider(-1, 1, value=float(at == 0), step=0.1, label=f"Weight of {name}")
                for at, name in enumerate(page.service.index.features)
            ]
        with gr.Column(min_width=280):
            found = gr.HTML()
    return found, [count, *weights]


def told(work: Callable[..., str]) -> Callable[..., str]:
    """The work, with what the user can mend as an alert in its place."""

    @wraps(work)
    def safely(*given: Any) -> str:
        try:
            return work(*given)
        except DearError as error:
            return views.alert(str(error))

    return safely
