"""Labels of engines, and selectors that name a group of engines by them.

A selector is a comma-separated list of which every part must hold:
`key=value`, `key!=value`, `key in (a, b)`, `key notin (a, b)`, `key`, `!key`.
An empty one selects every engine. Each engine has the label `name` without being given it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from console.exceptions import Invalid

MAX_LABELS = 32
MAX_SELECTOR_CHARS = 500
NAME_LABEL = "name"
_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_IS_KEY = re.compile(_KEY)
_IS_VALUE = re.compile(_VALUE)
_PART = re.compile(
    rf"\s*(?:(?P<not>!)\s*(?P<absent>{_KEY})"
    rf"|(?P<key>{_KEY})"
    rf"(?:\s*(?P<op>!=|==?)\s*(?P<value>{_VALUE})"
    rf"|\s+(?P<set>in|notin)\s*\(\s*(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\))?"
    r")\s*(?:,|$)"
)


@dataclass(frozen=True)
class _Term:
    key: str
    values: frozenset[str] | None  # None: any value will do
    is_wanted: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        has = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return has == self.is_wanted


@dataclass(frozen=True)
class Selector:
    """A group of engines: those whose labels fit."""

    text: str
    terms: tuple[_Term, ...]

    @property
    def is_all(self) -> bool:
        """True when it selects every engine, also those to come."""
        return not self.terms

    def fits(self, labels: Mapping[str, str]) -> bool:
        """True for an engine with these labels (see `labels_of`)."""
        return all(term.holds(labels) for term in self.terms)


@lru_cache(maxsize=1024)
def selector_read(text: str) -> Selector:
    """A selector as typed. Raises Invalid."""
    if len(text) > MAX_SELECTOR_CHARS:
        raise Invalid(f"a selector has at most {MAX_SELECTOR_CHARS} characters")
    text = text.strip()
    terms: list[_Term] = []
    place = 0
    while place < len(text):
        found = _PART.match(text, place)
        if found is None or (found.end() == len(text) and text.endswith(",")):
            raise Invalid(f"the selector cannot be read from {text[place : place + 30]!r} on")
        terms.append(_term(found))
        place = found.end()
    return Selector(text, tuple(terms))


def _term(found: re.Match[str]) -> _Term:
    if found["not"]:
        return _Term(found["absent"], None, is_wanted=False)
    if found["set"]:
        values = frozenset(one.strip() for one in found["values"].split(","))
        return _Term(found["key"], values, is_wanted=found["set"] == "in")
    if found["op"]:
        return _Term(found["key"], frozenset({found["value"]}), is_wanted=found["op"] != "!=")
    return _Term(found["key"], None, is_wanted=True)


def labels_parse(parts: Iterable[str]) -> dict[str, str]:
    """Labels, each as `key=value`; `labels_check` says whether they can be. Raises Invalid."""
    found: dict[str, str] = {}
    for part in parts:
        key, sign, value = part.partition("=")
        if not sign:
            raise Invalid(f"a label is key=value; {part[:70]!r} is none")
        found[key] = value
    return found


def labels_check(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels in the order of their keys. Raises Invalid."""
    if len(labels) > MAX_LABELS:
        raise Invalid(f"an engine has at most {MAX_LABELS} labels")
    for key, value in labels.items():
        if key == NAME_LABEL:
            raise Invalid("the label name is the engine's own name; it is not given")
        if not _IS_KEY.fullmatch(key) or not _IS_VALUE.fullmatch(value):
            raise Invalid(
                f"label {key[:70]!r}={value[:70]!r}: a key and a value have 1 to 63 letters, "
                "digits, '.', '_' or '-', and begin and end with a letter or digit"
            )
    return dict(sorted(labels.items()))


def labels_of(name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """What selectors are matched with: an engine's labels and its name."""
    return {**labels, NAME_LABEL: name}
