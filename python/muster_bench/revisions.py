"""Runs the sides of a comparison in turns. A side is a revision of the repository, built in its own tree, or the folder of a build."""
import pathlib
import shutil
import subprocess

from .division import division_of
from .errors import FAILED_RUNS, FINISHED, Interrupted, Refusal
from .experiment import read_file
from .files import Digests, make_folder
from .plan import make_plan
from .progress import run_visibly
from .request import find_file, only_of, settings_of
from .runner import Runner, run_side_by_side


def run(chosen, names):
    """Returns the folders of results. All revisions are built first; then all sides run in turns, so a slow minute affects all
    sides. The sides share the file of the experiment. Its places lie in the tree of the revision, or `build` is the folder."""
    runners = [_of_folder(chosen, name, side) if pathlib.Path(name).is_dir() else _of_revision(chosen, name, names.index(name) != side - 1)
               for side, name in enumerate(names, 1)]
    status = run_side_by_side(runners)
    if status not in (FINISHED, FAILED_RUNS):
        raise Interrupted("the revisions did not run to their end (the runner was asked to stop); run the same command again")
    return [runner.folder for runner in runners]


def _of_folder(chosen, folder, side):
    """Makes the runner of a build that exists."""
    return _runner(chosen, {"build": str(pathlib.Path(folder).absolute())}, make_folder(pathlib.Path(chosen.out).absolute()) / f"results-{side}")


def _of_revision(chosen, revision, again):
    """Builds a revision and makes its runner. `again`: an earlier side has the same revision."""
    out = make_folder(pathlib.Path(chosen.out).absolute())
    commit = _git("rev-parse", "--verify", f"{revision}^{{commit}}", why=f"no revision '{revision}' is known here")
    tree = out / f"tree-{commit[:12]}"
    if not tree.is_dir():
        _git("worktree", "add", "--detach", str(tree), commit, why=f"no tree of '{revision}' could be made")
    with open(out / f"build-{commit[:12]}.txt", "w", encoding="utf-8") as log:
        built = run_visibly(f"builds revision '{revision}'", ["sh", "-ec", chosen.build], cwd=tree, stdout=log, stderr=subprocess.STDOUT)
    if built.returncode != 0:
        raise Refusal(f"revision '{revision}' was not built (status {built.returncode}, see {out}/build-{commit[:12]}.txt); mend "
                      "--build")
    relative = read_file(find_file(chosen.file)).content.get("places") or {}
    places = {name: str(tree / str(place)) for name, place in relative.items() if not pathlib.Path(str(place)).is_absolute()
              and (tree / str(place)).exists()}
    return _runner(chosen, places, out / f"results-{commit[:12]}{'-again' if again else ''}")


def _runner(chosen, places, folder):
    settings = settings_of(chosen)
    file = read_file(find_file(chosen.file), settings, places)
    return Runner(file, make_plan(file, Digests(own=folder), chosen.most_runs, only_of(chosen)), folder,
                  division_of(file, [f"--set {name}" for name in settings], chosen.division))


def _git(*words, why):
    if shutil.which("git") is None:
        raise Refusal("there is no git here (revisions are taken from it); install it")
    done = subprocess.run(["git", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise Refusal(f"{why} ({(done.stderr.strip().splitlines() or ['git said nothing'])[-1]}); name a revision of the "
                      "repository that this folder is in")
    return done.stdout.strip()
