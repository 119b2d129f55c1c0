"""Every run that a file requests, with the name under which its result is stored."""
import dataclasses
import pathlib
import shutil

from .errors import Refusal
from .files import digest_of
from .sweep import MOST_RUNS
from .text import fill, fill_words, slug, value_text


@dataclasses.dataclass(frozen=True)
class Run:
    """A command with its parameters. `key` depends on template, parameters, binary and data: any change in them makes
    another run."""
    experiment: object
    parameters: dict
    repeat: int
    seed: int
    key: str
    id: str
    places: dict
    program: str = ""   # the digest of the program
    trial: str = ""     # the name that the run shares with runs that continue from its checkpoint

    @property
    def template(self):
        return self.experiment.template

    @property
    def ranks(self):
        return self.parameters["ranks"]

    def values(self, folder, attempt=1):
        """Returns the values of the placeholders; `folder` is the run's own, absolute."""
        return {**self.places, **self.parameters, **self.experiment.following(self.parameters), **built_in(self, folder, attempt)}

    def words(self, words, folder, attempt=1):
        return fill_words(words, self.values(folder, attempt), f"template '{self.template.name}'")

    def text(self, text, folder, attempt=1):
        return fill(text, self.values(folder, attempt), f"template '{self.template.name}'")


def built_in(run, folder, attempt):
    folder = pathlib.Path(folder)
    return {"seed": run.seed, "repeat": run.repeat, "id": run.id, "config": str(folder / "config"),
            "output": str(folder / "output" / str(attempt)), "scratch": str(folder / "scratch"),
            "checkpoint": str(folder.parent.parent / "checkpoints" / (run.trial or run.id)),
            "here": run.places["here"], "platform": str(pathlib.Path(__file__).resolve().parent.parent)}


def make_plan(file, digests, most=MOST_RUNS, only=None):
    """Returns all runs in the order of the file, or the runs whose parameters, or names of
    experiments, are among the values of `only`. Refuses a
    plan whose program or data is missing. Without `digests` they may be missing: such a plan cannot run."""
    places = {**file.places, "here": str(file.path.parent)}
    runs, total = [], 0
    for experiment in file.experiments:
        for parameters, repeat, seed in experiment.runs(most):
            if not _chosen({**parameters, "experiment": experiment.name}, only or {}):
                continue
            runs.append(make_run(experiment, parameters, repeat, seed, places, digests))
        total = len(runs)
        if total > most:
            raise Refusal(f"'{file.path.name}' expands to {total:,} runs and more (at most {most:,}); sweep less, "
                          "or raise --most-runs")
    if not runs:
        raise Refusal(f"no run of '{file.path.name}' is left (--only {' --only '.join(f'{name}={value_text(value)}' for name, value in only.items())} "
                      "matches none); choose values that are there")
    seen = {}
    for run in runs:
        if run.id in seen:
            raise Refusal(f"'{file.path.name}' has two runs that are the same ({run.id}); take one of them away")
        seen[run.id] = run
    return runs


def _chosen(parameters, only):
    return all(name in parameters and value_text(parameters[name]) in map(value_text, wanted if isinstance(wanted, list) else [wanted])
               for name, wanted in only.items())


def make_run(experiment, parameters, repeat, seed, places, digests, trial=""):
    template = experiment.template
    bare = Run(experiment, parameters, repeat, seed, "", "", places, trial=trial)
    # Kubernetes has it in the image
    program = program_of(bare) if digests and template.launcher.kind != "kubernetes" else ""
    inputs = [bare.text(path, "/") for path in template.inputs]
    data = [bare.text(path, "/") for path in template.data]
    for path in (*inputs, *data):
        if digests and not pathlib.Path(path).exists():
            raise Refusal(f"template '{template.name}' needs '{path}' (there is no such file); make it, or name its place "
                          "with --place")
    key = digest_of({
        "command": template.command, "launcher": dataclasses.asdict(template.launcher),
        "resources": dataclasses.asdict(template.resources), "environment": template.environment,
        "steps": [template.before, template.after, template.clean], **({"settings": template.settings} if template.settings else {}),
        **({"follows": experiment.following(parameters)} if experiment.follows else {}),
        "read": [dataclasses.asdict(reader) for reader in template.read],
        "parameters": {name: value_text(value) for name, value in parameters.items()}, "repeat": repeat, "seed": seed,
        "read_from": [[digests.of_path(path) for path in paths] for paths in ([program] if program else [], inputs, data)] if digests else ""})
    digest = digests.of_path(program) if program else ""
    swept = [f"{name}={value_text(parameters[name])}" for name in experiment.swept]
    words = [experiment.name, *swept, *([f"r{repeat}"] if experiment.repeats > 1 else [])]
    name = slug("-".join(words))[:120]
    return dataclasses.replace(bare, key=key, id=f"{name}-{key[:8]}", program=digest)


def program_of(run):
    """Returns the program file of a run."""
    template = run.template
    first = next(iter(run.words(template.command, "/")), "")
    if "/" in first and not first.startswith("/"):
        raise Refusal(f"template '{template.name}' cannot run '{first}' (a run works in a folder of its own); write '{{here}}/{first.removeprefix('./')}'")
    name = run.text(template.binary or template.command[0], "/")
    found = shutil.which(name)
    if found is None:
        raise Refusal(f"template '{template.name}' cannot run '{name}' (there is no such program); build it, or name its "
                      "place with --place")
    return str(pathlib.Path(found).absolute())
