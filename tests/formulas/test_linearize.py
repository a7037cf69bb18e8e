"""Rows equal the formula at every point of random domains; what cannot be a row is named."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model
from sympy import Max, Min, Rational, Symbol, ceiling, floor, sqrt

from prism_cp.errors import InstanceError
from prism_cp.formulas.evaluate import exact_function, exact_power, numpy_function
from prism_cp.formulas.linearize import NotLinearError, linearize

TP, DP, EP = (Symbol(name, positive=True) for name in ("tp", "dp", "ep"))
N, K = Symbol("n", nonnegative=True), Symbol("k", nonnegative=True)
SYMBOLS = (TP, DP, EP, N, K)

fractions = st.fractions(min_value=-3, max_value=3, max_denominator=7)
choice_terms = st.sampled_from(
    [1 / TP, 1 / (TP * DP), TP * EP, Max(TP, DP), Min(TP, 2 * EP), ceiling(TP / 3), floor(DP / TP), TP / EP, DP**2]
)
count_terms = st.sampled_from([sympy.Integer(1), N, K, N * TP, K / DP, N / (TP * EP)])


@st.composite
def expressions(draw: st.DrawFn) -> sympy.Expr:
    total = sympy.Integer(0)
    for _ in range(draw(st.integers(1, 5))):
        scale = draw(fractions)
        total += Rational(scale.numerator, scale.denominator) * draw(choice_terms) * draw(count_terms)
    return total


def domain(low: int, high: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(low, high), min_size=1, max_size=4, unique=True)


domains = st.fixed_dictionaries(
    {TP: domain(1, 9), DP: domain(1, 9), EP: domain(1, 9), N: domain(0, 40), K: domain(0, 40)}
)


def points(domains: dict[Symbol, list[int]]) -> list[dict[Symbol, int]]:
    return [dict(zip(domains, values, strict=True)) for values in itertools.product(*domains.values())]


@given(expressions(), domains)
@settings(deadline=None, max_examples=60)
def test_exact_rows_equal_the_expression_everywhere(expression: sympy.Expr, domains: dict) -> None:
    rows = linearize(expression, domains)
    function = exact_function([expression], SYMBOLS)
    for point in points(domains):
        assert rows.value(point) * rows.unit == function(*(point[s] for s in SYMBOLS))[0]


@given(expressions(), domains, st.integers(1, 50))
@settings(deadline=None, max_examples=40)
def test_rounded_rows_are_above_by_less_than_one_unit_per_entry(
    expression: sympy.Expr, domains: dict, unit: int
) -> None:
    rows = linearize(expression, domains, unit=unit)
    function = exact_function([expression], SYMBOLS)
    for point in points(domains):
        excess = rows.value(point) * unit - function(*(point[s] for s in SYMBOLS))[0]
        assert 0 <= excess < unit * (1 + sum(point[s] for s in rows.counts))


@given(expressions(), domains)
@settings(deadline=None, max_examples=40)
def test_numpy_agrees_with_exact(expression: sympy.Expr, domains: dict) -> None:
    everywhere = points(domains)
    floats = numpy_function([expression], SYMBOLS)(*(np.array([p[s] for p in everywhere]) for s in SYMBOLS))[0]
    function = exact_function([expression], SYMBOLS)
    exact = [float(function(*(p[s] for s in SYMBOLS))[0]) for p in everywhere]
    np.testing.assert_allclose(floats, exact, rtol=1e-9, atol=1e-9)


@given(expressions(), domains, st.data())
@settings(deadline=None, max_examples=25)
def test_model_rows_take_the_expression_value(expression: sympy.Expr, domains: dict, data: st.DataObject) -> None:
    rows = linearize(expression, domains)
    point = {symbol: data.draw(st.sampled_from(values)) for symbol, values in domains.items()}
    model = cp_model.CpModel()
    variables = {symbol: model.new_int_var(0, 100, str(symbol)) for symbol in SYMBOLS}
    value = rows.add_to_model(model, variables)
    for symbol in SYMBOLS:
        model.add(variables[symbol] == point[symbol])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.value(value) == rows.value(point)


def test_model_rows_reject_values_outside_the_domains() -> None:
    rows = linearize(N / TP, {N: range(5), TP: [1, 2, 4]})
    model = cp_model.CpModel()
    variables = {N: model.new_int_var(0, 100, "n"), TP: model.new_int_var(0, 100, "tp")}
    rows.add_to_model(model, variables)
    model.add(variables[TP] == 3)
    assert cp_model.CpSolver().solve(model) == cp_model.INFEASIBLE


def test_wide_counts_stay_out_of_the_table() -> None:
    rows = linearize(N * TP + K / DP, {N: range(10_000), K: range(10_000), TP: [1, 2], DP: [1, 3]})
    assert set(rows.counts) == {N, K}
    assert len(rows.rows) == 4
    assert rows.unit == Fraction(1, 3)


def test_product_of_two_wide_symbols_names_the_one_to_blame() -> None:
    with pytest.raises(NotLinearError, match=r"^k: is not affine"):
        linearize(N * K, {N: range(10**6), K: range(10**5 * 3)})


def test_wide_symbol_under_ceiling_is_refused_with_its_name() -> None:
    with pytest.raises(NotLinearError) as error:
        linearize(ceiling(N / 7) + TP, {N: range(300_000), TP: [1]})
    assert error.value.key == "n"


def test_missing_domain_roots_and_negative_counts_are_refused() -> None:
    with pytest.raises(NotLinearError, match="tp"):
        linearize(N * TP, {N: [1]})
    with pytest.raises(NotLinearError, match="rational"):
        linearize(sqrt(TP), {TP: [2]})
    with pytest.raises(NotLinearError, match="-1"):
        linearize(N / 3, {N: [-1, 2]}, unit=2)


@pytest.mark.parametrize(("base", "p", "q"), [(2, 1, 2), (Fraction(7, 3), 2, 3), (10**30 + 1, 1, 5), (3, -1, 2)])
def test_irrational_powers_are_rounded_up_within_1e_30(base: int | Fraction, p: int, q: int) -> None:
    value = Fraction(exact_power(base, p, q))
    true = Fraction(base) ** p
    assert value**q >= true
    assert (value * (1 - Fraction(1, 10**30))) ** q < true


def test_rational_powers_are_exact() -> None:
    assert exact_power(Fraction(8, 27), 2, 3) == Fraction(4, 9)
    assert exact_power(0, 1, 2) == 0


def test_numpy_ceiling_forgives_rounding_noise_and_broadcasts() -> None:
    x = Symbol("x", positive=True)
    [up, largest] = numpy_function([ceiling(x * Rational(1, 10) * 30), Max(x, 2)], [x])(np.array([0.1, 0.7, 3.0]))
    assert up.tolist() == [1, 3, 9]
    assert largest.tolist() == [2, 2, 3]


def test_floats_and_unknown_functions_are_refused_by_the_exact_path() -> None:
    with pytest.raises(InstanceError, match="log"):
        exact_function([sympy.log(TP)], [TP])
    with pytest.raises(InstanceError):
        exact_function([TP * 0.1], [TP])
    assert exact_function([sympy.Piecewise((TP, TP > 2), (DP, True))], [TP, DP])(1, 5) == [5]
    assert math.isclose(exact_function([TP**-1], [TP])(3)[0], 1 / 3)
