#!/bin/sh
# Builds the wheel, installs it into a clean environment and runs the unit and golden tests on it from another folder,
# so that nothing works only because of the editable install.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$root"
# The dependencies are those of the calling environment; only ragbraid itself comes from the wheel.
"$python" -m pip install --quiet --no-deps --target "$work/site" "$work"/ragbraid-*.whl
cp -r "$root/tests" "$root/examples_flows" "$work/"
cp "$root/pyproject.toml" "$work/"
cd "$work"
PYTHONPATH="$work/site" "$python" -P - <<'PY'
import pathlib, ragbraid, ragbraid.dsl, ragbraid.examples_flows
home = pathlib.Path(ragbraid.dsl.__file__)
assert "site" in home.parts, home
assert list(pathlib.Path(ragbraid.examples_flows.__file__).parent.glob("*.yaml")), "the example flows are in the wheel"
assert list((pathlib.Path(ragbraid.__file__).parent / "flows/pages").glob("*")), "the page of a trace is in the wheel"
PY
PYTHONPATH="$work/site" "$python" -P -m pytest -q -n 2 -m "not prefect and not model and not slow" \
    tests/golden tests/unit/registry tests/unit/dsl
