#!/usr/bin/env python3
"""Compares docs/architecture.md with the code: its layers equal scan.py's, its files exist, and each has the function named beside it.

    architecture.py ROOT"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import scan  # noqa: E402  (beside this file)


def problems(text, root):
    table = text[text.index("| layer |"):].split("\n\n")[0]
    layers = {row[1]: re.findall(r"\w+", row[2]) for row in re.finditer(r"^\| (?!layer)(\w+) \|([\w, ]*)\|", table, re.M)}
    if layers != scan.LAYERS:
        yield f"its layers are {layers} (tests/repository/scan.py has {scan.LAYERS})"
    for path in set(re.findall(r"`((?:src|include|tools|tests)/[^`]*\.\w+)`", text)):
        if not (root / path).is_file():
            yield f"{path} is not there"
    for path, function in re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", text, re.M):
        last = re.escape(function.replace("\\", "").split("::")[-1])
        scope = "".join(re.escape(part) + "(?:<.*>)?::" for part in function.split("::")[:-1])
        file = root / path
        if file.is_file() and not re.search(rf"(?<!\w){scope}{last}\s*\(", file.read_text()):
            yield f"{path} has no function {function}"


def main():
    root = pathlib.Path(sys.argv[1])
    text = (root / "docs" / "architecture.md").read_text()
    found = sorted(problems(text, root))
    # The check itself: a name that does not exist is found.
    assert any("no function" in problem for problem in problems(text.replace("tcp_socket::try_write", "tcp_socket::try_pull"), root))
    assert any("is not there" in problem for problem in problems(text.replace("tcp/detail/link-inl.hpp", "tcp/detail/links-inl.hpp"), root))
    assert any("layers" in problem for problem in problems(text.replace("| data | core |", "| data | comm |"), root))
    print("\n".join(f"docs/architecture.md: {problem}" for problem in found) or "every name on the page is in the code")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
