# Sourced by the other scripts: makes the environments that they run in.
#
# environment FOLDER CONSTRAINTS ARGUMENT... makes the virtual environment FOLDER (below the project's root) and installs
# ARGUMENT... into it under CONSTRAINTS, unless just that was done before. The only thing that it needs is a Python
# with the venv module; PYTHON names another one than python3.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly uv_version=0.13.9

say() { printf '== %s\n' "$*" >&2; }

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

python_for_environments() {
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null || fail "no Python found: '$python' is not a command; set PYTHON to one of 3.10 or newer"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "Python 3.10 or newer is needed, '$python' is $("$python" -V 2>&1); set PYTHON to another"
  printf '%s\n' "$python"
}

uv() { .venvs/uv/bin/uv "$@"; }

ensure_uv() {
  [ "$(.venvs/uv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" = "$uv_version" ] && return
  local python
  python=$(python_for_environments)
  say "installing uv $uv_version into .venvs/uv"
  rm -rf .venvs/uv
  "$python" -m venv .venvs/uv || fail "'$python -m venv' does not work here (on Debian and Ubuntu it is in the package python3-venv)"
  .venvs/uv/bin/python -m pip install --quiet --disable-pip-version-check "uv==$uv_version"
}

environment() {
  local folder=$1 constraints=$2 python wanted
  shift 2
  ensure_uv
  python=$(python_for_environments)
  wanted=$({ "$python" -VV; cat "$constraints" pyproject.toml; printf '%s\n' "$PWD" "$@"; } | sha256sum)
  [ "$(cat "$folder/installed" 2>/dev/null)" = "$wanted" ] && return
  say "making the environment $folder ($("$python" -V 2>&1)); the first time this downloads what $constraints pins"
  uv venv --quiet --clear --python "$python" "$folder"
  VIRTUAL_ENV=$PWD/$folder uv pip install --compile-bytecode --constraints "$constraints" "$@" 2> >(grep -v '^ + ' >&2)
  printf '%s' "$wanted" >"$folder/installed"
}

# A browser for the tests that look at pages in one; without it they are skipped, and this says so.
ensure_browser() {
  command -v chromium chromium-browser google-chrome >/dev/null && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing Debian's chromium"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends chromium; } \
      >/dev/null 2>&1 && return
  fi
  say "NO CHROMIUM HERE, and it cannot be installed: the decks will not be looked at in a browser"
}

# The environment for work on the project: its extras, its tests' tools, and the project itself, editable.
development_environment() {
  environment .venv constraints/development.txt --group dev --group peer --editable '.[cli,flytekit,torch]'
  export PATH=$PWD/.venv/bin:$PATH
  unset PYTHONPATH
}
