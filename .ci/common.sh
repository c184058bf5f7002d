# Of `.ci/run` and `.ci/long`: settings, a new environment with everything that is locked, and steps with their seconds.
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export COUNTERPOISE_DATA="${COUNTERPOISE_DATA:-$PWD/../shared/data}"
# One thread against two changes float results; two test processes of one thread each fill two cores.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 COUNTERPOISE_TEST_THREADS=1
export PYTHONDONTWRITEBYTECODE=1 GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-lo}"
# The few kernels that tests compile need no processes of their own that import torch, and no precompiled headers.
export TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0
# Nor programs that are compiled only to see what this processor can, which its description says.
export TORCHINDUCTOR_VEC_ISA_OK=1

base=$(command -v python3) # before an environment is active
work=$(mktemp -d)
trap 'jobs -p | xargs -r kill 2>/dev/null || true; rm -rf "$work"' EXIT

step() {
  local name=$1 started=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  "$@"
  printf '== %s: %d s\n' "$name" $((SECONDS - started))
}

# Where no time is measured, or its limit is far, commands share the cores; one that fails ends all.
together() {
  local command others=()
  for command in "${@:2}"; do
    "$command" &
    others+=($!)
  done
  "$1"
  for command in "${others[@]}"; do
    wait "$command"
  done
}

install() {
  "$base" -m uv --version >/dev/null 2>&1 || "$base" -m pip install --quiet --require-hashes --requirement requirements/uv.txt
  "$base" -m uv venv --quiet --python "$base" "$work/venv"
  # shellcheck disable=SC1091
  source "$work/venv/bin/activate"
  "$base" -m uv pip sync --quiet --compile-bytecode --python "$work/venv" --require-hashes requirements/ci.txt
  "$base" -m uv pip install --quiet --python "$work/venv" --no-deps --no-build-isolation --editable . --editable study
  python -m compileall -q src study/src tests study/tests benchmarks tools # many short processes read them; none may write here
  "$base" -m uv pip check --python "$work/venv" # it has every extra
}

# The lowest versions that are allowed, all of which are direct: what they need is as new as can be.
lowest_versions() {
  grep --invert-match '^torch' requirements/constraints.in >"$work/constraints.in"
  "$base" -m uv pip compile --quiet pyproject.toml --extra all --constraints "$work/constraints.in" \
    --resolution lowest-direct --python-version 3.11 --output-file "$work/lowest.txt" "$@"
}

# One process imports the engine for all that is started later (tests/warm.py), in the background.
warm() {
  export COUNTERPOISE_WARM=$work/warm
  mkdir "$COUNTERPOISE_WARM"
  # It ends when its standard input does.
  sleep infinity | python tests/warm.py "$COUNTERPOISE_WARM" >"$work/warm-said" &
  server=$!
}

warm_is_ready() {
  until [[ -s $work/warm-said ]]; do
    kill -0 "$server"
    sleep 0.2
  done
}
