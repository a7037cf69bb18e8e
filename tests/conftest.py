"""What tests of the command line share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from prism_cp.cli.main import run

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the program in this process: (exit code, standard output, standard error)."""

    def runner(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["prism-cp", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            run()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(stopped.value.code or 0), captured.out, captured.err

    return runner
