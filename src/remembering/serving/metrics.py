"""Counters and histograms in the text format of Prometheus."""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from collections.abc import Iterable

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_PREFIX = "remembering_"


class Counter:
    """A number for each combination of labels. Thread-safe."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: tuple[str, ...] = ()):
        self.name, self.help, self.labels = name, help_text, labels
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float)
        self._lock = threading.Lock()

    def add(self, amount: float = 1.0, *labels: str) -> None:
        """Increase the number with these labels."""
        with self._lock:
            self._values[labels] += amount

    def lines(self) -> Iterable[str]:
        """Return the samples."""
        with self._lock:
            values = dict(self._values) or ({} if self.labels else {(): 0.0})
        for labels, value in sorted(values.items()):
            yield sample(self.name, value, dict(zip(self.labels, labels, strict=True)))


class Histogram:
    """Numbers of observations up to each bound. Thread-safe."""

    kind = "histogram"

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...]):
        self.name, self.help, self.bounds = name, help_text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        with self._lock:
            self._counts[bisect.bisect_left(self.bounds, value)] += 1
            self._sum += value

    def lines(self) -> Iterable[str]:
        """Return the samples."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        below = 0
        for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
            below += count
            le = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield sample(f"{self.name}_bucket", below, {"le": le})
        yield sample(f"{self.name}_sum", total)
        yield sample(f"{self.name}_count", below)


class Metrics:
    """All metrics of a server that are counted; gauges are added when they are read."""

    def __init__(self) -> None:
        self.requests = Counter(
            "http_requests_total", "Answered requests.", ("method", "path", "status")
        )
        self.images = Counter("predicted_images_total", "Predicted images.")
        self.unknown = Counter("unknown_images_total", "Images that were flagged as unknown.")
        self.rejected = Counter(
            "rejected_predictions_total", "Predictions refused as the queue was full."
        )
        self.jobs = Counter("jobs_total", "Finished jobs.", ("kind", "status"))
        self.latency = Histogram("predict_seconds", "Time to answer a prediction.", SECONDS)
        self.batch = Histogram("batch_images", "Images that were predicted together.", SIZES)

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Return all metrics.

        Args:
            gauges: Help text and current value of further metrics, by name.
        """
        lines: list[str] = []
        for metric in vars(self).values():
            lines += [
                f"# HELP {_PREFIX}{metric.name} {metric.help}",
                f"# TYPE {_PREFIX}{metric.name} {metric.kind}",
                *metric.lines(),
            ]
        for name, (help_text, value) in gauges.items():
            lines += [
                f"# HELP {_PREFIX}{name} {help_text}",
                f"# TYPE {_PREFIX}{name} gauge",
                sample(name, value),
            ]
        return "\n".join(lines) + "\n"


def sample(name: str, value: float, labels: dict[str, str] | None = None) -> str:
    r"""Return one line of the text format.

    >>> sample("jobs_total", 2, {"kind": "learn"})
    'remembering_jobs_total{kind="learn"} 2'
    """
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in (labels or {}).items())
    number = int(value) if float(value).is_integer() else repr(value)
    return f"{_PREFIX}{name}{{{pairs}}} {number}" if pairs else f"{_PREFIX}{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
