"""What the server counts, in Prometheus' form, and its access log.

Neither holds anything that a client chooses: routes stand as their templates, methods and statuses are of a
fixed set.
"""

import logging
import time
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dear.serving.queues import Batcher
from dear.serving.service import Service

METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
OTHER = "other"
"""The label of paths that lead nowhere, and of methods beyond `METHODS`."""
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # upper bounds of the buckets of durations
ACCESS = logging.getLogger("dear.access")


class Metrics:
    """The counters of an app and of its service, in a registry of their own."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter(
            "dear_requests", "Requests answered, refused ones too.", labels, registry=self.registry
        )
        self.seconds = Histogram(
            "dear_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ("route",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.running = Gauge("dear_requests_running", "Requests under way.", registry=self.registry)
        self.registry.register(_ModelMetrics(service))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _ModelMetrics(Collector):
    """The images and batches that went through the model, counted when the metrics are read."""

    def __init__(self, service: Service) -> None:
        self.batches: Batcher[object, object] = service.batches  # type: ignore[assignment]

    def collect(self) -> Iterable[Metric]:
        batches = self.batches
        yield CounterMetricFamily("dear_images", "Images that went through the model.", batches.items)
        yield CounterMetricFamily("dear_batches", "Batches that went through the model.", batches.batches)
        yield GaugeMetricFamily("dear_images_waiting", "Images that wait for the model.", batches.waiting)


class Observer:
    """ASGI middleware around all others: it counts each request, and logs it in one line: method, route's
    template, status, milliseconds.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, template: Callable[[Scope], str]) -> None:
        self.app, self.metrics, self.template = app, metrics, template

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = 500, time.perf_counter()  # 500 if no answer begins

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = self.template(scope)
        try:
            with self.metrics.running.track_inprogress():
                await self.app(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - started
            self.metrics.requests.labels(method, route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(seconds)
            ACCESS.info("%s %s %d %.0f ms", method, route, status, 1000 * seconds)


def template_of(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """The template of the route that a request leads to, such as /api/examples/{number}."""
    for route in routes:
        if route.matches(scope)[0] is not Match.NONE:
            return str(getattr(route, "path", OTHER))
    return OTHER


def log_access() -> None:
    """Write the access log to stderr, each line with the time in UTC."""
    handler = logging.StreamHandler()
    formatter = logging.Formatter("%(asctime)sZ %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    ACCESS.addHandler(handler)
    ACCESS.setLevel(logging.INFO)
    ACCESS.propagate = False
