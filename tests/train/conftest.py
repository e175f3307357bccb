import pytest

from statespan.train import result


@pytest.fixture(autouse=True)
def _no_picture(request, monkeypatch):
    """Drawing takes longer than all the rest of a run here; the tests that look at the picture ask for it."""
    if "picture" not in request.fixturenames:
        monkeypatch.setattr(result, "_picture", lambda result: b"")


@pytest.fixture
def picture():
    """Draw the picture."""
