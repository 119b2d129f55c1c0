"""The contents of the files: services, trainings beside them, and the cores that an account may have."""
import dataclasses
import math
import pathlib

from muster_bench import document
from muster_bench.document import Section
from muster_bench.errors import Refusal

from . import service, training

VERSIONS = {"InferenceService": "serving.kserve.io/v1beta1", "Training": "pool.muster/v1", "ResourceQuota": "v1"}


@dataclasses.dataclass
class Described:
    services: dict    # by their names, like the fields below
    trainings: dict
    limits: dict      # cores of an account

    def limit(self, account):
        return self.limits.get(account, math.inf)


def read(paths, cores):
    """Returns the documents' contents. Refuses services that do not fit on the cores."""
    described = Described({}, {}, {})
    for path in paths:
        for number, each in enumerate(document.load_all(path, "describes services"), 1):
            if each is not None:
                _add(described, Section(each, f"{path}, document {number}"), pathlib.Path(path), cores)
    if not described.services:
        raise Refusal(f"'{paths[0]}' describes no service (it has no InferenceService); add one")
    _fits(described.services.values(), cores, f"{paths[0]}: the services need", "the pool has", "lower minReplicas or a replica's cpu, or give --cores")
    for account, limit in described.limits.items():
        own = [each for each in described.services.values() if each.account == account]
        _fits(own, limit, f"{paths[0]}: the services of the account {account} need", "its ResourceQuota has", "lower minReplicas or a replica's cpu, or raise requests.cpu")
    return described


def _fits(services, cores, needs, there, suggestion):
    """Refuses services whose permanent replicas, or whose largest replica, exceed the cores: a service without
    minReplicas has one replica when requests arrive."""
    always = sum(each.minimum * each.revision.cores for each in services)
    least = max([always, *(each.revision.cores for each in services)])
    if least > cores:
        raise Refusal(f"{needs} {least:g} cores at least (minReplicas, and resources of a replica) and {there} {cores:g}; {suggestion}")


def _add(described, top, path, cores):
    kind = top.get("kind", "a text")
    if kind not in VERSIONS:
        raise Refusal(f"{top.where}: 'kind' cannot be '{kind}' (known: {', '.join(VERSIONS)}); change it")
    if (found := top.get("apiVersion", "a text")) != VERSIONS[kind]:
        raise Refusal(f"{top.where}: 'apiVersion' cannot be '{found}' ({kind} is known of {VERSIONS[kind]}); change it")
    if kind == "ResourceQuota":
        return _add_limit(described.limits, top, path)
    there, entry = (described.services, service.read_one(top, path, cores)) if kind == "InferenceService" else (described.trainings, training.read_one(top, path))
    if entry.name in there:
        raise Refusal(f"{top.where}: the {kind} '{entry.name}' is there twice (names are used to find it); rename one")
    there[entry.name] = entry
    return None


def _add_limit(limits, top, path):
    name, account, notes = service.metadata_of(top, path)
    spec = top.section("spec")
    hard = spec.section("hard")
    if account in limits:
        raise Refusal(f"{top.where}: the account '{account}' has two limits ('{name}' is the second); leave one out")
    limits[account] = service.cores_of(hard, "requests.cpu", None)
    for section in (notes, hard, spec, top):
        section.done()
