"""The parts of a page: a single file without scripts and links to a network."""
import html
import pathlib

from .text import value_text

STYLE = pathlib.Path(__file__).with_name("page.css")


def escape(value):
    return html.escape(value_text(value))


def number(value):
    """Formats a number with few digits: times and rates are noisy in the third digit."""
    if value is None:
        return ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        size = abs(value)
        if size >= 1e3 and size < 1e15:  # to four digits, with separators
            return f"{float(f'{value:.4g}'):,.0f}" if isinstance(value, float) else f"{value:,}"
        return f"{value:.4g}" if value == 0 or size >= 1e-3 else f"{value:.3g}"
    return escape(value)


def spread(found, scale=1.0):
    """Formats the median, and the range from minimum to maximum for several values."""
    if found is None:
        return ""
    if scale != 1.0:
        found = {name: found[name] * scale for name in ("min", "median", "max")}
    if found["min"] == found["max"]:
        return number(found["median"])
    return f"{number(found['median'])}<small>{number(found['min'])} to {number(found['max'])}</small>"


def table(header, rows, caption=""):
    """Returns a table. Cells must be HTML; the first column is the row's name."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "".join("<tr>" + "".join(cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in row) + "</tr>\n"
                   for row in rows)
    opening = f"<caption>{caption}</caption>" if caption else ""
    return f'<div class="wide" tabindex="0"><table>{opening}<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n'


def figure(svg, caption):
    return (f'<figure role="img" aria-label="{html.escape(caption, quote=True)}"><figcaption>{escape(caption)}</figcaption>\n'
            f"{svg}\n</figure>\n")


def facts(pairs):
    return '<ul class="facts">' + "".join(f"<li>{escape(name)} <b>{escape(value)}</b></li>" for name, value in pairs) + "</ul>\n"


def document(title, body):
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
            f'<link rel="icon" href="data:,">\n<style>\n{STYLE.read_text()}</style>\n</head>\n<body>\n{body}</body>\n</html>\n')
