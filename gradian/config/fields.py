"""The kinds of values that settings are made of."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


def _number(value: Any) -> Any:
    # YAML 1.1 reads `2e-4` (no dot) as text; people write it all the time.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _finite(value: float) -> float:
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("must be a finite number")
    return value


def regular_expression(value: str) -> str:
    """Return `value` when it compiles as a regular expression; for pydantic, raise ValueError when not."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression ({error})") from None
    return value


def _path_text(value: Any) -> Any:
    # A pathlib.Path is what Python callers have at hand.
    return str(value) if hasattr(value, "__fspath__") else value


Number = Annotated[float, BeforeValidator(_number), AfterValidator(_finite)]
Positive = Annotated[Number, Field(gt=0)]
NonNegative = Annotated[Number, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
PathText = Annotated[str, BeforeValidator(_path_text)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Section(BaseModel):
    """A group of settings: unknown keys are refused, values are not coerced, and nothing changes later."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
        populate_by_name=True,
        hide_input_in_errors=True,
    )
