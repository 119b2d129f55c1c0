"""Fan-outs: steps whose number and parameters the result of another step decides. Snakemake's checkpoints hold the rest of the workflow until the
list is known. As a program, python3 -m muster_flow.fan_out DIR STEP HOME writes the steps of the lists that a step has made into the workflow of DIR."""
import fcntl
import json
import pathlib
import sys

from muster_bench import files
from muster_bench.errors import Refusal
from . import steps, workflow
from .store import Store


def read_list(path):
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refusal(f"'{path}' is no list of a fan-out ({error}); write a JSON object such as {{\"a\": {{\"n\": 1}}}}") from None


def expanded(flow, folder):
    """Returns the workflow with the steps of the fan-outs whose lists are up to date."""
    while waiting := [step for step in flow.steps.values() if step.each]:
        store = Store(folder, flow)
        why = store.reasons()
        ready = [step for step in waiting if not why[flow.maker(step.each).name] and (store.folder / step.each).exists()]
        if not ready:
            break
        flow = workflow.with_lists(flow, {step.name: read_list(store.folder / step.each) for step in ready})
    return flow


def expand(folder, name, home):
    """Adds the steps of the lists that the step has made below `home` to the workflow that all processes of a run read."""
    path = pathlib.Path(folder, "flow.json")
    with open(pathlib.Path(folder, "run", ".flow.lock"), "a", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = steps.from_json(path.read_text())
        made = before.steps[name].outputs.values()
        flow = workflow.with_lists(before, {step.name: read_list(pathlib.Path(home, step.each)) for step in before.steps.values() if step.each in made})
        flow.caller = {step.name: before.caller.get(step.name) or before.caller[step.group] for step in flow.steps.values()}
        files.write_whole(path, json.dumps(flow.to_json()), mode=files.PRIVATE)


def as_run(flow, folder):
    """Returns the workflow with the steps of the lists that a run has seen."""
    lists = steps.from_json(pathlib.Path(folder, "flow.json").read_text()).lists
    return flow if lists == flow.lists else workflow.with_lists(flow, lists)


if __name__ == "__main__":
    try:
        expand(*sys.argv[1:])
    except Refusal as refusal:
        sys.exit(f"{refusal}")
