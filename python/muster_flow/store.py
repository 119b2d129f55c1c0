"""Results of steps. DIR/store/KEY has the result of a step, named by all its dependencies; DIR/steps/STEP is a link to
the current result, and each output in DIR is a link to that link. DIR/metadata.jsonl has the events."""
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
import time

from muster_bench import seen
from muster_bench.errors import Refusal
from muster_bench.files import PRIVATE, Digests, digest_of, is_at, make_folder, read_json, signature, write_json, writing
from muster_bench.text import PLACEHOLDER, fill, without_secrets
from . import conditions, remote
from .steps import accuracy_of


MARKER = "muster-flow.json"   # marks a folder of results
LONGEST_VALUE = 4096          # characters of a parameter that is a result


class Missing(Refusal):
    """An input is missing; the text is its path."""


@dataclasses.dataclass
class Found:
    """The state of a step's result. Without a record the step must run, and `why` has the reasons."""
    key: str
    parts: dict
    record: dict = None
    why: tuple = ()


def records_in(path):
    """Returns the number of records: of a folder that muster-data wrote, an IDX file, or else lines of text; for a
    folder with other files their sum."""
    path = pathlib.Path(path)
    if path.is_dir():
        if (path / "MANIFEST").is_file():
            entries = [line.split() for line in (path / "MANIFEST").read_text(errors="replace").splitlines()]
            return sum(int(words[2]) for words in entries if len(words) == 6 and not words[1].startswith("."))
        return sum(records_in(file) for file in path.rglob("*") if file.is_file())
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    if zipped:
        import gzip  # imported here: no other step needs it
    with (gzip.open if zipped else open)(path, "rb") as file:
        head = file.read(8)
        if head[:3] == b"\0\0\x08":
            return int.from_bytes(head[4:], "big")
        return head.count(b"\n") + sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


# Kinds of dependencies of a result, with their names in messages.
KINDS = {"parameters": "parameter", "environment": "variable", "caller": "variable of the caller", "code": "program", "modules": "module", "files": "file",
         "needs": "needed step"}


class Store:
    def __init__(self, folder, flow):
        self.folder, self.flow = pathlib.Path(folder).absolute(), flow
        self.metadata = self.folder / "metadata.jsonl"
        read_json(self.folder / MARKER)   # refuses a folder of another version
        self._digests = Digests(read_json(self.folder / "digests.json") or {}, self.folder)   # written by the runner alone

    # ---- dependencies of a step ----

    def digest(self, path):
        try:
            return self._digests.of_path(path)
        except Refusal as refusal:
            raise Missing(str(path)) from refusal

    def keep_digests(self):
        write_json(self.folder / "digests.json", self._digests.known)

    def record(self, name):
        return read_json(self.folder / "steps" / name / "record.json")

    def last_line(self, name):
        """Returns the last line that the command of the step's result has printed."""
        logs = sorted((self.folder / "steps" / name / "output").glob("*/log.txt"), key=lambda log: int(log.parent.name) if log.parent.name.isdigit() else 0)
        with contextlib.suppress(OSError, IndexError), open(logs[-1], "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            return without_secrets(file.read().decode(errors="replace").strip().rpartition("\n")[2][:200])
        return ""

    def without(self, step):
        """Returns the step with the available inputs: an abandoned step has made none. Returns None if an input has no
        path left."""
        gone = {path for name in step.needs if (self.record(name) or {}).get("state") == "abandoned"
                for path in self.flow.steps[name].outputs.values() if not (self.folder / path).exists()}
        inputs = {name: [path for path in paths if path not in gone] for name, paths in step.inputs.items()}
        return dataclasses.replace(step, inputs=inputs) if all(inputs.values()) and not gone.intersection([*step.taken.values(), step.each]) else None

    def has(self, path):
        """Returns true if an input or output exists; its server knows whether a remote one does."""
        return remote.is_remote(path) or (self.folder / path).exists()

    def resolved(self, step):
        """Returns the step with its parameters that are results of other steps: the content of their files."""
        def content(name, path):
            try:
                text = (self.folder / path).read_text(encoding="utf-8").strip()
            except OSError as error:
                raise Missing(path) from error
            except UnicodeError:
                text = "\0"
            if len(text) > LONGEST_VALUE or not text.isprintable():
                raise Refusal(f"step '{step.name}': the parameter '{name}' cannot be the content of '{path}' (it is not one line of at most {LONGEST_VALUE} characters); "
                              "write the value alone into that output")
            return text
        return dataclasses.replace(step, parameters={**step.parameters, **{name: content(name, path) for name, path in step.taken.items()}})

    def fails_condition(self, step):
        """Returns the condition of a resolved step if it does not hold, or ""."""
        where = f"step '{step.name}'"
        return "" if not step.when or conditions.holds(step.when, where, step.parameters) else fill(step.when, step.parameters, where)

    def parts(self, step):
        """Returns all dependencies of a step's result."""
        home = self.folder / "store" / "KEY"
        words = [*step.command, *step.environment.values()]
        used = {match.group(2) for word in words for match in PLACEHOLDER.finditer(word)} & set(step.parameters) - set(step.places)
        launcher = vars(step.launcher)
        training = step.training and vars(step.training)
        return {"step": step.name, "command": step.command, "parameters": {name: step.parameters[name] for name in sorted(used)}, "environment": step.environment,
                "caller": self.flow.variables(step), "ranks": step.ranks,
                "launcher": {**launcher, "options": list(launcher["options"])}, "outputs": step.outputs, "training": training and [training, step.deadline],
                "resources": [step.resources.cpus_per_rank, step.resources.gpus_per_rank],
                **self._seen(step, home),
                "inputs": {name: [self._digest_of_input(path) for path in paths] for name, paths in step.inputs.items()},
                "needs": {name: self._made(name) for name in step.needs}}

    def _seen(self, step, home):
        command = [step.text(word, home) for word in step.command]
        environment = {name: step.text(text, home) for name, text in step.environment.items()}
        others = [step.text(text, home) for text in (*vars(step.launcher).values(), *step.launcher.options) if isinstance(text, str)]
        inputs = {remote.at(self.folder, path) for paths in step.inputs.values() for path in paths}
        return seen.digests_of(*seen.all_of(command, environment, others, step.places, inputs, str(self.folder)), self.digest)

    def _digest_of_input(self, path):
        maker = self.flow.maker(path)
        if maker is None:
            return remote.version_of(path) if remote.is_remote(path) else self.digest(path)
        output = next(name for name, produced in maker.outputs.items() if produced == path)
        return ((self.record(maker.name) or {}).get("outputs") or {}).get(output, ["", "not there"])[1]

    def _made(self, name):
        step = self.flow.steps[name]
        if not step.wait:
            return digest_of(self.parts(step))
        return digest_of({output: signed[1] for output, signed in ((self.record(name) or {}).get("outputs") or {}).items()})

    def find(self, step):
        """Returns the result with exactly these dependencies, or the reasons why there is none."""
        parts, last = self.parts(step), self.record(step.name)
        # for max-age: the next result has another key, which stays the same until that result exists
        ended = last["ended"] if last else 0
        if last and last.get("cause") in ("needs", "when"):   # it was never started
            last = None
        # files written by the step, or by others while it ran
        written = last.get("written", ()) if last and last["parts"].get("command") == step.command else ()
        parts["files"] = {name: digest for name, digest in parts["files"].items() if name not in written}
        if last and last["parts"]["memoize"] == step.memoize and self._is_near(step, parts, last):
            return self._checked(step, Found(last["key"], last["parts"], last))
        parts["memoize"] = step.memoize
        key = digest_of({**parts, **({"at": ended} if "max-age" in step.memoize else {})})[:32]
        # files that the step wrote itself are no longer in the key
        if last and not step.memoize and digest_of(last["parts"]) == digest_of(parts):
            key = last["key"]
        record = read_json(self.home(key) / "record.json")
        if record and digest_of(record["parts"]) != digest_of(parts):   # a dependency changed while it ran
            record = None
        return self._checked(step, Found(key, parts, record, tuple(self._changes(step, parts, last))))

    def kept(self, step, found):
        """Returns the dependencies of a new result, as seen.kept has them: the end of a step checks the files from its
        start."""
        return seen.kept(json.loads(json.dumps(found.parts)), json.loads(json.dumps(self.parts(step))))

    def _is_near(self, step, parts, last):
        """Returns true if max-age, change, records or accuracy allows to reuse the last result."""
        same = {name: value for name, value in parts.items() if name not in ("inputs", "needs")}
        if not step.memoize or same != {name: last["parts"].get(name) for name in same}:
            return False
        if "max-age" in step.memoize:
            return time.time() - last["ended"] < step.memoize["max-age"]
        if "accuracy" in step.memoize:
            return (accuracy_of(last) or 0.0) >= step.memoize["accuracy"]
        now, then = self.counts(step), last["counts"]
        most = {name: step.memoize.get("records") or step.memoize["change"] * max(then[name], 1) for name in then}
        return now.keys() == then.keys() and all(abs(now[name] - then[name]) < most[name] for name in now)

    def counts(self, step):
        if "change" not in step.memoize and "records" not in step.memoize:
            return {}
        return {name: sum(records_in(self.folder / path) for path in paths) for name, paths in step.inputs.items()}

    def _checked(self, step, found):
        """Returns the result, without its record if outputs are missing or have changed."""
        for name, (sign, digest) in (found.record or {}).get("outputs", {}).items():
            path = self.home(found.key) / step.outputs[name]
            # a copy of the folder is valid
            if not path.exists() or (signature(path) != sign and self.digest(path) != digest):
                return Found(found.key, found.parts, None, (f"its output '{step.outputs[name]}' {'was changed' if path.exists() else 'is missing'}",))
        return found

    def _changes(self, step, parts, last):
        if last is None:
            yield "it has no result yet"
            return
        before = last["parts"]
        for name, value in parts.items():
            then = before.get(name)
            if name == "inputs":
                for key in sorted({*value, *then}):
                    if value.get(key) != then.get(key):
                        yield f"its input '{key}' changed"
            elif name in KINDS:
                for key in sorted({*value, *(then or {})}):
                    if value.get(key) != (then or {}).get(key):
                        change = without_secrets(f" from {then.get(key)} to {value.get(key)}") if name in ("parameters", "environment") else ""
                        yield f"its {KINDS[name]} '{key}' changed{change}"
            elif value != then and (name != "memoize" or value):
                yield f"its {name} changed"
        if "max-age" in step.memoize and time.time() - last["ended"] >= step.memoize["max-age"]:
            yield f"its result is older than {step.memoize['max-age']:g} s"

    def reasons(self):
        """Returns {step: reasons to run}, empty for steps that are up to date. Steps that depend on a running step are
        checked again after its end."""
        why_of = {}
        for step in self.flow.steps.values():
            behind = [name for name in step.needs if why_of[name]]
            if behind and not step.wait:
                why_of[step.name] = (f"it starts after '{behind[0]}'",)
            elif behind:
                why_of[step.name] = (f"'{behind[0]}' runs again and may make something else" if self.record(step.name) else "it has no result yet",)
            elif not step.wait:
                why_of[step.name] = ()
            else:
                try:
                    there = self.without(step)
                    there = there and self.resolved(there)
                    if there and self.fails_condition(there):
                        why_of[step.name] = () if (self.record(step.name) or {}).get("cause") == "when" else ("its condition is to be checked",)
                        continue
                    found = self.find(there) if there else None
                    why_of[step.name] = (found.why or ("a result with these inputs exists",)) if found and (not found.record or not self._in_use(step, found)) else ()
                except Missing as gone:
                    if self.flow.maker(gone.args[0]) is None:
                        raise Refusal(f"step '{step.name}' needs '{gone}' (no step makes it, and it is not there); make it, or mend the path") from None
                    why_of[step.name] = (f"its input '{gone}' is missing",)
        return why_of

    def _in_use(self, step, found):
        return os.path.realpath(self.folder / "steps" / step.name) == str(self.home(found.key))

    # ---- results ----

    def home(self, key):
        return self.folder / "store" / key

    @contextlib.contextmanager
    def turn(self, step):
        """Lets one process at a time work at a step. Yields a function that returns whether this process still has the lock: removing the folder
        removes the lock."""
        path = make_folder(self.folder / "run") / f".{step.name}.lock"
        with writing(self.folder), open(path, "a", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.truncate(0)
            yield lambda: is_at(file, path)

    def works_on(self, step, key):
        """Notes in the lock that `turn` holds which result is in the works, so that it is not removed."""
        with contextlib.suppress(OSError):
            (self.folder / "run" / f".{step.name}.lock").write_text(f"{key}\n", encoding="ascii")

    def use(self, step, key):
        """Makes this the current result of the step."""
        make_folder(self.folder / "steps")
        os.utime(self.home(key))
        _link(self.folder / "steps" / step.name, pathlib.Path("..", "store", key))
        for path in step.outputs.values():
            place = self.folder / path
            make_folder(place.parent)
            _link(place, os.path.relpath(self.folder / "steps" / step.name / path, place.parent))

    def say(self, **event):
        """Adds one line to the metadata."""
        event |= {name: without_secrets(event[name]) for name in ("why",) if event.get(name)}   # may quote the output of a program, which may contain addresses of data
        line = json.dumps({"at": round(time.time(), 3), **event}, sort_keys=True, default=str) + "\n"
        with writing(self.metadata):
            handle = os.open(self.metadata, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE)
            try:
                os.write(handle, line.encode())
            finally:
                os.close(handle)

    def events(self):
        with contextlib.suppress(OSError), open(self.metadata, encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


def _link(place, target):
    if os.path.islink(place) and os.readlink(place) == str(target):
        return
    if os.path.exists(place) and not os.path.islink(place):
        raise Refusal(f"'{place}' is in the way (it is no link of this runner, and an output belongs there); move it")
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    with writing(place):
        os.symlink(target, beside)
        os.replace(beside, place)
