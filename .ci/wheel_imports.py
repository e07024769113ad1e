"""Import every module of the installed wheel, and find its data."""

import importlib
import pkgutil
import sys
from importlib.resources import files

import spectune

NEEDS_ALEMBIC_TO_RUN_IT = "spectune.db.migrations."
STARTS_THE_PROGRAM = "spectune.__main__"

assert spectune.__file__.startswith(sys.prefix), f"{spectune.__file__} is not the wheel's copy"
names = [module.name for module in pkgutil.walk_packages(spectune.__path__, "spectune.")]
for name in names:
    if name != STARTS_THE_PROGRAM and not name.startswith(NEEDS_ALEMBIC_TO_RUN_IT):
        importlib.import_module(name)
assert callable(spectune.load)
assert files("spectune").joinpath("py.typed").is_file()
assert files("spectune.report.site").joinpath("templates", "plan.html").is_file()
print(f"the wheel holds {len(names)} modules and all import")
