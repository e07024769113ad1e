"""The names a user writes after `import spectune`: a change here is a change of the interface."""

from __future__ import annotations

import inspect
from importlib.metadata import version

import pytest

import spectune


def test_the_root_offers_exactly_these_names() -> None:
    assert spectune.__all__ == ["__version__", "load"]


def test_every_offered_name_is_listed_and_found() -> None:
    for name in spectune.__all__:
        assert name in dir(spectune)
        assert getattr(spectune, name) is not None


def test_load_takes_the_target_then_where_and_what() -> None:
    parameters = inspect.signature(spectune.load).parameters
    assert list(parameters)[:4] == ["target", "device", "store", "plan"]
    assert list(parameters)[4:] == ["drafters", "workload", "temperature", "dtype", "watch", "allow_lossy"]
    assert [parameters[name].default for name in ("device", "store", "plan")] == ["auto", None, "auto"]


def test_the_version_is_the_installed_distribution_s() -> None:
    assert spectune.__version__ == version("spectune")


def test_a_name_that_is_not_offered_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lode'; it offers __version__, load"):
        spectune.lode  # noqa: B018
