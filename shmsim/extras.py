"""How to get what only some need: an extra of this package, which comes from a checkout of it."""


def how_to_add(extra: str) -> str:
    """Say what installs an extra.

    Examples
    --------
    >>> how_to_add("torch")
    "in the checkout: .venv/bin/pip install -c constraints.txt -e '.[torch]'"
    """
    return f"in the checkout: .venv/bin/pip install -c constraints.txt -e '.[{extra}]'"
