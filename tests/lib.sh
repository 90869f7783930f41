# shellcheck shell=bash
# Functions that the test scripts share: messages, installation, counting. Each script sources this file first, and sets
# `set -euo pipefail` itself.

unset CDPATH # which makes `cd` print
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
script=$(realpath "$0")
default_binary=${CARGO_TARGET_DIR:-$root/target}/debug/llm-sandbox

step() { printf 'set-up: %s\n' "$*"; }
die() {
    printf 'set-up: %s\n' "$@" >&2
    exit 2
}
have() { command -v "$1" >/dev/null 2>&1; }
# Prints the comment at the head of the script that is run.
usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$script"; }

# A sourced file sees the arguments of its script.
case ${1:-} in
    -h | --help)
        usage
        exit 0
        ;;
esac

# unset_settings [name to keep]...: removes the caller's settings of a server, which would apply to the tests.
unset_settings() {
    local name
    for name in "${!SANDBOX_@}"; do
        case " $* " in *" $name "*) ;; *) unset "$name" ;; esac
    done
    # Otherwise a server reads `.env` in the folder that it is started in.
    export SANDBOX_ENV_FILE=/dev/null
    # Otherwise it reads the settings file of this user or machine.
    export SANDBOX_CONFIG_FILE=/dev/null
}

may_install() { [ "$(id -u)" = 0 ] && have apt-get; }

# install_packages <Debian package>...: false if that is impossible.
install_packages() {
    may_install || return 1
    step "installing $*"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

# need_packages <what is missing> <Debian package>...
need_packages() {
    local missing=$1
    shift
    have apt-get || die "$missing is missing; install it and start again."
    may_install || die "$missing is missing; run: sudo apt-get install $*"
    install_packages "$@" || die "$missing is missing, and $* cannot be installed."
}

# npm_ci <folder> <what for> [function that finishes it]: the stamp is written last, so an unfinished installation is
# repeated.
npm_ci() {
    if is_installed "$1"; then return; fi
    step "$2, npm ci"
    # Some packages ask for a newer Node than the parts of them that are used here need.
    (cd "$1" && npm ci --loglevel=error --engine-strict=false >/dev/null)
    "${3:-true}"
    cp "$1/package-lock.json" "$1/node_modules/.stamp"
}
is_installed() { cmp -s "$1/package-lock.json" "$1/node_modules/.stamp"; }

# find_server [program]: sets `binary`, and builds it if it is the one of this clone and missing.
find_server() {
    case ${1:-} in
        -*)
            usage >&2
            die "There is no option $1."
            ;;
    esac
    binary=$(realpath -m "${1:-$default_binary}")
    if [ -x "$binary" ]; then return; fi
    [ "$binary" = "$(realpath -m "$default_binary")" ] || die "There is no program at $binary."
    step 'the server, cargo build'
    (cd "$root" && cargo build --workspace --all-features --locked)
}

# prepare_server [program]: like find_server, and prepares an engine and an image that pass the doctor's checks.
prepare_server() {
    find_server "$@"
    if [ "${SANDBOX_ENGINE:-docker}" != docker ]; then
        "$binary" doctor || die "The engine $SANDBOX_ENGINE is not ready; the lines above say why."
    elif ! "$binary" doctor >/dev/null 2>&1; then
        step 'Docker engine and sandbox image'
        "$root/sandbox-image/prepare-host.sh"
        "$binary" image build --if-needed
    fi
}

# prepare_release: sets `binary` to a release build, or to the program that LLM_SANDBOX_BIN names, with its image.
prepare_release() {
    binary=${LLM_SANDBOX_BIN:-}
    if [ -z "$binary" ]; then
        binary=${CARGO_TARGET_DIR:-$root/target}/release/llm-sandbox
        (cd "$root" && cargo build --release --locked --quiet)
    fi
    binary=$(realpath "$binary")
    "$binary" image build --if-needed
}

# check <what holds> <command>...: writes a line to the results in `scratch`. The output of the command is shown if it
# fails.
check() {
    local what=$1
    shift
    if "$@" >"$scratch/output" 2>&1; then
        echo "ok   $what" | tee -a "$scratch/results"
    else
        echo "FAIL $what" | tee -a "$scratch/results"
        cat "$scratch/output"
    fi
}

# tally <file with a line for each check>: counts them; false if one failed or there is none.
tally() {
    local passed failed
    passed=$(grep -c '^ok ' "$1" || true)
    failed=$(grep -c '^FAIL ' "$1" || true)
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" != 0 ]
}
