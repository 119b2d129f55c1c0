"""Selection: the trained model with the best accuracy, or the mean of the best few if it is measured to be better, becomes the newest version of a
repository (docs/serving.md)."""
import argparse
import fcntl
import pathlib
import re
import shutil
import subprocess

from muster_bench.errors import FAILED_RUNS, FINISHED, NoRoom, Refusal
from muster_bench.files import Digests, make_folder, read_json, remove_tree, write_json, writing
from muster_bench.progress import run_visibly
from .steps import saved_epoch

MODEL = "model.muster"
NOTE = "selected.json"   # a description beside the model
MEASURED = re.compile(r"^.*\baccuracy\b[ =:]*(\d(?:\.\d+)?)\s*$", re.MULTILINE)   # in the output of --measure


def record_of(path):
    """Returns the runner's record of the step that made this output, or None."""
    return next((record for folder in pathlib.Path(path).resolve().parents if (record := read_json(folder / "record.json")) is not None), None)


def training_of(path, report):
    """Returns (name, epochs, the number of the epoch whose model was saved) of a training. Epochs come from the training's own report
    (docs/tracker.md), or without a report from the runner's record."""
    record = record_of(path)
    name = record["step"] if record else pathlib.Path(path).stem
    if report:
        found = read_json(report)
        if not isinstance(found, dict) or not isinstance(found.get("epochs"), list):
            raise Refusal(f"'{report}' cannot be read (it is no report of a tracker); name the report that the training wrote with --json")
        rows, saved = found["epochs"], found.get("annotations", {}).get("saved_epoch")
    elif record:
        rows, saved = record["series"], saved_epoch(record)["epoch"] if record["series"] else None
    else:
        raise Refusal(f"nothing is known of '{path}' (it is no output of a step, and has no report); name its report after --reports")
    rows = [row for row in rows if row.get("val_accuracy") is not None]
    if not rows:
        raise Refusal(f"'{path}' has no accuracy (step '{name}' printed no line of an epoch with one); select among trainings")
    return name, rows, int(saved or rows[-1]["epoch"])


def add_arguments(command):
    command.add_argument("models", nargs="+", metavar="MODEL", help="outputs of trainings")
    command.add_argument("--reports", nargs="+", metavar="FILE", help="the reports of their trainings, in the same order [what the runner recorded]")
    command.add_argument("--repository", required=True, metavar="FOLDER", help="what serve reads: FOLDER/NAME/VERSION")
    command.add_argument("--name", required=True, metavar="NAME", help="of the model there")
    command.add_argument("--at-least", type=float, default=0.0, metavar="ACCURACY", help="only models with this accuracy. Fails, and leaves the old version, if none has it")
    command.add_argument("--ensemble", type=int, default=1, metavar="N", help="publish the mean of up to N models, if it is better than the best of them [%(default)s]")
    command.add_argument("--offer", action="store_true", help="the models join those that are served; ends well if none is good enough")
    command.add_argument("--json", metavar="FILE", help="write the selection to this file")
    command.add_argument("--measure", nargs=argparse.REMAINDER, metavar="WORD",
                         help="the last option: a command that prints the accuracy of the models whose paths are appended, each after --model")


def run(chosen):
    reports = chosen.reports or [None] * len(chosen.models)
    if len(reports) != len(chosen.models):
        raise Refusal(f"--reports has {len(reports)} files for {len(chosen.models)} models (each model has its own); name one for each")
    if not 1 <= chosen.ensemble <= 100:
        raise Refusal(f"--ensemble {chosen.ensemble} cannot be chosen (it is a number of models); give 1 to 100")
    if chosen.ensemble > 1 and not chosen.measure:
        raise Refusal(f"--ensemble {chosen.ensemble} is published only if it is measured to be better (nothing measures it); add --measure COMMAND")
    offered, home = [_candidate(path, report) for path, report in zip(chosen.models, reports)], make_folder(pathlib.Path(chosen.repository, chosen.name))
    with writing(home), open(home.parent / f".{chosen.name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        versions = sorted(int(entry.name) for entry in home.iterdir() if entry.name.isdigit())
        served = (read_json(home / str(versions[-1]) / NOTE) or {}) if versions else {}
        stays = f"version {versions[-1]} stays" if versions else "none is served"
        found = offered + (_members(served, home / str(versions[-1]), offered) if chosen.offer and versions else [])
        found.sort(key=lambda candidate: -candidate["accuracy"])
        for candidate in found:
            print(f"{candidate['accuracy']:.4f}  {candidate['step']}")
        good = [candidate for candidate in found if candidate["accuracy"] >= chosen.at_least]
        if not good:
            summary = ", ".join(f"{candidate['step']} {candidate['accuracy']:.4f}" for candidate in found)
            print(f"no model has an accuracy of {chosen.at_least:g} ({summary}); {stays}")
            return _ended(chosen, versions, served, found) if chosen.offer else FAILED_RUNS
        best = _best(good, chosen)
        if served.get("accuracy", -1.0) < best["accuracy"]:
            version = (versions[-1] if versions else 0) + 1
            try:
                _publish(best, home, version)
            except NoRoom as full:  # another exit status would mean a lost peer
                print(f"version {version} was not written, {stays}: {full}")
                return FAILED_RUNS
            versions.append(version)
            served = best
        return _ended(chosen, versions, served, found)


def _ended(chosen, versions, served, found):
    """Prints the version that is served, and writes the selection."""
    if versions:
        print(f"version {versions[-1]}: {served.get('step', 'an unknown model')}, accuracy {served.get('accuracy', 0.0):.4f}")
    if chosen.json:
        write_json(chosen.json, {"version": versions[-1] if versions else None, "selected": _plain(served), "accuracies": [_plain(candidate) for candidate in found]})
    return FINISHED


def _candidate(path, report):
    name, rows, saved = training_of(path, report)
    accuracy = next((row["val_accuracy"] for row in rows if row["epoch"] == saved), rows[-1]["val_accuracy"])
    return {"step": name, "key": (record_of(path) or {}).get("key"), "accuracy": accuracy, "epoch": saved, "model": Digests().of_path(pathlib.Path(path).resolve()), "path": str(path)}


def _members(served, folder, offered):
    """Returns the models of the served version that are not offered."""
    known = {candidate["model"] for candidate in offered}
    return [{**member, "path": str(folder / member["file"])} for member in served.get("members", []) if member["model"] not in known and (folder / member["file"]).is_file()]


def _best(good, chosen):
    """Returns the models to serve: the best model, or the mean of the best few that is measured to be better than the best model alone."""
    choices = [dict(good[0], members=good[:1])]
    sizes = range(2, min(chosen.ensemble, len(good)) + 1)
    if sizes:
        choices[0]["accuracy"] = _measured(chosen.measure, good[:1])
        print(f"{choices[0]['accuracy']:.4f}  {good[0]['step']} alone, measured")
    for size in sizes:
        members, accuracy = good[:size], _measured(chosen.measure, good[:size])
        name = f"the mean of {', '.join(member['step'] for member in members[:-1])} and {members[-1]['step']}"
        print(f"{accuracy:.4f}  {name}, measured")
        choices.append({"step": name, "accuracy": accuracy, "members": members})
    return max(choices, key=lambda choice: (choice["accuracy"], -len(choice["members"])))   # of equals the smaller one


def _measured(command, members):
    words = [*command, *(word for member in members for word in ("--model", member["path"]))]
    try:
        done = run_visibly(f"measures {len(members)} models", words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    except OSError as error:
        raise Refusal(f"'{command[0]}' of --measure cannot be started ({error.strerror}); name a program") from error
    found = MEASURED.findall(done.stdout)
    if done.returncode != 0 or not found:
        said = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise Refusal(f"--measure {' '.join(command)} gave no accuracy (status {done.returncode}, '{said}'); it has to print such as accuracy 0.91")
    return float(found[0])


def _plain(choice):
    """Returns a choice or a candidate without paths."""
    members = {"members": [_plain(member) for member in choice["members"]]} if "members" in choice else {}
    return {**{name: value for name, value in choice.items() if name != "path"}, **members}


def _publish(best, home, version):
    """Writes a version completely or not at all."""
    for old in home.glob("*.new"):   # left by a killed run
        if old.stem.isdecimal():
            remove_tree(old)
    new, members = make_folder(home / f"{version}.new"), []
    with writing(new):
        for number, member in enumerate(best["members"]):
            file = MODEL if len(best["members"]) == 1 else f"{number + 1}-{member['step']}.muster"
            shutil.copyfile(member["path"], new / file)
            members.append({**member, "file": file})
        best["members"] = members
        write_json(new / NOTE, _plain(best))
        new.rename(home / str(version))
