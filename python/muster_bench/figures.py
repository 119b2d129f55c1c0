"""Pictures as SVG inside a page. Colours are variables of the page, so that pictures follow its light and dark
modes."""
import io
import re

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter  # noqa: E402

from .html import STYLE  # noqa: E402
from .text import value_text  # noqa: E402

# matplotlib requires colours; each colour here represents a variable of the page.
INK, FAINT = "#0a0b01", "#0a0b02"
SERIES = [f"#0a0c{number:02x}" for number in range(1, 9)]
VARIABLES = {INK: "--ink", FAINT: "--faint", **{colour: f"--s{number}" for number, colour in enumerate(SERIES, 1)}}
DASHES = ["-", "--", "-.", ":"]
MARKERS = "os^Dv<>P"

pyplot.rcParams.update({
    "svg.fonttype": "none", "text.parse_math": False, "font.family": "sans-serif", "font.size": 11, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": FAINT, "xtick.color": INK, "ytick.color": INK, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": FAINT, "grid.linewidth": 0.5, "legend.frameon": False, "figure.facecolor": "none",
    "axes.facecolor": "none", "savefig.facecolor": "none", "svg.hashsalt": "muster", "legend.fontsize": 10})


def style(index):
    """Returns colour, dash and marker of a line: some readers cannot distinguish colours."""
    return {"color": SERIES[index % len(SERIES)], "linestyle": DASHES[index // len(SERIES) % len(DASHES)],
            "marker": MARKERS[index % len(MARKERS)], "markersize": 5}


def named(label):
    """Returns a label that matplotlib shows in a legend, which lacks labels with a leading low line otherwise."""
    return f"\u200b{label}" if label.startswith("_") else label


class Picture:
    """A figure with one pair of axes: with Picture(...) as axes: ...; `svg` has the text afterwards."""

    def __init__(self, x, y, height=3.4):
        self.svg = ""
        self._figure, self._axes = pyplot.subplots(figsize=(5.6, height), layout="constrained")
        self._axes.set_xlabel(x)
        self._axes.set_ylabel(y)

    def __enter__(self):
        return self._axes

    def __exit__(self, kind, *_):
        if kind is None:
            text = io.StringIO()
            self._figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
            self.svg = embedded(text.getvalue())
        pyplot.close(self._figure)


def embedded(svg):
    """Returns matplotlib's SVG in a form for a page: without prologue and size, with the page's colours and unique
    names."""
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    embedded.count += 1
    prefix = f"p{embedded.count}-"
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = re.sub(r'(xlink:href="|url\()#', rf"\1#{prefix}", svg)
    return svg.strip()


embedded.count = 0


def alone(svg):
    """Returns the same picture as a file, with the page's colours in it: it follows light and dark modes too."""
    colours = re.match(r".*?\} \}\n", STYLE.read_text(), re.S).group()
    first, rest = svg.split(">", 1)
    return f'{first} style="background: var(--ground)">\n<style>\n{colours}</style>{rest}\n'


def over_time(lines, y_label, target=None, scale="linear"):
    """Draws lines: label -> [the (seconds, value) of a repetition, ...]. The repetition with the median time is drawn
    strongly."""
    picture = Picture("training time, s", y_label, height=3.4 if len(lines) <= 4 else 3.4 + 0.12 * len(lines))
    with picture as axes:
        for index, (label, repetitions) in enumerate(lines.items()):
            repetitions = sorted(repetitions, key=lambda points: points[-1][0])
            middle = len(repetitions) // 2
            for number, points in enumerate(repetitions[middle:] + repetitions[:middle]):
                axes.plot(*zip(*points), label=named(label) if number == 0 else None, alpha=1 if number == 0 else 0.35,
                          linewidth=1.8 if number == 0 else 0.9, **style(index))
        if target is not None:
            axes.axhline(target, color=INK, linewidth=1.2, linestyle=":", label=f"goal {target:g}")
        axes.set_yscale(scale)
        _legend(axes, len(lines))
    return picture.svg


def _legend(axes, count):
    """Draws the legend in the picture if there is room, else below it."""
    if count <= 4:
        axes.legend()
    else:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=2, columnspacing=1.0)


def speed_up(lines, y_label):
    """Draws lines: label -> [(ranks, speed-up)], with the ideal line beside them."""
    picture = Picture("ranks", y_label)
    with picture as axes:
        ranks = sorted({rank for points in lines.values() for rank, _ in points})
        axes.plot(ranks, ranks, color=INK, linewidth=1.2, linestyle=(0, (6, 3)), label="ideal")
        for index, (label, points) in enumerate(lines.items()):
            axes.plot(*zip(*sorted(points)), label=named(label), linewidth=1.8, **style(index))
        axes.set_xticks(ranks)
        axes.set_ylim(bottom=0)
        axes.legend()
    return picture.svg


def shares(bars):
    """Draws bars: [(label, {part: share})], with a bar's parts in a row."""
    picture = Picture("", "", height=max(2.0, 1.0 + 0.36 * len(bars)))
    with picture as axes:
        ends = [0.0] * len(bars)
        for index, part in enumerate(dict.fromkeys(part for _, values in bars for part in values)):
            widths = [100 * values.get(part, 0.0) for _, values in bars]
            axes.barh(range(len(bars)), widths, left=ends, label=part, color=SERIES[index], height=0.62,
                      hatch=["", "///", "\\\\\\", "xx"][index], edgecolor="none" if index == 0 else FAINT)
            ends = [end + width for end, width in zip(ends, widths)]
        axes.set_yticks(range(len(bars)), [label for label, _ in bars])
        axes.set_xlabel("% of the training time")
        axes.set_xlim(0, 100)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=4, columnspacing=1.0, handlelength=1.2)
    return picture.svg


def spread_bars(bars, y_label):
    """Draws bars: [(label, {min, median, max})]: the median as a bar, the range from min to max as a line."""
    picture = Picture("", y_label, height=max(2.0, 1.0 + 0.36 * len(bars)))
    with picture as axes:
        labels = [label for label, _ in bars]
        middle = [found["median"] for _, found in bars]
        low = [found["median"] - found["min"] for _, found in bars]
        high = [found["max"] - found["median"] for _, found in bars]
        axes.barh(labels, middle, xerr=[low, high], color=SERIES[0], height=0.62, ecolor=INK, capsize=3)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.ticklabel_format(axis="x", style="sci", scilimits=(-2, 4))
        axes.set_xlabel(y_label)
        axes.set_ylabel("")
        axes.set_xlim(left=0)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
    return picture.svg


def over_size(lines, x, y_label, log=True):
    """Draws lines: label -> [(x, {min, median, max})]."""
    picture = Picture(x, y_label)
    with picture as axes:
        ticks = sorted({at for points in lines.values() for at, _ in points})
        for index, (label, points) in enumerate(lines.items()):
            points = sorted(points, key=lambda point: point[0])
            xs = [at for at, _ in points]
            axes.plot(xs, [found["median"] for _, found in points], label=named(label), linewidth=1.8, **style(index))
            axes.fill_between(xs, [found["min"] for _, found in points], [found["max"] for _, found in points],
                              color=SERIES[index % len(SERIES)], alpha=0.18, linewidth=0)
        if log:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xticks(ticks[::max(1, (len(ticks) + 5) // 6)])
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))
        else:
            axes.set_xticks(ticks)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        if len(lines) > 4:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2)
        else:
            axes.legend()
    return picture.svg


def trials(points, best, x, y_label, log=False):
    """Draws points: [(x, value)], and the best value so far at each x."""
    picture = Picture(x, y_label)
    with picture as axes:
        axes.scatter(*zip(*points), color=SERIES[0], s=22)
        if best:
            axes.step(*zip(*best), where="post", color=INK, linewidth=1.2, linestyle=(0, (6, 3)), label="the best so far")
            axes.legend()
        if log:
            axes.set_xscale("log")
    return picture.svg


def size_text(value):
    for unit in ("", "K", "M", "G"):
        if value < 1024 or unit == "G":
            return f"{value:g}{unit}"
        value /= 1024
    return value_text(value)


