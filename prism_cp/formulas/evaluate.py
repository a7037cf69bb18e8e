"""Numeric evaluation of the formulas: float arrays for many layouts, exact rationals for one; same sympy expressions.

Both paths compile an expression list once (common subexpressions shared) and cache the compiled function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy
from sympy.printing.numpy import NumPyPrinter

from prism_cp.errors import InstanceError

FloatArray = npt.NDArray[np.float64]
Exact = int | Fraction
NumpyFunction = Callable[..., list[FloatArray]]
ExactFunction = Callable[..., list[Exact]]

_ROOT_BITS = 128  # relative error of an irrational root stays below 2**-127, well under 1e-30
# Float quotients that should be whole may land just above; a ceiling must not turn that into one unit too many.
_CEILING_SLACK = 1e-12


class _BroadcastPrinter(NumPyPrinter):  # type: ignore[misc]
    """Max, Min, ceiling and floor that broadcast scalars against arrays."""

    def _print_Max(self, expr: Any) -> str:
        return f"_max({', '.join(self._print(arg) for arg in expr.args)})"

    def _print_Min(self, expr: Any) -> str:
        return f"_min({', '.join(self._print(arg) for arg in expr.args)})"

    def _print_ceiling(self, expr: Any) -> str:
        return f"_ceiling({self._print(expr.args[0])})"

    def _print_floor(self, expr: Any) -> str:
        return f"_floor({self._print(expr.args[0])})"


def _float_max(*args: Any) -> Any:
    return reduce(np.maximum, args)


def _float_min(*args: Any) -> Any:
    return reduce(np.minimum, args)


def _float_ceiling(value: Any) -> Any:
    return np.ceil(value - _CEILING_SLACK * np.maximum(1.0, np.abs(value)))


def _float_floor(value: Any) -> Any:
    return np.floor(value + _CEILING_SLACK * np.maximum(1.0, np.abs(value)))


def numpy_function(expressions: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol]) -> NumpyFunction:
    """Compile expressions for float64 arrays.

    Parameters
    ----------
    expressions
        Any sympy expressions whose free symbols are among `symbols`.
    symbols
        The order of the arguments.

    Returns
    -------
    callable
        Takes one scalar or array per symbol (broadcast against each other) and returns one float64 array per
        expression, all of the common broadcast shape. Ceilings and floors forgive a relative error of 1e-12.
    """
    return _numpy_function(tuple(sympy.sympify(e) for e in expressions), tuple(symbols))


@lru_cache(maxsize=256)
def _numpy_function(expressions: tuple[sympy.Expr, ...], symbols: tuple[sympy.Symbol, ...]) -> NumpyFunction:
    names = {"_max": _float_max, "_min": _float_min, "_ceiling": _float_ceiling, "_floor": _float_floor}
    printer = _BroadcastPrinter({"fully_qualified_modules": False, "inline": True, "allow_unknown_functions": True})
    compiled = sympy.lambdify(symbols, list(expressions), modules=[names, "numpy"], printer=printer, cse=True)

    def function(*values: Any) -> list[FloatArray]:
        arrays = [np.asarray(value, dtype=np.float64) for value in values]
        shape = np.broadcast_shapes(*(array.shape for array in arrays)) if arrays else ()
        return [np.broadcast_to(np.asarray(result, dtype=np.float64), shape) for result in compiled(*arrays)]

    return function


def exact_function(expressions: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol]) -> ExactFunction:
    """Compile expressions for integers and Fractions.

    Parameters
    ----------
    expressions
        Sums, products, powers with rational exponents, Max, Min, ceiling, floor, Piecewise over comparisons.
    symbols
        The order of the arguments.

    Returns
    -------
    callable
        Takes one int or Fraction per symbol and returns one int or Fraction per expression. Exact, except that an
        irrational root is rounded up with a relative error below 2**-127 (the same on every machine).

    Raises
    ------
    InstanceError
        An expression holds a function or a float constant that has no exact meaning.
    """
    return _exact_function(tuple(sympy.sympify(e) for e in expressions), tuple(symbols))


@lru_cache(maxsize=256)
def _exact_function(expressions: tuple[sympy.Expr, ...], symbols: tuple[sympy.Symbol, ...]) -> ExactFunction:
    shared, reduced = sympy.cse(list(expressions), symbols=sympy.numbered_symbols("_t"))
    names = {symbol: f"_v{index}" for index, symbol in enumerate(symbols)}
    lines = [f"def function({', '.join(names.values())}):"]
    for index, (symbol, definition) in enumerate(shared):
        lines.append(f"    _s{index} = {_source(definition, names)}")
        names[symbol] = f"_s{index}"
    lines.append(f"    return [{', '.join(_source(e, names) for e in reduced)}]")
    namespace: dict[str, Any] = {"Fraction": Fraction, "ceil": math.ceil, "floor": math.floor, "power": exact_power}
    exec("\n".join(lines), namespace)  # the text was written above from sympy nodes only
    function: ExactFunction = namespace["function"]
    return function


_COMPARISONS = {
    sympy.StrictLessThan: "<",
    sympy.LessThan: "<=",
    sympy.StrictGreaterThan: ">",
    sympy.GreaterThan: ">=",
    sympy.Equality: "==",
    sympy.Unequality: "!=",
}


def _source(node: Any, names: dict[sympy.Symbol, str]) -> str:
    """Python source of one sympy node over exact numbers."""
    if isinstance(node, sympy.Symbol):
        if node not in names:
            raise InstanceError(str(node), "the formula's symbol has no value", ", ".join(map(str, names)))
        return names[node]
    if isinstance(node, sympy.Integer):
        return f"({int(node)})"
    if isinstance(node, sympy.Rational):
        return f"Fraction({node.p}, {node.q})"
    if node in (sympy.true, sympy.false):
        return str(bool(node))
    args = [_source(arg, names) for arg in node.args] if not isinstance(node, sympy.Piecewise) else []
    if isinstance(node, sympy.Add):
        return f"({' + '.join(args)})"
    if isinstance(node, sympy.Mul):
        return f"({' * '.join(args)})"
    if isinstance(node, sympy.Pow) and isinstance(node.exp, sympy.Integer) and node.exp >= 0:
        return f"({args[0]} ** {int(node.exp)})"
    if isinstance(node, sympy.Pow) and isinstance(node.exp, sympy.Rational):
        return f"power({args[0]}, {node.exp.p}, {node.exp.q})"
    if isinstance(node, sympy.Max | sympy.Min):
        return f"{'max' if isinstance(node, sympy.Max) else 'min'}({', '.join(args)})"
    if isinstance(node, sympy.ceiling | sympy.floor):
        return f"{'ceil' if isinstance(node, sympy.ceiling) else 'floor'}({args[0]})"
    if isinstance(node, sympy.And | sympy.Or):
        return f"({(' and ' if isinstance(node, sympy.And) else ' or ').join(args)})"
    if type(node) in _COMPARISONS:
        return f"({args[0]} {_COMPARISONS[type(node)]} {args[1]})"
    if isinstance(node, sympy.Piecewise):
        source = "None"
        for value, condition in reversed(node.args):
            source = f"({_source(value, names)} if {_source(condition, names)} else {source})"
        return source
    raise InstanceError(
        str(node.func), f"no exact value in {node}", "rational constants, + * **, Max, Min, ceiling, floor, Piecewise"
    )


def exact_power(base: Exact, numerator: int, denominator: int) -> Exact:
    """``base ** (numerator / denominator)``; exact when rational, else rounded up within a relative 2**-127."""
    if denominator == 1:
        return Fraction(base) ** numerator
    if base < 0:
        raise InstanceError("", f"root of the negative number {base}", "a number >= 0")
    powered = Fraction(base) ** numerator
    if powered == 0:
        return 0
    top, bottom = (_integer_root(part, denominator) for part in (powered.numerator, powered.denominator))
    if top**denominator == powered.numerator and bottom**denominator == powered.denominator:
        return Fraction(top, bottom)
    # Scale so that the root's integer part carries enough bits, then take the next integer above.
    magnitude = powered.numerator.bit_length() - powered.denominator.bit_length()
    shift = _ROOT_BITS - magnitude // denominator + 1
    scaled = powered * Fraction(2) ** (shift * denominator)
    root = _integer_root(math.ceil(scaled) - 1, denominator) + 1
    return Fraction(root) / Fraction(2) ** shift


def _integer_root(value: int, degree: int) -> int:
    """Largest integer whose `degree`-th power is at most `value` (>= 0)."""
    if value < 2:
        return value
    if degree == 2:
        return math.isqrt(value)
    guess = 1 << -(-value.bit_length() // degree)
    while True:  # Newton from above decreases until the floor is reached
        better = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
        if better >= guess:
            return guess
        guess = better
