"""What the profiler times: forwards of any shape in any role, whole drafting loops, and prefills."""

from .forwards import ForwardShapes, ResumedShapes, ShapeCaches
from .runner import room_of, runner_of

__all__ = ["ForwardShapes", "ResumedShapes", "ShapeCaches", "room_of", "runner_of"]
