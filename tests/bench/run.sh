#!/usr/bin/env bash
# Measures speed: our server, `docker exec` and the PyPI package llm-sandbox in turns, on one engine and image, under
# the same limits, and a bare fork as the floor. bench.py explains how the comparison is fair.
#
#   tests/bench/run.sh [--iterations N]    everything, about ten minutes at the default of 30
#   tests/bench/run.sh --quick             a minute's smoke test, without the PyPI package
#   tests/bench/run.sh --growth [N]        N prints (10,000) in one session: does anything grow?
#   tests/bench/run.sh --cells [--iterations N]
#                                          cells of a workspace, against a Jupyter kernel and the PyPI package
#   tests/bench/run.sh --embedded [--iterations N]
#                                          the embedded engine against Docker and others, 1,000 sessions at once,
#                                          and tools of your own against published figures
#   ... --write                            also writes the figures to docs/ and README.md; not with --quick
#
# Leaves results.json, table.md and chart.svg in tests/bench/out (in out/quick after --quick).
#
# LLM_SANDBOX_BIN names another server than the release build made here; neither it nor the image is rebuilt then.
# LLM_SANDBOX_BENCH_CACHE is the folder of the package's virtual environment, default: llm-sandbox-bench in the user's
# cache.
#
# Exit code 0: every answer was correct. No figure is ever a failure.
set -euo pipefail

bench=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$bench/../lib.sh"
venv=${LLM_SANDBOX_BENCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/llm-sandbox-bench}/venv
export PYTHONDONTWRITEBYTECODE=1

wrong_usage() {
    usage >&2
    exit 64
}
is_number() { [[ $1 =~ ^[1-9][0-9]{0,8}$ ]]; }

# The caller's settings of a server would apply to the benchmark.
unset_settings SANDBOX_RUNTIME_DIR

options=()
engines=
mode=compare
while [ $# -gt 0 ]; do
    case $1 in
    --quick)
        options+=(--quick)
        mode=quick
        ;;
    --iterations)
        is_number "${2:-}" || wrong_usage
        options+=(--iterations "$2")
        shift
        ;;
    --growth)
        mode=growth
        if is_number "${2:-}"; then
            options+=(--growth "$2")
            shift
        else
            options+=(--growth 10000)
        fi
        ;;
    --cells)
        options+=(--cells)
        ;;
    --embedded)
        options+=(--embedded)
        engines=yes
        ;;
    --write) options+=(--write) ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) wrong_usage ;;
    esac
    shift
done
# A smoke test's figures mean nothing.
if [ "$mode" = quick ] && [[ " ${options[*]} " = *' --write '* ]]; then wrong_usage; fi

# The stamp is written last, so an unfinished environment is made again. Without the package the benchmark runs without
# that contestant.
prepare_peer() {
    local wanted=$bench/requirements.txt
    if cmp -s "$wanted" "$venv/requirements.stamp" && "$venv/bin/python" -c '' 2>/dev/null; then return; fi
    step 'the PyPI package, in an environment of its own'
    rm -rf "$venv"
    mkdir -p "$(dirname "$venv")"
    python3 -m venv "$venv" >/dev/null 2>&1 || return 1
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted" || return 1
    cp "$wanted" "$venv/requirements.stamp"
}

have docker || die 'the docker client is missing; sandbox-image/prepare-host.sh installs it.'
if [ -n "${LLM_SANDBOX_BIN:-}" ]; then
    server=$(realpath "$LLM_SANDBOX_BIN")
else
    server=${CARGO_TARGET_DIR:-$root/target}/release/llm-sandbox
    step 'the server, cargo build --release --locked'
    (cd "$root" && cargo build --release --locked --quiet)
    "$server" image build --if-needed
fi
[ -x "$server" ] || die "There is no program at $server."

if [ "$mode" = compare ]; then
    if prepare_peer; then
        options+=(--venv "$venv")
    else
        step 'the PyPI package cannot be installed here and is left out'
    fi
fi

if [ -n "$engines" ]; then
    "$server" runtime install --if-needed
    "$root/demo/tools/run.sh" "$server" >/dev/null
    ulimit -n 65536 2>/dev/null || true
fi

# All containers of this run have this label, so that leftovers are removed even if the harness is killed.
run=$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')
scratch=$(mktemp -d)
harness=
clean_up() {
    local left
    rm -rf "$scratch"
    left=$(docker ps --all --quiet --filter "label=llm-sandbox.bench=$run")
    # shellcheck disable=SC2086 # one id a line
    if [ -n "$left" ]; then docker rm --force $left >/dev/null; fi
}
# A shell that waits for a program in the foreground handles a signal only after that program has ended.
pass_on() { if [ -n "$harness" ]; then kill -TERM "$harness" 2>/dev/null || true; fi; }
trap clean_up EXIT
trap pass_on INT TERM

python3 "$bench/bench.py" "$server" "$scratch" "$run" "${options[@]}" &
harness=$!
ended=0
wait "$harness" || ended=$?
# A signal ends the first wait, not the harness.
while kill -0 "$harness" 2>/dev/null; do
    ended=0
    wait "$harness" || ended=$?
done
(exit "$ended")
