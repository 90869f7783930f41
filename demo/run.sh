#!/usr/bin/env bash
# The demo: builds what is missing, runs cells that share their variables, then plays a model's working day.
#
#   demo/run.sh                          with Docker if an engine answers, otherwise with the embedded engine
#   demo/run.sh --engine wasm            with the embedded engine
#   demo/run.sh --engine docker [--yes]  with Docker; if no engine answers, installs and starts one on Debian and
#                                        Ubuntu, after a question on the terminal or with --yes
#
#   LLM_SANDBOX_BIN   the server to use: a program that is there. Nothing is built then.
#
# Without `--engine docker` the demo writes only to this checkout, to the folder of the embedded engine's runtime
# (~/.cache/llm-sandbox), to the caches of cargo, pip and npm, and to the images of a Docker engine that answers.
# A second start takes less than a minute, because finished steps are not repeated. The results are in demo/out.
#
# Exit code 0: every step was as expected. 64: the arguments cannot be used. Any other: a step failed.
set -euo pipefail

# How long the steps usually take.
BUILD_TAKES='about 5 minutes on two cores'
IMAGE_TAKES='about 3 minutes'
RUNTIME_TAKES='1 to 3 minutes'
CLIENT_TAKES='about 20 seconds'
ENGINE_TAKES='about 1 minute'

# CDPATH makes `cd` print, and lead elsewhere.
unset CDPATH
demo=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$demo")
venv=$demo/.venv
prepare_host=$root/sandbox-image/prepare-host.sh
runtime_dir=${SANDBOX_RUNTIME_DIR:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/llm-sandbox}
export PYTHONDONTWRITEBYTECODE=1
# Otherwise the server reads `.env` in the folder that the demo is started in.
export SANDBOX_ENV_FILE=${SANDBOX_ENV_FILE:-/dev/null}
export SANDBOX_CONFIG_FILE=${SANDBOX_CONFIG_FILE:-/dev/null}

say() { printf 'set-up: %s\n' "$@"; }
die() {
    current=''
    say "$@" >&2
    exit 1
}
usage_error() {
    say "$@" >&2
    exit 64
}
have() { command -v "$1" >/dev/null 2>&1; }

# step <name> <how long it takes the first time> <command>...
current=''
step() {
    local began=$SECONDS seconds
    current=$1
    say "$1 (the first time $2)"
    shift 2
    "$@" || return
    current=''
    seconds=$((SECONDS - began))
    say "   done in $((seconds / 60)) min $((seconds % 60)) s"
}

# The last line of a set-up that was stopped or failed.
last_words() {
    local code=$?
    if [ "$code" = 0 ] || [ -z "$current" ]; then return; fi
    case $code in
        130 | 143)
            echo >&2
            say "Stopped during this step: $current. Run demo/run.sh again to continue." >&2
            ;;
        *) say "This step failed: $current. Correct what the messages above report, then run demo/run.sh again." >&2 ;;
    esac
}
trap last_words EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- the arguments -----------------------------------------------------------------------------------

engine=auto
consent=''
while [ $# -gt 0 ]; do
    case $1 in
        --engine)
            [ $# -gt 1 ] || usage_error '--engine needs a value: docker or wasm.'
            engine=$2
            shift
            ;;
        --yes) consent=yes ;;
        -h | --help)
            sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
            exit 0
            ;;
        *) usage_error "There is no option $1; --help lists the options." ;;
    esac
    shift
done
case $engine in
    auto | docker | wasm) ;;
    *) usage_error "There is no engine $engine: it is docker or wasm." ;;
esac
if [ -n "$consent" ] && [ "$engine" != docker ]; then usage_error '--yes needs --engine docker.'; fi

# --- the engine --------------------------------------------------------------------------------------

automatic=''
case $engine in
    docker) say 'Engine: Docker, as --engine says.' ;;
    wasm) say 'Engine: embedded, as --engine says.' ;;
    auto)
        if "$prepare_host" --check >/dev/null 2>&1; then
            engine=docker
            automatic=yes
            say "Engine: Docker, because a Docker engine answers${DOCKER_HOST:+ at $DOCKER_HOST}."
        else
            engine=wasm
            say "Engine: embedded, because no Docker engine answers this user${DOCKER_HOST:+ at $DOCKER_HOST}."
        fi
        ;;
esac

# --- what has to be on this machine, before anything takes minutes ------------------------------------

have python3 || die 'python3 is missing. Install Python 3.11 or newer, then run demo/run.sh again.'
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "python3 is $(python3 --version), and the demo needs 3.11 or newer."
if [ -n "${LLM_SANDBOX_BIN:-}" ]; then
    server=$(type -P "$LLM_SANDBOX_BIN") || die "LLM_SANDBOX_BIN is $LLM_SANDBOX_BIN, and there is no such program." \
        'Correct it, or unset it to build the server.'
else
    # An optimized build takes three minutes more, and would show nothing else.
    case ${CARGO_TARGET_DIR:=$root/target} in
        /*) ;;
        *) CARGO_TARGET_DIR=$PWD/$CARGO_TARGET_DIR ;;
    esac
    export CARGO_TARGET_DIR
    server=$CARGO_TARGET_DIR/debug/llm-sandbox
    have cargo || die 'cargo is missing. Install Rust from https://rustup.rs, then run demo/run.sh again.'
    have cc || die 'cc is missing, which Rust needs to link programs. Install it, then run demo/run.sh again.' \
        'Debian, Ubuntu: sudo apt-get install build-essential'
fi
if [ "$engine" = wasm ] && ! have npm && ! compgen -G "$runtime_dir/downloads/quickjs-wasi-*" >/dev/null; then
    die 'npm is missing, which downloads a part of the embedded engine. Install it, then run demo/run.sh again.' \
        'Debian, Ubuntu: sudo apt-get install npm'
fi

# --- the steps ---------------------------------------------------------------------------------------

# An engine that was asked for is installed and started, but only with consent.
ensure_docker() {
    local found plan
    if [ -z "$consent" ]; then
        plan=$("$prepare_host" --check 2>&1) && found=0 || found=$?
        if [ "$found" = 0 ]; then return; fi
        printf '%s\n' "$plan" >&2
        # 2: an engine can be installed or started.
        if [ "$found" != 2 ]; then die 'Or run demo/run.sh --engine wasm, which needs no Docker.'; fi
        [ -t 0 ] || usage_error 'To allow these changes, start again with --engine docker --yes.' \
            'Or run demo/run.sh --engine wasm, which needs no Docker.'
        current='the question whether to install or start Docker'
        read -r -p 'set-up: Make these changes? (y/N) ' consent || echo
        case $consent in
            [yY] | [yY][eE][sS]) ;;
            *) die 'Nothing was changed. Run demo/run.sh --engine wasm, which needs no Docker.' ;;
        esac
    fi
    step 'Docker engine and base image' "$ENGINE_TAKES" "$prepare_host"
}

# Debian's python3 makes no venv with pip in it, unless python3-venv is installed. The pip beside it installs into one
# without.
install_client() {
    local pip=("$venv/bin/python" -P -m pip)
    # The stamp is written last: a venv that was not finished is made again.
    # One of a Python that was upgraded lacks its packages.
    if cmp -s "$demo/requirements.txt" "$venv/requirements.stamp" && "$venv/bin/python" -P -c 'import mcp' 2>/dev/null; then
        return
    fi
    rm -rf "$venv"
    if ! python3 -P -m venv "$venv" >/dev/null 2>&1; then
        pip=(python3 -P -m pip --python "$venv/bin/python")
        if ! { python3 -P -m venv --clear --without-pip "$venv" && "${pip[@]}" --version; } >/dev/null 2>&1; then
            rm -rf "$venv"
            die 'python3 has neither ensurepip nor pip. Install one of them, then run demo/run.sh again.' \
                'Debian, Ubuntu: sudo apt-get install python3-venv'
        fi
    fi
    "${pip[@]}" install --quiet --disable-pip-version-check -r "$demo/requirements.txt" &&
        cp "$demo/requirements.txt" "$venv/requirements.stamp"
}

check_engine() {
    local report
    if ! report=$("$server" doctor 2>&1); then
        printf '%s\n' "$report" >&2
        return 1
    fi
}
prepare_docker() { "$server" image build --if-needed && check_engine; }
# The venv's pip is last in PATH: it is used if the machine has no other.
prepare_embedded() { PATH=$PATH:$venv/bin "$server" runtime install --if-needed && check_engine; }

# In the checkout, because cargo also takes settings from the folder that it is started in.
build_server() {
    rm -f "$server"
    (cd "$root" && cargo build --locked)
    [ -x "$server" ] || die "cargo built no $server. Unset build.target and build.build-dir in cargo's settings."
}

if [ "$engine" = docker ] && [ -z "$automatic" ]; then ensure_docker; fi
step "the demo's own client, in demo/.venv" "$CLIENT_TAKES" install_client
if [ -z "${LLM_SANDBOX_BIN:-}" ]; then
    step 'the server: cargo build --locked' "$BUILD_TAKES" \
        build_server
fi

export SANDBOX_ENGINE=$engine
if [ "$engine" = docker ] && ! step 'the sandbox image' "$IMAGE_TAKES" prepare_docker; then
    [ -n "$automatic" ] || die 'Docker cannot be used; the messages above say why.' \
        'If the base image cannot be pulled: demo/run.sh --engine docker --yes, as root on Debian or Ubuntu, installs' \
        'debootstrap and builds a stand-in for it. Without Docker: demo/run.sh --engine wasm.'
    say 'Docker cannot be used; the messages above say why. The demo continues with the embedded engine.'
    export SANDBOX_ENGINE=wasm
fi
if [ "$SANDBOX_ENGINE" = wasm ]; then
    step "the runtime of the embedded engine, 0.8 GB in $runtime_dir" "$RUNTIME_TAKES" prepare_embedded
fi

printf '\nCells that share their variables (demo/workspace.py)\n\n'
"$venv/bin/python" "$demo/workspace.py" --server "$server"
exec "$venv/bin/python" "$demo/drive.py" --server "$server"
