"""Selection: the trained model with the best accuracy, or the best few, become the newest version of a repository
(docs/serving.md)."""
import fcntl
import pathlib
import shutil

from muster_bench.errors import FAILED_RUNS, FINISHED, NoRoom, Refusal
from muster_bench.files import Digests, make_folder, read_json, remove_tree, write_json, writing

MODEL = "model.muster"
NOTE = "selected.json"   # a description beside the model


def record_of(path):
    """Returns the runner's record of the step that made this output."""
    for folder in pathlib.Path(path).resolve().parents:
        if (record := read_json(folder / "record.json")) is not None:
            return record
    raise Refusal(f"nothing is known of '{path}' (it is no output of a step); name the output of a training")


def add_arguments(command):
    command.add_argument("models", nargs="+", metavar="MODEL", help="outputs of trainings")
    command.add_argument("--repository", required=True, metavar="FOLDER", help="what serve reads: FOLDER/NAME/VERSION")
    command.add_argument("--name", required=True, metavar="NAME", help="of the model there")
    command.add_argument("--at-least", type=float, default=0.0, metavar="ACCURACY", help="fail, and leave the old version, if none has it")
    command.add_argument("--ensemble", type=int, default=1, metavar="N", help="publish the best N models, which serve --combine mean serves as one [%(default)s]")
    command.add_argument("--json", metavar="FILE", help="write the selection to this file")


def run(chosen):
    found = []
    for path in chosen.models:
        record = record_of(path)
        rows = [row["val_accuracy"] for row in record["series"] if "val_accuracy" in row]
        if not rows:
            raise Refusal(f"'{path}' has no accuracy (step '{record['step']}' printed no line of an epoch with one); select among trainings")
        found.append({"step": record["step"], "key": record["key"], "accuracy": rows[-1], "model": Digests().of_path(pathlib.Path(path).resolve()), "path": path})
    found.sort(key=lambda candidate: -candidate["accuracy"])
    for candidate in found:
        print(f"{candidate['accuracy']:.4f}  {candidate['step']}")
    if chosen.ensemble < 1 or chosen.ensemble > len(found):
        raise Refusal(f"--ensemble {chosen.ensemble} cannot be chosen (of {len(found)} models); give 1 to {len(found)}")
    members = found[:chosen.ensemble]
    best, home = dict(found[0], accuracies=[candidate["accuracy"] for candidate in members]), make_folder(pathlib.Path(chosen.repository, chosen.name))
    with writing(home), open(home.parent / f".{chosen.name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        versions = sorted(int(entry.name) for entry in home.iterdir() if entry.name.isdigit())
        served = (read_json(home / str(versions[-1]) / NOTE) or {}) if versions else {}
        if best["accuracy"] < chosen.at_least:
            summary = ", ".join(f"{candidate['step']} {candidate['accuracy']:.4f}" for candidate in found)
            print(f"no model has an accuracy of {chosen.at_least:g} ({summary}); {'version ' + str(versions[-1]) + ' stays' if versions else 'none is served'}")
            return FAILED_RUNS
        if served.get("accuracies", [served.get("accuracy", -1.0)]) < best["accuracies"]:
            version = (versions[-1] if versions else 0) + 1
            try:
                _publish(best, members, home, version)
            except NoRoom as full:  # another exit status would mean a lost peer
                print(f"version {version} was not written, {'version ' + str(versions[-1]) + ' stays' if versions else 'none is served'}: {full}")
                return FAILED_RUNS
            versions.append(version)
            served = best
    print(f"version {versions[-1]}: {served['step']}, accuracy {served['accuracy']:.4f}")
    if chosen.json:
        write_json(chosen.json, {"version": versions[-1], "selected": _without_path(served), "accuracies": [_without_path(candidate) for candidate in found]})
    return FINISHED


def _without_path(member):
    return {name: value for name, value in member.items() if name != "path"}


def _publish(best, members, home, version):
    """Writes a version completely or not at all."""
    for old in home.glob("*.new"):   # left by a killed run
        if old.stem.isdecimal():
            remove_tree(old)
    new = make_folder(home / f"{version}.new")
    with writing(new):
        for number, member in enumerate(members):
            shutil.copyfile(member["path"], new / (MODEL if len(members) == 1 else f"{number + 1}-{member['step']}.muster"))
        write_json(new / NOTE, _without_path(best))
        new.rename(home / str(version))
