#!/usr/bin/env python3
"""Checks the manual as a whole: links, the order of pages, and code that a test compiles.

    manual.py ROOT           prints each finding, and exits 1 if there is any
    manual.py --cut ROOT OUT writes each piece of C++ of a page but its first program as OUT/<page>_<number>.inc, for tests/manual/fragments.cpp
"""
import pathlib
import re
import sys


def blocks(text):
    """Returns the C++ of a page without complete programs (those are built and run): number -> code."""
    found = re.findall(r"^```cpp\n(.*?)^```", text, re.S | re.M)
    return {number: code for number, code in enumerate(found) if not (code.startswith("#include") and "int main(" in code)}


def anchors(text):
    """Returns the anchors of a page's headings, in the form of GitHub and mkdocs."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).strip().lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}


# Paths that exist in a clone but not in an installation, in a block of commands or in a command within a sentence.
OF_CLONE = re.compile(r"(?:^|[\s(])(?:\./)?(?:bench|build|examples|packaging|tests|tools)/[\w.*{-]")
NEEDS_CLONE = "Commands with paths such as `PATH` run in a [clone of muster](building.md#from-a-clone): an installed muster has no such folders."


def commands(text):
    """Yields the lines of a page's blocks except C++ blocks, and the commands that its sentences quote."""
    for language, block in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.S | re.M):
        if language != "cpp":
            yield from block.splitlines()
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.S | re.M)
    yield from (line for line in text.splitlines() if line.startswith("    "))
    yield from (quoted for quoted in re.findall(r"`([^`\n]+)`", text) if re.match(r"(/?[\w/]*python3 )?(build|bench)/\S+", quoted) and (" " in quoted or quoted.startswith("build/")))


def says_clone(text):
    """Returns true if the page has the sentence about commands that need a clone."""
    wanted = re.escape(NEEDS_CLONE).replace("PATH", "[a-z/]+").replace("\\ ", "\\s+").replace("building", "(docs/)?building")
    return re.search(wanted, text) is not None


def problems(root):
    docs = root / "docs"
    pages = sorted(docs.glob("*.md"))
    for page in [*pages, root / "README.md", root / "CONTRIBUTING.md"]:
        name, text = page.relative_to(root).as_posix(), page.read_text()
        plain = re.sub(r"`(?:[^`\n]|\n(?!\n))*`", "", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M))
        for target in re.findall(r"\]\(([^)\s]+)\)", plain):
            if target.startswith(("http:", "https:")):
                continue
            file, _, anchor = target.partition("#")
            to = (page.parent / file).resolve() if file else page
            if not to.exists():
                yield f"{name} links {target}, which is not there"
            elif anchor and anchor not in anchors(to.read_text()):
                yield f"{name} links {target}, but that page has no such heading"
    for page in [*pages, root / "README.md"]:
        text = page.read_text()
        needs = [line.strip() for line in commands(text) if OF_CLONE.search(line)]
        if needs and page.name != "building.md" and not says_clone(text):
            yield f"{page.relative_to(root)}: `{needs[0]}` needs a clone, which the page does not say ({NEEDS_CLONE})"
    order, index = (root / "mkdocs.yml").read_text(), (docs / "index.md").read_text()
    for page in pages:
        if f"docs/{page.name}" not in order:
            yield f"mkdocs.yml does not list docs/{page.name}"
        if page.name != "index.md" and f"]({page.name})" not in index:
            yield f"docs/index.md does not list {page.name}"
    compiled = (root / "tests" / "manual" / "fragments.cpp").read_text()
    for page in pages:
        for number in blocks(page.read_text()):
            if f'#include "{page.stem}_{number}.inc"' not in compiled:
                yield f"docs/{page.name}: no test compiles its C++ block {number + 1} (add it to tests/manual/fragments.cpp)"


def cut(root, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted((root / "docs").glob("*.md")):
        for number, code in blocks(page.read_text()).items():
            file = folder / f"{page.stem}_{number}.inc"
            if not file.exists() or file.read_text() != code:
                file.write_text(code)


if __name__ == "__main__":
    if sys.argv[1] == "--cut":
        sys.exit(cut(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])))
    findings = list(problems(pathlib.Path(sys.argv[1]).resolve()))
    print("\n".join(findings) or "every link has its target, every page its place, all code a test")
    sys.exit(1 if findings else 0)
