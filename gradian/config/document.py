"""The tables of `docs/configuration.md`, generated from the schema: `python -m gradian.config.document`.

Each field's docstring in `schema.py` is the only text; a test keeps the page equal to it.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from pydantic import BaseModel

from gradian.config.schema import Config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
TOP_LEVEL = "top level"

_REGION = re.compile(
    r"(?P<begin><!-- begin table: (?P<name>[a-z ]+) -->\n).*?(?P<end><!-- end table -->)", re.DOTALL
)


def tables() -> dict[str, str]:
    """Return the Markdown table of each section, by name; `top level` is the settings outside any."""
    return {TOP_LEVEL: _table(Config), **_section_tables(Config)}


def with_tables(page: str, sections: Mapping[str, str]) -> str:
    """Return `page` with every `<!-- begin table: NAME --> ... <!-- end table -->` region filled anew.

    Raises:
        ValueError: the page's regions are not exactly the sections.
    """
    found = [match["name"] for match in _REGION.finditer(page)]
    if sorted(found) != sorted(sections):
        raise ValueError(f"the page has the tables {found}, the schema {list(sections)}")
    return _REGION.sub(lambda match: match["begin"] + sections[match["name"]] + match["end"], page)


def _section_tables(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    # A section that holds sections only, such as `checks`, has no table of its own.
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        if not _is_section(field.annotation):
            continue
        inner = _section_tables(field.annotation, f"{prefix}{name} ")
        found.update(inner or {f"{prefix}{name}": _table(field.annotation)})
    return found


def _is_section(annotation: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _table(model: type[BaseModel]) -> str:
    rows = ["| Setting | Type | Default | What it does |", "|---|---|---|---|"]
    defaults = model()
    for name, field in model.model_fields.items():
        if _is_section(field.annotation):
            continue
        cells = (
            f"`{name}`",
            _type_name(field.annotation),
            _default(getattr(defaults, name)),
            field.description or "",
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _default(value: Any) -> str:
    if value == "":
        return "empty"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_name(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_name(argument) for argument in arguments)
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return "mapping"
    if annotation is types.NoneType:
        return "null"
    return {str: "text", int: "integer", float: "number", bool: "true or false"}[annotation]


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
