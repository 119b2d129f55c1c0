"""The lineage of a model that was published: from its version, or from an answer of its server, back to trainings, programs, parameters and data."""
import json
import pathlib
import sys
import time

from muster_bench.errors import FINISHED, Refusal, closest, listed
from muster_bench.files import read_json, write_whole
from muster_bench.text import shown_values, value_text, without_secrets
from .select import NOTE

SHORT = 12      # digits of a digest that are shown


def add_arguments(command):
    command.add_argument("model", nargs="?", metavar="MODEL", help="NAME, NAME/VERSION, the folder of a version, or - for an answer of the server at stdin [lists all]")
    command.add_argument("--out", required=True, metavar="DIR", help="the folder of results")
    command.add_argument("--where", action="append", default=[], metavar="NAME=VALUE", help="list only versions that a training with this parameter, or this step, made")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.add_argument("--html", metavar="FILE", help="write a page with a picture to this file")


def run(chosen):
    out, known = pathlib.Path(chosen.out), Known(chosen.out)
    versions = versions_in(out)
    if chosen.model is None:
        for found in (lineage(known, folder) for folder in versions):
            if all(_has(found, entry) for entry in chosen.where):
                print(json.dumps(found) if chosen.json else f"{found['model']}/{found['version']}: {found['name']}, accuracy {found['accuracy']:.4f}")
        return FINISHED
    found = lineage(known, version_of(chosen.model, versions))
    if chosen.html:
        from . import lineage_page  # imported here: the text needs no pictures
        write_whole(chosen.html, lineage_page.page(found))
    print(json.dumps(found, indent=2) if chosen.json else "\n".join(lines_of(found)))
    return FINISHED


def _has(found, entry):
    """Returns true if a step that leads to the version has this name, or this value of a parameter."""
    name, equals, value = entry.partition("=")
    if not equals:
        raise Refusal(f"--where {entry} has no value (it is step=NAME, or NAME=VALUE of a parameter); add one")
    return any(step["step"] == value if name == "step" else value_text(step["parameters"].get(name)) == value for step in found["steps"])


def versions_in(out):
    """Returns the folders of all versions in repositories below the folder of results, oldest first."""
    found = [note.parent for note in out.glob(f"*/*/*/{NOTE}") if note.parent.name.isdigit() and note.parent.parent.parent.name not in ("store", "steps")]
    return sorted(found, key=lambda folder: (folder.parent.name, int(folder.name)))


def version_of(text, versions):
    """Returns the folder of a version by its name, its path, or an answer of its server."""
    if text == "-":
        try:
            answer = json.loads(sys.stdin.read().partition("\n")[0] or "null")
            text = f"{answer['model_name']}/{answer['model_version']}"
        except (ValueError, TypeError, KeyError):
            raise Refusal("stdin has no answer of a server (it is JSON with model_name and model_version); send what /v2/models/NAME/infer answers") from None
    path = pathlib.Path(text)
    if (folder := next((folder for folder in (path, path.parent) if (folder / NOTE).is_file()), None)) is not None:
        return folder
    names = [f"{folder.parent.name}/{folder.name}" for folder in versions]
    if text in names:
        return versions[names.index(text)]
    if (newest := [folder for folder in versions if folder.parent.name == text]):
        return newest[-1]
    raise Refusal(f"there is no model '{text}' (known: {listed(names)}); {closest(text, names, 'name one of these')}")


class Known:
    """The ends of steps in the metadata of a folder of results. They stay when the results are removed."""

    def __init__(self, out):
        self.by_key, self.makers = {}, {}   # the key of the result that has made an output with this path and digest
        try:
            with open(pathlib.Path(out, "metadata.jsonl"), encoding="utf-8") as file:
                for line in file:
                    self._add(line)
        except OSError as error:
            raise Refusal(f"'{out}' has no results (there is no metadata.jsonl); name the --out of a run") from error

    def _add(self, line):
        if '"event": "end"' not in line:
            return
        try:
            event = json.loads(line)
        except ValueError:   # a line that a killed runner has not completed
            return
        if event["event"] == "end" and event.get("parts"):
            self.by_key[event["key"]] = event
            for name, signed in event.get("outputs", {}).items():
                self.makers.setdefault((event["parts"]["outputs"][name], signed[1]), event["key"])


def lineage(known, folder):
    """Returns the version, its members, and the steps that lead to them, each after the steps that it needs."""
    note, steps = read_json(folder / NOTE) or {}, {}

    def visit(key):
        event = known.by_key.get(key)
        if event is None or key in steps:
            return
        inputs = {}
        for name, digests in event["parts"]["inputs"].items():
            inputs[name] = []
            for path, digest in zip(event.get("inputs", {}).get(name) or [""] * len(digests), digests):
                maker = known.makers.get((path, digest))
                visit(maker)
                inputs[name].append({"sha256": digest, "path": path, "step": known.by_key[maker]["step"] if maker else None})
        parts = event["parts"]
        steps[key] = {"step": event["step"], "key": key, "at": event["at"], "seconds": event.get("seconds"), "cause": event.get("cause"), "accuracy": event.get("accuracy"),
                      "command": parts["command"], "parameters": shown_values(parts["parameters"]), "ranks": parts["ranks"],
                      "code": {**parts.get("code", {}), **parts.get("modules", {}), **parts.get("files", {})}, "inputs": inputs}
    for member in note.get("members", [note]):
        visit(member.get("key"))
    members = [{name: member.get(name) for name in ("step", "key", "accuracy", "epoch", "model")} for member in note.get("members", [note])]
    return {"model": folder.parent.name, "version": int(folder.name), "name": note.get("step", "an unknown model"), "accuracy": note.get("accuracy", 0.0),
            "members": members, "unknown": [member["step"] for member in members if member["key"] not in steps], "steps": list(steps.values())}


def _version(digest):
    """Returns the digest of an input, or the version of an input on a server."""
    return digest if digest.startswith("version ") else f"sha256 {digest[:SHORT]}"


def lines_of(found):
    yield f"{found['model']} version {found['version']}: {found['name']}, accuracy {found['accuracy']:.4f}"
    for member in found["members"]:
        epoch = f" of epoch {member['epoch']}" if member["epoch"] else ""
        yield f"  member {member['step']}: accuracy {member['accuracy']:.4f}{epoch}, sha256 {member['model'][:SHORT]}"
    for step in reversed(found["steps"]):
        accuracy = f", accuracy {step['accuracy']:.4f}" if step["accuracy"] is not None else ""
        yield f"{step['step']}: {step['cause']}{accuracy}, {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(step['at']))}, {step['seconds']:.1f} s, result {step['key'][:SHORT]}"
        yield f"  command: {without_secrets(' '.join(step['command']))}"
        if step["parameters"]:
            yield "  parameters: " + " ".join(f"{name}={value_text(value)}" for name, value in step["parameters"].items())
        yield f"  ranks: {step['ranks']}"
        for name, inputs in step["inputs"].items():
            for one in inputs:
                came = f"from {one['step']}" if one["step"] else without_secrets(one["path"]) or "a source"
                yield f"  input {name}: {came}, {_version(one['sha256'])}"
        for path, digest in step["code"].items():
            yield f"  code: {path}, sha256 {str(digest)[:SHORT]}"
    for name in found["unknown"]:
        yield f"{name}: nothing is known (it was published by a select without a runner, or the metadata are of another folder)"
