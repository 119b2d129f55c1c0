"""Reads the YAML of experiments. Errors name the fault and its place."""
import os
import re

import yaml

from .errors import Refusal, closest, listed

MISSING = object()


class _Loader(yaml.SafeLoader):
    """A loader with the plain values of YAML 1.2: `on`, `no` and `12:30` are texts, 1e-4 is a number; a duplicate key
    is an error."""
    yaml_implicit_resolvers = {}

    def construct_mapping(self, node, deep=False):
        seen = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is no text", key_node.start_mark)
            if key_node.tag != "tag:yaml.org,2002:merge" and key_node.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"'{key_node.value}' is there twice",
                                                        key_node.start_mark)
            seen[key_node.value] = True
        return super().construct_mapping(node, deep)

    def number(self, node):
        text = self.construct_scalar(node)
        return float(text)


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|)$"), ["~", "n", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(
    r"^[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"), list("-+.0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"^<<$"), ["<"])
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.number)


def load(path, what="describes an experiment"):
    """Returns the content of a YAML file. `what` completes the error "a file that ..."."""
    return _read(path, what, yaml.load)


def load_all(path, what):
    """Returns the contents of all documents in a YAML file. `what` completes the error "a file that ..."."""
    return _read(path, what, lambda file, Loader: list(yaml.load_all(file, Loader=Loader)))


def _read(path, what, parser):
    try:
        # a pipe would block, a device may have no end
        if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            raise Refusal(f"cannot read '{path}' (it is no regular file); name a file that {what}")
        with open(path, encoding="utf-8") as file:
            return parser(file, Loader=_Loader)
    except OSError as error:
        raise Refusal(f"cannot read '{path}' ({error.strerror}); name a file that {what}") from error
    except UnicodeDecodeError as error:
        raise Refusal(f"'{path}' is no text (byte {error.start} is not UTF-8); name a YAML file") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise Refusal(f"{place}: this is no YAML that can be read ({why}); mend the line") from error
    except (ValueError, RecursionError) as error:
        raise Refusal(f"'{path}' cannot be read ({error}); mend it") from error


KINDS = {"a text": str, "a whole number": int, "a number": (int, float), "true or false": bool, "a list": list,
         "a mapping": dict}


class Section:
    """A mapping of the file that is read key by key. A key that no call has read is unknown."""

    def __init__(self, value, where):
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise Refusal(f"{where} is {type(value).__name__} '{_short(value)}' (it must be a mapping); write key: value")
        self.where = where
        self._value = value
        self._asked = []

    def get(self, key, kind, default=MISSING):
        """Returns the value, which has a kind from the list above ("a text or a list"); the default if the key is
        missing."""
        self._asked.append(key)
        value = self._value.get(key)
        if value is None:
            if default is MISSING:
                raise Refusal(f"{self.where} has no '{key}' (it is needed: {kind}); add it")
            return default
        for name in kind.split(" or "):
            wanted = KINDS[name]
            if isinstance(value, wanted) and (not isinstance(value, bool) or wanted is bool):
                return value
        raise Refusal(f"{self.where}: '{key}' cannot be '{_short(value)}' (it is {kind}); change it")

    def section(self, key):
        return Section(self.get(key, "a mapping", {}), f"{self.where}, {key}")

    def free(self, key):
        """Returns a mapping whose keys the writer of the file chooses."""
        return self.get(key, "a mapping", {})

    def done(self):
        for key in self._value:
            if key not in self._asked:
                raise Refusal(f"{self.where} has the unknown key '{key}' (known: {listed(self._asked)}); "
                              f"{closest(key, self._asked, 'leave it out')}")


KINDS["true"] = KINDS["true or false"]
KINDS["false"] = KINDS["true or false"]


def _short(value):
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def parse(text):
    """Returns the value of a text from a command line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise Refusal(f"'{text}' is no value ({getattr(error, 'problem', error)}); put it in quotes") from error
