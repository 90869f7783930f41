#!/usr/bin/env bash
# The checks of this project. Makes this host ready, builds what is missing, and runs one of:
#
#   tests/run.sh                  the gate: what each change must pass. CI runs it
#   tests/run.sh full             the gate and all the rest: every promise on every engine, all clients, the demos
#                                 and Docker Compose from nothing, benchmarks, soaks
#   tests/run.sh quick            format, lints, and every test that needs no engine
#
# Options:
#   --without-docker              leaves out what needs a Docker engine. Without the option a machine that allows none
#                                 runs everything else, lists what was left out, and fails
#   --kubernetes                  with `full`: drills on a real Kubernetes as well, which is built if it is not there
#   --write                       with the gate, on Docker: writes the table of stages into tests/README.md if it passes
#
# All failures are listed at the end. A test that fails runs once more, and so does a later stage. Exit code 0: all
# checks passed, and at most three tests needed a second attempt.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"
# Servers are started in other folders.
if [ -n "${CARGO_TARGET_DIR:-}" ]; then
    CARGO_TARGET_DIR=$(realpath -m "$CARGO_TARGET_DIR")
    export CARGO_TARGET_DIR
fi
target=${CARGO_TARGET_DIR:-$root/target}
server=$target/debug/llm-sandbox
runtime=$target/debug/runtime
log_dir=$target/checks
nothing=$target/nothing

stages=()
failed=()
again=()
left_out=()
skipped=()

# run_stage <tries> <name> <command>...: sets `ended` to the exit code of the last try. It must not be called in a
# condition: there bash ignores `set -e`, in the command as well.
ended=0
run_stage() {
    local tries=$1 name=$2 began=$SECONDS try
    shift 2
    for ((try = 1; try <= tries; try++)); do
        if [ "$try" -gt 1 ]; then printf '\nonce more: %s\n' "$name"; fi
        printf '\n=== %s (%d s) ===\n' "$name" "$SECONDS"
        set +e
        (
            set -e
            "$@"
        )
        ended=$?
        set -e
        if [ "$ended" = 0 ] || [ "$ended" = 77 ]; then break; fi
    done
    stages+=("$name|$((SECONDS - began))")
    # The usual exit code of a stage that is skipped because a program is missing.
    if [ "$ended" = 77 ]; then
        skipped+=("$name")
        ended=0
    fi
    if [ "$ended" = 0 ] && [ "$try" -gt 1 ]; then again+=("$name"); fi
    if [ "$ended" != 0 ]; then
        name="$name (exit code $ended)"
        # The name of a function is of no use outside this script.
        if [ "$(type -t "$1")" = file ]; then name="$name; to run it again: $*"; fi
        failed+=("$name")
    fi
}
# A stage after whose failure the run goes on. The run fails at its end.
stage() { run_stage 2 "$@"; }
# A stage without a second attempt, which would show nothing, or which the command makes itself.
stage_once() { run_stage 1 "$@"; }
# A stage that all later stages need.
need() {
    run_stage 1 "$@"
    if [ "$ended" = 0 ]; then return; fi
    printf '\nThe stages after this one need it and were left out.\n'
    exit 1
}
docker_stage() {
    if [ -n "$with_docker" ]; then stage "$@"; else left_out+=("$1"); fi
}

# Prints the table of stages and the failures, however the run ends.
report() {
    local code=$? stage name
    wait 2>/dev/null || true
    printf '\n'
    for stage in ${stages[@]+"${stages[@]}"}; do printf '%5d s  %s\n' "${stage##*|}" "${stage%|*}"; done
    printf '%5d s  in total\n' "$SECONDS"
    for name in ${again[@]+"${again[@]}"}; do printf 'passed at the second attempt: %s\n' "$name"; done
    for name in ${left_out[@]+"${left_out[@]}"}; do printf 'left out: %s\n' "$name"; done
    for name in ${skipped[@]+"${skipped[@]}"}; do printf 'left out, its program is missing: %s\n' "$name"; done
    for name in ${failed[@]+"${failed[@]}"}; do printf 'failed: %s\n' "$name"; done
    if [ "${#left_out[@]}" != 0 ] && [ -z "$without_docker" ]; then code=1; fi
    if [ "${#failed[@]}" != 0 ] || [ "${#skipped[@]}" != 0 ]; then code=1; fi
    # A signal may end the run with the exit code of the last command.
    if [ -z "$finished" ] && [ "$code" = 0 ]; then code=1; fi
    if [ "$code" = 0 ]; then echo 'All checks passed.'; else echo 'Some checks failed or were left out, see above.'; fi
    if [ -n "$write" ] && [ "$code" = 0 ]; then write_stages; fi
    exit "$code"
}
write_stages() {
    {
        printf '| stage | time |\n|---|---:|\n'
        local stage
        for stage in "${stages[@]}"; do printf '| %s | %d s |\n' "${stage%|*}" "${stage##*|}"; done
        printf '| in total | %d s |\n' "$SECONDS"
    } | python3 docs/measured.py tests/README.md stages
}

# --- stages ------------------------------------------------------------------------------------------

install_nextest() {
    cargo nextest --version >/dev/null 2>&1 && return
    step 'cargo-nextest, from source: some minutes, the first time'
    cargo install --locked cargo-nextest
}
lints() {
    python3 tests/doc_comments.py
    python3 tests/figures.py --check
    cargo clippy --workspace --all-targets --all-features --locked -- --deny warnings
}
build() {
    # An older program must not be tested if cargo's settings put the new one elsewhere.
    rm -f "$server"
    cargo build --workspace --all-features --locked
    [ -x "$server" ] || die "cargo built no $server. Unset build.target and build.build-dir in cargo's settings."
}
with_runtime=(env "SANDBOX_RUNTIME_DIR=$runtime")

# Docker's engine, gVisor for the drills on it, and the sandbox image. These wait for disks and networks, so they run
# beside the build; their output is printed when the script waits for them.
host() { sandbox-image/prepare-host.sh --gvisor; }
image() {
    local before after left
    before=$(unnamed_images)
    "$server" image build --if-needed
    after=$(unnamed_images)
    left=$(comm -13 <(printf '%s\n' "$before") <(printf '%s\n' "$after"))
    [ -z "$left" ] || die 'the build left images without a name:' "$left"
}
beside() {
    local name=$1
    shift
    rm -f "$log_dir/$name.ended"
    (
        set +e
        (
            set -e
            "$@"
        ) >"$log_dir/$name.log" 2>&1
        echo $? >"$log_dir/$name.ended"
    ) &
    echo $! >"$log_dir/$name.pid"
}
joined() {
    while kill -0 "$(<"$log_dir/$1.pid")" 2>/dev/null; do sleep 0.2; done
    cat "$log_dir/$1.log"
    return "$(<"$log_dir/$1.ended")"
}

# run_tests <profile> [nextest argument]...: nextest tries a test that fails once more by itself.
run_tests() {
    local profile=$1 code=0
    shift
    rm -f "target/nextest/$profile/junit.xml"
    # Tests of the settings file set this variable themselves.
    env -u SANDBOX_ENV_FILE \
        cargo nextest run --workspace --all-features --locked --profile "$profile" "$@" || code=$?
    python3 tests/second_attempts.py "target/nextest/$profile/junit.xml" || code=1
    return "$code"
}
two_servers() { TEST_REPLICAS=1 run_tests replicas; }
# Unit tests have modules of these names as well, and need no engine; some drills need none either.
without_engines='not (binary(drills) | binary(alone) | (kind(test) & test(/::docker/)))
    | (binary(drills) & test(/embedded::|::the_(snippets|cells)_are_what/))'

no_containers_left() {
    local now left
    now=$(our_containers)
    left=$(comm -13 <(printf '%s\n' "$containers_before") <(printf '%s\n' "$now"))
    [ -z "$left" ] || die 'containers were left behind:' "$left"
    # Servers of other checkouts make it again when they need it.
    docker volume rm llm-sandbox-empty >/dev/null 2>&1 || true
    left=$(docker volume ls --quiet --filter label=app=llm-sandbox)
    [ -z "$left" ] || die 'volumes were left behind:' "$left"
    echo 'no container or volume was left behind'
}
unnamed_images() { docker images --quiet --no-trunc --filter dangling=true | sort; }
our_containers() { docker ps --all --quiet --no-trunc --filter label=app=llm-sandbox | sort; }

# --- the three runs ----------------------------------------------------------------------------------

prepare() {
    install_nextest
    mkdir -p "$log_dir"
    if [ -n "$without_docker" ]; then
        export DOCKER_HOST=unix:///nonexistent/engine.sock
    else
        beside host host
    fi
    stage_once 'format' cargo fmt --all --check
    stage_once 'lints' lints
    need 'build' build
    if [ -z "$without_docker" ]; then
        stage_once 'Docker engine, base image, gVisor (beside the build)' joined host
        if [ "$ended" = 0 ]; then
            with_docker=yes
            containers_before=$(our_containers) || die 'docker lists no containers; does it use the same engine?'
            beside image image
        fi
    fi
    need 'test programs' cargo nextest run --workspace --all-features --locked --no-run
    stage 'runtime of the embedded engine' "${with_runtime[@]}" "$server" runtime install --if-needed
    if [ -n "$with_docker" ]; then
        need 'sandbox image (beside the test programs)' joined image
        need 'doctor' env SANDBOX_ENGINE=docker "$server" doctor
    fi
}

gate() {
    local commit
    commit=$(git rev-parse HEAD 2>/dev/null || echo 0)
    export TEST_FIFTH=$((16#${commit:0:6} % 5))
    prepare
    tests_of gate
    docker_stage 'official Python client, over stdio and HTTP' tests/clients/run.sh --one "$server"
    docker_stage 'official clients that sign in' tests/clients/run.sh --oauth "$server"
    docker_stage 'the page in a browser' tests/browser/run.sh "$server"
    docker_stage 'Docker Compose, with the programs that are there' tests/compose/run.sh "$target/debug"
    docker_stage 'demo' env LLM_SANDBOX_BIN="$server" demo/run.sh --engine docker --yes
    stage 'demo, with the embedded engine' "${with_runtime[@]}" LLM_SANDBOX_BIN="$server" demo/run.sh --engine wasm
    stage 'manifests for Kubernetes' tests/kubernetes/manifests.sh
    docker_stage 'no container is left' no_containers_left
}

full() {
    export TEST_FULL=1
    prepare
    tests_of default
    stage_once 'promises on pods, of two servers behind a round robin' two_servers
    docker_stage 'one caller against a server of 256 MB' env LLM_SANDBOX_BIN="$server" tests/exhaustion.sh 5
    docker_stage 'the archive in a bucket' tests/archive/run.sh "$server"
    docker_stage 'what a model pays' tests/tokens/run.sh "$server"
    docker_stage 'recipes of the image' tests/recipes/run.sh "$server"
    docker_stage 'official clients' tests/clients/run.sh "$server"
    stage 'official clients, with the embedded engine' \
        "${with_runtime[@]}" SANDBOX_ENGINE=wasm tests/clients/run.sh "$server"
    docker_stage 'workflows in n8n, if it is installed' tests/n8n/run.sh "$server"
    docker_stage 'the page in a browser' tests/browser/run.sh "$server"
    stage 'manifests for Kubernetes' tests/kubernetes/manifests.sh
    docker_stage 'Docker Compose, from nothing' tests/compose/run.sh
    docker_stage 'packages of a release, built twice and installed' tests/release/run.sh
    rm -rf "$nothing" demo/.venv
    docker_stage 'demo, from nothing' from_nothing demo/run.sh --engine docker --yes
    stage 'demo, with the embedded engine' from_nothing demo/run.sh --engine wasm
    rm -rf "$nothing"
    docker_stage 'demo of calls' demo/calls/run.sh --engine docker "$server"
    stage 'demo of calls, with the embedded engine' "${with_runtime[@]}" demo/calls/run.sh --engine wasm "$server"
    stage 'demo of tools of your own' "${with_runtime[@]}" demo/tools/run.sh "$server"
    docker_stage 'benchmark, a few rounds' tests/bench/run.sh --quick
    docker_stage 'soak, two minutes over stdio' tests/soak.sh 2
    docker_stage 'soak, two minutes over HTTP' tests/soak.sh --http 2
    stage_once 'without default features, on the oldest Rust' oldest
    local engine
    for engine in docker docker-rootless podman podman-rootless; do
        docker_stage "$engine on cgroup version 2, in an emulated machine" tests/vm/run.sh "$engine" "$server"
    done
    if [ -n "$kubernetes" ]; then docker_stage 'drills on a real Kubernetes' tests/kubernetes/drills.sh; fi
    docker_stage 'no container is left' no_containers_left
}

# Runs a command as on a first start: neither the program nor the runtime exists.
from_nothing() { CARGO_TARGET_DIR=$nothing/target SANDBOX_RUNTIME_DIR=$nothing/runtime "$@"; }

quick() {
    without_docker=yes
    export DOCKER_HOST=unix:///nonexistent/engine.sock
    install_nextest
    stage_once 'format' cargo fmt --all --check
    stage_once 'lints' lints
    need 'build' build
    stage_once 'tests that need no engine' run_tests quick
}

tests_of() {
    if [ -n "$with_docker" ]; then
        stage_once 'tests' run_tests "$1"
    else
        left_out+=('tests on containers, drills')
        stage_once 'tests without containers' run_tests "$1" -E "$without_engines"
    fi
}
# If the oldest Rust is not installed, the installed one checks the build without default features.
oldest() {
    local rust
    rust=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    if cargo "+$rust" --version >/dev/null 2>&1; then
        cargo "+$rust" check --package llm-sandbox --no-default-features --locked --target-dir "$target/oldest"
    else
        echo "Rust $rust is not installed (rustup toolchain install $rust): checked with $(rustc --version)"
        cargo check --package llm-sandbox --no-default-features --locked
    fi
}

mode=gate
with_docker=''
without_docker=''
kubernetes=''
write=''
finished=''
for argument in "$@"; do
    case $argument in
    full | quick) mode=$argument ;;
    --without-docker) without_docker=yes ;;
    --kubernetes) kubernetes=yes ;;
    --write) write=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        echo "There is no option $argument." >&2
        exit 64
        ;;
    esac
done
if { [ -n "$kubernetes" ] && [ "$mode" != full ]; } || { [ -n "$write" ] && [ "$mode$without_docker" != gate ]; }; then
    usage >&2
    echo '--kubernetes needs full; --write needs the gate with Docker.' >&2
    exit 64
fi
# These variables change what is tested.
unset_settings
unset LLM_SANDBOX_BIN TEST_FULL TEST_FIFTH TEST_REPLICAS TEST_SCALE TEST_SLOWNESS TEST_MACHINE CELLS SNIPPETS BEHAVIOURS BEHAVIOURS_TO
unset UPDATE_DOCS SHADOW_SEEDS END_OF_RUN_ATTEMPTS "${!INSTA_@}" "${!NEXTEST_@}" "${!PROPTEST_@}"
have cargo || die 'cargo is missing; install Rust 1.95 or newer with rustup.'
have cc || die 'cc is missing, which Rust needs to link programs. Debian, Ubuntu: sudo apt-get install build-essential'
have python3 || die 'python3 is missing; install 3.11 or newer.'
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "python3 is $(python3 --version); install 3.11 or newer."
have npm || die 'npm is missing; install Node.js 20 or newer. Debian, Ubuntu: sudo apt-get install nodejs npm'
trap report EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
"$mode"
finished=yes
