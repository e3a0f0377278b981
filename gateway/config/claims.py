"""What an issuer's entry says of claims: where in them stands who calls, and which must have a certain value."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import jmespath
from jmespath.exceptions import JMESPathError, LexerError, ParseError, UnknownFunctionError
from pydantic import BeforeValidator, field_validator

from gateway.config.section import Name, Section


class Claims(Section):
    """Where a token says who its bearer is: JMESPath over the verified claims."""

    key: Name = "sub"
    tenant: Name = "org_id || sub"
    plan: Name = "plan"
    models: Name = "models"

    @field_validator("*")
    @classmethod
    def _compiles(cls, expression: str) -> str:
        try:
            compiled = jmespath.compile(expression)
        except LexerError as error:
            raise ValueError(
                f"not a JMESPath expression: {_said(error)}; a claim's name that is more than letters, digits and _ "
                """stands in double quotes, all in single ones: '"https://example.com/plan"'"""
            ) from error
        except ParseError as error:
            raise ValueError(f"not a JMESPath expression: {_said(error)}") from error
        for name in _names(compiled.parsed):
            if not any(map(str.isalnum, name)):
                raise ValueError(f"{name!r} in double quotes is the name of a claim; text stands in single quotes")
        try:
            # Compiling alone does not tell of functions that do not exist; searching fails for want of claims, too.
            compiled.search({})
        except (ParseError, UnknownFunctionError) as error:
            raise ValueError(f"not a JMESPath expression: {_said(error)}") from error
        except (ValueError, TypeError, ArithmeticError):
            pass
        return expression


def _said(error: JMESPathError) -> str:
    return str(error).splitlines()[0].partition("jmespath expression: ")[2].rstrip(": ") or str(error)


def _names(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of claims in a parsed expression."""
    if node["type"] == "field":
        yield node["value"]
    for child in node["children"]:
        if isinstance(child, Mapping):  # a slice has numbers there
            yield from _names(child)


def _required(value: object) -> object:
    match value:
        case str() | int():
            return value
        case float():
            raise ValueError(f'{value} is a number; a version is text: write it in quotes, "{value}"')
        case _:
            raise ValueError("expected the value of one claim: text, a whole number, true or false")


Required = Annotated[str | int | bool, BeforeValidator(_required)]
"""A value that a claim must have, type included."""
