"""Render the templates of this package; all text is escaped."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(name: str, **values: object) -> str:
    """Render a template by its file name.

    Args:
        name: File in this package.
        values: Its variables; a missing one is an error.
    """
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=PackageLoader("remembering.report", ""),
    )
    return environment.get_template(name).render(**values)
