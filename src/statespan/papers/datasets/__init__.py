"""The papers' datasets. Importing this package registers them (entry point of the group ``statespan.datasets``)."""

from statespan.papers.datasets import (  # noqa: F401 - they register their datasets
    bidmc,
    density,
    enwik8,
    forecast,
    images,
    listops,
    pathfinder,
    retrieval,
    speech,
    text,
    wikitext,
)
