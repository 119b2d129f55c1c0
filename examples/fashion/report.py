"""Writes the report of the project: the trainings, the selected model, its confusions, and the server's latency."""
import argparse
import base64
import io
import json
import pathlib
import statistics

from fashion import read_idx
from matplotlib import pyplot
from muster_bench import figures, html
from muster_bench.files import write_whole
from muster_flow.select import record_of, training_of

WRONG = 24    # number of samples shown


def curves(records, column, label):
    picture = figures.Picture("epoch", label)
    with picture as axes:
        for index, record in enumerate(records):
            points = [(row["epoch"], row[column]) for row in record["series"] if row.get(column) is not None]
            axes.plot(*zip(*points), label=record["step"], **figures.style(index))
        axes.legend()
    return html.figure(picture.svg, f"{label} by epoch")


def confusion(table, names):
    """Returns a table whose cells are darker if they count more images."""
    rows = []
    for label, counts in enumerate(table):
        total = max(sum(counts), 1)
        rows.append([names[label], *[f'<td style="background:rgba({"80,160,80" if label == predicted else "200,80,80"},{min(count / total * 2, 0.9):.2f})">'
                                       f"{count or ''}</td>" for predicted, count in enumerate(counts)]])
    return html.table(["is / taken for", *names], rows, "Test images by class and by what the served model takes them for")


def latencies(seconds):
    picture = figures.Picture("share of the requests", "ms")
    with picture as axes:
        ordered = sorted(1000 * value for value in seconds)
        axes.plot([(k + 1) / len(ordered) for k in range(len(ordered))], ordered, **{**figures.style(0), "marker": ""})
        axes.set_yscale("log")
    return html.figure(picture.svg, "Latency of requests: a share of them took at most so long")


def picture_of(image, side):
    """Returns a PNG embedded in the page."""
    content = io.BytesIO()
    pyplot.imsave(content, [list(image[row * side[1]:(row + 1) * side[1]]) for row in range(side[0])], cmap="gray_r", vmin=0, vmax=255, format="png")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"


def accuracy_of(record):
    return next(row["val_accuracy"] for row in record["series"] if row["epoch"] == record["epoch"])


def trainings(models, reports):
    """Returns {step, series, epoch, seconds, cause} for each model; epoch is the number of the epoch whose model was saved."""
    for path, report in zip(models, reports):
        step, rows, epoch = training_of(path, report)
        cause = (record_of(path) or {}).get("cause", "done")   # only the runner of this machine knows another one
        yield {"step": step, "series": rows, "epoch": epoch, "seconds": sum(row["train_seconds"] for row in rows), "cause": cause}


def main():
    options = argparse.ArgumentParser(description=__doc__)
    for name in ("selected", "load", "images", "labels", "html"):
        options.add_argument(f"--{name}", required=True, metavar="FILE")
    options.add_argument("models", nargs="+", metavar="MODEL")
    options.add_argument("--reports", nargs="+", required=True, metavar="FILE")
    chosen = options.parse_args()
    selected, load = (json.loads(pathlib.Path(path).read_text()) for path in (chosen.selected, chosen.load))
    records = list(trainings(chosen.models, chosen.reports))
    extents, images = read_idx(chosen.images)
    _, labels = read_idx(chosen.labels)
    side, size = extents[1:], extents[1] * extents[2]
    names = load["names"]
    table = [[0] * len(names) for _ in names]
    for label, predicted in zip(labels, load["classes"]):
        table[label][predicted] += 1
    wrong = [at for at, predicted in enumerate(load["classes"]) if predicted != labels[at]]
    answered = [latency for latency in load["latencies"] if latency is not None]
    p50, p99 = (sorted(answered)[int(share * (len(answered) - 1))] * 1000 for share in (0.5, 0.99))
    shown = "".join(f'<figure style="display:inline-block;margin:4px;text-align:center"><img src="{picture_of(images[at * size:(at + 1) * size], side)}" '
                    f'width="84" height="84" style="image-rendering:pixelated" alt=""><figcaption>{names[labels[at]]},<br>taken for '
                    f'{names[load["classes"][at]]}</figcaption></figure>' for at in wrong[:WRONG])
    body = "".join([
        "<h1>Fashion-MNIST: from data to service</h1>\n",
        html.facts([("served", f"version {selected['version']}, {selected['selected']['step']}"), ("platform", load["model"]), ("test accuracy", f"{selected['selected']['accuracy']:.4f}"),
                    ("accuracy of the served answers", f"{1 - len(wrong) / len(load['classes']):.4f}"), ("requests", len(load["classes"])),
                    ("requests a second", f"{len(answered) / load['seconds']:.0f}"), ("median latency", f"{p50:.2f} ms"), ("99th percentile", f"{p99:.2f} ms")]),
        html.table(["model", "epochs", "test accuracy", "of epoch", "ended", "seconds of training"],
                   [[record["step"], str(len(record["series"])), f"{accuracy_of(record):.4f}", str(record["epoch"]), record["cause"], f"{record['seconds']:.1f}"]
                    for record in records], "Trainings"),
        html.table(["member", "test accuracy"], [[member["step"], f"{member['accuracy']:.4f}"] for member in selected["selected"]["members"]], "Members of the served model"),
        curves(records, "val_accuracy", "test accuracy"), curves(records, "train_loss", "training loss"), confusion(table, names),
        f"<h2>Samples that it gets wrong ({len(wrong)})</h2>\n{shown}\n", latencies(answered)])
    write_whole(chosen.html, html.document("Fashion-MNIST: from data to service", body))
    print(f"accuracy of the served answers {1 - len(wrong) / len(load['classes']):.4f}, median latency {statistics.median(answered) * 1000:.2f} ms")


if __name__ == "__main__":
    main()
