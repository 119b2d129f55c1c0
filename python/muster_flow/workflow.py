"""The file of a workflow: its steps, their inputs and outputs, and their order."""
import datetime
import graphlib
import os
import pathlib
import re

from muster_bench.document import Section, load
from muster_bench.errors import Refusal, closest, listed
from muster_bench.template import read_launcher, read_limits, read_resources
from muster_bench.text import PLACEHOLDER, bytes_of, fill, value_text, words_of
from . import conditions
from .lists import REFERENCE, check_fan_out, entries_of
from .remote import is_remote, require_plain
from .steps import PLATFORM, Flow, Step, Training

FORMAT = 1
BUILT_IN = ("each", "ranks", "here", "out", "output", "checkpoint", "resume", "platform", "python")
OWN = {"store", "steps", "run", "metadata.jsonl", "digests.json", "flow.json", "muster-flow.json", "Snakefile", "snakemake.log", ".snakemake", "lock", "watch"}
PERIODS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def seconds_of(value, where):
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", str(value))
    if not match:
        raise Refusal(f"{where} cannot be '{value}' (it is a time: 30s, 5m, 12h, 14d or 2w); change it")
    return float(match.group(1)) * PERIODS[match.group(2)]


def read_file(path, settings=None, places=None, before=None, image=""):
    """Reads and checks the file; an error is one line that names the fault. `before` has the settings and places of an
    earlier run; those that the file no longer has are left out. `image` is the platform's folder in an image, in which the places are."""
    path = pathlib.Path(path).absolute()
    return read(load(path, "describes a workflow"), path, settings, places, before, image)


def read(document, path, settings=None, places=None, before=None, image="", lists=None):
    """Returns the workflow of a document, as read_file() does. `lists` has the lists of fan-outs, by their names."""
    path = pathlib.Path(path)
    top = Section(document, f"'{path.name}'")
    if (version := top.get("muster-flow", "a whole number")) != FORMAT:
        raise Refusal(f"{top.where} has format {version} (this muster-flow reads {FORMAT}); use another muster-flow")
    name = top.get("name", "a text")
    common, known = dict(top.free("parameters")), {"here": path.parent, **top.free("places")}
    given = {"set": settings or {}, "place": places or {}}
    for kind, there in (("set", common), ("place", known)):
        for key in given[kind]:
            if key not in there:
                raise Refusal(f"--{kind} {key} is not in {top.where} (it has: {listed(there)}); {closest(key, there, 'leave it out')}")
        given[kind] = {**{key: value for key, value in (before or {}).get(kind, {}).items() if key in there}, **given[kind]}
        there.update(given[kind])
    known = {key: _place(key, value, top.where, image) for key, value in known.items()}
    shown, keep = top.get("results", "a list", []), _keep(top.section("keep"))
    entries, steps, watch = top.free("steps"), {}, _watch(top.section("watch"), common)
    top.done()
    for group, value in entries.items():
        for step in _read_group(group, value, common, known, lists or {}):
            if step.name in steps:
                raise Refusal(f"{top.where} has two steps called '{step.name}' ({steps[step.name].group} and {group} make them); rename one")
            steps[step.name] = step
    if not steps:
        raise Refusal(f"{top.where} has no steps (there is nothing to run); write one")
    _connect(steps, pathlib.Path(known["here"]))
    return Flow(name, str(path), _ordered(steps), watch, keep, given, _results(shown, steps, top.where, entries), document=document, lists=lists or {})


def with_lists(flow, lists):
    """Returns the workflow with the steps of more fan-outs, whose lists are known."""
    return read(flow.document, flow.path, flow.given["set"], flow.given["place"], lists={**flow.lists, **lists})


def _place(key, value, where, image):
    """Returns the path of a place. The first that exists of several is the place, so that one file serves a clone, an installation and an image, which
    has the paths below the platform."""
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, (str, pathlib.Path)):
            raise Refusal(f"{where}, places: '{key}' cannot be '{value_text(one)}' (it is a path); put it in quotes, or write another one")
    if not isinstance(value, list):
        return str(pathlib.Path(value).absolute())
    if not value:
        raise Refusal(f"{where}, places: '{key}' has no path (its list is empty); write one")
    paths = [pathlib.Path(fill(one, {"platform": image or PLATFORM}, f"{where}, places")) for one in value if not image or "{platform}" in one or len(value) == 1]
    if image:
        return os.path.normpath((paths or [pathlib.Path(value[0])])[0].absolute())
    return os.path.normpath(next((path for path in paths if path.exists()), paths[0]).absolute())


def _keep(section):
    size = section.get("size", "a text or a whole number", "")
    keep = {"age": seconds_of(section.get("age", "a text", "14d"), f"{section.where}: 'age'"), "size": bytes_of(size, f"{section.where}: 'size'") if size != "" else None}
    section.done()
    return keep


def _results(shown, steps, where, entries):
    """Returns (step, path) for each output that the end of a run names: of the references, or of the steps that no step
    needs and no fan-out."""
    known = {f"{{{step.name}.{output}}}": (step.name, path) for step in steps.values() for output, path in step.outputs.items()}
    for reference in shown:
        if reference not in known:
            raise Refusal(f"{where}, results: no step makes '{reference}' (known: {listed(known)}); {closest(reference, known, 'name one of these')}")
    needed = {name for step in steps.values() for name in step.needs}
    needed |= {REFERENCE.fullmatch(entry["each"]).group(1) for entry in entries.values() if isinstance(entry.get("each"), str)}
    return [known[reference] for reference in shown] if shown else [entry for entry in known.values() if entry[0] not in needed]


def _watch(section, parameters):
    """Returns the triggers of the workflow."""
    of = section.section("revision")
    revision = {key: of.get(key, "a text") for key in ("repository", "branch")} if section.free("revision") else {}
    if revision and (parameter := of.get("parameter", "a text", "")) not in ("", *parameters):
        raise Refusal(f"{of.where}: '{parameter}' is no parameter (known: {listed(parameters)}); {closest(parameter, parameters, 'name the parameter for the commit')}")
    of.done()
    watch = {"schedule": section.get("schedule", "a text", ""), "data": section.get("data", "true or false", False),
             "revision": {**revision, "parameter": parameter} if revision else {}, "every": seconds_of(section.get("every", "a text", "10s"), f"{section.where}: 'every'")}
    section.done()
    try:
        if watch["schedule"]:
            next_of(watch["schedule"], 0)
    except ImportError:
        raise Refusal(f"{section.where}: 'schedule' is read by croniter (which is not here); apt-get install python3-croniter") from None
    except (ValueError, KeyError) as error:
        raise Refusal(f"{section.where}: 'schedule' cannot be '{watch['schedule']}' ({error}); write as for cron, such as 0 3 * * *") from None
    return watch


def next_of(schedule, at):
    """Returns the next time, in seconds, at which cron would start it."""
    import croniter  # imported here: workflows without a schedule do not need it
    return croniter.croniter(schedule, datetime.datetime.fromtimestamp(at).astimezone()).get_next()


def _read_group(group, value, common, places, lists):
    """Returns one step, or a step for each entry of `each`. A fan-out, whose list another step makes, is one step until the list is known."""
    section = Section(value, f"step '{group}'")
    own, each = section.free("parameters"), section.get("each", "a mapping or a text", {})
    listed_by = each if isinstance(each, str) else ""
    if listed_by:
        check_fan_out(section, listed_by, own)
        free = {key for key, default in own.items() if not REFERENCE.fullmatch(value_text(default))}
        varies = [key for key in ("inputs", "needs", "when", "ranks", "model") if {match.group(2) for match in PLACEHOLDER.finditer(str(value.get(key)))} & {*free, "each"}]
        each = entries_of(lists[group], free, section.where) if group in lists else {}
    steps = []
    for suffix, of_one in (each or {"": {}}).items():
        name = f"{group}-{suffix}" if suffix else group
        if not NAME.fullmatch(name):
            raise Refusal(f"'{name}' is no name of a step (letters, digits, - and _); change it")
        if not isinstance(of_one, dict):
            raise Refusal(f"{section.where}, each: '{suffix}' is '{of_one}' (it is a mapping of parameters); write such as {{n: 1}}")
        of_each = {"each": suffix} if suffix else {"each": "{each}"} if listed_by else {}
        steps.append(_read_step(section, name, group, {**common, **places, **own, **of_one}, places, of_each))
        if listed_by and not suffix:
            steps[-1].each, steps[-1].free, steps[-1].varies = listed_by, sorted(free), varies
    section.done()
    return steps


def _read_step(section, name, group, parameters, places, of_each):
    for key in parameters:
        if key in BUILT_IN and key not in places:
            raise Refusal(f"{section.where} has the parameter '{key}' (that placeholder is muster-flow's own); rename it")
    parameters = {**parameters, **of_each}
    taken = {key: value for key, value in parameters.items() if REFERENCE.fullmatch(value_text(value))}   # known when the step starts

    def text(value):
        return fill(value_text(value), {key: one for key, one in parameters.items() if key not in taken}, section.where)

    def mapping(key):
        return {name: value for name, value in section.free(key).items()}
    training = section.free("training")
    step = Step(
        name, group, words_of(section.get("command", "a text or a list")), parameters,
        inputs={key: [_path_or_reference(reference, text) for reference in (value if isinstance(value, list) else [value])] for key, value in mapping("inputs").items()},
        outputs={key: _output(text(value), key, section.where) for key, value in mapping("outputs").items()}, needs=[text(reference) for reference in section.get("needs", "a list", [])],
        places=places, ranks=_ranks(text(section.get("ranks", "a text or a whole number", 1)), section.where), memoize=_memoize(section), retry=_retry(section.section("retry")),
        launcher=read_launcher(section), resources=read_resources(section.section("resources")), limits=read_limits(section.section("limits")),
        environment={key: value_text(value) for key, value in section.free("environment").items()}, timeout=_seconds(section, "timeout", 3600),
        deadline=_seconds(section, "deadline", 0), training=_training(section.section("training")) if training else None,
        wait=section.get("wait", "true or false", True), ready=text(section.get("ready", "a text", "")), **_model(section),
        address=text(section.get("address", "a text", "")), when=value_text(section.get("when", "a text", "")))
    if step.launcher.kind == "kubernetes":
        raise Refusal(f"{section.where} has the launcher kubernetes (its outputs would stay in the pods); use another one, or muster-flow export argo")
    if not step.wait and step.outputs:
        raise Refusal(f"{section.where} has outputs and is not waited for (it ends with the workflow, so no step could read them); leave one out")
    if step.wait and step.address:
        raise Refusal(f"{section.where} has an address and is waited for (nothing answers there after its end); add wait: false, or leave the address out")
    if not step.wait and step.when:
        raise Refusal(f"{section.where} has a condition and is not waited for (others wait until it is ready); give the condition to the steps that need it")
    known = dict.fromkeys([*parameters, *(key for key in BUILT_IN if key != "each"), *step.inputs, *step.outputs], "")
    for word in [*step.command, *step.environment.values()]:
        fill(word, known, section.where)
    fill(step.when, dict.fromkeys(parameters, ""), section.where)
    if step.when:
        conditions.parts(step.when, section.where)
    used = {match.group(2) for word in [*step.command, *step.environment.values(), step.when] for match in PLACEHOLDER.finditer(word)}
    step.taken = {key: value for key, value in taken.items() if key in used}
    if step.training and step.training.epochs and step.training.epochs not in parameters:
        raise Refusal(f"{section.where}, training: '{step.training.epochs}' is no parameter (known: {listed(parameters)}); "
                      f"{closest(step.training.epochs, parameters, 'name the parameter with the number of epochs')}")
    return step


def _model(section):
    """Returns the folder of the models, and the file that describes their service."""
    value = section.get("model", "a text or a mapping", "")
    if isinstance(value, str):
        return {"model": value}
    inner = Section(value, f"{section.where}, model")
    found = {"model": inner.get("folder", "a text"), "service": inner.get("service", "a text", "")}
    inner.done()
    return found


def _output(path, key, where):
    pure = pathlib.PurePath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise Refusal(f"{where}: the output '{key}' cannot be '{path}' (it is relative to the folder of results); write a path below it")
    if pure.parts[0] in OWN:
        raise Refusal(f"{where}: the output '{key}' cannot be '{path}' (muster-flow has its own '{pure.parts[0]}' there); rename it")
    return str(pure)


def _ranks(value, where):
    if not re.fullmatch(r"[1-9]\d{0,6}", value):
        raise Refusal(f"{where}: 'ranks' cannot be '{value}' (it is a whole number from 1 on); change it")
    return int(value)


def _seconds(section, key, otherwise):
    value = section.get(key, "a number", otherwise)
    if not 0 <= value < 1e9 or (not value and otherwise):
        raise Refusal(f"{section.where}: '{key}' cannot be {value_text(value)} (it is a number of seconds); change it")
    return float(value)


def _path_or_reference(value, text):
    return value if REFERENCE.fullmatch(str(value)) else text(value)


def _memoize(section):
    value = section.get("memoize", "a text or a mapping", "content")
    if value == "content":
        return {}
    inner = Section(value if isinstance(value, dict) else {value: None}, f"{section.where}, memoize")
    age, change = inner.get("max-age", "a text", ""), inner.get("change", "a text", "")
    accuracy, records = inner.get("accuracy", "a number", None), inner.get("records", "a whole number", None)
    inner.done()
    if [bool(age), bool(change), accuracy is not None, records is not None].count(True) != 1:
        raise Refusal(f"{inner.where} is content, max-age, change, accuracy or records (it has {listed(value)}); write such as {{max-age: 1d}} or {{change: 10%}}")
    if age:
        return {"max-age": seconds_of(age, inner.where)}
    if accuracy is not None:
        if not 0 < accuracy <= 1:
            raise Refusal(f"{inner.where}: accuracy cannot be {value_text(accuracy)} (it is above 0, up to 1); write such as 0.9")
        return {"accuracy": float(accuracy)}
    if records is not None:
        if records < 1:
            raise Refusal(f"{inner.where}: records cannot be {records} (it is a number of records); write such as 1000")
        return {"records": records}
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", change)
    if not match:
        raise Refusal(f"{inner.where}: change cannot be '{change}' (it is a part of the records of the inputs); write such as 10%")
    return {"change": float(match.group(1)) / 100}


def _retry(section):
    attempts = {cause: section.get(cause, "a whole number", default) for cause, default in (("peer", 3), ("memory", 2), ("input", 1), ("source", 5))}
    section.done()
    return attempts


def _training(section):
    training = Training(section.get("epochs", "a text", ""), float(section.get("chance", "a number", 0)), section.get("patience", "a whole number", 3),
                        float(section.get("flat", "a number", 0.001)), section.get("best", "true or false", False))
    section.done()
    if training.patience < 1:
        raise Refusal(f"{section.where}: patience cannot be {training.patience} (it is 1 or more epochs); change it")
    return training


def _connect(steps, here):
    """Replaces inputs by paths, and adds the step that makes an input to the needs."""
    makers = {}
    for step in steps.values():
        for path in step.outputs.values():
            if path in makers:
                raise Refusal(f"'{path}' is made by the steps '{makers[path]}' and '{step.name}' (an output has one maker); rename one")
            makers[path] = step.name
    for path, maker in makers.items():
        if outer := next((str(above) for above in pathlib.PurePath(path).parents if str(above) in makers), None):
            raise Refusal(f"'{path}' of the step '{maker}' lies in '{outer}', which the step '{makers[outer]}' makes (an output has one maker); rename one")
    groups = {}
    for step in steps.values():
        groups.setdefault(step.group, []).append(step.name)
    for step in steps.values():
        needs = [name for needed in step.needs for name in (groups.get(needed) or [needed])]
        step.inputs = {name: [path for needed in values for path in _paths(step, needed, steps, groups, makers, here)] for name, values in step.inputs.items()}
        if {"change", "records"} & step.memoize.keys() and any(is_remote(path) for paths in step.inputs.values() for path in paths):
            raise Refusal(f"step '{step.name}' has an input on a server, whose records are not counted (memoize is {listed(step.memoize)}); use content or max-age")
        for name, value in step.taken.items():
            step.taken[name], *more = _paths(step, value, steps, groups, makers, here)
            if more:
                raise Refusal(f"step '{step.name}': the parameter '{name}' cannot be '{value}' (it is the content of one file, and {1 + len(more)} steps make one); name one step")
            if steps[makers[step.taken[name]]].each:
                raise Refusal(f"step '{step.name}': the parameter '{name}' cannot be '{value}' (it is the content of one file, and the steps of a fan-out make one each); take it as an input")
        if step.each:
            step.each = _list_of(step, steps, groups, makers, here)
        needs += [makers[path] for paths in (*step.inputs.values(), step.taken.values(), [step.each]) for path in paths if path in makers]
        for name in needs:
            if name not in steps:
                raise Refusal(f"step '{step.name}' needs the unknown step '{name}' (known: {listed(steps)}); {closest(name, steps, 'leave it out')}")
        step.needs = list(dict.fromkeys(needs))


def _list_of(step, steps, groups, makers, here):
    """Returns the path of the list of a fan-out."""
    path, *more = _paths(step, step.each, steps, groups, makers, here)
    if more or steps[makers[path]].each or steps[makers[path]].group != makers[path]:
        raise Refusal(f"step '{step.name}': 'each' cannot be '{step.each}' (one step makes the list, and that is one of several); name another one")
    if same := next((name for name, other in steps.items() if other.group != step.group and name.startswith(f"{step.name}-")), None):
        raise Refusal(f"step '{same}' has a name that a step of the fan-out '{step.name}' may have (its list is not known before); rename it")
    return path


def _paths(step, value, steps, groups, makers, here):
    if match := REFERENCE.fullmatch(value):
        of, output = match.groups()
        for name in groups.get(of) or [of]:
            if name not in steps or output not in steps[name].outputs:
                known = [f"{maker_step.name}.{key}" for maker_step in steps.values() for key in maker_step.outputs]
                raise Refusal(f"step '{step.name}' has the input '{value}', which no step makes (they make: {listed(known)}); "
                              f"{closest(f'{of}.{output}', known, 'name one of these')}")
            yield steps[name].outputs[output]
    else:
        plain = str(pathlib.PurePath(value))
        if is_remote(value):
            require_plain(value)
        yield value if is_remote(value) else plain if plain in makers else str(here / value)


def _ordered(steps):
    try:
        order = graphlib.TopologicalSorter({step.name: step.needs for step in steps.values()}).static_order()
        return {name: steps[name] for name in order}
    except graphlib.CycleError as error:
        raise Refusal(f"steps need each other in a circle ({' <- '.join(error.args[1])}); take one need away") from None
