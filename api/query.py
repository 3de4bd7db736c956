"""Query parameters that a route does not know are refused, not ignored.

A `timeout` that some hop puts into the wrong place must not turn a waiting flush into another one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from django.http import HttpRequest

from console.exceptions import Invalid

P = ParamSpec("P")
R = TypeVar("R")
View = Callable[Concatenate[HttpRequest, P], R]


def only_query(*names: str) -> Callable[[View[P, R]], View[P, R]]:
    """Let a view take the named query parameters, each once, and no other."""

    def decorate(view: View[P, R]) -> View[P, R]:
        @functools.wraps(view)
        def checked(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> R:
            for name, values in request.GET.lists():
                if name not in names:
                    raise Invalid(f"the query parameter {name[:60]!r} is not known here")
                if len(values) > 1:
                    raise Invalid(f"the query parameter {name!r} is given {len(values)} times")
            return view(request, *args, **kwargs)

        return checked

    return decorate
