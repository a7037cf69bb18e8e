"""Programs: straight-line code over formulas, run on float arrays or on exact rationals.

A layer has dozens of kernels with different shapes but the same time formula. Writing the formula out for every kernel
makes expressions that sympy handles slowly, so a formula is a *template* over its own symbols, compiled once, and a
`Program` is a list of steps: values (small expressions over what is known before) and calls of templates on them. Equal
values and calls are computed once. The same program runs on float64 arrays and on Fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from sympy import Expr, Rational, Symbol, sympify

from prism_cp.formulas.evaluate import ExactFunction, NumpyFunction, exact_function, numpy_function


@dataclass(frozen=True)
class Template:
    """Formulas over their own symbols, to be called with many argument lists."""

    name: str
    arguments: tuple[Symbol, ...]
    expressions: tuple[Expr, ...]

    def numpy(self, *arguments: Any) -> list[Any]:
        """Values for float64 arrays or numbers."""
        plain = (float(value) if isinstance(value, Rational) else value for value in arguments)
        return self._numpy(*plain)

    def exact(self, *arguments: Any) -> list[Any]:
        """Values for ints, Fractions and sympy rationals."""
        plain = (Fraction(value.p, value.q) if isinstance(value, Rational) else value for value in arguments)
        return self._exact(*plain)

    @cached_property
    def _numpy(self) -> NumpyFunction:
        return numpy_function(self.expressions, self.arguments)

    @cached_property
    def _exact(self) -> ExactFunction:
        return exact_function(self.expressions, self.arguments)


@dataclass(frozen=True)
class _Calls:
    """One step: calls of one template, as (outputs, arguments) by name."""

    template: Template
    calls: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


@dataclass(frozen=True)
class _Values:
    """One step: expressions over known symbols."""

    expressions: tuple[Expr, ...]
    inputs: tuple[Symbol, ...]
    outputs: tuple[str, ...]

    @cached_property
    def numpy(self) -> NumpyFunction:
        return numpy_function(self.expressions, self.inputs)

    @cached_property
    def exact(self) -> ExactFunction:
        return exact_function(self.expressions, self.inputs)


class Program:
    """Built by `value` and `call`; `step` closes what was asked for so far, so that the next step may use it."""

    def __init__(self) -> None:
        self._steps: list[_Calls | _Values] = []
        self._values: dict[Expr, Symbol] = {}
        self._done: set[Expr] = set()
        self._calls: dict[tuple[Template, tuple[Symbol, ...]], tuple[Symbol, ...]] = {}
        self._called: set[tuple[Template, tuple[Symbol, ...]]] = set()

    def value(self, expression: Expr | int) -> Symbol:
        """A symbol for the expression's value; equal expressions share it."""
        expression = sympify(expression)
        if isinstance(expression, Symbol):
            return expression
        return self._values.setdefault(expression, Symbol(f"value_{len(self._values)}"))

    def call_all(self, template: Template, *arguments: Expr | int) -> tuple[Symbol, ...]:
        """Symbols for all of the template's values; equal calls share them."""
        names = tuple(self.value(argument) for argument in arguments)
        index = len(self._calls)
        outputs = tuple(Symbol(f"{template.name}_{index}_{place}") for place in range(len(template.expressions)))
        return self._calls.setdefault((template, names), outputs)

    def call(self, template: Template, *arguments: Expr | int) -> Symbol:
        """`call_all` for a template of one formula."""
        (output,) = self.call_all(template, *arguments)
        return output

    def step(self) -> None:
        """Close the values asked for so far, then the calls."""
        new = {expression: symbol for expression, symbol in self._values.items() if expression not in self._done}
        if new:
            pending = {symbol for key, outputs in self._calls.items() if key not in self._called for symbol in outputs}
            pending.update(new.values())
            assert not any(pending & expression.free_symbols for expression in new), "a step uses its own results"
            used = sorted(set().union(*(expression.free_symbols for expression in new)), key=lambda symbol: symbol.name)
            self._steps.append(_Values(tuple(new), tuple(used), tuple(symbol.name for symbol in new.values())))
            self._done |= new.keys()
        by_template: dict[Template, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
        for key, outputs in self._calls.items():
            if key not in self._called:
                names = (tuple(symbol.name for symbol in outputs), tuple(symbol.name for symbol in key[1]))
                by_template.setdefault(key[0], []).append(names)
                self._called.add(key)
        self._steps += [_Calls(template, tuple(calls)) for template, calls in by_template.items()]

    def run(self, inputs: Mapping[str, Any], *, exact: bool) -> dict[str, Any]:
        """Every symbol's value by name: int or Fraction when `exact`, else float64 arrays of the inputs' shape."""
        known = dict(inputs)
        for step in self._steps:
            if isinstance(step, _Calls):
                evaluate = step.template.exact if exact else step.template.numpy
                for outputs, names in step.calls:
                    known.update(zip(outputs, evaluate(*(known[name] for name in names)), strict=True))
                continue
            results = (step.exact if exact else step.numpy)(*_chosen(known, step.inputs))
            known.update(zip(step.outputs, results, strict=True))
        return known


def _chosen(known: Mapping[str, Any], inputs: Sequence[Symbol]) -> list[Any]:
    missing = [symbol.name for symbol in inputs if symbol.name not in known]
    if missing:
        raise KeyError(f"no value for the layout symbols {', '.join(missing)}")
    return [known[symbol.name] for symbol in inputs]
