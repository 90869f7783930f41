#!/usr/bin/env bash
# Tests engines in the emulated machine of `machine.sh`, which has cgroup version 2, systemd and AppArmor.
#
#   run.sh [docker|docker-rootless|podman|podman-rootless|all] [server]
#
# Default: all of them, with the server of this clone. The image is put into a disk for each engine if it has changed, and a
# test takes 10 to 20 minutes. A line for each check. Programs run 10 to 20 times slower in the machine,
# so the tests get ten times their usual time there.
#
#   SANDBOX_IMAGE  the image (default llm-sandbox:latest)
#   UPDATE_DOCS    if it is set, the engine's column is written into docs/conformance.md, and nothing else is tested
#
# Needs Docker and, for Podman, the program podman. Settings as in machine.sh. Exit code 0: no check failed. 77: there is no emulator.
set -euo pipefail

source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib.sh"
here=$root/tests/vm
dir=$(realpath -m "${VM_DIR:-${CARGO_TARGET_DIR:-$root/target}/vm}")
image=${SANDBOX_IMAGE:-llm-sandbox:latest}
ENGINES=(docker docker-rootless podman podman-rootless)
# Their names in docs/conformance.md.
declare -A COLUMN=(
    [docker]='Docker, cgroup v2' [docker-rootless]='rootless Docker' [podman]='Podman' [podman-rootless]='rootless Podman'
)
# AppArmor's profiles of their containers. Rootless engines cannot load profiles.
declare -A PROFILE=([docker]=docker-default [podman]=containers-default)
scratch=''
unpacker=''
tidy() {
    [ -z "$unpacker" ] || kill -KILL "$unpacker" 2>/dev/null || true
    [ -z "$scratch" ] || rm -rf --one-file-system "$scratch"
}
trap tidy EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Variables for the scripts in the machine.
settings() {
    printf '%s=%q\n' ROOT "$root" SANDBOX_IMAGE "$image" TEST_SLOWNESS 10 ENGINE "$engine" \
        TEST_MACHINE "${COLUMN[$engine]}" APPARMOR_PROFILE "${PROFILE[$engine]:-}" UPDATE_DOCS "${UPDATE_DOCS:-}"
}

# An engine of its own on this machine unpacks the image into a folder, which becomes the store's disk: in the machine
# that takes ten minutes.
unpack_for_docker() {
    local socket=$scratch/run/engine.sock place=var/lib/docker
    mkdir "$scratch/run"
    # Namespaces, so that it affects no other engine, and every mount ends with it.
    unshare --mount --net --pid --fork --kill-child --mount-proc dockerd \
        --iptables=false --ip6tables=false --bridge=none --storage-driver=overlay2 \
        --containerd-namespace=sandbox-vm --containerd-plugins-namespace=sandbox-vm-plugins \
        --host "unix://$socket" --data-root "$scratch/data" --exec-root "$scratch/run/exec" \
        --pidfile "$scratch/run/pid" </dev/null >"$scratch/log" 2>&1 &
    unpacker=$!
    for _ in $(seq 100); do
        if docker --host "unix://$socket" version >/dev/null 2>&1; then break; fi
        sleep 0.3
    done
    docker save "$image" | docker --host "unix://$socket" load >/dev/null
    kill -KILL "$unpacker"
    wait "$unpacker" 2>/dev/null || true
    unpacker=''
    [ "$engine" = docker ] || place=home/tester/.local/share/docker
    mkdir -p "$scratch/store/$place"
    mv "$scratch/data/image" "$scratch/data/overlay2" "$scratch/store/$place"
}

# Podman needs no service for that.
unpack_for_podman() {
    have podman || need_packages podman podman
    local place=var/lib/containers/storage
    [ "$engine" = podman ] || place=home/tester/.local/share/containers/storage
    mkdir -p "$scratch/store/$place"
    docker save "$image" |
        podman --root "$scratch/store/$place" --runroot "$scratch/run" --storage-driver overlay load >/dev/null
    # Files of this machine's Podman, which may be older than that in the emulated one.
    rm -rf "$scratch/store/$place"/{libpod,mounts,tmp,defaultNetworkBackend}
}

make_store() {
    case $engine in *-rootless) python3 "$here/shift.py" "$scratch/store/home" ;; esac
    truncate -s 6G "$store.new"
    mkfs.ext4 -q -F -L store -O ^has_journal -E root_owner=0:0,nodiscard -d "$scratch/store" "$store.new"
    mv "$store.new" "$store"
}

load_image() {
    local id
    id=$(docker image inspect --format '{{.Id}}' "$image") || die "Docker has no image $image; run: llm-sandbox image build"
    store=$dir/$engine.img
    if [ -e "$store" ] && [ "$(cat "$store.stamp" 2>/dev/null)" = "$id" ]; then return; fi
    step "$image into the store of $engine"
    rm -f "$store" "$store.stamp"
    scratch=$(mktemp -d "$dir/load.XXXXXX")
    "unpack_for_${engine%-rootless}"
    make_store
    rm -rf "$scratch"
    printf '%s\n' "$id" >"$store.stamp"
}

# The program of the drills, which has the test of conformance.
find_drills() {
    drills=$(cd "$root" &&
        cargo test --workspace --all-features --locked --test drills --no-run --message-format json 2>/dev/null |
        sed -n 's/.*"executable":"\([^"]*\/drills-[^"]*\)".*/\1/p')
    [ -x "$drills" ] || die 'The test program of the drills was not built.'
}

test_engine() {
    engine=$1
    printf '\n--- %s ---\n' "$engine"
    load_image
    scratch=$(mktemp -d "$dir/test.XXXXXX")
    mkdir "$scratch/repository"
    # Links, if that is possible, because they are large.
    cp --link "$binary" "$scratch/llm-sandbox" 2>/dev/null || cp "$binary" "$scratch/llm-sandbox"
    cp --link "$drills" "$scratch/drills" 2>/dev/null || cp "$drills" "$scratch/drills"
    cp "$here"/guest/{engine.sh,checks.py} "$scratch"
    (cd "$root" && cp -r --parents demo/analysis demo/*.py docs/conformance.md "$scratch/repository")
    chmod -R a+rX "$scratch"
    settings >"$scratch/settings"
    "$here/machine.sh" run --store "$store" --result "$scratch/conformance.md" "$here/guest/test.sh" "$scratch" ||
        failed+=("$engine")
    if [ -n "${UPDATE_DOCS:-}" ]; then cp "$scratch/conformance.md" "$root/docs/conformance.md"; fi
    rm -rf "$scratch"
    scratch=''
}

engine=${1:-all}
shift || true
case " ${ENGINES[*]} all " in
    *" $engine "*) ;;
    *)
        usage >&2
        die "There is no engine $engine."
        ;;
esac
find_server "$@"
code=0
"$here/machine.sh" build || code=$?
[ "$code" = 0 ] || exit "$code"
find_drills
failed=()
if [ "$engine" = all ]; then
    for one in "${ENGINES[@]}"; do test_engine "$one"; done
else
    test_engine "$engine"
fi
if [ ${#failed[@]} -gt 0 ]; then die "Checks failed on: ${failed[*]}"; fi
