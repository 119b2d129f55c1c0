"""A step in the form of a run for clusters.py, with the paths inside pods."""
import types

from muster_bench.errors import Refusal
from muster_bench.files import digest_of
from muster_bench.text import fill, fill_words

PLATFORM = "/opt/muster/share/muster/python"   # in the image: see packaging/Dockerfile


class Exported:
    """A step in the form of a run for clusters.py, with the paths inside pods."""

    def __init__(self, flow, step, results):
        if step.launcher.kind not in ("local", "mpirun"):
            raise Refusal(f"step '{step.name}' is started by {step.launcher.kind} (pods have no such launcher); use local or mpirun")
        self.checkpoint = str(results / "checkpoints" / step.name)
        self._step, self._results, self.id, self.key, self.ranks = step, results, f"{flow.name}-{step.name}", digest_of([flow.name, step.name]), step.ranks
        self.template = types.SimpleNamespace(
            name=step.name, command=step.command, launcher=step.launcher, resources=step.resources, environment=step.environment,
            timeout=step.timeout, retries=types.SimpleNamespace(attempts=1 + step.retry["peer"]), needs=(), before=(), after=(), clean=())

    def _values(self):
        step, results = self._step, self._results
        taken = {name: f"{{{{inputs.parameters.value-{name}}}}}" for name in step.taken}   # Argo fills these in
        return {**step.values(results / "store" / step.name), **taken, **{name: str(results / path) for name, path in step.outputs.items()}, "platform": PLATFORM,
                "python": "python3", "checkpoint": self.checkpoint, "resume": "--resume", "output": str(results / "logs" / step.name)}

    def words(self, words, *_):
        return fill_words(words, self._values(), f"step '{self._step.name}'")

    def text(self, text, *_):
        return fill(text, self._values(), f"step '{self._step.name}'")
