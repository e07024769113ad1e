"""What people read for a way of drafting: "chain of 3 by small", "copy from the text, up to 40 tokens".

A policy's `code` says every setting in one line; documents keep it, so it never changes. A label is read off the code,
so that documents without the policy itself, and of older versions, have one too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

LOOKUP = "lookup"  # the drafter that is the text itself
LOSSY = "LOSSY "
ELSE = ", else "
RESUMED = " verified from the exit"
PLAIN = "plain decoding"

_Match = re.Match[str]


class LabelledPolicy:
    """A policy that has a label for people; its code says all of it."""

    __slots__ = ()

    @property
    def code(self) -> str:
        """Every setting in one line, as documents keep it."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Name for people, without who drafts."""
        return name_of(self.code)


def name_of(code: str, drafter: str | None = None) -> str:
    """Return a way of drafting as people say it, and who drafts.

    Args:
        code: a policy's code; other text, such as what a published default is called, is left as it is.
        drafter: the cell's; None leaves it out.
    """
    by = name_by("", drafter)
    if code.startswith(LOSSY):
        return LOSSY + _lossy(code.removeprefix(LOSSY), drafter)
    if ELSE in code:
        text, model = code.split(ELSE, 1)
        return f"{name_of(text)}{ELSE}{name_of(model, drafter)}"
    if code.endswith(RESUMED):
        return f"{name_of(code.removesuffix(RESUMED), drafter)},{RESUMED}"
    for pattern, label in _LABELS:
        found = re.fullmatch(pattern, code)
        if found is not None:
            return label(found, by)
    return code + by


def name_by(name: str, drafter: str | None) -> str:
    """Return a name that is no code, such as a published default's, and who drafts."""
    return name if drafter in (None, LOOKUP) else f"{name} by {drafter}"


def _lossy(code: str, drafter: str | None) -> str:
    draft, _, rule = code.partition(" by ")
    name = name_of(draft, drafter)
    return f"{name} ({rule.split(',')[0]})" if rule else name


def _stack(found: _Match, by: str) -> str:
    """Say the first drafter's chain, and what each drafter below it proposes."""
    del by  # the code names all drafters
    levels = re.findall(r"(.+?) (\d+)(?: over |$)", found["levels"])
    name, length = levels[0]
    parts = [f"chain of {length} by {name}" + (f" with {found['siblings']} siblings" if found["siblings"] else "")]
    for name, length in levels[1:]:
        parts.append(f"copies of {length} from the text" if name == LOOKUP else f"chains of {length} by {name}")
    return ", checked ".join(parts)


def _eagle(found: _Match, by: str) -> str:
    nodes, depth, top_k = (int(found[name]) for name in ("nodes", "depth", "top_k"))
    return f"tree of {min(nodes, top_k + depth * top_k**2 + 1)} nodes{by} (EAGLE-2)"


def _tree(of: str) -> Callable[[_Match, str], str]:
    return lambda found, by: f"tree of {found['nodes']} nodes{by} ({of})"


def _copied(of: str = "") -> Callable[[_Match, str], str]:
    return lambda found, by: f"copy from the text, up to {_count(int(found['length']), 'token')}{of}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


_LABELS: tuple[tuple[str, Callable[[_Match, str], str]], ...] = (
    (r"plain", lambda found, by: PLAIN),
    (r"chain of (?P<length>\d+)", lambda found, by: f"chain of {found['length']}{by}"),
    (
        r"chain of up to (?P<length>\d+) while surer than (?P<chance>\S+)",
        lambda found, by: f"chain of up to {found['length']}{by}",
    ),
    (r"lookup of (?P<length>\d+) after .*", _copied(" (prompt lookup)")),
    (r"suffix of m >= \d+ \(\w+\), \d+m\+\d+ up to (?P<length>\d+)", _copied()),
    (
        r"suffix tree of (?P<nodes>\d+), .*",
        lambda found, by: f"tree of {found['nodes']} nodes from the text (SuffixDecoding)",
    ),
    (
        r"cacheback .*, (?P<nodes>\d+) nodes, .*",
        lambda found, by: f"tree of {found['nodes']} nodes from the text (Cacheback)",
    ),
    (r"static tree of (?P<nodes>\d+), depth \d+", _tree("fixed")),
    (r"EAGLE-2 (?P<nodes>\d+)/(?P<depth>\d+)/(?P<top_k>\d+)", _eagle),
    (r"TALON (?P<nodes>\d+)/.*", _tree("TALON")),
    (
        r"OPT-Tree (?P<drafted>\d+)/\S+/\d+",
        lambda found, by: f"tree of {int(found['drafted']) + 1} nodes{by} (OPT-Tree)",
    ),
    (r"CAST .*at most (?P<nodes>\d+)", lambda found, by: f"tree of up to {found['nodes']} nodes{by} (CAST)"),
    (r"stack of (?P<levels>.+? \d+)(?: after \d+\.\.\d+-grams)?(?:, (?P<siblings>\d+) siblings)?", _stack),
)
