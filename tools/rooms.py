"""The tests for each part of the library, and the programs that they run, for tools/mutate.py."""
import json
import pathlib
import re
import subprocess

# Tiers, each with all tests of the earlier tiers, and the labels of CTest that it leaves out. "room": only the tests in
# ROOMS; the other tiers also run the tests in WIDER.
TIERS = {"room": "^(all|long)$", "default": "^(all|long)$", "all": "^long$"}

# For files whose path begins with the key (the longest match counts): the tests to run with a mutation alone.
ROOMS = {
    "core": "^test_(core|codecs|train):",
    "core/codec": "^test_(codecs|codecs_portable|compress):",
    "core/device": "^test_nccl_(double|device):",
    "core/update": "^test_(core|train|ps_job):",
    "data": "^(test_(data|parquet|pipeline):|data: )",
    "comm": "^test_(comm|registry|no_memory|tcp):",
    "comm/collectives": "^test_(comm|registry):",
    "comm/algorithms": "^test_(comm|registry):",
    "comm/bootstrap": "^test_(store|comm):",
    "comm/bootstrap/stores/etcd": "^test_store:",
    "comm/net": "^test_(net|store|tcp):",
    "comm/transports/nccl": "^test_nccl_(double|device):",
    "comm/transports/mpi": "^comm: (the first|collectives|a program's own|beside a|trouble|rank 0 chooses).*(mpi|own MPI)",
    "comm/transports/shm": "^(test_(comm|no_memory):|comm: (collectives.*shm|memory orders))",
    "comm/transports/tcp": "^test_(tcp|net|comm|store):",
    "comm/transports/hierarchical": "^(test_(comm|tcp):|comm: across hosts.*hierarchical)",
    "serve": "^test_(serve|served):",
    "elastic": "^test_(session|membership|state):",
    "ps": "^test_(ps|ps_job):",
    "train": "^test_(train|gradients|compress|checkpoint|session|state):",
    "train/device": "^test_nccl_(double|device):",
    "programs": "^programs: ",
}
# For the files of a layer: the tests to run if the first tests notice nothing.
WIDER = {
    "core": "^(test_|programs: |manual: |repository: (run|a program that links))",
    "data": "^(test_(session|gradients|nn):|programs: (muster-data|records)|golden: records|manual: data|train: shards|bench: bench_data)",
    "comm": "^(comm: |test_(session|state|gradients|ps_job):|manual: (collectives|rendezvous)|golden: (profile|store)|bench: (bench_(coll|stores)|"
            "compare)|examples: (01|06|07|08|09|ranks))",
    "serve": "^(serve|muster-pool|stacking)",
    "elastic": "^(elastic: |comm: strangers|manual: elastic|examples: 03|train: .*(elastic|killed|shards)|virtual shards|"
               ".*die and join|images: goes on|programs: muster-(info top|launch))",
    "ps": "^(parameter server|golden: tables|manual: parameter_server|examples: 04|bench: bench_ps|train: (workers|an elastic job with servers))",
    "train": "^(train: |test_(nn|nn_double|nn_device|logistic_regression):|manual: gradients|logistic_regression|images: |resnet|virtual|"
             "examples: |parameter server, the examples|bench: |repository: (run|the README's program)|"
             "golden: (checkpoint|model)|platform: (dashboard|ends|fashion|memo|slurm|kube|tune|watch))",
    "programs": "^(elastic: .*launch|comm: strangers|train: .*elastic|parameter server: |muster-pool)",
}
# Tests that no edit of include or src can affect, with the reason.
UNAFFECTED = {
    "^repository: (?!run |the README's program|a program that links)": "reads, compiles or installs; the tests that run what it built are above",
    "^bench: the goals are judged": "judges figures in files",
    "^python: ": "the long tier has them: they fetch packages of Python's index",
    "^(golden: (results|workflow)|platform: (files|secrets|holding|presets|process|progress|runner|kill|hosts|report|reporter|tracker|scaling|verdicts|clusters|"
    "package|flow|fan_out|export|page))": "reads files of Python, or runs scripts of its own in place of muster's programs",
}


def room_of(path):
    """Returns the key of ROOMS for a file such as include/muster/comm/transports/tcp/detail/link-inl.hpp, or None."""
    rest = path.removeprefix("include/muster/").removeprefix("src/").replace("/detail/", "/")
    return max((room for room in ROOMS if rest.startswith(room + "/")), key=len, default=None)


def homeless(names):
    """Returns the names of tests that are neither in a room nor in UNAFFECTED."""
    known = [*ROOMS.values(), *WIDER.values(), *UNAFFECTED]
    return [name for name in names if not any(re.search(some, name) for some in known)]


def properties(test):
    return {item["name"]: item["value"] for item in test.get("properties", [])}


def listed(build):
    """Returns the tests of a build as CTest lists them; a program that is not built has one test without a case."""
    text = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout
    tests = json.loads(text)["tests"]
    written = {}  # CTest lists no command while its program is missing
    for file in pathlib.Path(build).rglob("CTestTestfile.cmake"):
        written |= dict(re.findall(r"^add_test\(\[=\[(.*?)\]=\] (.*)\)$", file.read_text(), re.M))
    for test in tests:
        test.setdefault("command", [written.get(test["name"], "")])
        test["name"] = re.sub(r"_NOT_BUILT-\w+$", ": not built", test["name"])
    return tests


def outputs(build):
    """Returns {file: target} of the files that a configured build makes, by CMake's file API."""
    targets, reply = {}, pathlib.Path(build) / ".cmake/api/v1/reply"
    for file in reply.glob("target-*.json"):
        target = json.loads(file.read_text())
        if "LIBRARY" in target["type"] or target["type"] == "EXECUTABLE":
            targets |= {str(pathlib.Path(build) / artifact["path"]): target["name"] for artifact in target.get("artifacts", [])}
    return targets


def programs_of(tests, chosen, build, targets_of):
    """Returns the targets that the tests with these names run. A folder argument of a test means the programs in it;
    any other path in the build means all programs except the programs of the tests, because the scripts of users may
    run them."""
    by_name = {test["name"]: test for test in tests}
    sets_up = {fixture: name for name, test in by_name.items() for fixture in properties(test).get("FIXTURES_SETUP", [])}
    wanted, seen, left = set(), set(), list(chosen)
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        settings = properties(by_name[name])
        left += [sets_up[fixture] for fixture in settings.get("FIXTURES_REQUIRED", [])]
        if name.endswith(": not built"):
            wanted.add(name.removesuffix(": not built"))
        words = [*by_name[name]["command"], *settings.get("ENVIRONMENT", []), *settings.get("ENVIRONMENT_MODIFICATION", [])]
        for place in re.findall(re.escape(str(build)) + r"[\w./+-]*", "\n".join(words)):
            place = place.rstrip("./")
            beside = {target for file, target in targets_of.items() if file.rpartition("/")[0] == place}
            if place in targets_of:
                wanted.add(targets_of[place])
            else:
                wanted |= beside or {target for file, target in targets_of.items() if not file.startswith(f"{build}/tests/")}
    return wanted
