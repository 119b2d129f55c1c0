"""The report of a folder of results: one self-contained HTML file, and its pictures as files."""
import pathlib
import re
from html import unescape

from . import figures, forms, headline, html, metrics
from .files import read_json, write_whole
from .metrics import GOALS
from .text import value_text

# Name of a measure in a table, its unit, and the factor for that unit.
MEASURES = {"throughput": ("throughput", "samples/s", 1.0), "seconds": ("time", "s", 1.0), "time_to_accuracy": ("time to the goal", "s", 1.0),
            "time_to_val_loss": ("time to the validation loss", "s", 1.0), "time_to_train_loss": ("time to the training loss", "s", 1.0),
            "time_to_train_accuracy": ("time to the training accuracy", "s", 1.0), "train_accuracy": ("training accuracy", "", 1.0),
            "accuracy": ("accuracy", "", 1.0), "train_seconds": ("training", "s", 1.0), "train_loss": ("training loss", "", 1.0),
            "val_loss": ("validation loss", "", 1.0), "communication_share": ("communicating", "%", 100.0),
            "bytes_sent": ("sent", "MB", 1e-6), "staleness_mean": ("staleness", "updates", 1.0), "cost": ("cost", "", 1.0),
            "cost_preemptible": ("cost, preemptible", "", 1.0), "step_seconds": ("a step", "ms", 1e3)}
TIME_LOSSES = (("train_loss", "training loss"), ("val_loss", "validation loss"))
SUMMARY = ("throughput", "seconds", "time_to_accuracy", "time_to_val_loss", "time_to_train_loss", "time_to_train_accuracy", "accuracy", "train_accuracy", "train_seconds", "train_loss", "val_loss",
           "communication_share", "bytes_sent", "staleness_mean", "cost", "cost_preemptible")
EXTRA = {"speedup_rank": "S, one rank", "efficiency_rank": "E", "speedup_plain": "S, plain", "efficiency_plain": "E, plain",
         "speedup_time_rank": "S by time to accuracy", "efficiency_time_rank": "E by time", "speedup_time_plain": "S by time, plain",
         "efficiency_time_plain": "E by time, plain", "price_index": "price N/S²"}


def write(folder, file, plan, division, entries, groups, extra=""):
    folder = pathlib.Path(folder)
    environments = read_json(folder / "environment.json") or []
    pictures = [picture for experiment in file.experiments
                for picture in _pictures(file, experiment, [group for group in groups if group.experiment == experiment.name])]
    _write_pictures(folder / "figures", pictures)
    write_whole(folder / "report.html", html.document(file.title, _body(file, plan, division, entries, groups, environments, pictures, extra)))


def _write_pictures(folder, pictures):
    folder.mkdir(exist_ok=True)
    report = folder.parent / "report.html"
    before = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    # other pictures in the folder belong to the user
    for caption in re.findall("<figcaption>(.*?)</figcaption>", before):
        (folder / _file_name(unescape(caption))).unlink(missing_ok=True)
    for svg, caption in pictures:
        write_whole(folder / _file_name(caption), figures.alone(svg), durable=False)


def _file_name(caption):
    described = re.split("[(;]", caption)[0].lower()    # without the notes on left-out lines and on noise
    return f"{re.sub('[^a-z0-9]+', '-', described).strip('-')}.svg"


def _body(file, plan, division, entries, groups, environments, pictures, extra):
    failed = {entry["id"]: entry for entry in entries if entry["status"] not in ("ok", "skipped")}
    skipped = {entry["id"]: entry for entry in entries if entry["status"] == "skipped"}
    done = len({entry["id"] for entry in entries})
    parts = [f"<h1>{html.escape(file.title)}</h1>\n"]
    if file.about:
        parts.append(f"<p>{html.escape(file.about)}</p>\n")
    parts.append(html.facts([("runs", f"{done} of {len(plan)}"), ("failed", len(failed)),
                             *([("skipped", len(skipped))] if skipped else []), ("division", division),
                             *_machine(environments)]))
    parts.insert(1, extra or _headlines(file, groups))
    if failed:
        parts.append(_failures("Failed runs", failed.values()))
    if skipped:
        parts.append(_failures("Skipped runs", skipped.values()))
    if pictures:
        parts.append('<h2>Figures</h2>\n<div class="figures">\n' + "".join(html.figure(*each) for each in pictures) + "</div>\n")
    parts.append("<h2>Results</h2>\n<p>Every configuration is run as often as its experiment repeats it, each time with the next seed. A "
                 "cell has the median of these runs; below it are the least and the most. S is the speed-up T1 / TN, E is S over the ranks: "
                 f"1 is ideal. Runs are noisy where they trained for less than {metrics.SHORT:g} s or E is above 1.</p>\n")
    parts += [_summary(experiment, [group for group in groups if group.experiment == experiment.name], file)
              for experiment in file.experiments]
    parts.append(_forms(file, groups))
    parts.append(_environment(environments))
    parts.append(_runs(entries))
    parts.append("<footer>Made by muster-bench. The same numbers are in results.csv, summary.csv and results.json beside this "
                 "page, the pictures in figures.</footer>\n")
    return "".join(parts)


def _headlines(file, groups):
    """Returns three sentences for each experiment in which configurations can be compared."""
    parts = []
    for experiment in file.experiments:
        mine = [group for group in groups if group.experiment == experiment.name]
        varying = _varying([group for group in mine if not group.row])
        sentences = headline.sentences(experiment.goal, mine, lambda group: _label(group, varying),
                                       lambda name, value: html.number(value) + " " + MEASURES[name][1])
        if sentences:
            parts.append(f"<p>{f'<b>{html.escape(experiment.name)}</b>: ' if len(file.experiments) > 1 else ''}{html.escape(' '.join(sentences))}</p>\n")
    return f'<div class="lead">\n{"".join(parts)}</div>\n' if parts else ""


def _machine(environments):
    if not environments:
        return []
    last = environments[-1]
    return [("cores", last["cores"]), ("processor", last["cpu"]), ("noise of the machine", f"{last['noise']['spread']:.1%}")]


def _failures(title, failed):
    items = [f'<li><b>{html.escape(entry["id"])}</b>, attempts {html.number(entry["attempts"])}: '
             f'<span class="failed">{html.escape(entry["status"])}</span>, {html.escape(entry["why"])}</li>' for entry in failed]
    return f'<h2>{title}</h2>\n<ul class="failures">\n' + "\n".join(items) + "\n</ul>\n"


# ---- figures ----

LINES, BARS = 8, 24  # that a person can distinguish
LONG = 5             # a longer list is folded


def _of(all_there_are, shown):
    """Returns a note for a caption if the picture shows only some of the groups: the table has all."""
    count = len(all_there_are)
    return f" (the first {shown} of {count})" if count > shown else ""


def _doubts(groups):
    """Returns the reasons for noise in a figure, for its caption."""
    counts = {}
    for why in (why for group in groups for why in group.noisy()):
        counts[why] = counts.get(why, 0) + 1
    return "; noisy: " + ", ".join(f"{count} of {len(groups)} {why}" for why, count in counts.items()) if counts else ""


def _varying(groups):
    """Returns the parameters, ranks aside, in which the groups differ."""
    return [name for name in (groups[0].parameters if groups else {})
            if name != "ranks" and len({value_text(group.parameters.get(name)) for group in groups}) > 1]


def _label(group, varying, ranks=True):
    words = [value_text(group.parameters[name]) if isinstance(group.parameters[name], str) else
             f"{name} {value_text(group.parameters[name])}" for name in varying if name in group.parameters]
    if ranks:
        words.append(f"{group.ranks} rank" + ("s" if group.ranks > 1 else ""))
    return ", ".join(words) or group.experiment


def _pictures(file, experiment, groups):
    plain = [group for group in groups if not group.row]
    varying = _varying(plain)
    ranked = len({group.ranks for group in plain}) > 1 or not varying
    yield from _times(experiment, plain, varying, ranked)
    yield from _speed_ups(experiment, plain, varying)
    yield from _throughputs(experiment, plain, varying)
    bars = [(_label(group, varying, ranked), {part: group.median(f"{metric}_share") for part, metric in
                                      (("computation", "computation"), ("communication", "communication"),
                                       ("waiting for data", "data_wait"), ("the rest", "other")) if group.median(f"{metric}_share") is not None})
            for group in plain]
    bars = [(label, parts) for label, parts in bars if parts]
    if bars:
        yield (figures.shares(bars[:BARS]), f"{experiment.name}: where the time goes, the mean over the ranks"
               + _of(bars, BARS))
    costs = [(_label(group, varying, ranked), group.spread("cost")) for group in plain if group.spread("cost")]
    if costs:
        until = "to the goal" if experiment.goal else "of the training"
        short = len([group for group in plain if group.good()]) - len(costs)
        missed = f"; {short} did not get there" if experiment.goal and short else ""
        yield (figures.spread_bars(costs[:BARS], file.prices.currency),
               f"{experiment.name}: cost {until}, least to most{_of(costs, BARS)}{missed}")
    yield from _rows(experiment, [group for group in groups if group.row])


def _times(experiment, groups, varying, ranked):
    targets = {GOALS[goal.metric]: goal.value for goal in experiment.goals}
    for column, name in (*TIME_LOSSES, ("val_accuracy", "validation accuracy"), ("train_accuracy", "training accuracy")):
        lines = {}
        for group in groups[:LINES]:
            for entry in group.good():
                points = [(epoch["seconds"], epoch[column]) for epoch in entry["series"] if column in epoch and "seconds" in epoch]
                if len(points) > 1:
                    lines.setdefault(_label(group, varying, ranked), []).append(points)
        if lines:
            scale = "log" if column.endswith("loss") and min(value for many in lines.values() for points in many for _, value in points) > 0 else "linear"
            yield figures.over_time(lines, name, targets.get(column), scale), f"{experiment.name}: {name} over time{_of(groups, LINES)}"


def _speed_ups(experiment, groups, varying):
    for key, title in (("speedup_time_rank", "speed-up of the time to accuracy"), ("speedup_rank", "speed-up of the throughput")):
        lines = {}
        for group in groups:
            if key in group.extra:
                lines.setdefault(_label(group, varying, ranks=False), []).append((group.ranks, group.extra[key]))
        lines = {label: points for label, points in lines.items() if len(points) > 1}
        if lines:
            yield (figures.speed_up(dict(list(lines.items())[:LINES]), "S = T1 / TN"),
                   f"{experiment.name}: {title}, against one rank{_of(lines, LINES)}{_doubts(groups)}")


def _throughputs(experiment, groups, varying):
    """Draws over the parameter that is swept, if that is one number and not the ranks."""
    numeric = [name for name in varying if all(isinstance(group.parameters.get(name), (int, float)) for group in groups)]
    if len(varying) != 1 or not numeric:
        return
    lines = {}
    for group in groups:
        if found := group.spread("throughput"):
            lines.setdefault(f"{group.ranks} rank" + ("s" if group.ranks > 1 else ""), []).append((group.parameters[numeric[0]], found))
    if lines and max(map(len, lines.values())) > 1:
        yield figures.over_size(lines, numeric[0], "samples a second", log=False), f"{experiment.name}: throughput over {numeric[0]}"


def _rows(experiment, groups):
    """Draws rows of Google Benchmark whose names end in a size."""
    lines, varying = {}, _varying(groups)
    for group in groups:
        match = re.fullmatch(r"(.*?)/(\d+)", group.row)
        found = group.spread("seconds")
        if match and found:
            kind, _, contender = match.group(1).partition("/")
            label = ", ".join([contender or kind, *([_label(group, varying, ranks=False)] if varying else [])])
            lines.setdefault((kind, group.ranks), {}).setdefault(label, []).append((int(match.group(2)), found))
    for (kind, ranks), some in lines.items():
        some = {label: points for label, points in some.items() if len(points) > 1}
        if some:
            caption = f"{experiment.name}: {kind}, time over size, {ranks} rank" + ("s" if ranks > 1 else "") + _of(some, LINES)
            yield figures.over_size(dict(list(some.items())[:LINES]), "size", "seconds"), caption


# ---- tables ----

def _summary(experiment, groups, file):
    if not groups:
        return ""
    rows_named = any(group.row for group in groups)
    varying = list(dict.fromkeys([*[name for name in experiment.swept if name != "ranks"], *_varying(groups)]))
    aimed_at = [goal.metric for goal in experiment.goals]   # a training accuracy without a goal is only in results.csv
    measures = [name for name in SUMMARY if any(group.spread(name) for group in groups) and (name != "train_accuracy" or name in aimed_at)]
    measures += [name for name in metrics.columns(file, [entry for group in groups for entry in group.entries])
                 if name.startswith("accuracy_after")]
    measures += [name for name in metrics.own_measures(file) if any(group.spread(name) for group in groups)]
    if rows_named:
        known = {*measures, *metrics.DERIVED}
        measures += [name for name in metrics.columns(file, [entry for group in groups for entry in group.entries])
                     if name not in known][:6]
    if not measures:  # a program with only its own measures
        measures = metrics.columns(file, [entry for group in groups for entry in group.entries])[:8]
    extra = [name for name in EXTRA if any(name in group.extra for group in groups)]
    times = [_time_to(goal, experiment) for goal in experiment.goals]
    if any(group.good() for group in groups):
        measures = [name for name in SUMMARY if name in measures or name in times] + [name for name in measures if name not in SUMMARY]
    first = [*(["row"] if rows_named else []), *varying, "ranks"]
    rows, gains = [], []
    for group in groups:
        names = [*([html.escape(group.row)] if rows_named else []), *[html.escape(group.parameters.get(name)) for name in varying],
                 html.number(group.ranks)]
        rows.append([*names, _runs_of(group), *[_cell(group, name, experiment) for name in measures]])
        gains.append([*names, *[html.number(group.extra.get(name)) for name in extra]])
    goal = ", goal " + " and ".join(f"{goal.metric} {goal.value:g}" for goal in experiment.goals) if experiment.goals else ""
    table = html.table([*first, "runs", *[_titled(name, file) for name in measures]], rows,
                       f"<b>{html.escape(experiment.name)}</b>, template {html.escape(experiment.template.name)}, launcher "
                       f"{html.escape(experiment.template.launcher.kind)}{goal}; {_repeated(experiment)}")
    if extra and len(rows) > 1:  # a separate table: together with the measures it would be wider than a page
        table += html.table([*first, *[EXTRA[name] for name in extra]], gains, f"<b>{html.escape(experiment.name)}</b>, speed-ups")
    return table if len(rows) <= 40 else f"<details><summary>{html.escape(experiment.name)}: {len(rows)} rows</summary>{table}</details>\n"


def _repeated(experiment):
    if experiment.repeats == 1:
        return f"run once, with seed {experiment.seed}"
    return f"run {experiment.repeats} times, with seeds {experiment.seed} to {experiment.seed + experiment.repeats - 1}"


def _runs_of(group):
    good = len(group.good())
    text = html.number(good) if good == len(group.entries) else f'<span class="failed">{good} of {len(group.entries)}</span>'
    doubts = group.noisy()
    return text + (f'<small class="noisy">noisy: {html.escape(", ".join(doubts))}</small>' if doubts else "")


def _titled(name, file):
    text, unit, _ = MEASURES.get(name, (name.replace("accuracy_after_", "accuracy after "), "", 1))
    unit = file.prices.currency if name.startswith("cost") else unit
    return f"{text}, {unit}" if unit else text


def _time_to(goal, experiment):
    return "time_to_accuracy" if goal == experiment.goal else f"time_to_{goal.metric}"


def _cell(group, name, experiment):
    found = group.spread(name)
    text = html.spread(found, MEASURES.get(name, ("", "", 1.0))[2])
    times = [_time_to(goal, experiment) for goal in experiment.goals]
    if experiment.goal and (name in times or name.startswith("cost")) and any(entry["series"] for entry in group.good()):
        reached = 0 if found is None else found["n"]
        if reached == 0:
            return "" if name.startswith("cost") else "goal not reached"
        if reached < len(group.good()):
            return f"{text}<small>goal not reached by {len(group.good()) - reached} of {len(group.good())}</small>"
    return text


def _forms(file, groups):
    parts = []
    for form in file.forms:
        if content := forms.table(form, groups):
            header, lines = content
            parts.append(html.table(header, [[html.escape(line[0]), *map(forms.number, line[1:])] for line in lines],
                                    html.escape(forms.caption(form))))
    return "<h2>As published</h2>\n" + "".join(parts) if parts else ""


def _environment(environments):
    if not environments:
        return ""
    names = list(dict.fromkeys(name for environment in environments for name in environment))
    rows = [[html.escape(name.replace("_", " ")), *[f'<td class="text">{_environment_cell(environment.get(name))}</td>' for environment in environments[-4:]]]
            for name in names]
    header = ["", *[f"start {number}" for number in range(max(1, len(environments) - 3), len(environments) + 1)]]
    return "<h2>Machine</h2>\n" + html.table(header, rows, "Noise: the same work 15 times, seconds; the spread is the middle "
                                             "half's, over the median.")


def _environment_cell(value):
    if isinstance(value, dict):
        return ", ".join(f"{html.escape(name)} {html.number(item)}" for name, item in value.items())
    if isinstance(value, list) and len(value) > LONG:
        return (f"<details><summary>{len(value)} of them</summary>" + ", ".join(map(html.escape, value)) + "</details>")
    if isinstance(value, list):
        return ", ".join(html.escape(item) if isinstance(item, str) else html.number(item) for item in value)
    return html.number(value)


def _runs(entries):
    seen = {}
    for entry in entries:
        seen.setdefault(entry["id"], entry)
    rows = [[html.escape(entry["id"]), html.number(entry["ranks"]), html.number(entry["repeat"]), html.number(entry["seed"]),
             html.number(entry["attempts"]), html.escape(entry["status"])] for entry in seen.values()]
    return f"<details><summary>All {len(rows)} runs</summary>\n" + html.table(
        ["run", "ranks", "repeat", "seed", "attempts", "status"], rows) + "</details>\n"
