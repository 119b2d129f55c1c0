"""Metrics for Prometheus: the active runs, and the runs that ended within the last hour."""
import re
import time

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ..errors import Refusal

LATELY = 3600.0
PLAIN = re.compile(r"[^a-zA-Z0-9_]")


class Exporter:
    """A collector for prometheus_client that reads the runs at each scrape."""

    def __init__(self, runs, traces):
        self._runs, self._traces = runs, traces
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self):
        return generate_latest(self._registry)

    def describe(self):
        return []

    def collect(self):
        rows = self._runs.list()
        states = GaugeMetricFamily("muster_runs", "Runs by status", labels=["status"])
        for status in sorted({row["status"] for row in rows}):
            states.add_metric([status], sum(row["status"] == status for row in rows))
        yield states
        dropped = CounterMetricFamily("muster_spans_dropped", "Spans of traces that were too long")
        dropped.add_metric([], self._traces.dropped)
        yield dropped
        families, known = {}, set()

        def put(name, text, labels, values, value):
            """Adds a sample. Only the first of several equal names is kept: Prometheus rejects a scrape with a
            duplicate sample."""
            if (name, *values) not in known:
                known.add((name, *values))
                families.setdefault(name, GaugeMetricFamily(name, text, labels=labels)).add_metric(values, value)
        for row in rows:
            if row["status"] != "running" and (row["began"] or 0) + (row["seconds"] or 0) < time.time() - LATELY:
                continue
            try:
                found = self._runs.run(row["folder"], row["run"])
            except Refusal:   # the run was removed
                continue
            labels, values = ["folder", "run"], [row["folder"], row["run"]]
            if row["epoch"] is not None:
                put("muster_run_epoch", "The last epoch that has ended", labels, values, row["epoch"])
            for name, value in {**row["metrics"], **found["results"]}.items():
                put(f"muster_run_{PLAIN.sub('_', name)}", "From the result; from the last epoch while the run is active", labels, values, value)
            for worker in found["workers"]:
                for name, text in (("cpu", "Processors in use"), ("memory", "Resident bytes"), ("network", "Bytes a second that its host received and sent")):
                    if worker[name]:
                        put(f"muster_worker_{name}", text, [*labels, "worker"], [*values, worker["worker"]], worker[name][-1][1])
            for name, workers in found["posted"].items():
                for worker, points in workers.items():
                    put(f"muster_posted_{PLAIN.sub('_', name)}", "The last value that a worker has posted", [*labels, "worker"], [*values, worker], points[-1][1])
        yield from families.values()
