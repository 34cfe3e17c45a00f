"""The route of a view as the name of an operation: braces for its parameters, without their names."""

from __future__ import annotations

from functools import lru_cache

from samekey.http._operation import PARAMETER


@lru_cache(maxsize=1024)
def template_of(route: str) -> str:
    """
    >>> template_of("orders/<int:id>/pay"), template_of(r"^orders/(?P<id>[0-9]+)/pay$")
    ('orders/{}/pay', 'orders/{}/pay')
    """
    name, at = "", 0
    while at < len(route):
        char = route[at]
        end = at + 1
        if char == "<":
            name, end = name + PARAMETER, route.find(">", at) + 1 or len(route)
        elif char == "(":
            name, end = name + PARAMETER, end_of_group(route, at)
        elif char == "\\":
            name, end = name + route[end : end + 1], end + 1
        elif char not in "^$":
            name += char
        at = end
    return name


def end_of_group(pattern: str, at: int) -> int:
    """Where the group ends that opens here; parentheses that are escaped, or in a class, do not count."""
    depth, in_class = 0, False
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            at += (
                2 if pattern.startswith("^]", at + 1) else pattern.startswith("]", at + 1)
            )  # its first may be a bracket
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return at
