"""Starts and stops runners. Runners are separate processes, so a failure of the dashboard does not affect them."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from ..division import PRESETS
from ..document import Section
from ..errors import BUSY, NO_ROOM, REFUSED, Refusal, closest, listed
from ..experiment import read_file
from ..files import PRIVATE, make_folder, read_json, write_json
from ..request import LAUNCHED
from ..runner import MARKER
from ..text import slug
from .runs import NAME, holder

PATIENCE = 30.0     # seconds that a runner has to accept or refuse its options
LOOK = 0.05


class Starter:
    """Starts runners. `places` are folders on this machine, `address` is where runs may post metrics, `token`
    authorizes them."""

    def __init__(self, folder, places, address, token):
        self.folder, self._places, self._address, self._token = pathlib.Path(folder).absolute(), places, address, token
        self._own = self.folder / ".dashboard"
        self._processes = []

    def presets(self):
        """Returns the presets with their choices."""
        found = []
        for path in sorted(PRESETS.glob("*.yaml")):
            file = read_file(path)
            ranks = sorted({parameters["ranks"] for experiment in file.experiments for parameters, _, _ in experiment.runs()})
            found.append({"name": path.stem, "title": file.title, "division": file.division, "places": file.places, "ranks": ranks,
                          "launchers": sorted({experiment.template.launcher.kind for experiment in file.experiments})})
        return found

    def start(self, request):
        """Starts a new runner and returns its folder's name. `request` is the posted object; errors in it are
        refused."""
        section = Section(request, "the request")
        preset, command = section.get("preset", "a text", ""), section.get("command", "a text", "").strip()
        if bool(preset) == bool(command):
            raise Refusal("the request starts no run (it needs either a preset or a command); give one")
        known = [path.stem for path in PRESETS.glob("*.yaml")]
        if preset and preset not in known:
            raise Refusal(f"there is no preset '{preset[:80]}' (known: {listed(sorted(known))}); {closest(preset, known, 'take one of these')}")
        ranks, cpus, launcher = (section.get(*one) for one in (("ranks", "a whole number", 0), ("processors", "a number", 0), ("launcher", "a text", "")))
        if not 0 <= ranks <= 1_000_000:
            raise Refusal(f"the request: ranks cannot be {ranks} (it is 1 or more); change it")
        name = slug(section.get("name", "a text", ""))[:100].lstrip(".") or preset or slug(os.path.basename(command.split()[0])) or "run"
        folder = _unused(self.folder, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
        make_folder(self._own)
        if preset:
            words = self._preset(preset, section, ranks)
        else:
            words = self._command(folder, command, section, ranks or 1, launcher)
        words += ["--cpus-per-rank", f"{cpus:g}"] if cpus else []
        words += ["--launcher", launcher] if launcher in LAUNCHED and preset else []
        section.done()
        return self._run(folder, words)

    def _preset(self, preset, section, ranks):
        """Returns the command of a preset. A closed preset runs as it is published, or in part."""
        file = read_file(PRESETS / f"{preset}.yaml")
        division = section.get("division", "a text", file.division)
        words = [preset, *(["--division", division] if division != file.division else [])]
        settings, only = section.free("set"), section.free("only")
        if ranks:
            (only if division == "closed" else settings)["ranks"] = ranks
        for flag, values in (("--set", settings), ("--only", only)):
            for key, value in values.items():
                words += [flag, f"{key}={json.dumps(value)}"]
        for key, value in self._places.items():
            words += ["--place", f"{key}={value}"] if key in file.places else []
        return words

    def _command(self, folder, command, section, ranks, launcher):
        """Writes the file of an experiment with one command."""
        first, *rest = command.split()
        goal, repeats = section.get("goal", "a mapping", {}), section.get("repeats", "a whole number", 1)
        environment = {"PYTHONUNBUFFERED": "1", "MUSTER_METRICS": "{output}/metrics.prom", "BENCH_RUN_URL": f"{self._address}/api/runs/{folder}/{{id}}",
                       **({"MUSTER_TRACE": "{output}/trace.json"} if section.get("trace", "true or false", False) else {})}
        title = section.get("name", "a text", "") or " ".join([os.path.basename(first), *rest])[:120]
        content = {"muster-bench": 1, "name": folder, "title": title, "places": self._places, **({"goal": goal} if goal else {}),
                   "templates": {"command": {"command": command, "launcher": launcher or "local", "environment": environment,
                                             "timeout": section.get("timeout", "a number", 86400),
                                             "read": [{"tracker": "tracker.json"}] if "tracker.json" in command else []}},
                   "experiments": {"run": {"template": "command", "parameters": {"ranks": ranks}, "repeats": repeats}}}
        path = self._own / f"{folder}.yaml"
        write_json(path, content, mode=PRIVATE)   # JSON is valid YAML
        return [str(path)]

    def _run(self, folder, words):
        line = [sys.executable, "-m", "muster_bench", "run", *words, "--out", str(self.folder / folder), "--watch"]
        write_json(self._own / f"{folder}.json", line, mode=PRIVATE)
        return self.go_on(folder, line)

    def go_on(self, folder, line=None):
        """Runs the command of a folder, also again, and waits until the runner works or has reported its error."""
        line = line or read_json(self._own / f"{folder}.json")
        if not NAME.fullmatch(folder) or not isinstance(line, list):
            raise Refusal(f"'{folder[:80]}' was not started here (its command is not known); run it as it was started")
        if runner := holder(self.folder / folder):
            raise Refusal(f"'{folder}' is running (process {runner['process']}); wait for it, or stop it")
        log = self._own / f"{folder}.log"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(pathlib.Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")))),
                       **({"BENCH_TOKEN": self._token} if self._token else {})}
        with open(log, "wb") as output:
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment)
        self._processes = [running for running in self._processes if running.poll() is None] + [process]
        until = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < until:
            if (self.folder / folder / MARKER).exists() and holder(self.folder / folder):
                return folder
            time.sleep(LOOK)
        if process.poll() in (REFUSED, BUSY, NO_ROOM) or (process.returncode and not (self.folder / folder / MARKER).exists()):
            raise Refusal(last_line(log).removeprefix("muster-bench: "))
        return folder

    def stop(self, folder):
        """Signals the runner of a folder to end its runs; it still writes its tables."""
        runner = holder(self.folder / folder) if NAME.fullmatch(folder) else None
        if runner is None:
            raise Refusal(f"'{folder[:80]}' is not running (no runner works in it); there is nothing to stop")
        os.kill(runner["process"], signal.SIGTERM)

    def last_line_of(self, folder):
        """Returns the last line that the runner of a folder has printed; empty for a runner that was not started
        by this dashboard."""
        return last_line(self._own / f"{folder}.log")


def last_line(log):
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            return (file.read().decode(errors="replace").strip().splitlines() or [""])[-1]
    except OSError:
        return ""


def _unused(folder, name):
    number, candidate = 1, name
    while (folder / candidate).exists() or (folder / ".dashboard" / f"{candidate}.json").exists():
        number += 1
        candidate = f"{name}-{number}"
    return candidate
