"""Engine room: exact solution of one stage problem under any schedule by separable path cuts and integer tables."""

from prism_cp.engine.early_plans import early_plan
from prism_cp.engine.limits import Limits
from prism_cp.engine.solve import EngineResult, applicable, solve_with_engine

__all__ = ["EngineResult", "Limits", "applicable", "early_plan", "solve_with_engine"]
