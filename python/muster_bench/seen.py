"""Dependencies of a command that its file does not declare: files named by its words, modules that its Python programs
import, variables."""
import hashlib
import os
import pathlib
import re
import shutil
import urllib.parse

from .errors import Refusal
from .files import files_under

MOST_FILES = 20_000     # of a folder that a word names
MOST_MODULES = 2_000
DELIMITERS = re.compile(r"[\s'\"`,;:?&|<>()\[\]{}*=#@!$%\\]")
WRITTEN = re.compile(r">[>|&]?\s*[\"']?$")               # redirects the output of a shell's command to the path after it
MODULE = re.compile(r"(?:^|\s)-m\s+([A-Za-z_][\w.]*)")
PROGRAM = re.compile(r"[A-Za-z0-9_.+-]+")
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)")
SYSTEM = ("/bin", "/usr/bin", "/sbin", "/usr/sbin")
SEARCHED = ("PATH", "PYTHONPATH")                        # folders of programs and modules; each file is looked up
GROUPS = ("MUSTER_", "OMP_", "MKL_", "OPENBLAS_", "NCCL_", "CUDA_", "OMPI_MCA_", "UCX_", "TORCH_", "PYTHON", "LD_")
OTHERS = re.compile(r"MUSTER_(FLOW|TEST|BENCH)_|PYTHON(DONTWRITEBYTECODE|UNBUFFERED)$|.*TOKEN")
TOO_LARGE = "too large"


def paths_in(text, places):
    """Yields (path, whether a shell writes to the path) for each absolute path in a text, also after a flag or a scheme. The longest existing path
    counts. A missing path ends before a blank, comma, colon or bracket."""
    at = 0
    while (at := text.find("/", at)) >= 0:
        if text[at:at + 2] == "//" or (re.search(r"[\w.~/-]$", text[:at]) and not any(text.startswith(place, at) for place in places if place != "/")):
            at += 1   # part of an address, or of a path that begins elsewhere
            continue
        rest = text[at:]
        cuts = [len(rest), *(match.start() for match in reversed(list(DELIMITERS.finditer(rest))))]
        length, path = next(((cut, path) for cut in cuts for path in (rest[:cut], urllib.parse.unquote(rest[:cut])) if os.path.lexists(path)),
                            (cuts[-1], rest[:cuts[-1]]))   # in a source of data %20 is a blank
        yield path, bool(WRITTEN.search(text[:at]))
        at += max(length, 1)


def files_named(texts, places, left_out):
    """Returns {name: path} of the files and folders in the texts, without paths for which `left_out(path)` is true. A name begins with its place, so
    that the name stays when the place moves."""
    named = {}
    for text in texts:
        found = [(os.path.normpath(path), written) for path, written in paths_in(text, places.values())]
        own = {path for path, written in found if written}
        for path, _ in found:
            if path in own or path == "/" or path.startswith(("/dev/", "/proc/", "/sys/", "/run/")) or left_out(path):
                continue
            place = max((name for name, where in places.items() if path == where or path.startswith(f"{where}{os.sep}")), key=lambda name: len(places[name]), default=None)
            named[f"{{{place}}}{path[len(places[place]):]}" if place else path] = path
    return named


def digest_of_named(path, digest):
    """Returns digest(path); None for a path without file or folder; TOO_LARGE for a folder of more than MOST_FILES files."""
    try:
        if os.path.isfile(path):
            return digest(path)
        if not os.path.isdir(path):
            return None
        return TOO_LARGE if any(number == MOST_FILES for number, _ in enumerate(files_under(path))) else digest(path)
    except (OSError, Refusal):   # the file was removed, or this user may not read it
        return None


def is_program(path):
    """Returns true if a path is an executable file or a script."""
    return os.path.isfile(path) and (path.endswith((".py", ".sh")) or os.access(path, os.X_OK))


def programs_in(words, search):
    """Returns {word: path} of the programs on the search path: the first word, and each word of the command or of a
    shell's command whose program is located outside the folders of the system."""
    found = {word: shutil.which(word, path=search) for text in words for word in text.split() if PROGRAM.fullmatch(word)}
    return {word: path for word, path in found.items() if path and (word == words[0] or os.path.dirname(path) not in SYSTEM)}


def modules_of(words, files, search):
    """Returns {name: path} of the modules that Python programs import from the program's folder and from the folders of `search`. The programs are
    the files with the suffix .py, and `-m` and `-c` in the words. Installed packages are left out."""
    scripts = [path for path in files if path.endswith(".py")]
    folders = list(dict.fromkeys([*(os.path.dirname(path) for path in scripts), *(os.path.abspath(folder) for folder in search if folder and os.path.isdir(folder))]))
    joined = " ".join(words)
    roots = MODULE.findall(joined) if "python" in joined else []
    if not (scripts or (folders and "python" in joined)):
        return {}
    import ast  # imported here: most steps have no Python
    found, todo = {}, []

    def add(name):
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            for folder in folders:
                plain = os.path.join(folder, *parts[:count])
                ends = (f"{plain}.py", os.path.join(plain, "__init__.py"), *([os.path.join(plain, "__main__.py")] if name in roots else []))
                for path in filter(os.path.isfile, ends):
                    if path not in found.values() and len(found) < MOST_MODULES:
                        found[os.path.relpath(path, folder)] = path
                        todo.append((path, folder))

    def look(source, path, folder):
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return
        package = pathlib.PurePath(os.path.relpath(path, folder)).parent.parts if path else ()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    add(alias.name)
            elif isinstance(node, ast.ImportFrom):
                base = [*package[:len(package) + 1 - node.level]] if node.level else []
                base += node.module.split(".") if node.module else []
                for alias in node.names:
                    add(".".join([*base, alias.name]))
    for name in roots:
        add(name)
    for word, code in zip(words, words[1:]):
        if word == "-c" and "import" in code:
            look(code, None, None)
    for path in scripts:
        todo.append((path, os.path.dirname(path)))
    while todo:
        path, folder = todo.pop()
        try:
            source = pathlib.Path(path).read_bytes()
        except OSError:
            continue
        look(source, path, folder)
    return {name: path for name, path in found.items() if path not in files}


def all_of(command, environment, others, places, declared, own):
    """Returns ({name: path} of files, the same of programs, the same of modules) that a command, its variables and other texts name. Declared paths
    and the folder of results, `own`, are left out."""
    def left_out(path):
        return path in declared or path == own or path.startswith(f"{own}{os.sep}")
    files = files_named([*command, *others, *(text for name, text in environment.items() if name not in SEARCHED)], places, left_out)
    code = {name: path for name, path in files.items() if is_program(path)}
    modules = modules_of(command, [*code.values(), *declared], environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")).split(os.pathsep))
    return {name: files[name] for name in files.keys() - code.keys()}, {**code, **programs_in(command, environment.get("PATH"))}, modules


def digests_of(files, code, modules, digest):
    """Returns these paths as {"files": {name: digest}, "code": ..., "modules": ...}."""
    return {kind: {name: digest_of_named(path, digest) for name, path in sorted(paths.items())}
            for kind, paths in (("files", files), ("code", code), ("modules", modules))}


CHANGED = "changed while it ran"


def kept(then, now):
    """Returns (the dependencies of a result, the files that changed during the run) from the dependencies at the start, `then`, and at the end,
    `now`. The run may have written a file that changed, so the dependencies lack that file. A changed input, program or module has the digest
    CHANGED, so that no later run takes the result."""
    written = sorted(name for name in {*now["files"], *then["files"]} if name not in then["files"] or now["files"].get(name) != then["files"][name])
    others = {kind: {name: digest if now[kind].get(name) == digest else CHANGED for name, digest in then[kind].items()}
              for kind in ("inputs", "code", "modules") if kind in then}
    return {**then, **others, "files": {name: digest for name, digest in then["files"].items() if name not in written}}, written


def not_looked_at(parts, written):
    """Returns a text with the files that may change a result and that no run compares; empty if none is known."""
    texts = [f"{name} ({CHANGED})" for name in written] + [f"{name} ({digest}: more than {MOST_FILES} files)" for name, digest in parts.get("files", {}).items()
                                                                    if digest == TOO_LARGE]
    return ", ".join(texts)


def variables_of(texts, environment, own):
    """Returns {name: digest} of variables from the environment of a command: variables that the texts name, and variables that change how libraries
    compute. Values are left out: a variable may be a secret, and other users may read records."""
    asked = {name for text in texts for name in VARIABLE.findall(text)}
    return {name: hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:16] for name, value in sorted(environment.items())
            if name not in own and not OTHERS.match(name) and (name in asked or name.startswith(GROUPS))}
