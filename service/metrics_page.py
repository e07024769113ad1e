"""One page of metrics over HTTP, for Prometheus to scrape."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..errors import RequestError
from .metrics import MEDIA_TYPE


class MetricsServer(ThreadingHTTPServer):
    """Answers /metrics with its `text`."""

    daemon_threads = True
    text = ""


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer

    def do_GET(self) -> None:
        """Answer with the page."""
        is_it = self.path.partition("?")[0] == "/metrics"
        body = (self.server.text if is_it else "see /metrics\n").encode()
        self.send_response(200 if is_it else 404)
        self.send_header("Content-Type", MEDIA_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *told: object) -> None:
        """Log nothing."""


@contextmanager
def metrics_page(host: str, port: int) -> Iterator[MetricsServer]:
    """Yield a server of one page, port 0 being any free one; RequestError where the port cannot be had."""
    try:
        server = MetricsServer((host, port), _Handler)
    except OSError as error:
        raise RequestError(f"cannot listen at {host}:{port} ({error.strerror}); give another --listen PORT") from error
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
