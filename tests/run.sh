#!/usr/bin/env bash
# The checks of this project. Makes this host ready, builds what is missing, and runs one of:
#
#   tests/run.sh                  the gate: what each change must pass. CI runs it
#   tests/run.sh full             the gate and all the rest: every promise on every engine, all clients, both demos
#                                 and Docker Compose from nothing, benchmarks, soaks
#   tests/run.sh quick            format, lints, and every test that needs no engine
#
# Options:
#   --without-docker              leaves out what needs a Docker engine. Without the option a machine that allows none
#                                 runs everything else, lists what was left out, and fails
#   --kubernetes                  with `full`: drills on a real Kubernetes as well, which is built if it is not there
#   --write                       writes the table of stages into tests/README.md, if it is the gate and passes
#
# Each stage runs to its end. A stage that fails runs once more, and all failures are listed at the end. Exit code 0:
# all checks passed, and at most three tests needed a second attempt.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$root"
target=${CARGO_TARGET_DIR:-$root/target}
server=$target/debug/llm-sandbox
runtime=$target/debug/runtime
log_dir=$target/checks

stages=()
failed=()
again=()
left_out=()

# run_stage <tries> <name> <command>...: true if the command succeeds at one of its tries.
run_stage() {
    local tries=$1 name=$2 began=$SECONDS try ended
    shift 2
    for ((try = 1; try <= tries; try++)); do
        if [ "$try" -gt 1 ]; then printf '\nonce more: %s\n' "$name"; fi
        printf '\n=== %s (%d s) ===\n' "$name" "$SECONDS"
        # In a subshell that is no condition, so that the first failure ends the command.
        set +e
        (
            set -e
            "$@"
        )
        ended=$?
        set -e
        if [ "$ended" = 0 ]; then break; fi
    done
    stages+=("$name|$((SECONDS - began))")
    if [ "$ended" = 0 ] && [ "$try" -gt 1 ]; then again+=("$name"); fi
    if [ "$ended" != 0 ]; then failed+=("$name (exit code $ended)"); fi
    return "$ended"
}
# A stage whose failure is one of the run, which goes on.
stage() { run_stage 2 "$@" || true; }
# The same without a second attempt, which would show nothing, or which the command makes itself.
stage_once() { run_stage 1 "$@" || true; }
# A stage that all later stages need.
need() {
    run_stage 1 "$@" && return
    printf '\nThe stages after this one need it and were left out.\n'
    exit 1
}
docker_stage() {
    if [ -n "$with_docker" ]; then stage "$@"; else left_out+=("$1"); fi
}

# Prints the table of stages and the failures, however the run ends.
report() {
    local ended=$? stage name
    wait 2>/dev/null || true
    printf '\n'
    for stage in ${stages[@]+"${stages[@]}"}; do printf '%5d s  %s\n' "${stage##*|}" "${stage%|*}"; done
    printf '%5d s  in total\n' "$SECONDS"
    for name in ${again[@]+"${again[@]}"}; do printf 'passed at the second attempt: %s\n' "$name"; done
    for name in ${left_out[@]+"${left_out[@]}"}; do printf 'left out, as there is no Docker engine: %s\n' "$name"; done
    for name in ${failed[@]+"${failed[@]}"}; do printf 'failed: %s\n' "$name"; done
    if [ "${#left_out[@]}" != 0 ] && [ -z "$without_docker" ]; then ended=1; fi
    if [ "${#failed[@]}" != 0 ]; then ended=1; fi
    if [ "$ended" = 0 ]; then echo 'All checks passed.'; else echo 'Some checks failed or were left out, see above.'; fi
    if [ -n "$write" ] && [ "$ended" = 0 ]; then write_stages; fi
    exit "$ended"
}
write_stages() {
    {
        printf '| stage | time |\n|---|---:|\n'
        local stage
        for stage in "${stages[@]}"; do printf '| %s | %d s |\n' "${stage%|*}" "${stage##*|}"; done
        printf '| in total | %d s |\n' "$SECONDS"
    } >"$log_dir/stages.md"
    sed -i -e "/^<!-- stages: $mode -->\$/,/^<!-- end -->\$/{/^<!--/!d}" \
        -e "/^<!-- stages: $mode -->\$/r $log_dir/stages.md" tests/README.md
}

# --- stages ------------------------------------------------------------------------------------------

install_nextest() {
    cargo nextest --version >/dev/null 2>&1 && return
    step 'cargo-nextest, from source: some minutes, the first time'
    cargo install --locked cargo-nextest
}
lints() { cargo clippy --workspace --all-targets --all-features --locked -- --deny warnings; }
build() { cargo build --workspace --all-features --locked; }
with_runtime() { SANDBOX_RUNTIME_DIR=$runtime "$@"; }

# Docker's engine, gVisor for the drills on it, and the sandbox image. These wait for disks and networks, so they run
# beside the build; what they print comes when they are waited for.
host() { sandbox-image/prepare-host.sh --gvisor; }
image() {
    local before left
    before=$(unnamed_images)
    "$server" image build --if-needed
    left=$(comm -13 <(printf '%s\n' "$before") <(unnamed_images))
    [ -z "$left" ] || die 'the build left images without a name:' "$left"
}
beside() {
    local name=$1
    shift
    rm -f "$log_dir/$name.ended"
    {
        "$@" >"$log_dir/$name.log" 2>&1 && echo 0 || echo $?
    } >"$log_dir/$name.ending" && mv "$log_dir/$name.ending" "$log_dir/$name.ended" &
    echo $! >"$log_dir/$name.pid"
}
joined() {
    while kill -0 "$(<"$log_dir/$1.pid")" 2>/dev/null; do sleep 0.2; done
    cat "$log_dir/$1.log"
    return "$(<"$log_dir/$1.ended")"
}

# run_tests <profile> [nextest argument]...: nextest tries a test that fails once more by itself.
run_tests() {
    local profile=$1 ended=0
    shift
    cargo nextest run --workspace --all-features --locked --profile "$profile" "$@" || ended=$?
    python3 tests/second_attempts.py "target/nextest/$profile/junit.xml" || ended=1
    return "$ended"
}
without_engines='not (binary(drills) | binary(alone) | test(/::docker/))'

no_containers_left() {
    local left
    left=$(comm -13 <(printf '%s\n' "$containers_before") <(our_containers))
    [ -z "$left" ] || die 'containers were left behind:' "$left"
    echo 'no container was left behind'
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
    if [ -z "$without_docker" ] && stage_once 'Docker engine, base image, gVisor (beside the build)' joined host &&
        [ "${#failed[@]}" = 0 ]; then
        with_docker=yes
        containers_before=$(our_containers)
        beside image image
    fi
    need 'test programs' cargo nextest run --workspace --all-features --locked --no-run
    stage 'runtime of the embedded engine' with_runtime "$server" runtime install --if-needed
    if [ -n "$with_docker" ]; then
        need 'sandbox image (beside the test programs)' joined image
        need 'doctor' "$server" doctor
    fi
}

gate() {
    local commit
    commit=$(git rev-parse HEAD 2>/dev/null || echo 0)
    export TEST_FIFTH=$((16#${commit:0:6} % 5))
    prepare
    tests_of gate
    docker_stage 'official Python client, over stdio and HTTP' tests/clients/run.sh --one "$server"
    docker_stage 'the page in a browser' tests/browser/run.sh "$server"
    docker_stage 'Docker Compose, with the programs that are there' tests/compose/run.sh "$target/debug"
    docker_stage 'demo' env LLM_SANDBOX_BIN="$server" demo/run.sh --engine docker --yes
    stage 'demo, with the embedded engine' with_runtime env LLM_SANDBOX_BIN="$server" demo/run.sh --engine wasm
    stage 'manifests for Kubernetes' tests/kubernetes/manifests.sh
    docker_stage 'no container is left' no_containers_left
}

full() {
    export TEST_FULL=1
    prepare
    tests_of default
    stage_once 'promises on pods, of two servers behind a round robin' env TEST_REPLICAS=1 \
        cargo nextest run --workspace --all-features --locked --profile replicas
    docker_stage 'one caller against a server of 256 MB' env LLM_SANDBOX_BIN="$server" tests/exhaustion.sh 5
    docker_stage 'the archive in a bucket' tests/archive/run.sh "$server"
    docker_stage 'what a model pays' tests/tokens/run.sh "$server"
    docker_stage 'official clients' tests/clients/run.sh "$server"
    stage 'official clients, with the embedded engine' with_runtime env SANDBOX_ENGINE=wasm tests/clients/run.sh "$server"
    docker_stage 'workflows in n8n, if it is installed' tests/n8n/run.sh "$server"
    docker_stage 'the page in a browser' tests/browser/run.sh "$server"
    stage 'manifests for Kubernetes' tests/kubernetes/manifests.sh
    docker_stage 'Docker Compose, from nothing' tests/compose/run.sh
    docker_stage 'demo, from nothing' demo/run.sh --engine docker --yes
    stage 'demo, with the embedded engine' with_runtime demo/run.sh --engine wasm
    stage 'demo of tools of your own' with_runtime demo/tools/run.sh
    docker_stage 'benchmark, a few rounds' env LLM_SANDBOX_BIN="$target/release/llm-sandbox" tests/bench/run.sh --quick
    docker_stage 'soak, two minutes over stdio' tests/soak.sh 2
    docker_stage 'soak, two minutes over HTTP' tests/soak.sh --http 2
    stage_once 'without default features, on the oldest Rust' oldest
    if [ -n "$kubernetes" ]; then docker_stage 'drills on a real Kubernetes' tests/kubernetes/drills.sh; fi
    docker_stage 'no container is left' no_containers_left
}

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
# The compiler that is there, where the oldest is not installed: that it builds at all.
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
        usage
        exit 64
        ;;
    esac
done
unset_settings
have cargo || die 'cargo is missing; install Rust 1.95 or newer with rustup.'
have python3 || die 'python3 is missing; install 3.11 or newer.'
trap report EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
"$mode"
