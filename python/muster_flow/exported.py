"""A step in the form of a run for clusters.py, with the paths inside pods."""
import re
import shlex
import types

from muster_bench.errors import Refusal
from muster_bench.files import digest_of
from muster_bench.text import PLACEHOLDER, fill, fill_words
from .expression import parameter_name
from .remote import at

MARK = "\x01"   # around the name of a variable, until the words are quoted
WORDS = "\x02"  # around the name of a variable whose content is several words
PLATFORM = "/opt/muster/share/muster/python"   # in the image: see packaging/Dockerfile


class Exported:
    """A step in the form of a run for clusters.py, with the paths inside pods."""

    def __init__(self, flow, step, results):
        if step.launcher.kind not in ("local", "mpirun"):
            raise Refusal(f"step '{step.name}' is started by {step.launcher.kind} (pods have no such launcher); use local or mpirun")
        if step.varies:
            raise Refusal(f"step '{step.name}' has parameters of its list in '{step.varies[0]}' (in Argo only command, environment and outputs may differ); use them there alone")
        self.fans = fans_of(flow, step)
        if self.fans and re.search(r"[\s*?[]", str(results)):
            raise Refusal(f"'{results}' cannot be the folder of results (paths of a fan-out are words of a shell); choose one without blanks and stars")
        self.checkpoint = str(results / "checkpoints" / step.name)
        self._step, self._results, self.id, self.key, self.ranks = step, results, f"{flow.name}-{step.name}", digest_of([flow.name, step.name]), step.ranks
        self.template = types.SimpleNamespace(
            name=step.name, command=step.command, launcher=step.launcher, resources=step.resources, environment=step.environment,
            timeout=step.timeout, retries=types.SimpleNamespace(attempts=1 + step.retry["peer"]), needs=(), before=(), after=(), clean=())

    def _values(self):
        step, results = self._step, self._results
        taken = {name: f"{MARK}{variable_of(name)}{MARK}" for name in (*step.taken, *step.free, *(["each"] if step.each else []))}
        inputs = {name: " ".join(f"{WORDS}{self.fans[path]}{WORDS}" if path in self.fans else shlex.quote(at(results, path)) for path in paths)
                  for name, paths in step.inputs.items() if self.fans.keys() & set(paths)}
        output = str(results / "logs" / step.name) + (f"-{MARK}{variable_of('each')}{MARK}" if step.each else "")
        return {**step.values(results / "store" / step.name), **inputs, **taken, **{name: self.place(path) for name, path in step.outputs.items()}, "platform": PLATFORM,
                "python": "python3", "checkpoint": self.checkpoint, "resume": "--resume", "output": output}

    def place(self, path):
        """Returns the place of an output, in which the name of a step of a fan-out is a variable."""
        return str(self._results / path.replace("{each}", f"{MARK}{variable_of('each')}{MARK}") if self._step.each else self._results / path)

    def words(self, words, *_):
        if split := next((match.group(2) for word in words if (match := PLACEHOLDER.fullmatch(word)) and match.group(1) and match.group(2) in (*self._step.taken, *self._step.free)), None):
            raise Refusal(f"step '{self._step.name}' takes '{{*{split}}}', the result of another step as several words (in a pod a result is one word); write {{{split}}}")
        several = {name for name, paths in self._step.inputs.items() if self.fans.keys() & set(paths)}
        for word in [*words, *self._step.environment.values()]:
            if joined := next((match.group(2) for match in PLACEHOLDER.finditer(word) if match.group(2) in several and word != f"{{*{match.group(2)}}}"), None):
                raise Refusal(f"step '{self._step.name}' has '{word}', the paths of a fan-out in one word (in a pod each is a word); write {{*{joined}}} as a word")
        return fill_words(words, self._values(), f"step '{self._step.name}'")

    def text(self, text, *_):
        return fill(text, self._values(), f"step '{self._step.name}'")


def fans_of(flow, step):
    """Returns the variables of a pod that have the paths of the outputs of a fan-out, by the path in the file."""
    paths = [path for paths in step.inputs.values() for path in paths if (maker := flow.maker(path)) and maker.each]
    return {path: f"PATHS_{number}" for number, path in enumerate(dict.fromkeys(paths))}


def variable_of(parameter):
    """Returns the variable of a pod that has the value of a parameter, which is a result of another step."""
    return "VALUE_" + parameter_name(parameter).replace("-", "_2d_")


def line_of(words):
    """Returns words as a line of a shell. The content of a variable is never code of the line; an empty variable alone
    gives no word, as here."""
    alone = re.sub(f"(?<!\\S)'{MARK}(\\w+){MARK}'(?!\\S)", r'${\1:+"$\1"}', shlex.join(words))
    alone = re.sub(f"(?<!\\S)'{WORDS}(\\w+){WORDS}'(?!\\S)", r"$\1", alone)
    return re.sub(f"{MARK}(\\w+){MARK}", r"""'"$\1"'""", alone)
