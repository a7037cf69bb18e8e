"""Search room, fronts: solved points in a file that grows line by line, so that a stopped run can go on.

Every line is one JSON object. A line counts only for the instance whose digest it carries and for the version of this
package that wrote it; one file may hold the points of several fronts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import prism_cp
from prism_cp.errors import InstanceError, PlanError, UsageError
from prism_cp.inputs.reading import parse_json
from prism_cp.inputs.suggest import shown
from prism_cp.plan import plan_from_json
from prism_cp.search.front import FrontPoint

SCHEMA_VERSION = 1
MOST_FILE_BYTES = 1 << 30
LINE_START = b'{"schema_version":'
FIELDS = ("schema_version", "prism_cp", "value", "instance_digest", "reason", "wall_s", "plan")


class FrontFile:
    """Points by the digest of their instance.

    Parameters
    ----------
    path
        Read now if it exists; `append` creates it. A last line cut short by a crash is dropped.

    Raises
    ------
    UsageError
        The file cannot be read, or its folder does not exist.
    InstanceError
        A line is no point of a front.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.points: dict[str, FrontPoint] = {}
        self.other_versions = 0
        self._whole_bytes = 0
        for number, line in enumerate(self._lines(), start=1):
            self._take(line, f"{path}, line {number}")

    def get(self, digest: str) -> FrontPoint | None:
        """The point of that instance, if this version has solved it."""
        return self.points.get(digest)

    def append(self, point: FrontPoint) -> None:
        """Write a point behind the others and make sure it is on the disk."""
        record = {
            "schema_version": SCHEMA_VERSION,
            "prism_cp": prism_cp.__version__,
            "value": point.value,
            "instance_digest": point.instance_digest,
            "reason": point.reason,
            "wall_s": point.wall_s,
            "plan": None if point.plan is None else point.plan.model_dump(mode="json"),
        }
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            with open(self.path, "ab") as stream:
                stream.truncate(self._whole_bytes)  # what a crash left of a line would spoil this one
                stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise UsageError(
                f"--resume: {self.path} cannot be written: {error.strerror or error} "
                "(accepted: a file on a writable disk with room)"
            ) from error
        self._whole_bytes += len(line)
        self.points[point.instance_digest] = point

    def _lines(self) -> list[bytes]:
        """Complete lines of the file; none when it does not exist yet."""
        path = self.path
        try:
            if path.is_dir():
                raise UsageError(f"--resume: {path} is a directory (accepted: a file name)")
            if not path.exists():
                if not path.parent.is_dir():
                    raise UsageError(f"--resume: folder {path.parent} does not exist (accepted: an existing folder)")
                return []
            if not path.is_file():
                raise UsageError(f"--resume: {path} is no regular file (accepted: a file name)")
            if path.stat().st_size > MOST_FILE_BYTES:
                raise UsageError(f"--resume: {path} has more than {MOST_FILE_BYTES} bytes (accepted: a smaller file)")
            content = path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a null byte in the name
            raise UsageError(f"--resume: {str(path)!r} cannot be read: {error} (accepted: a file name)") from error
        whole = content[: content.rfind(b"\n") + 1]
        rest = content[len(whole) :]
        if rest[: len(LINE_START)] != LINE_START[: len(rest)]:
            accepted = "a file written by `prism-cp front --resume`, or a new one"
            raise InstanceError("", "last line is no point of a front", accepted, str(path))
        self._whole_bytes = len(whole)
        return whole.splitlines()

    def _take(self, line: bytes, source: str) -> None:
        try:
            record = parse_json(line.decode(), source)
        except UnicodeDecodeError as error:
            raise InstanceError("", "is no text", "a line written by `prism-cp front --resume`", source) from error
        if not isinstance(record, dict) or not set(FIELDS) <= set(record):
            raise InstanceError("", "is no point of a front", "a line written by `prism-cp front --resume`", source)
        if record["schema_version"] != SCHEMA_VERSION or record["prism_cp"] != prism_cp.__version__:
            self.other_versions += 1
            return
        point = _point(record, source)
        self.points[point.instance_digest] = point


def _point(record: dict[str, Any], source: str) -> FrontPoint:
    value, digest, wall_s, reason = (record[key] for key in ("value", "instance_digest", "wall_s", "reason"))
    for key, good, accepted in (
        ("value", isinstance(value, int) and not isinstance(value, bool) and value > 0, "a positive integer"),
        ("instance_digest", isinstance(digest, str), "text"),
        ("wall_s", isinstance(wall_s, int | float) and wall_s >= 0, "seconds"),
        ("reason", isinstance(reason, str), "text"),
    ):
        if not good:
            raise InstanceError(key, shown(record[key]), accepted, source)
    plan = None
    if record["plan"] is not None:
        plan = plan_from_json(json.dumps(record["plan"]), source)
        if plan.instance_digest != digest:
            raise PlanError("plan.instance_digest", f"is {plan.instance_digest[:16]}…", f"{digest[:16]}…", source)
    return FrontPoint(value, digest, plan, reason, float(wall_s))
