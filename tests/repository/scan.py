#!/usr/bin/env python3
"""Scans the sources for rules that a compiler does not check: the layers, vendor headers, the form of headers.

scan.py ROOT        prints each finding as file:line: text, and exits 1 if there is any
scan.py --self-test shows that every rule finds its deliberate violation
"""
import pathlib
import re
import sys
import tempfile

# Each layer may include itself and the layers it is mapped to. data, comm and serve do not know each other.
LAYERS = {"core": [], "data": ["core"], "comm": ["core"], "serve": ["core"]}
LAYERS["testing"] = ["core", "comm"]  # kits for users' types
LAYERS["elastic"] = ["core", "data", "comm"]
LAYERS["ps"] = [*LAYERS["elastic"], "elastic"]
LAYERS["train"] = [*LAYERS["ps"], "ps"]
LAYERS["torch"] = [*LAYERS["train"], "train", "serve"]

# Leaves: only the leaves themselves and the layers mapped to them, which are built with them, include leaves.
LEAVES = {"comm/transports/mpi/": [], "comm/transports/nccl/": ["train/device/"], "comm/bootstrap/tcp_store.hpp": ["comm/bootstrap/stores/tcp/"],
          "comm/bootstrap/etcd_store.hpp": ["comm/bootstrap/stores/etcd/"], "core/device/": ["comm/transports/nccl/", "train/device/"], "train/device/": []}

# Headers that muster.hpp leaves out besides the leaves: headers of parts that are linked only by name, and internals.
LEFT_OUT = ("collectives.hpp", "data.hpp", "train.hpp", "ps.hpp", "elastic.hpp", "data/arrow.hpp", "data/sources/parquet.hpp", "data/sources/postgres.hpp", "comm/algorithms/", "comm/task.hpp",
            "serve/", "testing/", "torch/")

# Rooms of internal headers, which carry no promise: no public header includes them while the library is compiled. So are all
# headers whose names are in a namespace `detail`.
INTERNAL = ("core/inline.hpp", "elastic/membership/", "ps/protocol/", "ps/runtime/", "train/optimizers/optimizer_of.hpp", "train/training_run.hpp")

VENDOR = re.compile(r"^(mpi\.h|nccl\.h|cuda.*\.h|zlib\.h|zstd\.h|libpq-fe\.h|Eigen/|unsupported/Eigen|tbb/|oneapi/|CLI/|nlohmann/|boost/|simdjson\.h|arrow/|parquet/"
                    r"|torch/|ATen/|c10/|catch2/|benchmark/)")
# The headers whose purpose is a vendor's types: a user who includes such a header has that vendor's headers.
VENDOR_LEAVES = ["comm/transports/mpi/", "torch/"]

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def code_of(text):
    """Returns the text without comments and string literals, so that words in them are not found; the lines stay the
    same."""
    def blank(match):
        found = match.group(0)
        return found if found.lstrip().startswith("#") else re.sub(r"[^\n]", " ", found)
    return re.sub(r'^[ \t]*#[ \t]*include[^\n]*|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text,
                  flags=re.S | re.M)


def includes_of(code, compiled=False):
    """Yields (line, quote, name) of each include; with `compiled`, without the definitions that headers alone include."""
    inline = False
    for number, line in enumerate(code.splitlines(), 1):
        if line.startswith(("#ifndef MUSTER_COMPILED", "#if !defined(MUSTER_COMPILED)")):
            inline = True
        elif line.startswith("#endif"):
            inline = False
        elif (match := INCLUDE.match(line)) and not (compiled and inline):
            yield number, match.group(1), match.group(2)


def is_internal(path, code):
    """Whether the header carries no promise: by its folder, or since all its names are in a namespace `detail`."""
    opened = re.findall(r"^(?:inline )?namespace\b.*\{$", code, re.M)
    return path.startswith(INTERNAL) or "detail/" in path or bool(opened) and all("detail" in line for line in opened)


def layer_of(path):
    """Returns "comm" for "comm/group.hpp"; None for muster.hpp and for src/programs, which may use everything."""
    first = path.split("/")[0]
    return first if first in LAYERS else None


def scan(root):
    findings = []
    headers = {}  # "comm/group.hpp" -> its code
    public = root / "include" / "muster"

    for folder in (public, root / "src"):
        for file in sorted(folder.rglob("*")):
            if file.suffix not in (".hpp", ".cpp", ".cu"):
                continue
            path = file.relative_to(folder).as_posix()
            code = code_of(file.read_text())
            if folder == public:
                headers[path] = code

            def report(line, text):
                findings.append(f"{file.relative_to(root)}:{line}: {text}")

            layer = layer_of(path)
            compiled = {line for line, _, _ in includes_of(code, compiled=True)}
            for line, quote, name in includes_of(code):
                if name.startswith("muster/"):
                    target = name[len("muster/"):]
                    if quote == '"':
                        report(line, f'"{name}" is a public header (it is found by path); write <{name}>')
                    if layer:
                        other = layer_of(target)
                        if other is None:
                            report(line, f"{layer} includes <{name}> (it stands above every layer); name what is used")
                        elif other != layer and other not in LAYERS[layer]:
                            report(line, f"{layer} includes {other} (layers look only at those before them)")
                    for leaf, users in LEAVES.items():
                        if target.startswith(leaf) and not path.startswith((leaf, *users)) and layer and line in compiled:
                            report(line, f"<{name}> is in a leaf (nothing else may include it)")
                elif (folder == public and VENDOR.match(name) and not is_internal(path, code)
                      and not any(path.startswith(leaf) for leaf in VENDOR_LEAVES)):
                    report(line, f"public header includes <{name}> (vendors' headers belong in compiled files)")

            if file.suffix == ".hpp":
                if "#pragma once" not in code.splitlines() and not path.startswith("core/detail/exact_"):
                    report(1, "no #pragma once")
                for number, line in enumerate(code.splitlines(), 1):
                    if re.search(r"\busing\s+namespace\b", line):
                        report(number, "using namespace in a header")

    # Headers that muster.hpp reaches through any number of includes.
    reached, waiting = {}, [("muster.hpp", "muster.hpp")] if "muster.hpp" in headers else []
    while waiting:
        path, way = waiting.pop()
        if path in reached:
            continue
        reached[path] = way
        for line, _, name in includes_of(headers.get(path, ""), compiled=True):
            if name.startswith("muster/"):
                target = name[len("muster/"):]
                waiting.append((target, f"{way} -> {target}"))
            elif VENDOR.match(name):
                findings.append(f"include/muster/{path}:{line}: muster.hpp reaches <{name}> ({way})")
    for path in reached:
        if path.startswith(INTERNAL) and path not in ("core/inline.hpp",):
            findings.append(f"include/muster/{path}:1: muster.hpp reaches an internal header ({reached[path]})")
    for path in headers:
        if path not in reached and not path.startswith((*LEFT_OUT, *LEAVES)) and not is_internal(path, headers[path]):
            findings.append(f"include/muster/{path}:1: muster.hpp does not include it (it is a public header); add it")
    return findings


def self_test():
    """Checks every rule against a tree that violates it, and against a tree that does not."""
    good = {
        "include/muster/muster.hpp": "#pragma once\n#include <muster/comm/group.hpp>\n",
        "include/muster/core/error.hpp": "#pragma once\n#include <string>\n// using namespace std; #include <mpi.h>\n",
        "include/muster/comm/group.hpp": "#pragma once\n#include <muster/core/error.hpp>\n",
        "include/muster/comm/transports/mpi/transport.hpp": "#pragma once\n#include <mpi.h>\n#include <muster/comm/group.hpp>\n",
        "include/muster/comm/transports/nccl/communicator.hpp": "#pragma once\n#include <muster/core/error.hpp>\n",
        "include/muster/train/device/sync.hpp": "#pragma once\n#include <muster/comm/transports/nccl/communicator.hpp>\n",
        "src/comm/transports/mpi/transport.cpp": "#include <muster/comm/transports/mpi/transport.hpp>\n#include <mpi.h>\n",
        "src/core/error.cpp": "#include <muster/core/error.hpp>\nusing namespace std::literals;\n",
        "src/programs/info.cpp": "#include <muster/muster.hpp>\n#include <nlohmann/json.hpp>\n",
    }
    bad = {
        "core/lost.hpp:1: muster.hpp does not include it": {"include/muster/core/lost.hpp": "#pragma once\n"},
        "layers look only": {"include/muster/data/d.hpp": "#pragma once\n#include <muster/comm/group.hpp>\n"},
        "stands above every layer": {"include/muster/core/c.hpp": "#pragma once\n#include <muster/muster.hpp>\n"},
        "is in a leaf": {"src/comm/bootstrap/context.cpp": "#include <muster/comm/transports/mpi/transport.hpp>\n"},
        "train/device/arena.hpp> is in a leaf": {
            "include/muster/train/device/arena.hpp": "#pragma once\n#include <muster/comm/transports/nccl/communicator.hpp>\n",
            "include/muster/comm/transports/nccl/communicator.hpp": "#pragma once\n",
            "include/muster/train/detail/arena-inl.hpp": "#include <muster/train/device/arena.hpp>\n"},
        "vendors' headers": {"include/muster/train/t.hpp": "#pragma once\n  # include <Eigen/Core>\n"},
        "muster.hpp reaches <mpi.h> (muster.hpp -> train/all.hpp -> comm/transports/mpi/transport.hpp)": {
            "include/muster/muster.hpp": "#pragma once\n#include <muster/train/all.hpp>\n",
            "include/muster/train/all.hpp": "#pragma once\n#include <muster/comm/transports/mpi/transport.hpp>\n"},
        "no #pragma once": {"include/muster/core/c.hpp": "// #pragma once\n"},
        "using namespace in a header": {"src/core/c.hpp": "#pragma once\nusing  namespace std;\n"},
        "write <muster/core/error.hpp>": {"src/core/c.cpp": '#include "muster/core/error.hpp"\n'},
    }

    def findings_of(files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                file = pathlib.Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return scan(pathlib.Path(folder))

    assert findings_of(good) == [], findings_of(good)
    for text, files in bad.items():
        found = findings_of({**good, **files})
        assert any(text in finding for finding in found), f"not found: {text}; found: {found}"
    print(f"{len(bad)} rules find what they are there for")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        sys.exit(0)
    if len(sys.argv) != 2 or not pathlib.Path(sys.argv[1], "include", "muster").is_dir():
        sys.exit("usage: scan.py ROOT | --self-test (ROOT is the folder that holds include/muster)")
    lines = scan(pathlib.Path(sys.argv[1]))
    print("\n".join(lines) if lines else "nothing found")
    sys.exit(1 if lines else 0)
