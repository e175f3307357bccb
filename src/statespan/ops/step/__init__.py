"""One step of the recurrence."""

from statespan.ops.step.operator import Step, System, system_of

__all__ = ["Step", "System", "system_of"]
