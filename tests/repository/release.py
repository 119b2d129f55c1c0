#!/usr/bin/env python3
"""Checks the files of a release: the version is the same everywhere, the changelog is short and has the version, and every
library that muster is built with has its licence in the table of docs/install.md, which Debian's copyright files confirm.

usage: release.py ROOT | release.py --self-test ROOT"""
import pathlib
import re
import shutil
import sys
import tempfile

MOST_LINES = 80  # of CHANGELOG.md
# File, pattern of its version. version.hpp has the version that the others must have.
VERSIONS = (("CITATION.cff", r"^version: (\S+)$"), ("python/pyproject.toml", r'^version = "([^"]+)"$'), ("python/muster_bench/pyproject.toml", r'^version = "([^"]+)"$'),
            ("packaging/changelog", r"\Amuster \(([\d.]+)-\d+\)"), ("CHANGELOG.md", r"^## \[(?:Unreleased\] \()?([\d.]+)"), ("docs/install.md", r"GIT_TAG v([\d.]+)\)"))
TEXTS = {"BSD-3-Clause": "redistributions in binary form must reproduce"}  # of files that do not name the licence
TOOLS = {"g++", "cmake", "make", "pkg-config", "openmpi-bin"}  # they build and launch; nothing of them is linked


def read(root, name):
    return (root / name).read_text(encoding="utf-8")


def version_of(root):
    return ".".join(re.findall(r"#define MUSTER_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", read(root, "include/muster/core/version.hpp")))


def check_versions(root):
    version = version_of(root)
    for name, pattern in VERSIONS:
        found = re.search(pattern, read(root, name), re.M)
        if not found or found[1] != version:
            yield f"{name} has the version {found and found[1]}; include/muster/core/version.hpp has {version}"
    minor = version.rpartition(".")[0]
    for page in [root / "README.md", *(root / "docs").glob("*.md")]:
        for line in re.findall(r"find_package\(muster ([\d.]+)", page.read_text(encoding="utf-8")):
            if line != minor:
                yield f"{page.name} asks for muster {line} by find_package; the version is {version}"
        for package in re.findall(r"libmuster-[a-z]+(\d[\d.]*\d)", page.read_text(encoding="utf-8")):
            if package != minor:
                yield f"{page.name} names a package of version {package}; the version is {version}"
    lines = read(root, "CHANGELOG.md").count("\n")
    if lines > MOST_LINES:
        yield f"CHANGELOG.md has {lines} lines, more than {MOST_LINES}"


def licences(root):
    """Returns the table of docs/install.md: the licence of each package."""
    rows = re.findall(r"^\| `([a-z0-9.+-]+)` \| ([^|]+) \|", read(root, "docs/install.md").partition("## Licences")[2], re.M)
    return dict(rows)


def check_licences(root):
    table = licences(root)
    words = re.search(r"build_packages=\(([^)]*)\)", read(root, "tools/setup.sh"))[1].split()
    for package in sorted({*words} - TOOLS - {*table}):
        yield f"{package} is linked (tools/setup.sh), and has no licence in the table of docs/install.md"
    for package, licence in table.items():
        # An empty package such as libboost-dev depends on the package with the number.
        files = [*pathlib.Path("/usr/share/doc").glob(f"{package.replace('-dev', '[0-9]*-dev')}/copyright"), pathlib.Path("/usr/share/doc") / package / "copyright"]
        texts = [file.read_text(encoding="utf-8", errors="replace").lower() for file in files if file.exists()]
        words = [licence.lower(), *[text for name, text in TEXTS.items() if name == licence]]
        if texts and not any(word in text for word in words for text in texts):
            yield f"docs/install.md gives {package} the licence {licence}, which {files[-1]} does not name"


def findings(root):
    return [*check_versions(root), *check_licences(root)]


def self_test(root):
    """Each change of a copy of the files must be found."""
    changes = (("python/pyproject.toml", 'version = "', 'version = "9.'), ("CITATION.cff", "version: 0", "version: 9"), ("packaging/changelog", "muster (0", "muster (9"),
               ("docs/building.md", "find_package(muster 0", "find_package(muster 9"), ("docs/install.md", "libmuster-core0", "libmuster-core9"),
               ("CHANGELOG.md", "\n", "\n" * 81), ("docs/install.md", "| `zlib1g-dev` | Zlib", "| `zlib1g-dev` | GPL-9"), ("docs/install.md", "| `libpq-dev`", "| `libpq`"))
    for name, old, new in changes:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder)
            for kept in ("include/muster/core/version.hpp", "tools/setup.sh", "README.md", *(file for file, _ in VERSIONS), "docs/building.md"):
                (copy / kept).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / kept, copy / kept)
            text = read(copy, name)
            if old not in text or findings(copy):
                return f"{name} has no '{old}', or is wrong before the change: {findings(copy)}"
            (copy / name).write_text(text.replace(old, new, 1), encoding="utf-8")
            if not findings(copy) and (name, old[:6]) != ("docs/install.md", "| `zli"):  # Debian's file may be missing
                return f"'{new}' in {name} is not found"
    print(f"{len(changes)} changes are found")
    return 0


if sys.argv[1] == "--self-test":
    sys.exit(self_test(pathlib.Path(sys.argv[2])))
wrong = findings(pathlib.Path(sys.argv[1]))
print(version_of(pathlib.Path(sys.argv[1])) if not wrong else f"{len(wrong)} findings")
sys.exit("\n".join(wrong) or 0)
