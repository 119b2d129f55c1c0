#!/usr/bin/env python3
"""Measures the English of comments, printed texts and manual, and the names in the code.

    words.py ROOT                checks every budget; exits 1 and names the files with the most findings if one is exceeded
    words.py ROOT --worst N      also prints the N sentences with the most findings
    words.py --spelling ROOT     runs codespell over the same files; SKIPPED without codespell
    words.py --self-test         shows that every rule matches its example

A rule is a construction that makes a text hard to read for readers of other code bases, and its budget is a rate per 1,000
words: the upper end of the rates in the comments of KaMPIng, Gloo, Aluminum, Ginkgo, Celeritas, spdlog, stdexec, PCCL and
Taskflow. A single finding is no fault; a page with many findings is."""
import argparse
import collections
import pathlib
import re
import shutil
import subprocess
import sys

# (name, pattern, findings per 1,000 words at most, an example). "(?-i:" patterns that open a sentence need their capital.
START = r"(?:^|(?<=[.;:] ))"
RULES = (
    ("free relative", r"\bwhat (?:it|is|has|was|were|a|an|the|this|they|comes|came|there|other|others|that|each|does|do|can|makes|goes|"
     r"follows|ranks?|workers?|of)\b", 0.4, "sends what it has"),
    ("pronoun as head", r"\b(?:ones?|those|that) (?:that|of|which|with|in|from|to|by|for|behind|before)\b", 1.1, "the one that waits"),
    ("of it", r"\bof (?:it|them|these|those|which|that|this|all|one|its|each)\b", 3.6, "the size of it"),
    ("sentence opens with a preposition", START + r"(?-i:Of|By|To|From|Behind|Where|As)\b", 0.9, "Of all ranks, rank 0 waits"),
    ("sentence opens with a pronoun", START + r"(?-i:What|Which|How|Ones?|Those|That|Whether)\b", 1.0, "What arrives is kept"),
    ("everyday verb for an event", r"\b(?:goes|comes|came|lies|stands|hears?|heard|says?|said|tells?|told|speaks?|gives? (?:up|back)|"
     r"takes? back|wants?)\b", 1.2, "the server hears a worker"),
)
# Identifiers that do not name their content, and the maximum of their uses in include and src together.
VAGUE_NAMES = ("what", "how", "its", "said", "told", "came", "one", "made", "such")
VAGUE_LIMIT = 100

CODE = tuple(f"{folder}/**/*.{kind}" for folder in ("include", "src", "examples", "bench", "tests") for kind in ("hpp", "cpp", "cu"))
PROGRAMS = tuple(pattern for pattern in CODE if not pattern.startswith("tests"))
PYTHON = tuple(f"{folder}/**/*.py" for folder in ("bench", "tests", "tools", "python", "examples"))
MANUAL = ("docs/*.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
# Misspelt on purpose, by tests of suggestions; then words after \n in texts that tests parse.
SPELLING = "tranport,lable,addd,wieght,konstant,acuracy,nin,nnumber"

TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|R\"(?P<raw>\w*)\(.*?\)(?P=raw)\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def files_of(root, patterns):
    return sorted({file for pattern in patterns for file in pathlib.Path(root).glob(pattern) if file.is_file()})


def comments_of(text):
    """Returns the comments of C++ code as a list of blocks: comments on consecutive lines are one block."""
    blocks, end = [], -1
    for match in TOKEN.finditer(text):
        if not match.group().startswith("/"):
            continue
        words = re.sub(r"^/[/*][/*!]?<?|\*/$|\n\s*\*", " ", match.group()).strip()
        if blocks and not text[end:match.start()].strip() and text.count("\n", end, match.start()) == 1:
            blocks[-1] += " " + words
        else:
            blocks.append(words)
        end = match.end()
    return blocks


def literals_of(text):
    """Returns string literals with at least four words; adjacent literals are joined."""
    joined = re.sub(r'"\s*\n\s*"', "", re.sub(r"//.*", "", text))
    return [words for words in re.findall(r'"((?:[^"\\\n]|\\.)*)"', joined) if len(re.findall(r"[A-Za-z]{2,}", words)) > 3]


def python_of(text):
    return re.findall(r'"""(.*?)"""', text, re.S) + re.findall(r"(?m)(?:^|\s)#(?!!)\s?(.+)$", text)


def manual_of(text):
    """Returns the paragraphs and table cells of a page, without code."""
    text = re.sub(r"`[^`]*`", "X", re.sub(r"```.*?```", " ", text, flags=re.S))
    paragraphs = [part.replace("\n", " ") for part in re.split(r"\n\s*\n", text) if not part.lstrip().startswith(("|", "    "))]
    return paragraphs + [cell for line in text.splitlines() if line.startswith("|") for cell in line.strip("|").split("|")]


SECTIONS = (("comments of C++", CODE, comments_of), ("texts that programs print", PROGRAMS, literals_of),
            ("comments of Python", PYTHON, python_of), ("manual", MANUAL, manual_of))


def measure(root, patterns, blocks_of):
    """Returns (words, {rule: {file: findings}}, [(findings per word, file, sentence)]) of the files that match."""
    total, found, sentences = 0, collections.defaultdict(collections.Counter), []
    for file in files_of(root, patterns):
        path = file.relative_to(root).as_posix()
        for block in blocks_of(file.read_text(errors="replace")):
            total += len(re.findall(r"[A-Za-z']+", block))
            for sentence in re.split(r"(?<=[.])\s+", block):
                count = 0
                for name, pattern, _, _ in RULES:
                    number = len(re.findall(pattern, sentence, re.I))
                    found[name][path] += number
                    count += number
                if count > 1:
                    sentences.append((count / max(8, len(sentence.split())), path, sentence.strip()))
    return total, found, sorted(sentences, reverse=True)


def vague_names(root):
    """Returns {file: uses of vague names} in the code of include and src; std::exception::what() is not counted."""
    uses = collections.Counter()
    for file in files_of(root, [pattern for pattern in CODE if pattern.startswith(("include", "src"))]):
        code = TOKEN.sub(" ", file.read_text())
        names = re.findall(r"\b[A-Za-z_]\w*\b(?!\s*\(\)\s*const noexcept)", re.sub(r"(?:\.|->)what\(\)", "", code))
        uses[file.relative_to(root).as_posix()] += sum(name in VAGUE_NAMES for name in names)
    return uses


def check(root, worst):
    failed = False
    for title, patterns, blocks_of in SECTIONS:
        total, found, sentences = measure(root, patterns, blocks_of)
        print(f"{title}: {total} words")
        for name, _, budget, _ in RULES:
            rate = 1000 * sum(found[name].values()) / max(total, 1)
            most = ", ".join(f"{count} {path}" for path, count in found[name].most_common(3) if count)
            failed |= rate > budget
            print(f"  {rate:5.2f} of {budget} per 1,000 words{' EXCEEDED' if rate > budget else ''}  {name}: {most}")
        for _, path, sentence in sentences[:worst]:
            print(f"    {path}: {sentence}")
    uses = vague_names(root)
    failed |= sum(uses.values()) > VAGUE_LIMIT
    print(f"names {', '.join(VAGUE_NAMES)}: {sum(uses.values())} of {VAGUE_LIMIT}: "
          + ", ".join(f"{count} {path}" for path, count in uses.most_common(5) if count))
    return 1 if failed else 0


def spelling(root):
    if shutil.which("codespell") is None:
        print("SKIPPED: there is no codespell")
        return 0
    files = [str(file.relative_to(root)) for file in files_of(root, MANUAL[:2] + MANUAL[3:] + CODE)]
    return subprocess.run(["codespell", "--ignore-words-list", SPELLING, *files], cwd=root, check=False).returncode


def self_test():
    for name, pattern, _, example in RULES:
        assert re.search(pattern, example, re.I), name
        assert not re.search(pattern, "Returns the number of ranks in the group.", re.I), name
    assert re.search(RULES[4][1], "It waits. What arrives is kept", re.I) and not re.search(RULES[4][1], "waits for what arrives", re.I)
    code = 'int a;  // first\nconst char* b = "// text";\n/// second\n/// third\nint c;  /* fourth */\n'
    assert comments_of(code) == ["first", "second third", "fourth"], comments_of(code)
    assert literals_of('f("a word too", "one two "\n  "three four");') == ["one two three four"]
    page = manual_of("a `what is` b\n\n```\nwhat is\n```\n\n| c | d |\n")
    assert [part.strip() for part in page if part.strip()] == ["a X b", "c", "d"], page
    print(f"{len(RULES)} rules match their examples")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--worst", type=int, default=0)
    parser.add_argument("--spelling", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    options = parser.parse_args()
    if options.self_test:
        return self_test()
    return spelling(options.root) if options.spelling else check(options.root, options.worst)


if __name__ == "__main__":
    sys.exit(main())
