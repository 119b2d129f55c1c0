"""Conditions of steps: comparisons of two values, joined by && and ||."""
import re

from muster_bench.errors import Refusal
from muster_bench.text import fill

COMPARED = re.compile(r"\s*(.*?)\s*(==|!=|<=|>=|<|>)\s*(.*?)\s*")
NUMBER = re.compile(r"^([-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?|[-+]?inf|nan)$")   # also in expressions of Argo
ORDERED = {"<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b}


def parts(text, where):
    """Returns the condition as alternatives of comparisons: [[(left, operator, right), ...], ...]."""
    def compared(one):
        match = COMPARED.fullmatch(one)
        if not match or not match.group(1) or not match.group(3):
            raise Refusal(f"{where}: 'when' cannot be '{text}' ('{one.strip()}' compares no two values); write such as {{accuracy}} >= 0.9 && {{kind}} == plain")
        return match.groups()
    return [[compared(one) for one in alternative.split("&&")] for alternative in text.split("||")]


def holds(text, where, values=None):
    """Returns true if the condition holds with the values of its placeholders, which are no operators whatever they
    contain. Numbers are compared as numbers."""
    def filled(side):
        return fill(side, values or {}, where).strip()
    return any(all(_holds(filled(left), operator, filled(right), where) for left, operator, right in alternative) for alternative in parts(text, where))


def _holds(left, operator, right, where):
    one, other = number(left), number(right)
    if operator in ORDERED:
        if one is None or other is None:
            raise Refusal(f"{where}: 'when' cannot compare '{left}' {operator} '{right}' (one of these is no number); compare texts by == or !=")
        return ORDERED[operator](one, other)
    same = left == right if one is None or other is None else one == other
    return same == (operator == "==")


def number(text):
    return float(text) if NUMBER.match(text) else None
