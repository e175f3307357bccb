"""Models on the Hugging Face Hub: ``hf://user/name``, or ``hf://user/name@revision``.

Only ``config.json``, the weights it names and, if there is one, ``inputs.json`` are downloaded, all from one commit,
into huggingface_hub's cache. A file that exceeds its limit is not downloaded. They are then read like a local folder,
with the same limits and digests.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from statespan._version import __version__
from statespan.models.pretrained import CONFIG, INPUTS, LARGEST_CONFIG, LARGEST_INPUTS, WEIGHTS, LoadError, read_config

PREFIX = "hf://"
CARD = "README.md"
FORMS = "hf://user/name or hf://user/name@revision"
OFFLINE = "STATESPAN_OFFLINE"
_NAME = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def locate(where: str | Path) -> Path:
    """The folder itself, or for a name on the Hub the folder in the cache that contains the model.

    Args:
        where: A folder, or ``hf://user/name``, optionally followed by ``@`` and a branch, tag or commit. A string
            ``user/name`` is a name on the Hub if there is no such folder and huggingface_hub is installed.

    Raises:
        LoadError: There is no such model, or a file exceeds its limit.
        OSError: The Hub cannot be reached, and the model is not in the cache.
    """
    if _is_plain_name(where):
        try:
            return locate(f"{PREFIX}{where}")
        except (LoadError, OSError) as error:
            raise type(error)(f"there is no folder {where}, and {error}") from error
    if not (isinstance(where, str) and where.startswith(PREFIX)):
        return Path(where)
    match = _NAME.fullmatch(where)
    if match is None:
        raise LoadError(f"name must be {FORMS}, got {where!r}")
    repository, revision = match.groups()
    errors = _hub().errors
    try:
        config = _download(repository, CONFIG, revision, LARGEST_CONFIG)
        entry = read_config(config)["weights"]
        commit = config.parent.name  # the cache has a folder for each commit
        with contextlib.suppress(errors.EntryNotFoundError, errors.LocalEntryNotFoundError):
            _download(repository, INPUTS, commit, LARGEST_INPUTS)
        return _download(repository, entry["file"], commit, entry["bytes"]).parent
    except errors.LocalEntryNotFoundError as error:
        raise OSError(f"{where} is not in the cache, and the Hub cannot be reached: {_line(error)}") from error
    except errors.HFValidationError as error:
        raise LoadError(f"name must be {FORMS}, got {where!r}: {_line(error)}") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise LoadError(
            f"{where} is not a model of statespan on the Hub, or you have no access to it: {_line(error)}"
        ) from error


def _is_plain_name(where: str | Path) -> bool:
    """Whether this can only be a name on the Hub; a path given as a ``Path`` never is."""
    if not isinstance(where, str) or not _NAME.fullmatch(PREFIX + where) or Path(where).exists():
        return False
    return where.partition("/")[0] not in (".", "..") and find_spec("huggingface_hub") is not None


def push(model: Any, repository: str, *, private: bool, revision: str | None, message: str, token: str | None) -> str:
    """Upload a model in one commit; the arguments are those of :meth:`statespan.models.Model.push_to_hub`."""
    hub = _hub()
    name = repository.removeprefix(PREFIX)
    if not _NAME.fullmatch(PREFIX + name) or "@" in name:
        raise ValueError(f"repository must be user/name, got {repository!r}")
    try:
        return _push(model, name, private=private, revision=revision, message=message, token=token)
    except hub.errors.HFValidationError as error:
        raise ValueError(f"repository must be user/name, got {repository!r}: {_line(error)}") from error
    except Exception as error:
        if not type(error).__module__.startswith("httpx"):  # httpx or httpx2, as the version of huggingface_hub has it
            raise
        raise OSError(f"the Hub cannot be reached: {_line(error)}") from error


def _push(model: Any, name: str, *, private: bool, revision: str | None, message: str, token: str | None) -> str:
    hub = _hub()
    api = hub.HfApi(library_name="statespan", library_version=__version__, token=token)
    api.create_repo(name, private=private, exist_ok=True)
    if revision is not None:
        api.create_branch(name, branch=revision, exist_ok=True)
    there = api.list_repo_files(name, revision=revision)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        files = sorted(Path(folder).iterdir())
        new = {path.name for path in files}
        operations = [hub.CommitOperationAdd(path.name, str(path)) for path in files]
        old = [file for file in there if WEIGHTS.fullmatch(file) or file == INPUTS]
        operations += [hub.CommitOperationDelete(file) for file in old if file not in new]
        if CARD not in there:
            operations.append(hub.CommitOperationAdd(CARD, _card(model, name).encode()))
        commit = api.create_commit(name, operations, commit_message=message, revision=revision)
    return f"{PREFIX}{name}@{commit.oid}"


def _download(repository: str, file: str, revision: str | None, most: int) -> Path:
    """The file in the cache; it is downloaded if needed and at most ``most`` bytes. Offline, only the cache is read."""
    hub = _hub()
    api = hub.HfApi(library_name="statespan", library_version=__version__)
    if os.environ.get(OFFLINE):
        return Path(api.hf_hub_download(repository, file, revision=revision, local_files_only=True))
    try:
        info = api.hf_hub_download(repository, file, revision=revision, dry_run=True)
    except hub.errors.DryRunError:
        return Path(api.hf_hub_download(repository, file, revision=revision, local_files_only=True))
    if info.file_size > most:
        raise LoadError(f"{PREFIX}{repository}: {file} must have at most {most} bytes, got {info.file_size}")
    return Path(api.hf_hub_download(repository, file, revision=revision))  # also caches which commit the revision is


def _card(model: Any, name: str) -> str:
    """A model card that says how to load the model."""
    layer = getattr(model.config, "layer", None)
    tags = ["statespan", model.name] if layer is None else ["statespan", "state-space-model", layer]
    layers = "" if layer is None else f" of {layer.upper()} layers"
    return f"""---
library_name: statespan
tags: [{", ".join(tags)}]
---

# {name.partition("/")[2]}

A {model.name} model{layers}, for the Python package statespan.

```python
import statespan

model = statespan.load("{PREFIX}{name}")
```
"""


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ModuleNotFoundError as error:
        missing = 'models of the Hub need huggingface_hub: pip install "statespan[hub]"'
        raise ModuleNotFoundError(missing, name="huggingface_hub") from error
    return huggingface_hub


def _line(error: Exception) -> str:
    """The first line of a message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
