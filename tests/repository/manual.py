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
