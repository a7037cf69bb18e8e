"""HiGHS as every room uses it: silent, and with one setting of threads for the whole process.

HiGHS keeps one scheduler of threads per process. An object that asks for another number of threads than the first one
ended with an error instead of a solution, so nobody here sets `threads`.
"""

from __future__ import annotations

import highspy


class SilentHighs(highspy.Highs):  # type: ignore[misc]
    """HiGHS that is silent from the start: the constructor's last step would print a banner to standard output."""

    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()
