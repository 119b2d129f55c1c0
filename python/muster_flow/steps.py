"""The steps of a workflow, in the form of the file (workflow.py), also for each running step. Without YAML, which takes longer to load
than a small step takes."""
import dataclasses
import json
import os
import pathlib
import shlex
import sys
import types

from muster_bench import seen
from muster_bench.text import fill, fill_words
from .remote import at

PLATFORM = str(pathlib.Path(__file__).resolve().parents[1])


@dataclasses.dataclass
class Training:
    """The settings of a step that trains and prints a line for each epoch; these lines decide its end."""
    epochs: str           # the parameter with the number of epochs; empty: the training cannot be ended early and kept
    chance: float         # the accuracy of an untrained model
    patience: int         # epochs after which a training counts as at chance, falling or flat
    flat: float           # minimum difference of two accuracies that differ
    best: bool            # the command saves the model of its best epoch, not of the last one


def saved_epoch(record):
    """Returns the row of the epoch whose model a training has saved, of the record of a result."""
    rows = [row for row in record["series"] if "val_accuracy" in row] or record["series"]
    training = (record["parts"].get("training") or [{}])[0]
    return max(rows, key=lambda row: (row["val_accuracy"], -row["epoch"])) if training.get("best") and "val_accuracy" in rows[0] else rows[-1]


def accuracy_of(record):
    return saved_epoch(record).get("val_accuracy") if record.get("series") else None


@dataclasses.dataclass
class Step:
    """A step with its parameters. It has the interface of a run for launchers.py."""
    name: str
    group: str            # the name in the file; `each` makes several steps from it
    command: list
    parameters: dict      # including the places
    inputs: dict          # name -> paths, relative to the folder of results for another step's output, else absolute
    outputs: dict         # name -> path, relative to the folder of results
    places: dict          # parameters that are paths: the content of the path counts, not the path
    needs: list           # the steps that must end before
    ranks: int = 1
    # {}: by content, else max-age (seconds) or change (a share)
    memoize: dict = dataclasses.field(default_factory=dict)
    retry: dict = dataclasses.field(default_factory=dict)     # cause -> attempts
    launcher: object = None
    resources: object = None
    limits: object = None
    environment: dict = dataclasses.field(default_factory=dict)
    timeout: float = 3600.0
    deadline: float = 0.0   # seconds in which a training must end; 0: none
    training: object = None
    wait: bool = True       # false: the step runs until the workflow ends; other steps wait until it is ready
    ready: str = ""         # an address that replies when the step is ready
    model: str = ""         # the output (for a server, the folder) that KServe serves
    service: str = ""       # beside the file of the workflow: the InferenceService of the model
    address: str = ""       # the address at which a step without `wait` answers its users
    when: str = ""          # the step runs if this condition holds when the steps that it needs have ended
    each: str = ""          # of a fan-out whose list is not known yet: the path of the list, which another step makes
    free: list = ()         # of such a fan-out: the parameters that the list may give
    varies: list = ()       # of such a fan-out: the fields of the file in which these are, beside command, environment and outputs
    taken: dict = dataclasses.field(default_factory=dict)   # parameter -> path of another step's output whose content is the value

    template = property(lambda self: self)
    id = property(lambda self: self.name)
    key = ""                # for an export: no result exists yet

    def values(self, home, attempt=1):
        """Returns the values of the placeholders; `home` is the result's folder: DIR/store/KEY."""
        home = pathlib.Path(home)
        out = home.parent.parent
        checkpoint = home / "checkpoint"
        return {**self.parameters, "ranks": self.ranks, "out": str(out), "output": str(home / "output" / str(attempt)), "platform": PLATFORM, "python": sys.executable,
                "checkpoint": str(checkpoint), "resume": "--resume" if checkpoint.is_dir() and any(checkpoint.iterdir()) else "",
                **{name: shlex.join(at(out, path) for path in paths) if len(paths) != 1 else at(out, paths[0]) for name, paths in self.inputs.items()},
                **{name: str(home / path) for name, path in self.outputs.items()}}

    def words(self, words, home, attempt=1):
        return fill_words(words, self.values(home, attempt), f"step '{self.name}'")

    def text(self, text, home, attempt=1):
        return fill(text, self.values(home, attempt), f"step '{self.name}'")


@dataclasses.dataclass
class Flow:
    name: str
    path: str
    steps: dict           # name -> Step, each after the steps that it needs
    watch: dict = None    # the triggers of a watch (watch.py)
    keep: dict = None     # "age" in seconds and "size" in bytes of unused results that stay
    given: dict = None    # the --set and --place of the command line
    results: list = None  # (step, path) of the outputs that the end of a run names
    document: dict = None # the content of the file
    lists: dict = None    # the known lists of fan-outs: step -> {name: parameters}
    caller: dict = None   # in a workflow from JSON: the result of variables() for each step

    def sources(self):
        """Returns the inputs that no step makes."""
        return {path for step in self.steps.values() for paths in step.inputs.values() for path in paths if self.maker(path) is None}

    def dependents(self, names):
        """Returns these steps and all that need them, directly or not."""
        found = set(names)
        for step in self.steps.values():
            if found.intersection(step.needs):
                found.add(step.name)
        return found

    def maker(self, path):
        return next((step for step in self.steps.values() if path in step.outputs.values()), None)

    def variables(self, step):
        """Returns seen.variables_of the caller of muster-flow: Snakemake sets some variables for its jobs."""
        return seen.variables_of(step.command, os.environ, step.environment) if self.caller is None else self.caller[step.name]

    def to_json(self):
        return {**dataclasses.asdict(self), "caller": {step.name: self.variables(step) for step in self.steps.values()}}


def from_json(text):
    """Returns the workflow from JSON, without the file and without YAML."""
    fields = json.loads(text)

    def step(of):
        plain = {name: types.SimpleNamespace(**of[name]) for name in ("launcher", "resources", "limits")}
        return Step(**{**of, **plain, "training": Training(**of["training"]) if of["training"] else None})
    return Flow(fields["name"], fields["path"], {name: step(of) for name, of in fields["steps"].items()}, given=fields["given"],
                document=fields["document"], lists=fields["lists"], caller=fields["caller"])
