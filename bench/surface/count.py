#!/usr/bin/env python3
"""Counts lines and names of the README's program, and of the same program with PyTorch's DDP under torchrun and with
Horovod's elastic mode.

Lines are neither blank nor comment only. Names are the distinct names that a program uses from its framework: functions and types
(`muster::arena`, `dist.all_reduce`, imports) and, after the plus, the used members of their objects (`step.update`,
`sampler.set_epoch`). Not counted: the model, the language and its library, names of options and arguments."""
import ast
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
FRAMEWORKS = ("torch", "horovod")
# The objects that belong to the framework; objects of the program (images, labels, data) do not.
OBJECTS = {"model", "optimizer", "sampler", "loader", "state", "loss", "total", "training", "step", "arena"}


def of_cpp(text):
    code = re.sub(r"//[^\n]*", "", text)
    own = {"forward_backward", "loss", "samples"}  # members of the model, in mlp.hpp
    members = {member for owner, member in re.findall(r"\b(\w+)\.(\w+)\(", code) if owner in OBJECTS and member not in own}
    return code, set(re.findall(r"\bmuster::(\w+)", code)), members


def of_python(text):
    code = re.sub(r"^\s*#[^\n]*", "", text, flags=re.M)
    modules, names, members = set(), set(), set()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {(a.asname or a.name) for a in node.names if a.name.startswith(FRAMEWORKS)}
        if isinstance(node, ast.ImportFrom) and node.module.startswith(FRAMEWORKS):
            names |= {a.name for a in node.names}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in inner:
            continue
        path = ast.unparse(node).split(".")
        if path[0] in modules:
            names.add(".".join(path))
        elif path[0] in OBJECTS:
            members |= set(path[1:]) - {"epoch"}  # Horovod's state has the program's own fields
    return code, names, members


print(f"{'':34}{'lines':>6}  names")
for label, path, read in (("muster, examples/mnist/main.cpp", HERE.parent.parent / "examples/mnist/main.cpp", of_cpp),
                          ("PyTorch DDP with torchrun", HERE / "ddp.py", of_python),
                          ("Horovod, elastic", HERE / "horovod_elastic.py", of_python)):
    code, names, members = read(path.read_text())
    lines = sum(1 for line in code.splitlines() if line.strip())
    print(f"{label:34}{lines:6}  {len(names)} + {len(members)}: {' '.join(sorted(names))}; {' '.join(sorted(members))}")
