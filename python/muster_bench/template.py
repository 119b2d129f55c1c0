"""Templates, the first part of an experiment's file: each describes how a program runs."""
import dataclasses
import re

from .document import Section
from .errors import Refusal, closest, listed
from .text import bytes_of, fill, value_text, words_of

LAUNCHERS = ("local", "mpirun", "srun", "torchrun", "tensorflow", "simgrid", "hosts", "kubernetes")
FAILURES = ("crash", "timeout", "unreadable", "differs", "missing", "disk")
TAKES = ("last", "first", "max", "min", "mean", "sum", "count")
DEFAULT_TIMEOUT = 3600.0

# Placeholders that the runner sets for every command, besides the experiment's parameters.
BUILT_IN = ("ranks", "seed", "repeat", "id", "config", "output", "scratch", "checkpoint", "here", "platform")


@dataclasses.dataclass(frozen=True)
class Launcher:
    kind: str
    options: tuple = ()   # words between the launcher and the command
    network: str = "flat"  # simulated hosts, with the speed of a link in bits a second and its latency in seconds;
    bandwidth: str = ""    # texts, because they may have placeholders
    latency: str = ""
    loss: str = ""         # hosts: the share of packets that is lost
    per_host: str = "1"    # hosts: ranks on each
    servers: str = "0"     # on Kubernetes: the number of ranks, the last ones, that serve parameters in their own pods


@dataclasses.dataclass(frozen=True)
class OnKubernetes(Launcher):
    image: str = ""        # contains the programs
    namespace: str = "default"
    volume: str = ""       # a claim that pods share, and its mount path, the same in pods and on this machine
    mount: str = ""
    secret: str = ""       # its keys are environment variables of the ranks: MUSTER_TOKEN, credentials of a storage
    pull_secret: str = ""  # for a private image
    data: str = ""         # a claim with data that pods read, and its mount path
    data_mount: str = ""
    elastic: bool = False  # the number of ranks may change


@dataclasses.dataclass(frozen=True)
class Resources:
    cpus_per_rank: float = 1
    gpus_per_rank: int = 0
    hold: bool = False    # limits a run on this machine to these resources
    memory: int = 0       # bytes a rank, for launchers that request memory; 0: unspecified


@dataclasses.dataclass(frozen=True)
class Retries:
    attempts: int = 1     # number of attempts, including the first
    on: tuple = ("crash", "timeout")
    wait: float = 0.0     # seconds before the next attempt


@dataclasses.dataclass(frozen=True)
class Limits:
    log: int              # maximum bytes of the command's output in its log
    disk: int             # bytes that the command may write into its folders; 0: any number


@dataclasses.dataclass(frozen=True)
class Pattern:
    name: str
    regex: str
    take: str
    required: bool


@dataclasses.dataclass(frozen=True)
class Reader:
    """A reader of results: its kind is tracker, benchmark or log."""
    kind: str
    file: str = ""        # with placeholders; empty for log: the output of the command
    patterns: tuple = ()  # log: numbers of the whole run
    series: str = ""      # log: one line for each epoch, named groups
    rows: str = ""        # benchmark: the rows to keep, a regular expression


@dataclasses.dataclass(frozen=True)
class Template:
    name: str
    command: tuple
    binary: str           # the file whose digest names the runs; empty: the first word of the command
    inputs: tuple         # further files, such as a script, that affect the result
    data: tuple           # and its data
    launcher: Launcher
    resources: Resources
    timeout: float
    environment: dict
    read: tuple
    settings: dict        # expected settings in the report of the program: name -> allowed texts
    needs: tuple          # commands that succeed if this run can run here; else the run is skipped
    machine_needs: tuple  # the same, for runs whose ranks are all on this machine: a cluster's scheduler gives resources
    before: tuple         # commands of the step configure
    after: tuple          # commands of the step post-process
    clean: tuple          # commands of the step clean up
    retries: Retries
    limits: Limits

    def texts(self):
        """Yields every text with placeholders, and the text's place."""
        yield from ((word, "command") for word in self.command)
        yield self.binary, "binary"
        yield from ((text, "inputs") for text in self.inputs)
        yield from ((text, "data") for text in self.data)
        yield from ((text, f"environment, {name}") for name, text in self.environment.items())
        yield from ((reader.file, "read") for reader in self.read)
        yield from ((text, f"settings, {name}") for name, texts in self.settings.items() for text in texts)
        yield from ((word, "launcher") for word in (*self.launcher.options, *dataclasses.astuple(self.launcher)[2:]) if isinstance(word, str))
        for step, commands in (("needs", self.needs), ("machine-needs", self.machine_needs), ("configure", self.before), ("post-process", self.after), ("clean-up", self.clean)):
            yield from ((word, step) for command in commands for word in command)

    def check_placeholders(self, known):
        for text, place in self.texts():
            fill(text, dict.fromkeys(known, ""), f"template '{self.name}', {place}")


def read_template(name, value):
    section = Section(value, f"template '{name}'")
    template = Template(
        name=name,
        command=tuple(words_of(section.get("command", "a text or a list"))),
        binary=section.get("binary", "a text", ""),
        inputs=_texts(section, "inputs"),
        data=_texts(section, "data"),
        launcher=read_launcher(section),
        resources=read_resources(section.section("resources")),
        timeout=float(section.get("timeout", "a number", DEFAULT_TIMEOUT)),
        environment={key: value_text(text) for key, text in section.free("environment").items()},
        read=tuple(_readers(section)),
        settings={name: tuple(map(value_text, texts if isinstance(texts, list) else [texts]))
                  for name, texts in section.free("settings").items()},
        needs=_commands(section, "needs"),
        machine_needs=_commands(section, "machine-needs"),
        before=_commands(section, "configure"),
        after=_commands(section, "post-process"),
        clean=_commands(section, "clean-up"),
        retries=_retries(section.section("retries")),
        limits=read_limits(section.section("limits")))
    section.done()
    if not template.command:
        raise Refusal(f"{section.where} has an empty command (there is nothing to run); write the words of one")
    if template.timeout <= 0:
        raise Refusal(f"{section.where}: the timeout cannot be {template.timeout:g} (it is in seconds, above 0); change it")
    return template



def _texts(section, key):
    value = section.get(key, "a text or a list", [])
    return tuple(map(str, [value] if isinstance(value, str) else value))


def _commands(section, key):
    value = section.get(key, "a text or a list", [])
    return tuple(tuple(words_of(command)) for command in ([value] if isinstance(value, str) else value))


def read_launcher(section):
    value = section.get("launcher", "a text or a mapping", "local")
    inner = Section({"kind": value} if isinstance(value, str) else value, f"{section.where}, launcher")
    launcher = Launcher(inner.get("kind", "a text"), tuple(words_of(inner.get("options", "a text or a list", []))),
                        inner.get("network", "a text", "flat"),
                        *[value_text(inner.get(key, "a text or a number", other)) for key, other in
                          (("bandwidth", ""), ("latency", ""), ("loss", ""), ("per-host", "1"), ("servers", "0"))])
    if launcher.kind == "kubernetes":
        launcher = OnKubernetes(*dataclasses.astuple(launcher), *[inner.get(key, "a text", other) for key, other in (
            ("image", ""), ("namespace", "default"), ("volume", ""), ("mount", ""), ("secret", ""), ("pull-secret", ""), ("data", ""), ("data-mount", ""))],
            inner.get("elastic", "true or false", False))
        if not launcher.image or bool(launcher.volume) != bool(launcher.mount) or bool(launcher.data) != bool(launcher.data_mount):
            raise Refusal(f"{section.where}: the launcher kubernetes needs image, volume with mount (a claim, and the folder where pods and this "
                          "machine have it), and data with data-mount; write such as image: registry/muster:1, volume: muster-results, mount: /results")
    inner.done()
    if launcher.kind not in LAUNCHERS:
        raise Refusal(f"{section.where} has the unknown launcher '{launcher.kind}' (known: {listed(LAUNCHERS)}); "
                      f"{closest(launcher.kind, LAUNCHERS, 'use one of these')}")
    if launcher.kind == "simgrid" and not (launcher.bandwidth and launcher.latency):
        raise Refusal(f"{section.where}: the launcher simgrid needs bandwidth and latency (of the links of its hosts); write "
                      "such as bandwidth: 10G, latency: 5e-6")
    return launcher


def read_resources(section):
    resources = Resources(section.get("cpus-per-rank", "a number", 1), section.get("gpus-per-rank", "a whole number", 0),
                          section.get("hold", "true or false", False), bytes_of(section.get("memory", "a text or a whole number", 0), f"{section.where}: 'memory'"))
    section.done()
    if resources.cpus_per_rank <= 0 or resources.gpus_per_rank < 0:
        raise Refusal(f"{section.where}: there cannot be {resources.cpus_per_rank} cpus-per-rank and {resources.gpus_per_rank} gpus-per-rank (above 0, 0 or "
                      "more); change it")
    return resources


def _retries(section):
    on = section.get("on", "a list", ["crash", "timeout"])
    retries = Retries(section.get("attempts", "a whole number", 1), tuple(on), float(section.get("wait", "a number", 0)))
    section.done()
    for kind in retries.on:
        if kind not in FAILURES:
            raise Refusal(f"{section.where}: 'on' has the unknown failure '{kind}' (known: {listed(FAILURES)}); "
                          f"{closest(kind, FAILURES, 'use one of these')}")
    if not 1 <= retries.attempts <= 100:
        raise Refusal(f"{section.where}: attempts cannot be {retries.attempts} (it is 1 to 100); change it")
    return retries


def read_limits(section):
    limits = Limits(bytes_of(section.get("log", "a text or a whole number", "64M"), f"{section.where}: 'log'"),
                    bytes_of(section.get("disk", "a text or a whole number", "2G"), f"{section.where}: 'disk'"))
    section.done()
    return limits


def _readers(section):
    for number, entry in enumerate(section.get("read", "a list", []), 1):
        inner = Section(entry, f"{section.where}, read {number}")
        kinds = [kind for kind in ("tracker", "benchmark", "log") if isinstance(entry, dict) and kind in entry]
        if len(kinds) != 1:
            raise Refusal(f"{inner.where} has no reader (tracker, benchmark or log is needed); "
                          "write such as tracker: '{output}/tracker.json'")
        kind = kinds[0]
        if kind == "log":
            file, patterns, series = _log_reader(inner)
            yield Reader("log", file=file, patterns=patterns, series=series)
        else:
            rows = inner.get("rows", "a text", "") if kind == "benchmark" else ""
            yield Reader(kind, file=inner.get(kind, "a text"), rows=_compiled(rows, inner.where))
        inner.done()


def _log_reader(inner):
    file = inner.get("file", "a text", "")
    patterns = []
    for name, value in inner.free("log").items():
        where = f"{inner.where}, {name}"
        one = Section({"pattern": value} if isinstance(value, str) else value, where)
        take = one.get("take", "a text", "last")
        pattern = Pattern(name, _compiled(one.get("pattern", "a text"), where), take,
                          one.get("required", "true or false", True))
        one.done()
        if take not in TAKES:
            raise Refusal(f"{where} takes '{take}' (known: {listed(TAKES)}); {closest(take, TAKES, 'use one of these')}")
        if take != "count" and re.compile(pattern.regex).groups != 1:
            raise Refusal(f"{where}: the pattern '{pattern.regex}' has {re.compile(pattern.regex).groups} groups (the "
                          "number is what its one group matches); put ( ) around the number alone")
        patterns.append(pattern)
    series = _compiled(inner.get("series", "a text", ""), f"{inner.where}, series")
    if series and not re.compile(series).groupindex:
        raise Refusal(f"{inner.where}: the series has no named groups (they name its columns); "
                      "write such as epoch (?P<epoch>\\d+) loss (?P<train_loss>\\S+)")
    return file, tuple(patterns), series


def _compiled(regex, where):
    try:
        re.compile(regex)
    except re.error as error:
        raise Refusal(f"{where}: '{regex}' is no regular expression ({error}); mend it") from error
    return regex
