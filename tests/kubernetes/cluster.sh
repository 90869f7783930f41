#!/usr/bin/env bash
# A real Kubernetes with one node on this machine, for tests: README.md beside it lists its properties and limits.
#
#   cluster.sh build              builds the missing programs (4 to 10 minutes on two cores)
#   cluster.sh up                 builds and starts it, with the sandbox image; does nothing if it is up
#   cluster.sh down               ends it and removes everything that it has made, also after an `up` that failed
#   cluster.sh env                prints KUBECONFIG, SERVER_KUBECONFIG and KUBECTL: eval "$(cluster.sh env)"
#   cluster.sh kubectl <word>...  runs the kubectl of its version, as its administrator
#   cluster.sh where              prints the folder of its programs
#   cluster.sh image <name>       gives it an image that Docker has
#   cluster.sh stop <part>        ends a part by SIGKILL
#   cluster.sh start <part>       starts it, and waits until it is ready
#   cluster.sh restart <part>     both
#
# Parts: etcd, containerd, apiserver, controllers, scheduler, kubelet.
#
#   KUBERNETES_DIR   where it is built and runs (default: kubernetes in CARGO_TARGET_DIR or target)
#   KUBERNETES_JOBS  how many compilers run at once (default: one for each processor)
#   SANDBOX_IMAGE    the image that `up` gives it (default llm-sandbox:latest)
#   DEBIAN_MIRROR    the source of bookworm, if it is not the one that apt uses
#
# Exit code 0: success.
set -euo pipefail
umask 022

source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib.sh"
here=$root/tests/kubernetes
dir=$(realpath -m "${KUBERNETES_DIR:-${CARGO_TARGET_DIR:-$root/target}/kubernetes}")
# Folders of programs, of their sources, of the state of the cluster that is up, and of the logs of its parts.
bin=$dir/bin
work=$dir/build
run=$dir/run
log=$dir/log
jobs=${KUBERNETES_JOBS:-$(nproc)}
image=${SANDBOX_IMAGE:-llm-sandbox:latest}
PAUSE_IMAGE=registry.local/pause:1
# The cgroup depends on the folder, so that clusters in two folders do not affect each other.
CGROUP=llm-sandbox-kubernetes-$(printf %s "$dir" | cksum | cut -d " " -f 1)

source "$here/lib/build.sh"
source "$here/lib/machine.sh"
source "$here/lib/parts.sh"

# Runs a verbose command; shows the end of its output if it fails, and nothing otherwise.
quietly() {
    mkdir -p "$log"
    if "$@" >"$log/command.log" 2>&1; then return 0; fi
    tail -n 30 "$log/command.log" >&2
    return 1
}
show_log() { if [ -r "$log/$1.log" ]; then tail -n 30 "$log/$1.log" >&2; fi; }

# wait_for <seconds> <command>...
wait_for() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@" >/dev/null; do
        if [ "$SECONDS" -ge "$deadline" ]; then return 1; fi
        sleep 0.2
    done
}

# Takes a lock until this script ends: programs that outlive it do not get the descriptor.
take_turn() {
    mkdir -p "$dir"
    exec 9>"$dir/lock"
    flock 9
}

need_root() { [ "$(id -u)" = 0 ] || die 'This needs root: namespaces, mounts and cgroups are made.'; }
need_up() { init_pid >/dev/null || die "The cluster is not up; run: $script up"; }

up() {
    local part
    need_root
    if init_pid >/dev/null && node_is_ready; then
        tell_environment
        return
    fi
    build_all
    # Checked before the start, so that the error comes early.
    docker image inspect "$image" >/dev/null 2>&1 || die "Docker has no image $image; run: llm-sandbox image build"
    # Removes leftovers of an earlier cluster.
    leave_machine
    rm -rf "$log"
    mkdir -p "$log"
    trap 'fail_up' EXIT
    step 'starting the cluster'
    enter_machine
    write_files
    for part in "${PARTS[@]}"; do
        start_part "$part"
        if [ "$part" = containerd ]; then
            quietly containerd_client images import "$bin/pause.tar"
            import_from_docker "$image"
        fi
    done
    wait_for 120 node_is_ready || die 'The node does not become ready.'
    trap - EXIT
    tell_environment
}

fail_up() {
    trap - EXIT
    step "the cluster did not start; what its parts said is in $log"
    leave_machine
    exit 2
}

tell_environment() {
    printf '%s=%q\n' KUBECONFIG "$run/kubeconfig" SERVER_KUBECONFIG "$run/kubeconfig-server" KUBECTL "$bin/kubectl"
}

verb=${1:-}
shift || true
case $verb:$# in
    build:0)
        take_turn
        build_all
        ;;
    up:0)
        take_turn
        up
        ;;
    down:0)
        need_root
        take_turn
        leave_machine
        ;;
    env:0)
        need_up
        tell_environment
        ;;
    kubectl:*)
        need_up
        kubectl "$@"
        ;;
    where:0) printf '%s\n' "$bin" ;;
    image:1)
        need_up
        import_from_docker "$1"
        ;;
    start:1 | stop:1 | restart:1)
        need_up
        if [ "$verb" != start ]; then stop_part "$1"; fi
        if [ "$verb" != stop ]; then start_part "$1"; fi
        ;;
    *)
        usage
        exit 2
        ;;
esac
