#!/usr/bin/env bash
# A machine with cgroup version 2, systemd and AppArmor, under emulation: README.md beside it says what it is for.
#
#   machine.sh build                       builds its disk, if the list of packages has changed (2 minutes)
#   machine.sh run <script> [folder]       boots it and runs the script in it as root. The machine has a copy of the
#                                          folder in /files, and nothing that it writes is kept
#
#   --store FILE   with `run`: a disk, which the machine mounts at /store
#   --result FILE  with `run`: what the machine writes to /dev/virtio-ports/result
#
#   VM_DIR         where the disk is (default: vm in CARGO_TARGET_DIR or target)
#   VM_TIMEOUT_S   the longest that a run may take (default 3600)
#   VM_MEMORY_MB   the machine's memory (default 6000)
#   DEBIAN_MIRROR  the source of the packages
#
# The output and the exit code are those of the script. 77: there is no emulator here, and it cannot be installed.
set -euo pipefail
umask 022

source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib.sh"
here=$root/tests/vm
dir=$(realpath -m "${VM_DIR:-${CARGO_TARGET_DIR:-$root/target}/vm}")
SUITE=trixie
PACKAGES=(
    systemd-sysv libpam-systemd dbus dbus-user-session linux-image-cloud-amd64 initramfs-tools kmod apparmor
    ca-certificates iproute2 iptables nftables procps python3
    docker.io docker-cli rootlesskit slirp4netns uidmap fuse-overlayfs
    podman crun netavark passt
)
DISK_SIZE=6G
scratch=''
emulator=''

tidy() {
    # A second signal must not end it early.
    trap '' HUP INT TERM
    if [ -n "$emulator" ]; then
        kill -TERM "$emulator" 2>/dev/null || true
        wait "$emulator" || true
    fi
    [ -z "$scratch" ] || rm -rf --one-file-system "$scratch"
}
trap tidy EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

skip() {
    step "skipped: $*"
    exit 77
}
# Waits in a way that lets a signal end this script at once.
waited() {
    local code=0
    # Without the redirection a command in the background reads nothing.
    "$@" <&0 &
    emulator=$!
    wait "$emulator" || code=$?
    emulator=''
    return "$code"
}
new_scratch() {
    mkdir -p "$dir"
    scratch=$(mktemp -d "$dir/scratch.XXXXXX")
}
# disk <file> <size> <label> [folder to copy]: needs no mount.
make_disk() {
    truncate -s "$2" "$1"
    mkfs.ext4 -q -F -L "$3" -O ^has_journal -E lazy_itable_init=1,nodiscard,root_owner=0:0 ${4:+-d "$4"} "$1"
}

# The AVX2 of version 7 gives wrong results, with which pandas crashes.
computes_right() {
    have qemu-system-x86_64 && [ "$(qemu-system-x86_64 --version | sed -n 's/.* version \([0-9]*\).*/\1/p')" -ge 8 ]
}

need_programs() {
    [ "$(id -u)" = 0 ] || skip 'only root can build the disk of the emulated machine'
    if computes_right && have debootstrap && have mkfs.ext4; then return; fi
    install_packages --no-install-recommends qemu-system-x86 debootstrap debian-archive-keyring e2fsprogs ||
        skip 'qemu-system-x86 and debootstrap are missing, and cannot be installed'
    if computes_right; then return; fi
    # Debian 12 has a later version among its backports.
    local source=/etc/apt/sources.list.d/llm-sandbox-backports.sources
    if grep -q '^VERSION_CODENAME=bookworm$' /etc/os-release; then
        if ! apt-cache policy | grep -q 'n=bookworm-backports,'; then
            printf '%s\n' 'Types: deb' "URIs: ${DEBIAN_MIRROR:-http://deb.debian.org/debian}" 'Suites: bookworm-backports' \
                'Components: main' 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' >"$source"
        fi
        install_packages --no-install-recommends --target-release bookworm-backports qemu-system-x86 || true
        rm -f "$source"
    fi
    computes_right || skip 'QEMU 8 or later is missing, and cannot be installed'
}

wanted() { printf '%s\n' "$SUITE" "$DISK_SIZE" "${PACKAGES[@]}" && cat "$here/guest/setup.sh" "$here/guest/first.sh"; }
build() {
    local system packages
    # An emulator that is too old is replaced even if the disk is up to date.
    need_programs
    if wanted | cmp -s - "$dir/stamp"; then return; fi
    new_scratch
    system=$scratch/system
    packages=$(IFS=,; printf %s "${PACKAGES[*]}")
    rm -f "$dir/stamp"
    step "the disk of the emulated machine, Debian $SUITE"
    # The namespace ends with its first process, and every mount with it.
    if ! waited unshare --mount --pid --fork --kill-child --mount-proc \
        debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        --include="$packages" "$SUITE" "$system" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
        >"$dir/build.log" 2>&1; then
        tail -n 30 "$dir/build.log" >&2
        die 'The disk was not built.'
    fi
    cp "$here/guest/first.sh" "$system/usr/local/sbin/first"
    waited chroot "$system" bash -s <"$here/guest/setup.sh" >>"$dir/build.log" 2>&1 || die "See $dir/build.log."
    cp "$system"/boot/vmlinuz-* "$dir/kernel"
    cp "$system"/boot/initrd.img-* "$dir/initrd"
    make_disk "$scratch/disk.img" "$DISK_SIZE" system "$system"
    mv "$scratch/disk.img" "$dir/disk.img"
    wanted >"$dir/stamp"
    rm -rf --one-file-system "$scratch"
    scratch=''
}

# The emulator writes changes of the disks to a file that ends with it.
run() {
    local script=$1 folder=${2:-} size code=''
    local arguments=()
    [ -r "$script" ] || die "There is no script at $script."
    new_scratch
    mkdir "$scratch/files"
    # Links, so that gigabytes are not copied twice.
    if [ -n "$folder" ]; then cp -al "$folder/." "$scratch/files" 2>/dev/null || cp -a "$folder/." "$scratch/files"; fi
    install -m 0755 "$script" "$scratch/files/run"
    size=$(du -sm --apparent-size "$scratch/files" | cut -f 1)
    make_disk "$scratch/files.img" "$((size + size / 8 + 64))M" files "$scratch/files"
    rm -rf "$scratch/files"
    if [ -n "$store" ]; then
        [ -e "$store" ] || die "There is no disk at $store."
        arguments+=(-drive "file=$store,if=virtio,format=raw,cache=unsafe,snapshot=on")
    fi
    # At the end of its input the emulator would also end the output.
    mkfifo "$scratch/silence"
    # Ports, not consoles: the script's output comes without the machine's.
    # Hardware virtualization is not asked for, so that the machine is the same everywhere.
    waited setpriv --pdeathsig TERM timeout --kill-after=5 "${VM_TIMEOUT_S:-3600}" setpriv --pdeathsig KILL \
        qemu-system-x86_64 -accel tcg,thread=multi -cpu Haswell-v4,-pcid,-x2apic,-tsc-deadline,-invpcid,-spec-ctrl -m "${VM_MEMORY_MB:-6000}" -smp 2 \
        -display none -no-reboot -nodefaults -nic none -monitor none -serial "file:$scratch/console.log" \
        -kernel "$dir/kernel" -initrd "$dir/initrd" \
        -append 'root=LABEL=system rw console=ttyS0 panic=-1 quiet systemd.show_status=false' \
        -drive "file=$dir/disk.img,if=virtio,format=raw,cache=unsafe,snapshot=on" \
        -drive "file=$scratch/files.img,if=virtio,format=raw,readonly=on" "${arguments[@]}" \
        -device virtio-rng-pci -device virtio-serial-pci \
        -chardev stdio,id=output,signal=off -device virtserialport,chardev=output,name=output \
        -chardev "file,id=code,path=$scratch/code" -device virtserialport,chardev=code,name=code \
        -chardev "file,id=result,path=${result:-/dev/null}" -device virtserialport,chardev=result,name=result <>"$scratch/silence" || true
    read -r code 2>/dev/null <"$scratch/code" || true
    if [ -z "$code" ]; then
        mv "$scratch/console.log" "$dir/console.log"
        tail -n 30 "$dir/console.log" >&2
        die "The machine ended before its script, perhaps after ${VM_TIMEOUT_S:-3600} s; its console is in $dir/console.log."
    fi
    exit "$code"
}

verb=''
store=''
result=''
words=()
while [ $# -gt 0 ]; do
    case $1 in
        --store)
            store=$(realpath -m "${2:?}")
            shift
            ;;
        --result)
            result=$(realpath -m "${2:?}")
            shift
            ;;
        *) words+=("$1") ;;
    esac
    shift
done
verb=${words[0]:-}
mkdir -p "$dir"
case $verb:${#words[@]} in
    build:1)
        exec 9>"$dir/lock"
        flock 9
        build
        ;;
    run:2 | run:3)
        "$script" build
        run "${words[@]:1}"
        ;;
    *)
        usage >&2
        exit 64
        ;;
esac
