#!/usr/bin/env python3
"""The words of the manual, of comments and of names: a noun for every actor, the field's terms (docs/glossary.md), no metaphors.

    words.py ROOT        prints each finding as file:line: what, and exits 1 if there is any
    words.py --spelling ROOT   runs codespell over the same files; SKIPPED without codespell
    words.py --self-test shows that every rule finds what it is there to find

Code in the manual (between backticks, in blocks) and string literals are not looked at. EXCEPTIONS are the passages that stay."""
import pathlib
import re
import shutil
import subprocess
import sys

# (pattern, what to write instead, a passage that it finds), without regard to case.
BANNED = (
    (r"\b(?:who|whom|whoever)\b", "name the actor: the sender, a rank that ...", "it knows who waits"),
    # "A rank whose lease expired" is fine: the noun is there.
    (r"(?:^|[.:;(]|\b(?:of|is|in|by|at|to|from|with|say|says|know|knows|see|sees|tell|tells|and|or))\s*whose\b", "name the actor: the rank that it is of",
     "it knows whose turn it is"),
    (r"\b(?:nobody|somebody|anybody|everybody|someone|anyone|everyone|no one)\b", "name it: no rank, any thread, all ranks", "nobody waits"),
    (r"\bhow-manieth\b", "the number, the index", "the how-manieth it is"),
    (r"\bsigns? of life\b", "heartbeat", "no sign of life"),
    (r"\bdeal(?:t|s|ing)?\b(?: \w+)? out\b|\b(?:is|are|was|were) dealt\b", "partition, assign", "samples are dealt out"),
    (r"\bchanges? of process\b", "context switch", "two bare changes of process"),
    (r"\bstrangers?\b", "a peer that has not authenticated", "strangers are dropped"),
    (r"\bgood-?byes?\b", "the message that a rank leaves", "it says goodbye"),
    (r"\bverdicts?\b", "decision, failure reason", "the verdict"),
    (r"\bwishes\b|\ba wish\b", "request, hint", "a wish"),
    (r"\bdoz(?:e|es|ing)\b|\bnaps?\b", "sleep", "naps of 1 ms"),
    (r"\bknock(?:s|ed|ing)?\b", "connect, ping", "a client that knocks"),
    (r"\b(?:say|says|said|saying) (?:it )?again\b", "repeat, send again", "it is said again"),
    (r"\b(?:a|no) word of\b", "a message of", "no word of it"),
    (r"\bnonsense\b", "malformed", "it told nonsense"),
)
# Identifiers that nothing is to be called (any more), whole or as a part between underscores.
NAMES = {"building_site", "bury", "condemned", "conductor", "crowded", "door_card", "doze", "epoch_order", "epoch_plan", "forgive", "guests",
         "lane_head", "lobby", "look_for_a_wish", "must_yield", "orphan", "reception", "served_arena", "showcase", "step_memory", "stray",
         "tcp_doors", "text_file", "ticket_word"}

# (file, passage that stays as it is)
EXCEPTIONS = []

PROSE = ("docs/*.md", "README.md", "CONTRIBUTING.md")
CODE = tuple(f"{folder}/**/*.{kind}" for folder in ("include", "src", "examples", "tests", "bench") for kind in ("hpp", "cpp", "cu"))
# Misspelt on purpose, by tests of suggestions; then words behind \n in text that tests parse.
SPELLING = "tranport,lable,addd,wieght,konstant,acuracy,nin,nnumber"


def files_of(root, patterns):
    return sorted(file for pattern in patterns for file in pathlib.Path(root).glob(pattern))


def blanked(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def prose_of(text):
    """A page without its code; lines stay lines."""
    text = re.sub(r"^```.*?^```", blanked, text, flags=re.S | re.M)
    text = re.sub(r"^(?: {4}|\t)(?!\s*[-*] ).*$", blanked, text, flags=re.M) if "\n\n    " in text else text
    return re.sub(r"`(?:[^`\n]|\n(?!\n))*`|\]\([^)\n]*\)", blanked, text)


TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)


def comments_of(text):
    """Only the comments; lines stay lines. Names between backticks in them are code."""
    kept = TOKEN.sub(lambda match: match.group(0) if match.group(0).startswith("/") else blanked(match), text)
    place, out = 0, []
    for match in TOKEN.finditer(kept):
        out.append(re.sub(r"[^\n]", " ", kept[place:match.start()]))
        out.append(match.group(0))
        place = match.end()
    out.append(re.sub(r"[^\n]", " ", kept[place:]))
    return re.sub(r"`[^`\n]*`", blanked, re.sub(r"^([ \t]*)///?<?", lambda m: " " * len(m.group(0)), "".join(out), flags=re.M))


def names_of(text):
    for number, line in enumerate(TOKEN.sub(blanked, text).splitlines(), 1):
        for name in re.findall(r"\b[A-Za-z_]\w*", line):
            if NAMES & set(name.lower().strip("_").split("_")):
                yield number, name


def phrases(lines):
    """Banned passages, also those that go on in the next line, and not those that the line before makes harmless."""
    lines = ["", *(line.strip() for line in lines), ""]
    for number in range(1, len(lines) - 1):
        before, line, after = lines[number - 1:number + 2]
        if not line:
            continue
        text, start = f"{before} {line} {after}", len(before) + 1
        for pattern, instead, _ in BANNED:
            for match in re.finditer(pattern, text, re.I):
                if start <= match.start() < start + len(line) or (not before and match.start() == 0 and match.end() > start):
                    yield number, match.group(0).strip(" .,:;("), instead


def scan(root):
    root, found = pathlib.Path(root), []
    for file in files_of(root, PROSE + CODE):
        path, text = file.relative_to(root).as_posix(), file.read_text()
        for name, passage in EXCEPTIONS:
            if name == path:
                text = text.replace(passage, " " * len(passage))
        kept = prose_of(text) if file.suffix == ".md" else comments_of(text)
        found += [f'{path}:{number}: "{words}" ({instead})' for number, words, instead in phrases(kept.split("\n"))]
        if file.suffix != ".md":
            found += [f"{path}:{number}: the name {name} (docs/glossary.md has the terms)" for number, name in names_of(text)]
    return found


def spelling(root):
    if shutil.which("codespell") is None:
        print("SKIPPED: there is no codespell")
        return 0
    files = [str(file.relative_to(root)) for file in files_of(root, PROSE + CODE)]
    return subprocess.run(["codespell", "--ignore-words-list", SPELLING, *files], cwd=root, check=False).returncode


def self_test():
    for pattern, _, example in BANNED:
        assert any(re.search(pattern, words, re.I) for _, words, _ in phrases(["", example, ""])), pattern
    lines = comments_of('int a;  // who is it\nconst char* b = "// who";  /* nobody */ int who;\n/// `who` is a name\n').split("\n")
    assert [(number, words) for number, words, _ in phrases(lines)] == [(1, "who"), (2, "nobody")], lines
    assert not list(phrases(["A rank whose lease expired, and one", "whose lease did not"]))
    assert [(number, words) for number, words, _ in phrases(["it knows", "whose turn it is"])] == [(1, "knows whose")]
    assert [(number, words) for number, words, _ in phrases(["", "Whose turn it is"])] == [(2, "Whose")]
    assert [words for _, words, _ in phrases(["five signs", "of life"])] == ["signs of life"]
    assert prose_of("who `who`\n\n```\nwho\n```\n[a](who.md)").split() == ["who", "[a"], prose_of("who `who`\n\n```\nwho\n```\n[a](who.md)")
    assert [name for _, name in names_of("int stray_message; // bury\nint straying;")] == ["stray_message"]
    print(f"{len(BANNED)} patterns and the names find what they are there for")


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if sys.argv[1:2] == ["--spelling"]:
        sys.exit(spelling(pathlib.Path(sys.argv[2])))
    findings = scan(sys.argv[1])
    print("\n".join(findings) or "nothing found")
    sys.exit(1 if findings else 0)
