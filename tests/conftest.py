"""What every test starts from."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from .support.sqlite_schema import statements_of
from .support.thinning import thin_out

if TYPE_CHECKING:
    from alembic.config import Config

MOST_WORKERS = 8
SLOWEST = (  # files in which something takes more than 5 s at once
    *("cli/test_edge", "cli/test_images", "cli/test_jobs", "cli/test_train", "db/test_restart"),
    *("demo/test_real", "demo/test_story", "repository/test_goldens"),
    *("runtime/models/kernels/test_on_pretended_gpu", "service/test_fuzz", "service/test_jobs"),
    *("tuning/test_images", "tuning/test_on_pretended_gpu", "repository/test_wheel"),
)

os.environ["HF_HUB_OFFLINE"] = "1"  # no test reaches for a network, not even to find a file missing
os.environ.setdefault("OMP_NUM_THREADS", "1")  # every core has a worker of its own
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # where a test asks for more threads, others need the cores, too

settings.register_profile("spectune", deadline=None, max_examples=15)  # a busy machine is no counterexample
settings.register_profile("thorough", parent=settings.get_profile("spectune"), max_examples=500)
settings.load_profile("spectune")  # another by --hypothesis-profile


@pytest.fixture(autouse=True, scope="session")
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give every worker a cache folder: jobs of two that lock the same device would refuse each other.

    Machine code alone is kept for the next run, where the user's own is; also that of processes which tests start.
    """
    from spectune.planner.kernels.compiled import kernels_folder  # behind OMP_NUM_THREADS: it loads NumPy

    folder, kernels = tmp_path_factory.mktemp("cache"), kernels_folder()
    kernels.mkdir(parents=True, exist_ok=True)
    (folder / "kernels").symlink_to(kernels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECTUNE_CACHE", str(folder))
        yield


@pytest.fixture(autouse=True, scope="session")
def _new_stores_copied_from_the_first() -> Iterator[None]:
    """Give an empty SQLite store the schema that alembic gave the first one, statement by statement.

    Alembic takes a fifth of a second for each, and tests make hundreds.
    """
    if "spectune.db.sql.migrate" not in sys.modules:  # light tests stay light
        yield
        return
    from alembic import command

    upgrade, known = command.upgrade, list[tuple[str, tuple[Any, ...]]]()

    def copied(config: Config, revision: str) -> None:
        connection = config.attributes["connection"]
        is_sqlite = connection.dialect.name == "sqlite"
        is_new = is_sqlite and not connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first()
        if not is_new or revision != "head":
            upgrade(config, revision)
            return
        if not known:
            upgrade(config, revision)
            known.extend(statements_of(connection))
            return
        for statement, values in known:
            connection.exec_driver_sql(statement, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "upgrade", copied)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Run tiny models on one thread: on a busy machine their barriers cost more than their sums."""
    if "torch" in sys.modules:  # light tests stay light
        import torch

        torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Thin out cases, and let the slowest files begin: a worker that meets one last leaves the others without work."""
    items.sort(key=lambda item: name_of(item) not in SLOWEST)
    thin_out(items)


def name_of(item: pytest.Item) -> str:
    """Return a test's file as it is called from here, without its ending."""
    return item.path.relative_to(Path(__file__).parent).with_suffix("").as_posix()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules and tests are collected, nor later among them: there are millions of objects.

    They only grow in number, and what is garbage among them is little.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _lasting_objects_kept_out_of_collections() -> None:
    """Let none look through what earlier files left behind either: caches of theirs live as long as the worker."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let go of everything at the end: libraries count what is left."""
    gc.unfreeze()


def pytest_xdist_auto_num_workers() -> int:
    """Return how many workers `-n auto` means: one a core, but every one imports torch."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))
