"""The commands of the workshop, found by the entry points of the group ``statespan.commands``."""
