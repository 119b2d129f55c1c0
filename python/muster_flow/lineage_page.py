"""The lineage of a model as a page with a picture: files of data, steps, members and the version, from left to right."""
import html as escaping

from muster_bench import html
from muster_bench.text import value_text, without_secrets

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 220, 46, 60, 18, 12   # pixels of a box, between boxes, around the picture
CHARACTERS = 30    # that a box has room for
FILLS = {"data": "#e8eef7", "step": "#eef3ea", "version": "#f7ecd9"}


def page(found):
    """Returns the page of what lineage.lineage() has found."""
    title = f"{found['model']} version {found['version']}"
    rows = [[step["step"], step["cause"] or "", "" if step["accuracy"] is None else f"{step['accuracy']:.4f}", str(step["ranks"]),
             html.escape(" ".join(f"{name}={value_text(value)}" for name, value in step["parameters"].items())),
             html.escape(without_secrets(" ".join(step["command"]))), step["key"][:12]] for step in found["steps"]]
    members = [[member["step"], f"{member['accuracy']:.4f}", (member["model"] or "")[:12]] for member in found["members"]]
    return html.document(title, "".join([
        f"<h1>{html.escape(title)}</h1>\n", html.facts([("served", found["name"]), ("accuracy", f"{found['accuracy']:.4f}")]),
        html.figure(picture(found), "Data, steps and the version"), html.table(["member", "accuracy", "sha256"], members, "Members"),
        html.table(["step", "ended", "accuracy", "ranks", "parameters", "command", "result"], rows, "Steps")]))


def picture(found):
    """Returns an SVG with a column of boxes for each distance from the data."""
    boxes, edges = _graph(found)
    depth = {}
    for name in boxes:   # each box after those that it needs
        depth[name] = max((depth[before] + 1 for before, after in edges if after == name), default=0)
    columns = [[name for name in boxes if depth[name] == column] for column in range(max(depth.values()) + 1)]
    places = {name: (MARGIN + column * (WIDTH + GAP_X), MARGIN + row * (HEIGHT + GAP_Y)) for column, names in enumerate(columns) for row, name in enumerate(names)}
    width = 2 * MARGIN + len(columns) * WIDTH + (len(columns) - 1) * GAP_X
    height = 2 * MARGIN + max(map(len, columns)) * (HEIGHT + GAP_Y) - GAP_Y
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif">']
    for before, after in edges:
        (x, y), (to_x, to_y) = places[before], places[after]
        lines.append(f'<path d="M{x + WIDTH} {y + HEIGHT // 2}C{x + WIDTH + GAP_X} {y + HEIGHT // 2} {to_x - GAP_X} {to_y + HEIGHT // 2} {to_x} {to_y + HEIGHT // 2}" fill="none" stroke="#777"/>')
    for name, (kind, first, second) in boxes.items():
        x, y = places[name]
        lines.append(f'<g><title>{escaping.escape(f"{first} {second}")}</title><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{FILLS[kind]}" stroke="#999"/>'
                     f'<text x="{x + 10}" y="{y + 19}" font-size="13">{escaping.escape(_short(first))}</text>'
                     f'<text x="{x + 10}" y="{y + 36}" font-size="11" fill="#555">{escaping.escape(_short(second))}</text></g>')
    return "\n".join([*lines, "</svg>"])


def _short(text):
    """Returns the end of a long text: paths differ there."""
    return text if len(text) <= CHARACTERS else f"...{text[3 - CHARACTERS:]}"


def _graph(found):
    """Returns ({box: (kind, first line, second line)}, each after those that it needs, and the edges)."""
    boxes, edges, keys = {}, [], {}
    for step in found["steps"]:
        for inputs in step["inputs"].values():
            for one in inputs:
                if not one["step"]:
                    name = ("data", one["sha256"])
                    boxes.setdefault(name, ("data", without_secrets(one["path"]) or "a source", f"sha256 {one['sha256'][:12]}"))
                    edges.append((name, ("step", step["key"])))
                elif (maker := ("step", keys[one["step"]])) and (maker, ("step", step["key"])) not in edges:
                    edges.append((maker, ("step", step["key"])))
        keys[step["step"]] = step["key"]
        accuracy = "" if step["accuracy"] is None else f"accuracy {step['accuracy']:.4f}, "
        boxes[("step", step["key"])] = ("step", step["step"], f"{accuracy}{step['ranks']} rank{'s' if step['ranks'] > 1 else ''}")
    version = ("version", found["version"])
    boxes[version] = ("version", f"{found['model']} version {found['version']}", f"accuracy {found['accuracy']:.4f}")
    edges += [(("step", member["key"]), version) for member in found["members"] if ("step", member["key"]) in boxes]
    return boxes, edges
