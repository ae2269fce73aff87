# shellcheck shell=bash
# Sourced by what draws: a Python environment with matplotlib, made the first time (needs PyPI then).

readonly PLOT_VENV=$CACHE/plot-venv

require_plot_venv() {
  "$PLOT_VENV/bin/python" -c 'import matplotlib' 2>/dev/null && return
  headline "Install matplotlib into $PLOT_VENV"
  python3 -m venv "$PLOT_VENV" || fail "python3 has no venv: install the Debian package python3-venv."
  "$PLOT_VENV/bin/pip" install --quiet -r "$REPOSITORY/bench/requirements.txt" ||
    fail "matplotlib cannot be installed: the Python package index is needed once."
}
