"""From a formula and finite domains to integer rows for a solver: exact, or rounded up once in a stated unit.

Every symbol becomes either a *count* (it enters the formula affinely, whatever the others are) or a *choice* (its
values are enumerated, jointly with the other choices). Each joint point of the choices has one integer row: a
coefficient per count and a constant.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy
from ortools.sat.python import cp_model

from prism_cp.errors import InstanceError
from prism_cp.formulas.evaluate import exact_function

TABLE_LIMIT = 200_000  # joint points of the choices; beyond it a table no longer helps a solver


class NotLinearError(InstanceError):
    """A formula cannot become integer rows; the key is the symbol that stands in the way."""


@dataclass(frozen=True)
class Linearization:
    """Integer rows of one formula.

    Attributes
    ----------
    counts, choices : tuple of Symbol
        How the symbols were separated.
    domains : mapping of Symbol to tuple of int
    unit : Fraction
        ``row value * unit`` is the formula's value: exactly when `exact`, else it is an upper bound that is less than
        one unit per table entry above it.
    rows : mapping of choice point to tuple of int
        Coefficients in the order of `counts`, then the constant.
    """

    counts: tuple[sympy.Symbol, ...]
    choices: tuple[sympy.Symbol, ...]
    domains: dict[sympy.Symbol, tuple[int, ...]]
    unit: Fraction
    exact: bool
    rows: dict[tuple[int, ...], tuple[int, ...]]

    def value(self, point: Mapping[sympy.Symbol, int]) -> int:
        """Row value, in units, at one value per symbol."""
        row = self.rows[tuple(point[symbol] for symbol in self.choices)]
        return sum(c * point[symbol] for c, symbol in zip(row, self.counts, strict=False)) + row[-1]

    def add_to_model(self, model: cp_model.CpModel, variables: Mapping[sympy.Symbol, Any]) -> Any:
        """Post the rows and return a linear expression (or a variable) equal to the value in units.

        Parameters
        ----------
        variables
            One CP-SAT variable or int per symbol. Their values are restricted to the domains given at linearization.

        Notes
        -----
        What does not vary with the choices stays linear. The rest is a table over (choices, row index), with the
        varying part looked up by element when it is a constant, and enforced per row when a count is multiplied.
        """
        for symbol in (*self.counts, *self.choices):
            model.add_linear_expression_in_domain(
                variables[symbol] + 0, cp_model.Domain.from_values(self.domains[symbol])
            )
        distinct = sorted(set(self.rows.values()))
        columns = list(zip(*distinct, strict=True))
        fixed = [column[0] if len(set(column)) == 1 else None for column in columns]
        total: Any = sum((c * variables[s] for c, s in zip(fixed, self.counts, strict=False) if c is not None), 0) + (
            fixed[-1] or 0
        )
        if len(distinct) == 1:
            return total
        index = model.new_int_var(0, len(distinct) - 1, "row")
        position = {row: i for i, row in enumerate(distinct)}
        model.add_allowed_assignments(
            [*(variables[symbol] + 0 for symbol in self.choices), index],
            [(*point, position[row]) for point, row in self.rows.items()],
        )
        if fixed[-1] is None:
            constant = model.new_int_var(min(columns[-1]), max(columns[-1]), "constant")
            model.add_element(index, list(columns[-1]), constant)
            total = total + constant
        varying = [i for i, c in enumerate(fixed[:-1]) if c is None]
        if not varying:
            return total
        literals = [model.new_bool_var(f"row {i}") for i in range(len(distinct))]
        model.add_map_domain(index, literals)
        for i in varying:
            symbol = self.counts[i]
            low, high = min(self.domains[symbol]), max(self.domains[symbol])
            ends = [c * n for c in columns[i] for n in (low, high)]
            product = model.new_int_var(min(ends), max(ends), f"{symbol} product")
            for coefficient in sorted(set(columns[i])):
                chosen = [lit for lit, c in zip(literals, columns[i], strict=True) if c == coefficient]
                for literal in chosen:
                    model.add(product == coefficient * variables[symbol]).only_enforce_if(literal)
            total = total + product
        return total


def linearize(
    expression: sympy.Expr,
    domains: Mapping[sympy.Symbol, Sequence[int]],
    *,
    unit: int | Fraction | None = None,
    table_limit: int = TABLE_LIMIT,
) -> Linearization:
    """Turn a formula over finite integer domains into integer rows.

    Parameters
    ----------
    expression
        Any expression `exact_function` accepts.
    domains
        Values of every free symbol.
    unit
        None: all coefficients are multiplied by their common denominator, so the rows are exact and
        `Linearization.unit` is one over that denominator. Otherwise every table entry is divided by `unit` and
        rounded up, once.
    table_limit
        Most joint points of the choices.

    Raises
    ------
    NotLinearError
        A symbol has no domain; it must be enumerated and its domain makes the table too long; a root has no exact
        rational value although `unit` is None; a count may be negative although entries are rounded.
    """
    expression = sympy.expand(sympy.sympify(expression))
    symbols = sorted(expression.free_symbols, key=str)
    values = {symbol: _domain(symbol, domains) for symbol in symbols}
    counts = _affine_symbols(expression, values)
    choices = tuple(symbol for symbol in symbols if symbol not in counts)
    size = math.prod(len(values[symbol]) for symbol in choices)
    if size > table_limit:
        widest = max(choices, key=lambda symbol: len(values[symbol]))
        raise NotLinearError(
            str(widest),
            f"is not affine in {_short(expression)} and its {len(values[widest])} values make a table of {size} rows",
            f"at most {table_limit} joint values of {', '.join(map(str, choices))}",
        )
    if unit is None:
        _refuse_roots(expression)
    elif any(values[symbol][0] < 0 for symbol in counts):
        bad = next(symbol for symbol in counts if values[symbol][0] < 0)
        raise NotLinearError(str(bad), f"may be {values[bad][0]} while entries are rounded up", "counts >= 0")

    zero = dict.fromkeys(counts, 0)
    parts = [sympy.diff(expression, symbol).xreplace(zero) for symbol in counts] + [expression.xreplace(zero)]
    function = exact_function(parts, choices)
    exact_rows = {
        point: [Fraction(entry) for entry in function(*point)]
        for point in itertools.product(*(values[symbol] for symbol in choices))
    }
    if unit is None:
        denominator = math.lcm(*(entry.denominator for row in exact_rows.values() for entry in row))
        step = Fraction(1, denominator)
    else:
        step = Fraction(unit)
    rows = {point: tuple(math.ceil(entry / step) for entry in row) for point, row in exact_rows.items()}
    return Linearization(counts, choices, values, step, unit is None, rows)


def _domain(symbol: sympy.Symbol, domains: Mapping[sympy.Symbol, Sequence[int]]) -> tuple[int, ...]:
    values = tuple(sorted(set(domains.get(symbol, ()))))
    if not values:
        raise NotLinearError(str(symbol), "has no values", "a finite, non-empty domain")
    return values


def _short(expression: sympy.Expr) -> str:
    text = str(expression)
    return text if len(text) <= 120 else text[:117] + "..."


def _affine_symbols(expression: sympy.Expr, values: Mapping[sympy.Symbol, tuple[int, ...]]) -> tuple[sympy.Symbol, ...]:
    """Symbols that may be counts at the same time, widest domains first; single-valued symbols gain nothing by it."""
    chosen: set[sympy.Symbol] = set()
    for symbol in sorted(values, key=lambda s: (-len(values[s]), str(s))):
        if len(values[symbol]) > 1 and _degree(expression, chosen | {symbol}) <= 1:
            chosen.add(symbol)
    return tuple(sorted(chosen, key=str))


def _degree(node: Any, symbols: set[sympy.Symbol]) -> float:
    """Total degree in `symbols` as seen from the structure; infinite inside anything but sums and products."""
    if not node.free_symbols & symbols:
        return 0
    if isinstance(node, sympy.Symbol):
        return 1
    if isinstance(node, sympy.Add):
        return max(_degree(arg, symbols) for arg in node.args)
    if isinstance(node, sympy.Mul):
        return sum(_degree(arg, symbols) for arg in node.args)
    return math.inf


def _refuse_roots(expression: sympy.Expr) -> None:
    for power in expression.atoms(sympy.Pow):
        if not isinstance(power.exp, sympy.Integer):
            symbol = min(map(str, power.free_symbols), default=str(power))
            raise NotLinearError(symbol, f"{power} need not be rational", "a unit in which entries are rounded up")
