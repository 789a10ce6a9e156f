"""Flow files as module-level names, so that Prefect workers find them: `ragbraid.flows.library:hybrid_qa`.

A name is the stem of a flow file in one of the folders that `RAGBRAID_FLOWS` lists (separated as in PATH; the current
folder when it is not set). The file is compiled when the name is first asked for, and again after it was changed.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import prefect

FLOWS_VARIABLE = "RAGBRAID_FLOWS"

_SUFFIXES = (".yaml", ".yml")
_compiled: dict[Path, tuple[int, prefect.Flow[..., Any]]] = {}
_lock = threading.Lock()


def flow_folders() -> list[Path]:
    """Return the folders in which flow files are looked for, in order."""
    listed = [Path(part).expanduser() for part in os.environ.get(FLOWS_VARIABLE, "").split(os.pathsep) if part]
    return listed or [Path.cwd()]


def find_flow_file(name: str) -> Path | None:
    """Return the first file of that stem in the flow folders, or None."""
    for folder in flow_folders():
        for suffix in _SUFFIXES:
            path = folder / f"{name}{suffix}"
            if path.is_file():
                return path.resolve()
    return None


def load_flow(name: str) -> prefect.Flow[..., Any]:
    """Return the Prefect flow of a flow file, compiled once until the file changes.

    Raises:
        AttributeError: there is no such file; says where it was looked for.
        FlowError: the file has mistakes.
        SettingsError: the project file is wrong, or an input bears a name that Prefect keeps for itself.
    """
    path = find_flow_file(name)
    if path is None:
        places = ", ".join(str(folder) for folder in flow_folders())
        raise AttributeError(
            f"there is no flow file {name}.yaml in {places}; {FLOWS_VARIABLE} lists the folders to look in"
        )
    stamp = path.stat().st_mtime_ns
    with _lock:
        known = _compiled.get(path)
        if known is None or known[0] != stamp:
            from ragbraid.flows.api import load

            known = _compiled[path] = (stamp, load(path).prefect)
        return known[1]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load_flow(name)
