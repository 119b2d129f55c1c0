"""Folders of results of muster-flow beside the runs: the states of their steps, and the lineage of the models that they have published."""
import contextlib
import json
import os

from muster_flow import lineage, lineage_page
from ..errors import Refusal
from ..files import read_json
from .runs import NAME, Missing

MARKER = "muster-flow.json"


class Workflows:
    """Folders of results in one folder. This class writes nothing, and reads the events of a folder again when there are more."""

    def __init__(self, folder):
        self.folder, self._read = folder, {}

    def list(self):
        found = []
        for entry in os.scandir(self.folder):
            if NAME.fullmatch(entry.name) and os.path.isfile(os.path.join(entry.path, MARKER)):
                with contextlib.suppress(OSError, Refusal, ValueError, AttributeError, KeyError, TypeError):   # files of another form are left out
                    steps, known = self._events(entry.name)
                    versions = [lineage.lineage(known, version) for version in self._versions(entry.name)]
                    found.append({"folder": entry.name, "name": str(read_json(self.folder / entry.name / MARKER).get("name", "")), "steps": list(steps.values()),
                                  "versions": [{name: version[name] for name in ("model", "version", "name", "accuracy")} for version in versions]})
        return sorted(found, key=lambda one: one["folder"])

    def lineage(self, folder, model, version):
        """Returns the page of a version of a model."""
        if NAME.fullmatch(folder) and os.path.isfile(self.folder / folder / MARKER):
            for path in self._versions(folder):
                if (path.parent.name, path.name) == (model, version):
                    return lineage_page.page(lineage.lineage(self._events(folder)[1], path))
        raise Missing(f"there is no version '{folder}/{model}/{version}' (no workflow of this folder has published it); take one of /api/workflows"[:300])

    def _versions(self, folder):
        inside = (self.folder / folder).resolve()
        return [path for path in lineage.versions_in(self.folder / folder) if path.resolve().is_relative_to(inside)]

    def _events(self, folder):
        """Returns (the last state of each step, the ends of steps)."""
        path = self.folder / folder / "metadata.jsonl"
        if path.resolve().parent != (self.folder / folder).resolve() or not path.is_file():
            raise Missing(f"'{folder}' has no events (metadata.jsonl is no file in it); run the workflow")
        state = path.stat()
        if self._read.get(folder, ((),))[0] != (state.st_size, state.st_mtime_ns):
            steps = {}
            with open(path, encoding="utf-8") as file:
                for line in file:
                    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):   # a line that a killed runner has not completed
                        event = json.loads(line)
                        if event["event"] in ("begin", "ready", "end"):
                            now = {"begin": "running", "ready": "ready"}.get(event["event"]) or str(event["state"])
                            before = steps.get(event["step"], {})
                            steps[event["step"]] = {"step": str(event["step"]), "state": before.get("state", "done") if now == "up to date" else now, "at": float(event["at"]),
                                                    "accuracy": event.get("accuracy", before.get("accuracy")), "seconds": event.get("seconds"), "why": str(event.get("why") or "")}
            self._read[folder] = (state.st_size, state.st_mtime_ns), (steps, lineage.Known(self.folder / folder))
        return self._read[folder][1]
