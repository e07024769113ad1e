"""The table of commands: where each one lives, and its line in `spectune --help`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """A command whose module is not imported before it is asked for."""

    target: str  # "module:attribute"; the module is relative to this package
    help: str  # equals the first line of the command's own docstring; a test compares them

    def load(self) -> click.Command:
        """Import the module and return its command."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module, __package__), attribute)
        assert isinstance(command, click.Command), f"{self.target} is no click command"
        return command


COMMANDS: Mapping[str, LazyCommand] = {
    "profile": LazyCommand(target=".profile:profile", help="Measure this device and a set of drafters."),
    "plan": LazyCommand(target=".plan:plan", help="Choose how to decode fastest, and say why."),
    "run": LazyCommand(target=".run:run", help="Decode a prompt with the stored plan."),
    "validate": LazyCommand(target=".validate:validate", help="Measure the plan against plain decoding."),
    "lossy": LazyCommand(target=".lossy:lossy", help="Measure what lossy decoding costs and saves."),
    "show": LazyCommand(target=".show:show", help="Show a plan and how it was checked."),
    "list": LazyCommand(target=".list:list", help="List what the store remembers."),
    "promote": LazyCommand(target=".decisions:promote", help="Let a plan count, whatever is planned later."),
    "retire": LazyCommand(target=".decisions:retire", help="Let a plan count no more."),
    "restore": LazyCommand(target=".decisions:restore", help="Let a retired plan take part again."),
    "train": LazyCommand(target=".train:train", help="Train a drafter on a target of yours."),
    "report": LazyCommand(target=".report_:report", help="Write what the store knows as one page."),
    "edge": LazyCommand(target=".edge:edge", help="Draft on devices for a target on a server."),
    "serve": LazyCommand(target=".serve:serve", help="Serve the store to other machines."),
    "endpoint": LazyCommand(target=".endpoint:endpoint", help="Serve a target's text by OpenAI's API."),
    "token": LazyCommand(target=".token:token", help="Make, list and revoke a service's tokens."),
    "advise": LazyCommand(target=".advise:advise", help="Tell how long an engine's drafts should be."),
    "export": LazyCommand(target=".export:export", help="Write a plan as an engine's settings."),
    "convert": LazyCommand(target=".convert:convert", help="Write a model in an engine's own form."),
    "import": LazyCommand(target=".import_:import_", help="Add measurements made elsewhere."),
    "db": LazyCommand(target=".db:db", help="Check, copy, share and prune the store."),
    "doctor": LazyCommand(target=".doctor:doctor", help="Check this device, versions and store."),
    "demo": LazyCommand(target=".demo:demo", help="Run all of it on small real models."),
}
