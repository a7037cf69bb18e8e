"""Command line room: start of ``prism-cp`` and ``python -m prism_cp``; an interrupt while it loads ends it quietly."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Load and run the program; Ctrl-C or SIGTERM outside a search are no more than exit code 130."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by who started the program; files must not take their numbers
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    try:
        from prism_cp.cli.main import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
