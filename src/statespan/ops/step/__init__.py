"""One step of the recurrence."""

from statespan.ops.step.operator import Stepper, System, system_of

__all__ = ["Stepper", "System", "system_of"]
