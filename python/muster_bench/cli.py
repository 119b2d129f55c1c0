"""The command line."""
import argparse
import dataclasses
import json
import os
import pathlib
import sys

from . import clusters, compare, events, html, reporter, revisions
from .division import digest
from .errors import FINISHED, SLOWER, Refusal
from .experiment import read_file
from .files import Digests, write_whole
from .launchers import cores_here, launched, shown
from .request import LAUNCHED, assignments, planned
from .runner import Runner
from .sweep import MOST_RUNS
from .text import without_secrets

ABOUT = """Runs the benchmarks of a file, continues after an interruption, and reports.

exit status: 0 all runs ended well; 1 some failed, and are reported; 2 the file, the command line or the folder cannot be
used; 3 another runner works in the folder; 4 no room or no right to write; 5 something got slower (compare
--fail-on-slower); 130 interrupted, the same command continues. docs/platform.md describes files and results."""

BUILD = "cmake --preset release && cmake --build --preset release --parallel"


def parser():
    root = argparse.ArgumentParser(prog="muster-bench", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run the experiments of a file")
    run.set_defaults(call=run_command)
    _file_arguments(run)
    run.add_argument("--out", metavar="DIR", help="the folder of results; an existing folder continues")
    run.add_argument("--dry-run", action="store_true", help="print the commands and write nothing")
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (their times then disturb each other)")
    run.add_argument("--retry-failed", action="store_true", help="run those again that failed before")
    run.add_argument("--report", metavar="PLACE", help="append the results to one report of many experiments: a folder, sqlite:FILE or "
                     "postgresql://...")
    run.add_argument("--launcher", choices=LAUNCHED, help="in place of mpirun, srun or hosts in the file")
    run.add_argument("--cpus-per-rank", type=float, metavar="N", help="processors of a rank, to which runs on this machine are held")
    run.add_argument("--watch", action="store_true", help="store the output and the resources of each rank, which serve shows")
    run.add_argument("--tensorboard", metavar="DIR", help="write an event file a run there (needs tensorboardX)")
    serve = commands.add_parser("serve", help="a dashboard of runs: starts, shows, compares and stops them")
    serve.set_defaults(call=serve_command)
    serve.add_argument("folder", metavar="DIR", help="the folder for folders of results; each started run gets a new one")
    serve.add_argument("--listen", default="127.0.0.1:8080", metavar="ADDRESS:PORT", help="[%(default)s]; port 0: any that is free")
    token = serve.add_mutually_exclusive_group()
    token.add_argument("--token-file", metavar="FILE", help="its first line is what callers have to show [BENCH_TOKEN, else one is drawn and printed once]")
    token.add_argument("--token", default="", metavar="T", help="the same; it is in the list of processes for a moment, so prefer --token-file or BENCH_TOKEN")
    serve.add_argument("--place", action="append", default=[], metavar="NAME=PATH", help="a path on this machine, for started runs")
    report = commands.add_parser("report", help="show one report of many experiments, after appending the results of folders")
    report.set_defaults(call=report_command)
    report.add_argument("place", metavar="PLACE", help="a folder, sqlite:FILE or postgresql://...")
    report.add_argument("folders", nargs="*", metavar="DIR", help="folders of results to append")
    report.add_argument("--html", metavar="FILE", help="write a page too")
    tune = commands.add_parser("tune", help="search parameters that a file names, by Optuna")
    tune.set_defaults(call=tune_command)
    _file_arguments(tune)
    tune.add_argument("--out", required=True, metavar="DIR", help="the folder of trials and report; an existing folder continues")
    tune.add_argument("--storage", default="", metavar="PLACE", help="of the trials: sqlite:FILE or postgresql://..., which several share [DIR/trials.db]")
    tune.add_argument("--trials", type=int, metavar="N", help="total number of trials, in place of the number in the file")
    tune.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at a time (their times then disturb each other)")
    manifests = commands.add_parser("manifests", help="write the files that start the runs on a cluster")
    manifests.set_defaults(call=manifests_command)
    _file_arguments(manifests)
    manifests.add_argument("--out", required=True, metavar="DIR")
    manifests.add_argument("--kind", action="append", choices=clusters.KINDS, help="only these; again for another [all]")
    manifests.add_argument("--image", default="", metavar="NAME", help="kubernetes: the image with muster and the programs")
    manifests.add_argument("--elastic", action="store_true", help="ranks may come and go: a Job with a store; srun --no-kill")
    manifests.add_argument("--results", default="/results", metavar="PATH", help="a folder that all nodes share [%(default)s]")
    manifests.add_argument("--account", default="", metavar="NAME", help="slurm: whose share of the cluster it is")
    manifests.add_argument("--queue", default="", metavar="NAME", help="slurm: a partition; kubernetes: a LocalQueue of Kueue, which admits all pods of a run or none")
    manifests.add_argument("--priority", default="", metavar="NAME", help="slurm: a quality of service; kubernetes: a WorkloadPriorityClass of Kueue")
    collect = commands.add_parser("collect", help="read the results of runs that were started by such files, and report")
    collect.set_defaults(call=collect_command)
    _file_arguments(collect)
    collect.add_argument("--out", required=True, metavar="DIR", help="what --results of manifests is called here")
    compared = commands.add_parser("compare", help="two folders of results, with a verdict a row")
    compared.set_defaults(call=compare_command)
    compared.add_argument("first", metavar="DIR")
    compared.add_argument("second", metavar="DIR")
    _compare_arguments(compared)
    revisions = commands.add_parser("revisions", help="run two git revisions, which are built for it, or two builds, in turns, and compare them")
    revisions.set_defaults(call=revisions_command)
    _file_arguments(revisions)
    revisions.add_argument("old", metavar="OLD", help="a revision, or a folder of a build, which becomes the place `build`")
    revisions.add_argument("new", metavar="NEW", help="another")
    revisions.add_argument("--noise", action="store_true", help="run OLD twice in each turn and compare it with itself first")
    revisions.add_argument("--out", required=True, metavar="DIR", help="trees, results and comparison")
    revisions.add_argument("--build", default=BUILD, metavar="COMMAND", help="builds a tree, in its root [%(default)s]")
    _compare_arguments(revisions)
    lock = commands.add_parser("lock", help="print the digests by which closed presets are known")
    lock.set_defaults(call=lock_command)
    lock.add_argument("files", nargs="+", metavar="FILE")
    return root


def _compare_arguments(command):
    command.add_argument("--html", metavar="FILE", help="write a page too")
    command.add_argument("--fail-on-slower", action="store_true", help="end with status 5 when a row got slower or worse")


def _file_arguments(command):
    command.add_argument("file", metavar="FILE", help="an experiment in YAML, or the name of a preset")
    command.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                         help="give a parameter another value, or a list [1, 2]")
    command.add_argument("--only", action="append", default=[], metavar="NAME=VALUE",
                         help="only the runs with this value of a parameter, or with a value from [1, 2], or experiment=NAME; a closed preset stays closed")
    command.add_argument("--place", action="append", default=[], metavar="NAME=PATH",
                         help="a path on this machine, such as build=build/release")
    command.add_argument("--division", choices=("open", "closed"), help="open: a changed preset may run")
    command.add_argument("--most-runs", type=int, default=MOST_RUNS, metavar="N", help="refuse to expand to more [%(default)s]")


def run_command(chosen):
    if chosen.jobs < 1:
        raise Refusal(f"--jobs cannot be {chosen.jobs} (it is 1 or more); leave it out")
    file, plan, division = planned(chosen)
    if chosen.dry_run:
        home = pathlib.Path(chosen.out or "OUT").absolute()
        for run in plan:
            print(f"{run.id}\n  {without_secrets(shown(*launched(run, home / 'experiments' / run.id)))}")
        print(f"{len(plan)} runs, {division} division")
        return FINISHED
    if not chosen.out:
        raise Refusal("the results have no folder (--out is missing); add --out DIR")
    busiest = max((run.ranks * run.template.resources.cpus_per_rank for run in plan
                   if run.template.launcher.kind in ("local", "mpirun")), default=0)
    if chosen.jobs * busiest > cores_here():
        print(f"muster-bench: up to {chosen.jobs * busiest} ranks at a time share {cores_here()} cores: look at no times",
              file=sys.stderr)
    place = reporter.open_place(chosen.report) if chosen.report else None
    if place is not None:
        place.append([])  # a report that cannot be written fails here, before hours of runs
    runner = Runner(file, plan, chosen.out, division, chosen.jobs, chosen.retry_failed)
    runner.watch = chosen.watch
    if chosen.tensorboard:
        events.load_writer()
        runner.events = chosen.tensorboard
    status = runner.run()
    if place is not None:
        place.append(list(reporter.rows_of(chosen.out, compare.load(chosen.out))))
    return status


def serve_command(chosen):
    try:
        from .dashboard.server import serve  # imported here: the plain installation lacks its packages
    except ImportError as error:
        raise Refusal(f"the dashboard needs aiohttp and prometheus_client (this Python cannot import {error.name}); apt-get install python3-aiohttp "
                      "python3-prometheus-client, or pip install 'muster-bench[serve]' in a venv") from None
    # Starts the same process again, so that other users on the machine do not see the token on the command line.
    if chosen.token:
        places = [word for place in chosen.place for word in ("--place", place)]
        home = str(pathlib.Path(__file__).resolve().parents[1])
        os.execve(sys.executable, [sys.executable, "-m", "muster_bench", "serve", chosen.folder, "--listen", chosen.listen, *places],
                  {**os.environ, "BENCH_TOKEN": chosen.token, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))})
    return serve(chosen.folder, chosen.listen, _token(chosen.token_file), assignments(chosen.place, "--place"))


def _token(file):
    """Returns the token that the user has chosen, or an empty text."""
    if file is None:
        return os.environ.get("BENCH_TOKEN", "")
    try:
        token = pathlib.Path(file).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, ValueError) as error:
        raise Refusal(f"--token-file {file} cannot be read ({getattr(error, 'strerror', None) or 'it is no text'}); check the path") from None
    if not token:
        raise Refusal(f"--token-file {file} has no token (its first line is empty); write one there")
    return token


def tune_command(chosen):
    if chosen.jobs < 1 or (chosen.trials is not None and chosen.trials < 1):
        raise Refusal("--jobs and --trials are 1 or more (there would be nothing to do); leave them out")
    if chosen.only:
        raise Refusal("--only cannot restrict a search (its file has the searched values); leave it out")
    file, _, division = planned(chosen, to_run=False)
    if file.tuning is None:
        raise Refusal(f"'{file.path.name}' has no search (there is no 'tune'); add such as tune: {{over: {{alpha: {{from: 1, to: 100, "
                      "log: true}}}")
    if division == "closed":
        raise Refusal(f"'{file.name}' is closed (it has the parameters of the published task); add --division open")
    if chosen.trials:
        file = dataclasses.replace(file, tuning=dataclasses.replace(file.tuning, trials=chosen.trials))
    wanted = sum(count for count, _ in file.tuning.rungs.brackets()) if file.tuning.rungs else file.tuning.trials
    if wanted > chosen.most_runs:
        raise Refusal(f"'{file.path.name}' asks for {wanted:,} trials (at most {chosen.most_runs:,}); search less, or raise --most-runs")
    from .tune import Tuner  # imported here: the plain installation lacks Optuna
    return Tuner(file, chosen.out, division, chosen.storage, chosen.jobs, Digests(own=chosen.out)).run()


def report_command(chosen):
    place = reporter.open_place(chosen.place)
    for folder in chosen.folders:
        place.append(list(reporter.rows_of(folder, compare.load(folder))))
    header, lines = reporter.summary(place.rows())
    if chosen.html:
        cells = [list(map(html.escape, line)) for line in lines]
        write_whole(chosen.html, html.document(f"Report in {chosen.place}", f"<h1>Report in {html.escape(chosen.place)}</h1>\n" +
                                               html.table(header, cells, "Medians of the runs that ended well")))
    widths = [max(map(len, column)) for column in zip(header, *lines)]
    print("\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in [header, *lines]))
    return FINISHED


def manifests_command(chosen):
    _, plan, _ = planned(chosen, to_run=False)
    kinds = chosen.kind or [kind for kind in clusters.KINDS if chosen.image or kind != "kubernetes"]
    written = clusters.write(chosen.out, plan, kinds, chosen.image, chosen.elastic, chosen.results,
                             clusters.Share(chosen.account, chosen.queue, chosen.priority))
    print("\n".join(map(str, written)))
    return FINISHED


def collect_command(chosen):
    file, plan, division = planned(chosen, to_run=False)
    if not (pathlib.Path(chosen.out) / "experiments").is_dir():
        raise Refusal(f"'{chosen.out}' has no results (there is no folder experiments in it); name what --results was")
    return Runner(file, plan, chosen.out, division).collect()


def compare_command(chosen):
    rows, alone = compare.compare(compare.load(chosen.first), compare.load(chosen.second))
    return _judged(chosen, (chosen.first, chosen.second), rows, alone)


def revisions_command(chosen):
    if chosen.place:
        raise Refusal("--place build is each revision's own (both are built for this); leave it out")
    old, new, *again = map(compare.load, revisions.run(chosen, (chosen.old, chosen.new, *([chosen.old] if chosen.noise else []))))
    for itself in again:
        print(f"{chosen.old} and itself\n{compare.as_text(*compare.compare(old, itself))}\n\n{chosen.old} and {chosen.new}")
    return _judged(chosen, (chosen.old, chosen.new), *compare.compare(old, new))


def _judged(chosen, names, rows, alone):
    if not rows:
        raise Refusal(f"'{names[0]}' and '{names[1]}' have nothing in common (no experiment with the same parameters and "
                      "measures); compare results of the same file")
    print(compare.as_text(rows, alone))
    if chosen.html:
        compare.write_page(chosen.html, names, rows, alone)
    worse = any(row.verdict in ("slower", "worse") for row in rows)
    return SLOWER if worse and chosen.fail_on_slower else FINISHED


def lock_command(chosen):
    closed = [file for file in map(read_file, chosen.files) if file.division == "closed"]
    print(json.dumps({file.name: digest(file.content) for file in closed}, indent=2, sort_keys=True))
    return FINISHED
