"""The table of commands: where each one lives, its line in `spectune --help`, and the group it is listed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """A command whose module is not imported before it is used."""

    target: str  # "module:attribute"; the module is relative to this package
    help: str  # equals the first line of the command's own docstring; a test compares them

    def load(self) -> click.Command:
        """Import the module and return its command."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module, __package__), attribute)
        assert isinstance(command, click.Command), f"{self.target} is no click command"
        return command


GROUPS: Mapping[str, Mapping[str, LazyCommand]] = {
    "Start": {
        "demo": LazyCommand(target=".demo:demo", help="Try everything on small real models."),
        "doctor": LazyCommand(target=".doctor:doctor", help="Check this device, versions and store."),
    },
    "Measure": {
        "profile": LazyCommand(target=".profile:profile", help="Measure this device and a set of drafters."),
        "plan": LazyCommand(target=".plan:plan", help="Find the fastest way to decode, and say why."),
        "validate": LazyCommand(target=".validate:validate", help="Measure the plan against plain decoding."),
        "tune": LazyCommand(target=".tune:tune", help="Find the drafts that a server should make."),
        "advise": LazyCommand(target=".advise:advise", help="Find a running server's best draft length."),
        "watch": LazyCommand(target=".watch:watch", help="Tell whether servers decode as was planned."),
    },
    "Use": {
        "run": LazyCommand(target=".run:run", help="Decode a prompt by the stored plan."),
        "endpoint": LazyCommand(target=".endpoint:endpoint", help="Serve the target over OpenAI's API."),
        "export": LazyCommand(target=".export:export", help="Write a plan as an engine's settings."),
    },
    "Look": {
        "show": LazyCommand(target=".show:show", help="Show a plan and how it was checked."),
        "list": LazyCommand(target=".list:list", help="List what the store holds."),
        "report": LazyCommand(target=".report_:report", help="Write everything in the store as one page."),
    },
    "Manage": {
        "promote": LazyCommand(target=".decisions:promote", help="Use this plan, whatever is planned later."),
        "retire": LazyCommand(target=".decisions:retire", help="Use this plan no more."),
        "restore": LazyCommand(target=".decisions:restore", help="Let a retired plan be used again."),
        "db": LazyCommand(target=".db:db", help="Check, copy, share and prune the store."),
        "import": LazyCommand(target=".import_:import_", help="Add measurements made elsewhere."),
        "token": LazyCommand(target=".token:token", help="Make, list and revoke a service's tokens."),
        "serve": LazyCommand(target=".serve:serve", help="Serve the store to other machines."),
    },
    "More": {
        "train": LazyCommand(target=".train:train", help="Train a drafter on a target of yours."),
        "convert": LazyCommand(target=".convert:convert", help="Write a model in an engine's own form."),
        "edge": LazyCommand(target=".edge:edge", help="Draft on devices for a target on a server."),
        "lossy": LazyCommand(target=".lossy:lossy", help="Measure what lossy decoding costs and gains."),
    },
}
COMMANDS: Mapping[str, LazyCommand] = {name: entry for group in GROUPS.values() for name, entry in group.items()}
