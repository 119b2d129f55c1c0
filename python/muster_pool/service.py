"""Services from a file: the fields of KServe's InferenceService that have a meaning on one machine."""
import dataclasses
import math
import re

from muster_bench.document import Section
from muster_bench.errors import Refusal
from muster_bench.files import digest_of

REMOTE = ("https://", "http://", "s3://")   # addresses that serve reads
KNATIVE, OWN = "autoscaling.knative.dev/", "pool.muster/"
BALANCE = {"leastconn": "leastconn", "roundrobin": "roundrobin", "hash": "source"}  # with HAProxy's names
# Knative's names of ports; gRPC is h2c
PROTOCOLS = "http1", "h2c"
ANONYMOUS, KEY_HOLDER, QUEUE = 2, 3, 100
CONCURRENCY_TARGET, RATE_TARGET = 100, 200                                          # Knative's defaults


@dataclasses.dataclass(frozen=True)
class Revision:
    """The command of a replica and its resources. Two equal revisions are the same."""
    command: tuple
    environment: dict
    cores: float

    @property
    def id(self):
        return digest_of(dataclasses.astuple(self))[:8]


@dataclasses.dataclass(frozen=True)
class Service:
    name: str
    account: str          # its limit counts
    priority: int         # its replicas' priority for cores
    revision: Revision
    minimum: int
    maximum: int
    metric: str           # concurrency or rps
    target: float         # target of a replica: 70 % of scaleTarget by default
    at_once: int          # containerConcurrency; 0: any number
    timeout: int
    is_grpc: bool         # its replicas serve gRPC, without TLS
    path: str             # a prefix of the service's paths
    canary: int           # per cent of the requests for a new revision at first; None: it replaces the old one
    window: float
    panic_window: float
    panic_threshold: float
    balance: str
    queue: int            # maximum requests that wait, for each class of callers, and for replicas
    anonymous: int        # concurrent requests from callers without a key; 0: any number
    key_holder: int       # concurrent requests for each key
    keys: tuple           # (name, key)
    anonymous_rate: tuple = ()   # (requests, seconds) for each address without a key; empty: any number
    key_rate: tuple = ()         # (requests, seconds) for each key

    @property
    def slots(self):
        """Returns its number of servers in HAProxy: for two revisions and for leaving replicas."""
        return 2 * self.maximum + 2


def metadata_of(top, path):
    """Returns (name, account, annotations): the namespace of a cluster is the account here."""
    metadata = top.section("metadata")
    name = metadata.get("name", "a text")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
        raise Refusal(f"{metadata.where}: 'name' cannot be '{name}' (Kubernetes has small letters, digits and dashes); rename it")
    metadata.where = f"{path}, {name}, metadata"
    account = metadata.get("namespace", "a text", "default")
    metadata.free("labels")
    notes = metadata.section("annotations")
    metadata.done()
    return name, account, notes


def read_one(top, path, cores):
    """Returns the service of a document."""
    name, account, notes = metadata_of(top, path)
    spec = top.section("spec")
    predictor = spec.section("predictor")
    predictor.where = f"{path}, {name}, spec.predictor"
    revision, is_grpc = _revision(predictor, path)
    minimum = number(predictor, "minReplicas", 0, 1000, 1)
    maximum = number(predictor, "maxReplicas", 1, 1000, max(minimum, int(cores / revision.cores), 1))
    if maximum < minimum:
        raise Refusal(f"{predictor.where}: 'maxReplicas' cannot be {maximum} (minReplicas is {minimum}); raise it")
    metric = choice(predictor, "scaleMetric", ("concurrency", "rps"), "concurrency")
    at_once = number(predictor, "containerConcurrency", 0, 100_000, 0)
    total = number(predictor, "scaleTarget", 1, 1_000_000, RATE_TARGET if metric == "rps" else at_once or CONCURRENCY_TARGET)
    if metric == "concurrency" and at_once:
        total = min(total, at_once)
    window = duration(notes, KNATIVE + "window", 6, 3600, 60)
    keys = _keys(notes, path)
    service = Service(
        name=name, account=account, priority=number(notes, OWN + "priority", 0, 1000, 0), revision=revision, minimum=minimum, maximum=maximum, metric=metric, at_once=at_once,
        target=max(total * percentage(notes, "target-utilization-percentage", 1, 100, 70), 0.01),
        timeout=number(predictor, "timeout", 1, 3600, 60), is_grpc=is_grpc, path=_path(notes),
        canary=number(predictor, "canaryTrafficPercent", 0, 100, None),
        window=window, panic_window=window * percentage(notes, "panic-window-percentage", 1, 100, 10),
        panic_threshold=percentage(notes, "panic-threshold-percentage", 110, 1000, 200),
        balance=BALANCE[choice(notes, OWN + "balance", BALANCE, "leastconn")], queue=number(notes, OWN + "queue", 1, 1_000_000, QUEUE),
        anonymous=number(notes, OWN + "anonymous-concurrency", 0, 100_000, ANONYMOUS if keys else 0),
        key_holder=number(notes, OWN + "key-concurrency", 1, 100_000, KEY_HOLDER), keys=keys,
        anonymous_rate=rate(notes, OWN + "anonymous-rate"), key_rate=rate(notes, OWN + "key-rate"))
    if service.key_rate and not keys:
        raise Refusal(f"{notes.where}: '{OWN}key-rate' limits nobody (there are no keys); add {OWN}keys, or use {OWN}anonymous-rate")
    for section in (notes, predictor, spec, top):
        section.done()
    return service


def _revision(predictor, path):
    """Returns (command of a replica, True for gRPC). `serve` serves a model. A single container is allowed, which
    listens on $PORT of 127.0.0.1."""
    containers = predictor.get("containers", "a list", [])
    ports = []
    has_model = predictor.get("model", "a mapping", None) is not None
    if len(containers) + has_model != 1:
        raise Refusal(f"{predictor.where} has {len(containers)} in 'containers' and {'a' if has_model else 'no'} 'model' (it has to be one "
                      "of these); leave the others out")
    if has_model:
        of = predictor.section("model")
        model_format = of.section("modelFormat")
        if (found := model_format.get("name", "a text")) != "muster":
            raise Refusal(f"{model_format.where}: 'name' cannot be '{found}' (here 'serve' serves, which reads muster's models); use containers")
        model_format.done()
        uri = of.get("storageUri", "a text")
        if not uri.startswith(("file://", *REMOTE)):
            raise Refusal(f"{of.where}: 'storageUri' cannot be '{uri}' (models are on this machine or on a server); write such as file:///srv/models or s3://bucket/models")
        models = uri if uri.startswith(REMOTE) else path.parent.absolute() / uri[len("file://"):]
        if not uri.startswith(REMOTE) and not models.is_dir():   # replicas would fail repeatedly
            raise Refusal(f"{of.where}: 'storageUri' cannot be '{uri}' (there is no folder '{models}'); make it, or name the one with the models")
        command = ["serve", "--models", str(models), "--listen", "127.0.0.1:$(PORT)"]
    else:
        of = Section(containers[0], f"{predictor.where}, containers[0]")
        of.get("name", "a text", "")
        of.get("image", "a text", "")   # only for a cluster
        command = texts(of, "command", None)
        ports = [Section(entry, f"{of.where}, ports[{k}]") for k, entry in enumerate(of.get("ports", "a list", []))]
    command += texts(of, "args", [])
    environment = {}
    for number_, entry in enumerate(of.get("env", "a list", [])):
        variable = Section(entry, f"{of.where}, env[{number_}]")
        environment[variable.get("name", "a text")] = variable.get("value", "a text", "")
        variable.done()
    resources = of.section("resources")
    cores = 1.0
    for kind in ("limits", "requests"):   # requests count, as for a scheduler of Kubernetes
        amounts = resources.section(kind)
        amounts.get("memory", "a text", "")
        cores = cores_of(amounts, "cpu", cores)
        amounts.done()
    names = [choice(port, "name", PROTOCOLS, "http1") for port in ports]
    for port in ports:
        port.get("containerPort", "a whole number", 0)   # only for a cluster: the port here is $PORT
    for section in (resources, of, *ports):
        section.done()
    return Revision(tuple(command), environment, cores), "h2c" in names


def _path(notes):
    found = notes.get(OWN + "path", "a text", "")
    if found and not re.fullmatch(r"(/[\w.~-]+)+/?", found):
        raise Refusal(f"{notes.where}: '{OWN}path' cannot be '{found}' (it begins the paths of requests); write such as /package.Service/")
    return found


def cores_of(amounts, key, otherwise):
    """Returns a number of cores. `otherwise` None: the key is required."""
    found = str(amounts.get(key, "a number or a text", otherwise) if otherwise is not None else amounts.get(key, "a number or a text"))
    if not re.fullmatch(r"\d+(\.\d+)?|\d+m", found) or not float(found.rstrip("m")):
        raise Refusal(f"{amounts.where}: '{key}' cannot be '{found}' (it is a number of cores); write such as 1 or 500m")
    return float(found) if found[-1] != "m" else int(found[:-1]) / 1000


def _keys(notes, path):
    file = notes.get(OWN + "keys", "a text", "")
    if not file:
        return ()
    try:
        lines = [line.split() for line in (path.parent / file).read_text().splitlines() if line.strip() and not line.startswith("#")]
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(f"{notes.where}: the keys in '{file}' cannot be read ({getattr(error, 'strerror', error)}); name a file of lines NAME KEY") from error
    names = set()
    for line in lines:
        if len(line) != 2 or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", line[0]) or not re.fullmatch(r"[\x21-\x7e]+", line[1]) or line[0] in names:
            raise Refusal(f"{notes.where}: '{file}' has a line that is no key (of '{line[0]}'); write NAME KEY, each name once")
        names.add(line[0])
    return tuple(map(tuple, lines))


def number(section, key, low, high, otherwise):
    """Returns a whole number; annotations of Kubernetes are texts."""
    found = section.get(key, "a whole number or a text", otherwise)
    if found is None:
        return None
    if not re.fullmatch(r"\d{1,9}", str(found)) or not low <= int(found) <= high:
        raise Refusal(f"{section.where}: '{key}' cannot be '{found}' (it is {low} to {high}); change it")
    return int(found)


def percentage(notes, key, low, high, otherwise):
    return number(notes, KNATIVE + key, low, high, otherwise) / 100


def duration(section, key, low, high, otherwise):
    found = section.get(key, "a text", f"{otherwise}s")
    match = re.fullmatch(r"(\d{1,5})(s|m|h)", found)
    seconds = int(match.group(1)) * {"s": 1, "m": 60, "h": 3600}[match.group(2)] if match else math.nan
    if not low <= seconds <= high:
        raise Refusal(f"{section.where}: '{key}' cannot be '{found}' (it is {low}s to {high}s); write such as 60s")
    return seconds


def rate(notes, key):
    """Returns (requests, seconds) of a text such as 60/m, or ()."""
    found = notes.get(key, "a text", "")
    if not found:
        return ()
    match = re.fullmatch(r"([1-9]\d{0,8})/(s|m|h|d)", found)
    if not match:
        raise Refusal(f"{notes.where}: '{key}' cannot be '{found}' (it is a number of requests in a second, minute, hour or day); write such as 60/m")
    return int(match.group(1)), {"s": 1, "m": 60, "h": 3600, "d": 86400}[match.group(2)]


def choice(section, key, known, otherwise):
    found = section.get(key, "a text", otherwise)
    if found not in known:
        raise Refusal(f"{section.where}: '{key}' cannot be '{found}' (known: {', '.join(known)}); choose one of these")
    return found


def texts(section, key, otherwise):
    found = section.get(key, "a list", otherwise) if otherwise is not None else section.get(key, "a list")
    for entry in found:
        if not isinstance(entry, str):
            raise Refusal(f"{section.where}: '{key}' cannot have '{entry}' (it is no text); put it in quotes")
    return list(found)
