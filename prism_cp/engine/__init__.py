"""Engine room: exact solution of one stage problem under any schedule by separable path cuts and integer tables."""

from prism_cp.engine.solve import EngineResult, applicable, solve_with_engine

__all__ = ["EngineResult", "applicable", "solve_with_engine"]
