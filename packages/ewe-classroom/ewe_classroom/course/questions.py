"""Questions whose answers are computed from a student's own measurements.

    [[question]]
    ask = "With 8 clients your server answered {rate[8]} requests a second, ... How many were in it on average?"
    answer = "rate[8] * time_ms[8] / 1000"
    unit = "requests"
    because = "Little's law: N = X R."

`answer` is a small expression of numbers, + - * /, min(), max(), and the names of measurements. `ask` and `because`
may show an expression in braces. An answer within TOLERANCE of the computed answer is right.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ewe.config.messages import ConfigError
from ewe_classroom.course.labs import Lab
from ewe_classroom.course.measurements import Measurements

TOLERANCE = 0.05  # share of the answer: students round
EXPRESSION = re.compile(r"\{([^}]+)\}")
OPERATORS: dict[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
MIN_TOLERANCE = TOLERANCE * 1e-9  # if the right answer is 0, 5 % of it would reject each rounding error
FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "values": lambda table: table.values()}


@dataclass(frozen=True)
class Question:
    """One question that contains the student's own numbers. answer: the right number, in `unit`."""

    text: str
    answer: float
    unit: str
    because: str

    def is_right(self, given: float) -> bool:
        """Return whether an answer is within TOLERANCE of the right one."""
        return abs(given - self.answer) <= max(TOLERANCE * abs(self.answer), MIN_TOLERANCE)


def questions(lab: Lab, measurements: Measurements) -> list[Question]:
    """Return the questions of a lab about these measurements. Raises ConfigError for unsuitable measurements."""
    if measurements.lab != lab.name:
        raise ConfigError(f"these measurements are of the lab {measurements.lab}, not of {lab.name}")
    values = measurements.more | asdict(measurements)  # a name in `more` replaces no table

    def filled(text: str) -> str:
        """Return a text with the value of each expression in braces in its place."""
        return EXPRESSION.sub(lambda match: number_text(evaluate(match[1], values)), text)

    made = []
    for template in lab.questions:
        try:
            made.append(
                Question(
                    filled(template["ask"]),
                    evaluate(template["answer"], values),
                    template["unit"],
                    filled(template["because"]),
                )
            )
        except ZeroDivisionError:
            raise ConfigError(
                "one of these measurements is zero, which is impossible; measure again"
            ) from None
        except (LookupError, ValueError):  # rate[8] is missing; an unknown name, or max() of an empty table
            raise ConfigError(
                "these measurements lack a figure that the lab asks about; measure again"
            ) from None
    return made


def number_text(value: float) -> str:
    """Return a number as a question shows it."""
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def evaluate(text: str, values: Mapping[str, Any]) -> float:
    """Return the value of an expression. values: name -> figure, or table of figures (`rate[8]`).

    Raises ValueError if the expression contains anything but arithmetic, and ZeroDivisionError.
    """
    return float(value_of(ast.parse(text, mode="eval").body, values))


def value_of(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return the value of a part of an expression: a number, or a table that has a name. Raises ValueError."""
    match node:
        case ast.Constant(value=int() | float()):
            return node.value
        case ast.Name(id=name) if name in values:
            return values[name]
        case ast.Subscript(value=table, slice=key):
            return value_of(table, values)[value_of(key, values)]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](value_of(left, values), value_of(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in FUNCTIONS:
            return FUNCTIONS[name](*(value_of(each, values) for each in arguments))
    raise ValueError(f"not an expression of a question: {ast.unparse(node)}")
