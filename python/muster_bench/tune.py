"""Searches parameters by Optuna. A trial is a normal run with its folder and result, and a finished trial is not repeated.
Trials end early by the lines that their programs print for each epoch. Trials of Hyperband continue from checkpoints at the next rung."""
import collections
import concurrent.futures
import contextlib
import csv
import dataclasses
import io
import itertools
import pathlib
import platform
import threading
import time
import warnings

from . import figures, files, html, machine, tables
from .errors import FAILED_RUNS, FINISHED, INTERRUPTED, NoRoom, Refusal
from .live import Look
from .plan import make_run
from .progress import Progress
from .runner import Runner, signals
from .text import human_seconds, shown_values, value_text
from .tuning import Range

PRUNED = "pruned: "   # starts the reason in the result of a pruned run
SAID = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "not ended"}


def load_optuna():
    try:
        import optuna
    except ImportError as error:
        raise Refusal(f"tuning needs Optuna (this Python cannot import {error.name}); pip install 'muster-bench[tune]' in a venv, or "
                      "apt-get install python3-optuna") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def url_of(storage, folder):
    """Returns the URL of sqlite:FILE or postgresql://...; by default of a file in the folder."""
    if not storage:
        return f"sqlite:///{folder}/trials.db"
    if storage.startswith("sqlite:"):
        return f"sqlite:///{pathlib.Path(storage[len('sqlite:'):]).absolute()}"
    if storage.startswith(("postgresql://", "postgres://")):
        return "postgresql+psycopg2://" + storage.partition("://")[2]
    raise Refusal(f"'{storage}' is no storage of trials (it is sqlite:FILE or postgresql://...); write one of these")


@dataclasses.dataclass
class Trial:
    """A set of parameters and its measurements so far."""
    number: int
    parameters: dict
    state: str = "RUNNING"
    value: float = None
    why: str = ""
    budget: int = None
    seen: list = dataclasses.field(default_factory=list)   # by epoch: the value that the search minimizes


class Trials(Progress):
    """Progress that prints a line for each trial and none for a run."""

    def __init__(self, jobs):
        super().__init__([], [], jobs)
        self._ended = self._expected = 0
        self._from = time.monotonic()

    def expect(self, trials):
        """Sets the number of trials from now on, for the remaining time."""
        self._ended, self._expected, self._from = 0, trials, time.monotonic()

    def end_trial(self):
        self._ended += 1

    def _counted(self):
        return f"[{self._ended}/{self._expected}] " if self._expected else ""

    def _rest(self):
        if not 0 < self._ended < self._expected:
            return ""
        return f"; about {human_seconds((time.monotonic() - self._from) / self._ended * (self._expected - self._ended))} left"

    def begin_run(self, run, attempt):
        pass

    def end_run(self, run, status, why, seconds):
        pass


class Tuner(Runner):
    """A runner that chooses the next run by a search."""

    def __init__(self, file, folder, division, storage="", jobs=1, digests=None):
        super().__init__(file, [], folder, division, jobs)
        self.optuna = load_optuna()
        self.tuning = file.tuning
        self._url, self._digests, self._looks = url_of(storage, self.folder), digests, {}
        self._trials, self._guard = {}, threading.Lock()
        # a lock for each run, held while the run is active
        self._measuring = collections.defaultdict(threading.Lock)
        self._here = f"{platform.node()}:{self.folder}"
        first = {name: space[0] if isinstance(space, list) else space.low for name, space in self.tuning.over.items()}
        self._made_of = ""
        self.plan = [self._run_of(first)]      # a trial that cannot run at all fails before any file is written
        programs = self._seen(self.plan[0])   # programs of the trials and of the checkpoints that rungs continue from
        self._made_of = files.digest_of([self.plan[0].key, programs["code"], programs["modules"]])

    def run(self):
        with contextlib.ExitStack() as held:
            held.enter_context(self._holding())
            held.enter_context(signals(self.stop))
            self.plan = []
            files.write_json(self.folder / "environment.json", [*(files.read_json(self.folder / "environment.json") or []),
                                                                machine.record(self.file.path.parent)])
            self._progress = Trials(self.jobs)
            try:
                self._study = self._open()
                self._again()
                self._hyperband() if self.tuning.rungs else self._one_after_another()
            except Exception as trouble:     # finished trials are reported in any case
                self.stop.set()
                self.trouble = self._said(trouble)
            if self.plan:
                self._report(self._progress)
            if self.trouble is not None:
                raise self.trouble
            if self.stop.is_set():
                self._progress.say("stopped; the same command continues")
                return INTERRUPTED
            return self._say_best()

    def _say_best(self):
        best = self._best()
        counts = {state: sum(trial.state == state for trial in self._trials.values()) for state in ("COMPLETE", "PRUNED", "FAIL")}
        print(f"{len(self._trials)} trials: {counts['COMPLETE']} complete, {counts['PRUNED']} pruned, {counts['FAIL']} failed; {self.folder}/report.html")
        if best is None:
            print("no trial has a result by which it can be judged")
            return FAILED_RUNS
        print(f"best: trial {best.number}, {self.tuning.measure} {best.value:.5g}: " +
              " ".join(f"--set {name}={value_text(value)}" for name, value in shown_values(best.parameters).items()), flush=True)
        return FINISHED

    def _said(self, trouble):
        if isinstance(trouble, Refusal):
            return trouble
        kinds = {kind.__module__.partition(".")[0] for kind in type(trouble).__mro__}
        if kinds & {"sqlalchemy", "optuna", "alembic", "psycopg2"}:
            reason = str(getattr(trouble, "orig", None) or trouble.__cause__ or trouble).strip().splitlines()
            return NoRoom(f"the trials in '{self._url}' cannot be used ({reason[0] if reason else type(trouble).__name__}); what was measured stays, "
                          "the same command goes on when it is there again")
        return trouble

    # ---- the study ----

    def _open(self):
        optuna, tuning = self.optuna, self.tuning
        try:
            storage = optuna.storages.RDBStorage(self._url)
        except ImportError:
            raise Refusal(f"trials in '{self._url}' need psycopg2 (this Python cannot import it); pip install psycopg2-binary, or apt-get install "
                          "python3-psycopg2") from None
        spaces = {name: dataclasses.asdict(space) if isinstance(space, Range) else space for name, space in tuning.over.items()}
        name = f"{self.file.name}, {tuning.experiment.name}, {files.digest_of([spaces, tuning.method, tuning.measure, self._made_of])[:8]}"
        study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True,
                                    direction="minimize" if tuning.less_is_better else "maximize")
        # a continued search draws new parameters
        seed = tuning.experiment.seed + len(study.get_trials(deepcopy=False))
        study.sampler = (optuna.samplers.TPESampler(seed=seed, constant_liar=self.jobs > 1) if tuning.method == "bayesian" else
                         optuna.samplers.RandomSampler(seed=seed))
        study.pruner = optuna.pruners.MedianPruner(n_startup_trials=4) if tuning.prune and not tuning.rungs else optuna.pruners.NopPruner()
        return study

    def _again(self):
        """Repeats first the trials that were active when this folder's runner was killed."""
        for old in self._study.get_trials(deepcopy=False):
            if old.user_attrs.get("at") == self._here and not old.state.is_finished() and old.params:
                self._study.tell(old.number, state=self.optuna.trial.TrialState.FAIL)
                self._study.enqueue_trial(old.params, user_attrs={"bracket": old.user_attrs.get("bracket")})

    def _ask(self, **attributes):
        trial = self._study.ask()
        for name, value in {"at": self._here, **attributes}.items():
            trial.set_user_attr(name, value)
        chosen = {}
        for name, space in self.tuning.over.items():
            if isinstance(space, list):
                chosen[name] = trial.suggest_categorical(name, space)
            elif isinstance(space.low, int) and isinstance(space.high, int):
                chosen[name] = trial.suggest_int(name, space.low, space.high, step=space.step or 1, log=space.log)
            else:
                chosen[name] = trial.suggest_float(name, space.low, space.high, step=space.step or None, log=space.log)
        return trial, self._known(trial.number, chosen)

    def _known(self, number, parameters, **more):
        with self._guard:
            rounded = {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in parameters.items()}
            kept = self._trials[number] = Trial(number, rounded, **more)
        return kept

    def _tell(self, trial, kept):
        state = self.optuna.trial.TrialState[kept.state]
        if kept.state == "FAIL":
            # failed by itself: a trial that _again() has marked as failed is measured again
            trial.set_user_attr("failed", True)
        self._progress.end_trial()
        self._study.tell(trial, kept.value if kept.state == "COMPLETE" else None, state=state)
        best = self._best()
        value = "-" if kept.value is None else f"{kept.value:.5g}"
        self._progress.say(f"trial {kept.number}: {_text(kept.parameters)}: {SAID[kept.state]}, {self.tuning.measure} {value}"
                           f"{f' ({kept.why})' if kept.why else ''}" + (f"; best: trial {best.number}, {best.value:.5g}" if best else ""))

    def _best(self):
        done = [trial for trial in self._trials.values() if trial.state == "COMPLETE"]
        return (min if self.tuning.less_is_better else max)(done, key=lambda trial: trial.value, default=None)

    # ---- trials ----

    def _one_after_another(self):
        if self.tuning.method == "grid":
            for point in itertools.product(*self.tuning.over.values()):
                self._study.enqueue_trial(dict(zip(self.tuning.over, point)), skip_if_exists=True)
        finished = self._remember()
        left = iter(range(self.tuning.trials - finished))
        self._progress.expect(self.tuning.trials - finished)

        def work():
            while not self.stop.is_set() and next(left, None) is not None:
                trial, kept = self._ask()
                self._measure(trial, kept)
                if self.stop.is_set() and kept.state == "RUNNING":
                    return
                self._tell(trial, kept)
        self._side_by_side([work] * self.jobs)

    def _remember(self):
        """Reads the trials of earlier starts, and returns their number. A trial whose files have changed since is
        measured again."""
        finished = []
        for old in self._finished():
            run = self._run_of(self._known(old.number, old.params).parameters)
            if tables.result_of(self.folder, run) is not None and not self._is_done(run):
                del self._trials[old.number]
                self._study.enqueue_trial(old.params)
                continue
            finished.append(old)
            kept = self._known(old.number, old.params, state=old.state.name, value=old.value if old.state.name == "COMPLETE" else None)
            self._plan(run)
            result = tables.result_of(self.folder, run)
            kept.why = result["why"].removeprefix(PRUNED) if result else ""
            if result and kept.value is not None:   # it may have been measured again since
                kept.value = next(tables.entries_of(self.folder, self.file, [run], self.division))["metrics"].get(self.tuning.measure, kept.value)
        return len(finished)

    def _finished(self):
        return [old for old in self._study.get_trials(deepcopy=False) if old.state.name in ("COMPLETE", "PRUNED") or "failed" in old.user_attrs]

    def _plan(self, run):
        """Adds a run to the plan once, even if several trials have its parameters."""
        if all(other.id != run.id for other in self.plan):
            self.plan.append(run)

    def _hyperband(self):
        """Runs all trials of a bracket with the budget of a rung, then its best trials with the next budget."""
        known = {}     # trials finished earlier, with results
        for old in self._finished():
            known.setdefault(old.user_attrs.get("bracket"), []).append((None, self._known(old.number, old.params)))
        for bracket, (count, budgets) in enumerate(self.tuning.rungs.brackets()):
            there = known.get(bracket, [])
            alive = [*there, *[self._ask(bracket=bracket) for _ in range(count - len(there))]]
            for rung, budget in enumerate(budgets):
                self._progress.say(f"bracket {bracket + 1}, rung {rung + 1}: {len(alive)} trials of {self.tuning.rungs.parameter} {budget}")
                left = iter(alive)
                self._side_by_side([lambda: [self._measure(trial, kept, budget) for trial, kept in left if not self.stop.is_set()]] * self.jobs)
                if self.stop.is_set():
                    return
                alive.sort(key=lambda pair: (pair[1].value is None, (pair[1].value or 0) * (1 if self.tuning.less_is_better else -1)))
                last = rung + 1 == len(budgets)
                going_on = 0 if last else max(1, int(count / self.tuning.rungs.factor ** (rung + 1)))
                for place, (trial, kept) in enumerate(alive):
                    if place >= going_on or kept.value is None:
                        kept.state = "FAIL" if kept.value is None else "COMPLETE" if last else "PRUNED"
                        kept.why = kept.why if last or kept.value is None else f"not among the best {going_on} of {self.tuning.rungs.parameter} {budget}"
                        files.remove_tree(self.folder / "checkpoints" / self._run_of(kept.parameters).trial)
                        if trial is not None:
                            self._tell(trial, kept)
                alive = [pair for pair in alive[:going_on] if pair[1].value is not None]

    def _side_by_side(self, jobs):
        with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
            for done in [pool.submit(job) for job in jobs]:
                try:
                    done.result()
                except BaseException:
                    self.stop.set()
                    raise

    def _run_of(self, parameters, budget=None):
        experiment = self.tuning.experiment
        chosen = {**experiment.parameters, **parameters}
        given = {name: value_text(value) for name, value in chosen.items() if not self.tuning.rungs or name != self.tuning.rungs.parameter}
        trial = files.digest_of([given, self._made_of])[:12]
        names = list(parameters)     # these names distinguish its folders
        if budget is not None:
            chosen[self.tuning.rungs.parameter] = budget
            names.append(self.tuning.rungs.parameter)
        named = dataclasses.replace(experiment, cases=(dict.fromkeys(names),))
        (values, repeat, seed), = dataclasses.replace(named, parameters=chosen, cases=()).runs()
        return make_run(named, values, repeat, seed, {**self.file.places, "here": str(self.file.path.parent)}, self._digests, trial)

    def _measure(self, trial, kept, budget=None):
        run = self._run_of(kept.parameters, budget)
        with self._guard:
            self._plan(run)
            alone = self._measuring[run.id]
        with alone:      # a sampler may draw the same parameters for two jobs: the second uses the result of the first
            if not self._is_done(run):
                if trial is not None and not self.tuning.rungs:
                    self._looks[run.id] = lambda row: self._decide(trial, kept, row)
                self._one(run, self._progress)
        result = tables.result_of(self.folder, run)
        if result is None:      # the runner was asked to stop
            return
        entry = next(tables.entries_of(self.folder, self.file, [run], self.division))
        kept.budget, kept.why = budget, entry["why"]
        kept.value = entry["metrics"].get(self.tuning.measure)
        if entry["status"] == "ok" and kept.value is None and not kept.why:
            kept.why = f"it has no {self.tuning.measure}"
        pruned = kept.value is None or kept.why.startswith(PRUNED)
        kept.why = kept.why.removeprefix(PRUNED)
        kept.state = "FAIL" if entry["status"] != "ok" else "PRUNED" if pruned else "COMPLETE"
        if trial is not None and budget is not None and kept.value is not None:
            trial.report(kept.value, budget)

    def _decide(self, trial, kept, row):
        """Returns the reason to end a trial at this line."""
        tuning, epoch = self.tuning, int(row["epoch"])
        goal = tuning.experiment.goal
        timed = tuning.measure == "time_to_accuracy"
        if timed and goal.reached(row):
            return f"goal reached in epoch {epoch}"
        best = self._best()
        if timed and tuning.prune and best and row["seconds"] > best.value:
            return f"{PRUNED}slower than trial {best.number}"
        if not tuning.watched or tuning.watched not in row:
            return None
        value = row[tuning.watched]
        smaller = not tuning.watched.endswith("accuracy")
        trial.report(value if smaller == tuning.less_is_better else -value, epoch)
        if tuning.prune and trial.should_prune():
            return f"{PRUNED}in epoch {epoch} worse than the median of the trials before"
        kept.seen.append(value if smaller else -value)
        if tuning.patience and len(kept.seen) > tuning.patience and min(kept.seen[-tuning.patience:]) >= min(kept.seen[:-tuning.patience]):
            return f"no better for {tuning.patience} epochs"
        return None

    def _look(self, run, log):
        return Look(log, self._looks[run.id]) if run.id in self._looks else None

    # ---- report ----

    def _extra(self):
        """Writes trials.csv and returns the part of the page with the trials."""
        trials = sorted(self._trials.values(), key=lambda trial: trial.number)
        names = list(self.tuning.over)
        budget = self.tuning.rungs.parameter if self.tuning.rungs else None
        header = ["trial", *names, *([budget] if budget else []), self.tuning.measure, "state", "why"]
        lines = [[str(trial.number), *[value_text(shown_values(trial.parameters)[name]) for name in names], *([value_text(trial.budget)] if budget else []),
                  "" if trial.value is None else f"{trial.value:.6g}", SAID[trial.state], trial.why] for trial in trials]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([header, *lines])
        files.write_whole(self.folder / "trials.csv", text.getvalue())
        best = self._best()
        about = (f"{len(trials)} trials, {self.tuning.method}; the best is trial {best.number} ({_text(best.parameters)}): {self.tuning.measure} {best.value:.6g}."
                 if best else f"{len(trials)} trials, {self.tuning.method}; none has a result.")
        done = [trial for trial in trials if trial.state == "COMPLETE"]
        pictures = [html.figure(svg, caption) for svg, caption in self._pictures(done, names)] if len(done) > 1 else []
        cells = [[html.escape(cell) for cell in line] for line in lines]
        return (f"<h2>Trials</h2>\n<p>{html.escape(about)}</p>\n" + ('<div class="figures">\n' + "".join(pictures) + "</div>\n" if pictures else "") +
                html.table(header, cells, f"<b>{html.escape(self.tuning.experiment.name)}</b>, every trial"))

    def _pictures(self, done, names):
        better = min if self.tuning.less_is_better else max
        best = list(itertools.accumulate((trial.value for trial in done), better))
        yield (figures.trials([(trial.number, trial.value) for trial in done], [(trial.number, value) for trial, value in zip(done, best)], "trial",
                              self.tuning.measure), "Complete trials, and the best so far")
        for name in names:
            points = [(trial.parameters[name], trial.value) for trial in done]
            if all(isinstance(at, (int, float)) for at, _ in points) and len({at for at, _ in points}) > 1:
                space = self.tuning.over[name]
                yield figures.trials(points, [], name, self.tuning.measure, isinstance(space, Range) and space.log), f"Complete trials over {name}"


def _text(parameters):
    return " ".join(f"{name}={value_text(value)}" for name, value in shown_values(parameters).items())
