"""What a service counts about itself, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from ..runtime.watch.prometheus import Labels, MetricFamily, exposition

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 2.5, 10.0)
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EVENTS = ("rate_limited", "resolve_cache_hits", "resolve_cache_misses")


class Metrics:
    """Counts since the service began; written by the event loop alone."""

    def __init__(self) -> None:
        self.events = Counter(dict.fromkeys(EVENTS, 0))
        self._answers: Counter[tuple[str, str, int]] = Counter()  # by method, route and status
        self._seconds: Counter[str] = Counter()  # by route; floats
        self._in_time: dict[str, list[int]] = {}  # by route: answers within each bucket, and all

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        self._answers[method, route, status] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]  # a Counter adds floats as well
        counts = self._in_time.setdefault(route, [0] * (len(BUCKETS_S) + 1))
        counts[bisect_left(BUCKETS_S, seconds)] += 1

    def text(self, gauges: Mapping[str, list[tuple[Labels, float]]]) -> str:
        """Return all metrics, and gauges of the moment by name."""
        return exposition(self._families(gauges)) + "".join(f"{line}\n" for line in self._histogram())

    def _families(self, gauges: Mapping[str, list[tuple[Labels, float]]]) -> list[MetricFamily]:
        answers = [
            ({"method": method, "route": route, "status": str(status)}, float(count))
            for (method, route, status), count in sorted(self._answers.items())
        ]
        about = "Requests that were answered."
        families = [MetricFamily(name="spectune_http_requests_total", kind="counter", about=about, samples=answers)]
        for name, count in sorted(self.events.items()):
            words = f"{name.replace('_', ' ').capitalize()}."
            samples: list[tuple[Labels, float]] = [({}, float(count))]
            families.append(MetricFamily(name=f"spectune_{name}_total", kind="counter", about=words, samples=samples))
        for name, values in sorted(gauges.items()):
            words = f"{name.replace('_', ' ').capitalize()}."
            families.append(MetricFamily(name=f"spectune_{name}", kind="gauge", about=words, samples=values))
        return families

    def _histogram(self) -> list[str]:
        """Return the times of answers; `exposition` knows no histograms."""
        name = "spectune_http_request_duration_seconds"
        lines = [f"# HELP {name} Time until a request was answered.", f"# TYPE {name} histogram"]
        for route, counts in sorted(self._in_time.items()):
            within = 0
            for end, count in zip((*map(str, BUCKETS_S), "+Inf"), counts, strict=True):
                within += count
                lines.append(f'{name}_bucket{{route="{route}",le="{end}"}} {within}')
            lines.append(f'{name}_sum{{route="{route}"}} {float(self._seconds[route])!r}')
            lines.append(f'{name}_count{{route="{route}"}} {within}')
        return lines
