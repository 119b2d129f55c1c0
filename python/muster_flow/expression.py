"""Names and conditions in the form of Argo. A condition is an expression in which results are values: their content is never a part of its text."""
import dataclasses
import re

from muster_bench.errors import Refusal
from muster_bench.text import fill, value_text
from . import conditions

MARK = "\x01"   # around an expression, until the constants beside it are quoted


def parameter_name(name):
    """Returns a name of a parameter of Argo, which has letters, digits, - and _. Different names stay different."""
    return re.sub("[^A-Za-z0-9-]", lambda match: f"_{ord(match.group()):x}_", name)


def with_task_names(flow):
    """Returns the workflow with names of steps that are names of tasks of Argo, which have letters, digits and -."""
    names = {name: name.replace("_", "-") for name in flow.steps}
    if twice := next((name for name in names if list(names.values()).count(names[name]) > 1), None):
        raise Refusal(f"step '{twice}' has the same name as another step in Argo, '{names[twice]}' (a name has no _ there); rename one")
    steps = {names[name]: dataclasses.replace(step, name=names[name], needs=[names[need] for need in step.needs]) for name, step in flow.steps.items()}
    return dataclasses.replace(flow, steps=steps)


def literal(text):
    """Returns a text of the language expr. Escapes stand for all signs of expressions and of templates."""
    def one(character):
        if re.match("[A-Za-z0-9 .-]", character):
            return character
        return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
    return f"'{''.join(map(one, text))}'"


def condition(step, value_of):
    """Returns the condition of a step. `value_of` gives the expression for the result at a path."""
    where = f"step '{step.name}'"
    values = {**{name: value_text(value) for name, value in step.parameters.items()}, **{name: f"{MARK}{value_of(path)}{MARK}" for name, path in step.taken.items()}}
    alternatives = conditions.parts(step.when, where)
    return "{{=" + " || ".join(" && ".join(_compared(*(fill(side, values, where).strip() for side in (left, right)), operator, where) for left, operator, right in each)
                               for each in alternatives) + "}}"


def _text(side):
    """Returns the expression of one side, whose odd pieces are expressions."""
    pieces = [piece if number % 2 else literal(piece) for number, piece in enumerate(side.split(MARK)) if piece]
    return f"({' + '.join(pieces)})" if len(pieces) > 1 else "".join(pieces) or literal("")


def _compared(left, right, operator, where):
    """Returns a comparison. Argo evaluates a part of an expression with ? and : alone, so there is none."""
    sides = [(side, _text(side)) for side in (left, right)]
    for side, _ in sides:
        if operator in conditions.ORDERED and MARK not in side and conditions.number(side) is None:
            raise Refusal(f"{where}: 'when' cannot compare '{side}' by {operator} (it is no number); compare texts by == or !=")
    numbers = " && ".join(f"({text} matches {literal(conditions.NUMBER.pattern)})" for side, text in sides if MARK in side)
    one, other = (f"asFloat({text})" for _, text in sides)
    if operator in conditions.ORDERED:
        return f"{one} {operator} {other}"
    if any(MARK not in side and conditions.number(side) is None for side, _ in sides):   # a text on one side
        return f"{sides[0][1]} {operator} {sides[1][1]}"
    same = f"({numbers} && {one} == {other} || !({numbers}) && {sides[0][1]} == {sides[1][1]})" if numbers else f"({one} == {other})"
    return same if operator == "==" else f"!{same}"
