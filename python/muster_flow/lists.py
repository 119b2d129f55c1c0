"""The form of a fan-out in the file of a workflow, and of its list."""
import re

from muster_bench.errors import Refusal, closest, listed
from muster_bench.text import PLACEHOLDER, value_text

REFERENCE = re.compile(r"\{([\w-]+)\.([\w-]+)\}")


def check_fan_out(section, reference, own):
    if not REFERENCE.fullmatch(reference):
        raise Refusal(f"{section.where}: 'each' cannot be '{reference}' (it is a mapping, or the output of a step that makes it: {{step.output}}); change it")
    if not section.get("wait", "true or false", True):
        raise Refusal(f"{section.where} is a fan-out and is not waited for (its services would have one address); leave wait: false out")
    for name, path in section.free("outputs").items():
        used = {match.group(2) for match in PLACEHOLDER.finditer(value_text(path))}
        if "each" not in used or used & own.keys() - {"each"}:
            raise Refusal(f"{section.where}: the output '{name}' cannot be '{path}' (its list is not known before, so its names are by {{each}} alone); write such as models/{{each}}")


def entries_of(entries, free, where):
    """Returns the list of a fan-out: the parameters of each step by its name."""
    if not isinstance(entries, dict) or not entries:
        raise Refusal(f"{where}: 'each' is {'empty' if entries == {} else value_text(entries)[:60]} (its list is a JSON object of at least one step, "
                      'with its parameters); write such as {"a": {"n": 1}}')
    for name, values in entries.items():
        if unknown := [key for key in values if key not in free] if isinstance(values, dict) else []:
            raise Refusal(f"{where}, each: '{name}' has '{unknown[0]}' (the step has the parameters: {listed(free)}); {closest(unknown[0], free, 'leave it out')}")
        if isinstance(values, dict) and (wrong := next((key for key, value in values.items() if isinstance(value, (dict, list)) or "\n" in str(value)), None)):
            raise Refusal(f"{where}, each: '{wrong}' of '{name}' cannot be {value_text(values[wrong])[:60]!r} (it is a text in one line or a number); change it")
    return entries
