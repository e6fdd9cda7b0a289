"""Files as a user writes them, and what reading them is refused with."""

import pytest

from gradmass.types import UsageError


def write(folder, text, name="recipe.toml"):
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return str(file)


def refusal(call):
    with pytest.raises(UsageError) as refused:
        call()
    message = str(refused.value)
    assert "\n" not in message
    return message
