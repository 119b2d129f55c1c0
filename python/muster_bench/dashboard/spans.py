"""Spans of traces (Zipkin v2 JSON), one file for each trace, and the steps of a run's timeline (docs/gradients.md) as
spans."""
import contextlib
import json
import os
import pathlib
import re

from ..errors import Refusal
from ..files import make_folder, open_regular, writing
from .runs import LINE, OF_ANOTHER_FORM, Missing, lines_of

HEX = re.compile(r"[0-9a-f]{16}(?:[0-9a-f]{16})?")
# limits: the latest traces that are kept, the bytes of a trace, the spans in a reply
MOST_TRACES, MOST_BYTES, MOST_SPANS = 1000, 8 << 20, 5000


class Traces:
    def __init__(self, folder):
        self._folder, self._known = pathlib.Path(folder) / ".dashboard" / "traces", {}
        self.dropped = 0    # spans of traces that were too long

    def add(self, spans):
        """Adds the spans; refuses all if an item is no span."""
        if not isinstance(spans, list):
            raise Refusal(f"the spans are {type(spans).__name__} (they are a list, as Zipkin's v2 JSON has it); send such")
        lines = {}
        for number, span in enumerate(spans, 1):
            checked = _checked(span, f"span {number}")
            lines.setdefault(checked["traceId"], []).append(json.dumps(checked, separators=(",", ":")) + "\n")
        make_folder(self._folder)
        for trace, texts in lines.items():
            path = self._folder / trace
            if (path.stat().st_size if path.exists() else 0) + sum(map(len, texts)) > MOST_BYTES:
                self.dropped += len(texts)
                continue
            with writing(path), open(path, "a", encoding="utf-8") as file:
                file.write("".join(texts))
        paths = sorted(self._paths(), key=lambda path: path.stat().st_mtime)
        for path in paths[:-MOST_TRACES]:
            path.unlink()

    def _paths(self):
        return [path for path in self._folder.glob("*") if HEX.fullmatch(path.name)]

    def list(self):
        """Returns the traces, the latest first."""
        known = {}
        for path in self._paths():
            with contextlib.suppress(OSError):
                changed = path.stat().st_mtime_ns
                known[path.name] = self._known[path.name] if self._known.get(path.name, (0,))[0] == changed else (changed, _summary(path.name, list(_spans_of(path))))
        self._known = known
        return sorted((found for _, found in known.values()), key=lambda found: found["timestamp"], reverse=True)

    def trace(self, id_):
        if not HEX.fullmatch(id_) or not (self._folder / id_).exists():
            raise Missing(f"there is no trace '{id_[:80]}' (no span of it was received); take one of /api/traces")
        spans = sorted(_spans_of(self._folder / id_), key=lambda span: span["timestamp"])
        return {**_summary(id_, spans), "spans": spans[:MOST_SPANS]}


def _spans_of(path):
    for number, line in enumerate(lines_of(path), 1):
        with contextlib.suppress(Refusal):
            yield _checked(line, f"line {number}")


def _checked(span, where):
    """Returns only the fields of a span that are drawn."""
    if not isinstance(span, dict):
        raise Refusal(f"{where} is {type(span).__name__} (it is an object of Zipkin's v2 JSON); send such")
    ids = {name: str(span.get(name, "")).lower() for name in ("traceId", "id", "parentId") if name != "parentId" or span.get(name)}
    for name, text in ids.items():
        if not HEX.fullmatch(text):
            raise Refusal(f"{where}: {name} cannot be '{text[:40]}' (it has 16 or 32 hexadecimal digits); send such")
    for name in ("timestamp", "duration"):
        value = span.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
            raise Refusal(f"{where}: {name} cannot be '{str(value)[:40]}' (it is a whole number of microseconds); send such")
    endpoint, tags = span.get("localEndpoint") or {}, span.get("tags") or {}
    if not isinstance(endpoint, dict) or not isinstance(tags, dict):
        raise Refusal(f"{where}: localEndpoint and tags are objects (as in Zipkin's v2 JSON); send such")
    return {**ids, "name": str(span.get("name", ""))[:200], "timestamp": span.get("timestamp", 0), "duration": span.get("duration", 0),
            "localEndpoint": {"serviceName": str(endpoint.get("serviceName", ""))[:100]}, "tags": {str(key)[:100]: str(value)[:200] for key, value in list(tags.items())[:20]}}


def _summary(id_, spans):
    ids = {span["id"] for span in spans}
    root = next((span for span in spans if span.get("parentId") not in ids), spans[0] if spans else {})
    begin = min((span["timestamp"] for span in spans), default=0)
    return {"id": id_, "name": root.get("name", ""), "services": sorted({span["localEndpoint"]["serviceName"] for span in spans}), "count": len(spans),
            "timestamp": begin, "duration": max((span["timestamp"] + span["duration"] for span in spans), default=0) - begin}


def step(path, number):
    """Returns one step of the timeline that a run has written: the operations by rank. The file is read by lines, so
    that a long file takes little memory."""
    if not os.path.exists(path):
        raise Missing("this run has no timeline (it was started without --trace, or has not ended); start it with one")
    # `within`: the current rank's events belong to that step; most events belong to other steps
    windows, spans, steps, within = {}, [], 0, False
    with open_regular(path) as file:
        for line in iter(lambda: file.readline(LINE), b""):
            if not within and b'"cat":"step"' not in line:
                continue
            try:
                event = json.loads(line.rstrip().rstrip(b","))
                rank, begin, duration, named = int(event["pid"]), float(event["ts"]), float(event["dur"]), str(event["name"])
                end, tags = begin + duration, {"kind": str(event.get("cat", "")), **{key: str(value) for key, value in event.get("args", {}).items()}}
                at = int(event["args"]["number"]) if event.get("cat") == "step" and named == "step" else None
            except OF_ANOTHER_FORM:
                continue
            if at is not None:
                steps = max(steps, at + 1)
                if at == number:
                    windows[rank] = begin, end
            within = rank in windows and windows[rank][0] <= begin <= windows[rank][1]
            if within and len(spans) < MOST_SPANS:
                top = f"{rank:016x}"
                is_step = event.get("cat") == "step"
                spans.append({"id": top if is_step else f"{len(spans) + (1 << 32):016x}", **({} if is_step else {"parentId": top}), "name": named,
                              "timestamp": round(begin, 3), "duration": duration, "localEndpoint": {"serviceName": f"rank {rank}"}, "tags": tags})
    if not windows:
        raise Missing(f"there is no step {number} (the timeline has {steps}); choose another")
    first = min(begin for begin, _ in windows.values())
    return {"id": f"step {number}", "name": f"step {number}", "steps": steps, "timestamp": first, "services": sorted(f"rank {rank}" for rank in windows),
            "count": len(spans), "duration": max(end for _, end in windows.values()) - first, "spans": spans}
