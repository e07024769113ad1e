"""What the options before the command's name ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much a command prints, received by `click.pass_obj`; quiet and verbose exclude each other."""

    quiet: bool = False  # no progress on stderr
    verbose: bool = False  # more of it, and tracebacks

    def __post_init__(self) -> None:
        assert not (self.quiet and self.verbose), "the group refuses --quiet with --verbose"
