#!/usr/bin/env python3
"""Counts the public names of include/muster that have no documentation comment; every name must have one.

    documented.py ROOT         prints each as file:line: name, and exits 1 if there is any
    documented.py --ctags ROOT prints each public name that Universal Ctags does not find, and exits 1 if there is any
    documented.py --self-test  shows that a name without a comment is found, and others are not

Doxygen reads the headers. A comment covers the declarations below it up to the next blank line, and an enumeration's comment its
enumerators. Left out are private names, names in a namespace detail, overriding functions (the overridden one has the comment),
deleted and defaulted functions, destructors, and functions with the name and meaning of the standard library's (STANDARD)."""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import scan  # noqa: E402  (beside this file)

STANDARD = {"begin", "end", "data", "size", "empty", "at", "front", "back", "get", "reset", "what", "swap", "operator[]", "operator*", "operator->",
            "operator==", "operator!=", "operator<=>", "operator bool", "operator=", "to_string"}


def doxygen(root, folder):
    """Returns the XML that Doxygen writes for the headers, with the configuration of the repository."""
    configuration = (pathlib.Path(__file__).resolve().parents[2] / "tools" / "Doxyfile").read_text()
    subprocess.run(["doxygen", "-"], cwd=root, check=True, text=True, stdout=subprocess.DEVNULL,
                   input=f"{configuration}\nOUTPUT_DIRECTORY = {folder}\nGENERATE_XML = YES\nHIDE_UNDOC_CLASSES = NO\n")
    return sorted(set(pathlib.Path(folder, "xml").glob("*.xml")) - {pathlib.Path(folder, "xml", "index.xml")})


def has_comment(entity):
    return any("".join(found.itertext()).strip() for part in ("briefdescription", "detaileddescription") if (found := entity.find(part)) is not None)


def stands_below_comment(lines, number):
    """Returns true if a comment precedes this line without a blank line between."""
    for line in reversed(lines[:number - 1]):
        text = line.strip()
        if text.startswith("///") or "///<" in text:
            return True
        if not text or text.startswith("//") or re.match(r"(public|private|protected):", text):
            return False
    return False


def needs_none(member, scope):
    name, arguments = member.findtext("name"), (member.findtext("argsstring") or "").replace(" ", "")
    return (name.startswith("~") or name in STANDARD or arguments.endswith(("=delete", "=default", "override")) or member.find("reimplements") is not None
            or (name == scope and arguments in ("()", "()noexcept")))


def public_names(root):
    """Returns [(file, line, name, True with a comment)] of the public names below include/muster."""
    with tempfile.TemporaryDirectory(prefix="muster-documented-") as folder:
        compounds = [compound for file in doxygen(root, folder) for compound in xml.parse(file).getroot().iter("compounddef")]
    kinds = {"class", "struct", "union", "namespace", "concept"}
    hidden = [c.findtext("compoundname") for c in compounds if c.get("kind") in kinds and c.get("prot") in ("private", "protected")]
    texts, found = {}, []

    def look(entity, name):
        where = entity.find("location")
        file, line = where.get("declfile") or where.get("file"), int(where.get("declline") or where.get("line"))
        text = pathlib.Path(root, "include", file).read_text()
        if scan.is_internal(file.removeprefix("muster/"), scan.code_of(text)):
            return
        lines = texts.setdefault(file, text.splitlines())
        found.append((file, line, name, has_comment(entity) or stands_below_comment(lines, line)))

    for compound in compounds:
        scope = compound.findtext("compoundname")
        if compound.get("kind") not in kinds or "detail" in scope.split("::") or any(f"{scope}::".startswith(f"{outer}::") for outer in hidden):
            continue
        if compound.get("kind") != "namespace":
            look(compound, scope)
        for member in compound.iter("memberdef"):
            if member.get("prot") == "public" and member.get("kind") != "friend" and not needs_none(member, scope.split("::")[-1]):
                look(member, f"{scope}::{member.findtext('name')}")
    return found


def unknown_to_ctags(root, names):
    """Returns the public names that Universal Ctags does not find in the file that declares them."""
    listed = subprocess.run(["ctags", "-R", "--output-format=json", "--fields=NF",
                             "-f", "-", "include"], cwd=root, check=True, text=True, stdout=subprocess.PIPE).stdout
    tags = {(tag["path"].removeprefix("include/"), tag["name"]) for tag in map(json.loads, listed.splitlines()) if "path" in tag}
    return [(file, line, name) for file, line, name, _ in names
            if (file, re.sub(r"<.*>$", "", name.split("::")[-1])) not in tags and not re.search(r"operator|::(explicit|bool)$", name)]


def self_test():
    text = """#pragma once
namespace muster { inline namespace v0 {
/// A point.
struct point {
  double x = 0;  ///< to the right
  double y = 0;

  double z = 0;
  /// Its length.
  [[nodiscard]] double length() const;
  [[nodiscard]] double square() const;
  point(const point&) = delete;

 private:
  double secret_ = 0;
};
namespace detail {
void inner();
}

void outer();
}}  // namespace muster::v0
"""
    with tempfile.TemporaryDirectory() as root:
        file = pathlib.Path(root, "include", "muster", "point.hpp")
        file.parent.mkdir(parents=True)
        file.write_text(text)
        names = public_names(root)
        found = sorted(name[:3] for name in names if not name[3])
    assert [name.replace("::v0", "") for _, _, name in found] == ["muster::point::z", "muster::outer"], found
    assert len(names) == 7, names
    print("a name without a comment is found, others are not")


if __name__ == "__main__":
    if shutil.which("doxygen") is None:
        print("SKIPPED: there is no doxygen")
        sys.exit(0)
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    by_ctags = sys.argv[1:2] == ["--ctags"]
    if by_ctags and shutil.which("ctags") is None:
        print("SKIPPED: there is no ctags")
        sys.exit(0)
    checked = public_names(sys.argv[-1])
    missing = unknown_to_ctags(sys.argv[-1], checked) if by_ctags else sorted({name[:3] for name in checked if not name[3]})
    fault = "is not found by ctags" if by_ctags else "has no comment"
    print("\n".join(f"include/{file}:{line}: {name} {fault}" for file, line, name in missing))
    print(f"{len(missing)} of {len(checked)} public names: {fault}")
    sys.exit(1 if missing else 0)
