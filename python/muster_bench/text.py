"""Placeholders, numbers with units, and values in the form of command lines."""
import math
import re
import shlex

from .errors import Refusal, closest, listed

PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\*?)([A-Za-z_][A-Za-z0-9_.-]*)\}|\{|\}")
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SECRET_KEYS = ("password", "passwd", "pwd", "sig", "signature", "credential", "token", "secret", "secret_key", "access_key", "accesskey", "api_key", "apikey",
               "secretkey", "auth", "authorization", "accesskeyid")   # ends of keys, the same as in include/muster/core/detail/error-inl.hpp
KEY_VALUE = re.compile(r"([A-Za-z_-]*)( *= *)(?! |\.\.\.)('(?:\\.|[^'\\])*'?|[^&?# \t\n'\")]*)")


def without_secrets(text):
    """Returns the text for messages, tables and reports: without the user and password of an address, and with "..." for the values of password=, token=,
    sig=, X-Amz-Signature= and other keys whose value gives access. The same as detail::without_secrets in include/muster/core/detail/error-inl.hpp."""
    def user(match):
        word = match.group(1)
        end = min((at for at in map(word.find, "/?#") if at >= 0), default=len(word))
        host, colon, rest = word[:end].partition(":")
        if colon and not re.fullmatch(r"\d*", rest):   # a password may contain characters that should have been encoded
            end = len(word)
        at = word.rfind("@", 0, end)
        return "://" + (word if at < 0 else "..." + word[at:])

    def value(match):
        key = match.group(1).lower().replace("-", "_")
        return match.group(1) + match.group(2) + "..." if key.endswith(SECRET_KEYS) else match.group(0)

    text = re.sub(r"://([^ \t\n'\"]*?)(?=://|[ \t\n'\"]|$)", user, str(text))
    pieces, at = [], 0
    while match := KEY_VALUE.search(text, at):   # a value that is not secret may contain a key
        shown = value(match)
        if shown == match.group(0):
            pieces.append(text[at:match.start(3)])
            at = match.start(3)
        else:
            pieces += text[at:match.start()], shown
            at = match.end()
    return "".join(pieces) + text[at:]


def shown_values(values):
    """Returns parameters or variables for tables and reports, with "..." for secrets."""
    return {name: "..." if isinstance(value, str) and name.lower().replace("-", "_").endswith(SECRET_KEYS) else
            without_secrets(value) if isinstance(value, str) else value for name, value in values.items()}


def value_text(value):
    """Returns a parameter in the form of a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return "" if value is None else str(value)


def fill(text, values, where):
    """Returns the text with {name} replaced; {{ and }} are braces."""
    def one(match):
        if match.group(0) in ("{{", "}}"):
            return match.group(0)[0]
        name = match.group(2)
        if not name:
            raise Refusal(f"{where} has a brace alone in '{text}' (braces are for placeholders); write {{{{ or }}}}")
        if name not in values:
            raise Refusal(f"{where} has the unknown placeholder '{{{name}}}' (known: {listed(values)}); "
                          f"{closest(name, values, 'give the experiment a parameter of that name')}")
        return value_text(values[name])
    return PLACEHOLDER.sub(one, text)


def words_of(command):
    """Returns a command as a list of words with unfilled placeholders: the value of a placeholder never becomes two
    words."""
    if not isinstance(command, (str, list, tuple)):
        raise Refusal(f"'{value_text(command)}' is no command (it is a text, or a list of words); write one of these")
    try:
        return shlex.split(command) if isinstance(command, str) else [value_text(word) for word in command]
    except ValueError as error:
        raise Refusal(f"'{command}' cannot be split into words ({error}); mend its quotation marks") from None


def fill_words(words, values, where):
    """Returns the words filled in. {*name} alone gives as many words as its value has. An empty placeholder alone gives
    no word."""
    result = []
    for word in words:
        match = PLACEHOLDER.fullmatch(word)
        alone = match is not None and match.group(2)
        if alone and match.group(1):
            result += shlex.split(fill("{" + match.group(2) + "}", values, where))
            continue
        filled = fill(word, values, where)
        if filled or not alone:
            result.append(filled)
    return result


def bytes_of(value, where):
    """Returns the bytes of 512, "64M" or "2 GiB"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", str(value), re.IGNORECASE)
    amount = float(match.group(1)) * UNITS[match.group(2).lower()] if match else math.inf
    if amount >= 1 << 63:
        raise Refusal(f"{where} cannot be '{value}' (it is no size); write such as 64M or 2G")
    return int(amount)


def last_said(text):
    """Returns the line that best explains a failure: the last line marked as an error, else the last line. Skips
    mpirun's own text between lines of dashes. Other lines may follow an error, because stderr has its own pipe."""
    own = "".join(reversed(re.split(r"^-{60,}$", text, flags=re.M)[::-2])).strip() or text.strip()
    lines = own.split("\n")
    return next((line for line in reversed(lines) if ": error: " in line), lines[-1]).strip()


def slug(text):
    """Returns the text in a form for the name of a file."""
    return re.sub(r"[^A-Za-z0-9_.=+-]+", "_", text).strip("_")


def human_seconds(value):
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(round(value)), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
