"""The commands of the workshop, found through the entry points of the group ``statespan.commands``."""
