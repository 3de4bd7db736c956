"""Registers who renders the live fragments of each kind of topic; called once by asgi.py."""


def register_all() -> None:
    """No page renders fragments yet."""
