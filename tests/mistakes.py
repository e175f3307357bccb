"""What a user's mistake must get."""

import pytest


def assert_one_clear_line(call, error, words):
    """The call raises exactly this type of error, in one line that has all these words."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is error
    for word in words:
        assert word in message, message
    assert "\n" not in message
