"""A step in the form of a run for clusters.py, with the paths inside pods."""
import re
import shlex
import types

from muster_bench.errors import Refusal
from muster_bench.files import digest_of
from muster_bench.text import PLACEHOLDER, fill, fill_words
from .expression import parameter_name

MARK = "\x01"   # around the name of a variable, until the words are quoted
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
        taken = {name: f"{MARK}{variable_of(name)}{MARK}" for name in step.taken}
        return {**step.values(results / "store" / step.name), **taken, **{name: str(results / path) for name, path in step.outputs.items()}, "platform": PLATFORM,
                "python": "python3", "checkpoint": self.checkpoint, "resume": "--resume", "output": str(results / "logs" / step.name)}

    def words(self, words, *_):
        if split := next((match.group(2) for word in words if (match := PLACEHOLDER.fullmatch(word)) and match.group(1) and match.group(2) in self._step.taken), None):
            raise Refusal(f"step '{self._step.name}' takes '{{*{split}}}', the result of another step as several words (in a pod a result is one word); write {{{split}}}")
        return fill_words(words, self._values(), f"step '{self._step.name}'")

    def text(self, text, *_):
        return fill(text, self._values(), f"step '{self._step.name}'")


def variable_of(parameter):
    """Returns the variable of a pod that has the value of a parameter, which is a result of another step."""
    return "VALUE_" + parameter_name(parameter).replace("-", "_2d_")


def line_of(words):
    """Returns words as a line of a shell. The content of a variable is never code of the line; an empty variable alone
    gives no word, as here."""
    alone = re.sub(f"(?<!\\S)'{MARK}(\\w+){MARK}'(?!\\S)", r'${\1:+"$\1"}', shlex.join(words))
    return re.sub(f"{MARK}(\\w+){MARK}", r"""'"$\1"'""", alone)
