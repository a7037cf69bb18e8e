"""Command line room: start of ``prism-cp`` and ``python -m prism_cp``; an interrupt while it loads ends it quietly."""

from __future__ import annotations

import sys


def main() -> None:
    """Load and run the program; Ctrl-C before it is loaded is no more than exit code 130."""
    try:
        from prism_cp.cli.main import run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
