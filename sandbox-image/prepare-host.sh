#!/usr/bin/env bash
# Makes this host ready for llm-sandbox: a Docker engine that answers, and the base image of the sandbox.
#
# Safe to run repeatedly: it changes nothing that is there already. An engine that answers is only queried; this script
# installs, starts or configures one only if none answers. It does not build the sandbox image: `llm-sandbox image
# build` does that.
#
#   DOCKER_HOST   which engine to use, as for the docker client (unix://, tcp://; ssh:// needs the client)
#   BASE_IMAGE    the image that the sandbox is built on (default debian:trixie-slim)
#
#   BUILD_IMAGE   with --compose, the image that the server is built in (default rust:1.95-slim-trixie)
#
# With --check it changes nothing: it says whether an engine answers, and if none does, what a start without options
# would change on this machine.
# With --gvisor it also installs gVisor (the package runsc) if that is possible; the engine's configuration does not
# change.
# With --compose it also provides what `docker compose up` needs: Docker Compose, buildx and the image with Rust.
#
# Exit code 0: ready; with --check, an engine answers. 1: not ready, and the last lines say what is missing.
# 2: --check found no engine, and a start without options would install or start one.
set -euo pipefail
# Files that are written here are read by apt's own user and by uid 1000 in the container.
umask 022

BASE_IMAGE=${BASE_IMAGE:-debian:trixie-slim}
BUILD_IMAGE=${BUILD_IMAGE:-rust:1.95-slim-trixie}
DEFAULT_SOCKET=/var/run/docker.sock
ENGINE_LOG=/var/log/dockerd.log
CPU_GROUPS=/sys/fs/cgroup/cpu
ENGINE_WAIT_S=60
PULL_LIMIT_S=180
# The Debian release that has a recent engine if this host's own release does not.
ENGINE_SUITE=trixie
ENGINE_SOURCES=/etc/apt/sources.list.d/llm-sandbox-$ENGINE_SUITE.sources
ENGINE_PREFERENCES=/etc/apt/preferences.d/llm-sandbox-$ENGINE_SUITE

say() { printf 'prepare-host: %s\n' "$*"; }
die() {
    printf 'prepare-host: %s\n' "$@" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# macOS has no timeout(1); there only the command's own limits apply.
limited() {
    local seconds=$1
    shift
    if have timeout; then timeout "$seconds" "$@"; else "$@"; fi
}

# The folder is removed when the script ends, for any reason.
scratch=''
policy_file=''
output=$(mktemp)
tidy() {
    rm -f "$output"
    if [ -n "$policy_file" ]; then rm -f "$policy_file"; fi
    if [ -n "$scratch" ]; then rm -rf --one-file-system "$scratch"; fi
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- the engine: asking ------------------------------------------------------------------------------

# One request to the engine that DOCKER_HOST names: the body goes to stdout, an HTTP error is a failure. Used if there
# is no docker client; llm-sandbox itself needs none.
api() {
    local path=$1
    shift
    case ${DOCKER_HOST:-unix://$DEFAULT_SOCKET} in
        unix://*) curl -fsS --unix-socket "${DOCKER_HOST#unix://}" "$@" "http://engine$path" ;;
        tcp://*) curl -fsS "$@" "http://${DOCKER_HOST#tcp://}$path" ;;
        *) return 1 ;;
    esac
}

# Does the engine at $1 answer? (an empty $1: what the client's own context says)
answers() {
    if [ -n "$1" ]; then
        # No client is needed to notice a missing socket.
        case $1 in unix://*) [ -S "${1#unix://}" ] || return 1 ;; esac
        if have curl && DOCKER_HOST=$1 api /_ping --max-time 5 >/dev/null 2>&1; then return 0; fi
        # The client also knows TLS and ssh.
        have docker && DOCKER_HOST=$1 limited 15 docker version >/dev/null 2>&1
    else
        have docker && limited 15 docker version >/dev/null 2>&1
    fi
}

# Sets DOCKER_HOST if the engine is not the client's default one. Same order as the server's own search.
find_engine() {
    if [ -n "${DOCKER_HOST:-}" ]; then
        answers "$DOCKER_HOST"
        return
    fi
    local candidate
    for candidate in '' \
        "unix://$DEFAULT_SOCKET" \
        "unix://${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/docker.sock" \
        "unix://${HOME:-/root}/.docker/run/docker.sock" \
        "${CONTAINER_HOST:-unix:///nonexistent}" \
        "unix://${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/podman/podman.sock" \
        unix:///run/podman/podman.sock; do
        # The server opens no others, such as ssh:// in CONTAINER_HOST.
        case $candidate in '' | unix://* | tcp://*) ;; *) continue ;; esac
        if answers "$candidate"; then
            # Empty means that the client finds the engine by itself.
            if [ -n "$candidate" ]; then export DOCKER_HOST=$candidate; fi
            return 0
        fi
    done
    return 1
}

# --- the engine: installing and starting -------------------------------------------------------------

os_id=''
os_codename=''
read_os() {
    [ -r /etc/os-release ] || return 0
    # In a subshell: the file sets far more variables than are needed here.
    # shellcheck disable=SC1091 # a file of the host
    os_id=$(. /etc/os-release && printf '%s' "${ID:-}")
    # shellcheck disable=SC1091
    os_codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
}

is_apt_host() { [ "$os_id" = debian ] || [ "$os_id" = ubuntu ]; }
can_install() { is_apt_host && [ "$(id -u)" = 0 ]; }
systemd_runs() { [ -d /run/systemd/system ]; }

# Runs a command with much output; shows only the end of the output, and only if the command fails.
quietly() {
    if "$@" >"$output" 2>&1 </dev/null; then return 0; fi
    tail -n 30 "$output" >&2
    return 1
}

apt_install() {
    # Without systemd a package's own start script may fail, and apt with it: the engine is started below in either
    # case. Code 101 is "not allowed", which the packages accept as an answer.
    if ! systemd_runs && [ ! -e /usr/sbin/policy-rc.d ]; then
        policy_file=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' >"$policy_file"
        chmod 0755 "$policy_file"
    fi
    # Another apt may be running: wait for it for a while.
    quietly env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=120 "$@" ||
        die "these packages could not be installed: $*"
}

apt_lists_read=''
apt_update() {
    [ -z "$apt_lists_read" ] || return 0
    say "reading the package lists"
    # A broken source of a third party is not an error here; a package that is missing because of it fails below.
    quietly apt-get update -q -o DPkg::Lock::Timeout=120 || say "some package lists could not be read; continuing"
    apt_lists_read=1
}

# bookworm's engine is from 2022. Debian trixie's four packages need nothing newer than bookworm's libc, so only these
# come from there and everything that they depend on stays bookworm's.
add_engine_source() {
    say "adding Debian $ENGINE_SUITE as a low-priority source ($ENGINE_SOURCES, $ENGINE_PREFERENCES)"
    # "Targets" keeps translations and icons out of every later apt-get update.
    cat >"$ENGINE_SOURCES" <<END
# For the Docker engine only, pinned low in $ENGINE_PREFERENCES.
Types: deb
URIs: http://deb.debian.org/debian
Suites: $ENGINE_SUITE
Components: main
Targets: Packages
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: $ENGINE_SUITE-security
Components: main
Targets: Packages
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
    # Priority 100: apt takes no new packages from there, but updates packages that were installed from there.
    cat >"$ENGINE_PREFERENCES" <<END
Package: *
Pin: release n=$ENGINE_SUITE
Pin-Priority: 100

Package: *
Pin: release n=$ENGINE_SUITE-security
Pin-Priority: 100
END
}

# Sets `engine_packages` for this release.
engine_packages=()
name_engine_packages() {
    case $os_id:$os_codename in
        debian:bookworm)
            # name/suite picks just this package from there; "-t suite" would take its whole tree, libc included.
            engine_packages=(containerd runc iptables
                "docker.io/$ENGINE_SUITE" "docker-cli/$ENGINE_SUITE"
                "docker-compose/$ENGINE_SUITE" "docker-buildx/$ENGINE_SUITE")
            ;;
        debian:bullseye | debian:buster)
            die "Debian $os_codename has no recent enough Docker engine: install one from https://docs.docker.com/engine/install/debian/"
            ;;
        debian:*) engine_packages=(docker.io docker-cli docker-compose docker-buildx iptables) ;;
        ubuntu:*) engine_packages=(docker.io docker-compose-v2 docker-buildx iptables) ;;
    esac
}

install_engine() {
    if have dockerd; then
        say "a Docker engine is installed"
        return
    fi
    name_engine_packages
    if [ "$os_codename" = bookworm ]; then add_engine_source; fi
    apt_update
    say "installing the Docker engine (${engine_packages[*]})"
    apt_install "${engine_packages[@]}"
    say "installed $(dockerd --version)"
}

say_what_would_change() {
    say "sandbox-image/prepare-host.sh makes these changes as root:"
    if ! have dockerd; then
        name_engine_packages
        if [ "$os_codename" = bookworm ]; then
            say "- add Debian $ENGINE_SUITE as an apt source, for the engine only: $ENGINE_SOURCES, $ENGINE_PREFERENCES"
        fi
        say "- install these packages, and the packages they depend on: ${engine_packages[*]}"
    fi
    if systemd_runs; then
        say "- start the Docker engine, now and at every boot: systemctl enable --now docker"
    else
        say "- start the Docker engine (dockerd), which keeps running; its log is $ENGINE_LOG"
        if [ -w "$CPU_GROUPS/cpu.shares" ]; then
            say "- give all containers together the CPU shares of eight processes, in $CPU_GROUPS/docker"
        fi
    fi
    say "- pull the image $BASE_IMAGE into the engine; if that fails, install debootstrap and" \
        "debian-archive-keyring and build a stand-in for the image"
}

start_engine() {
    if systemd_runs; then
        say "starting the engine: systemctl enable --now docker"
        systemctl enable --now docker >/dev/null 2>&1 || say "systemctl reported a failure"
    else
        say "starting the engine by hand, as systemd does not run here (log: $ENGINE_LOG)"
        # Its own session and none of this script's descriptors: a caller or a CI step that waits for the output to
        # close must not wait for the engine.
        # shellcheck disable=SC2016 # the inner shell expands it
        setsid bash -c 'for fd in /proc/self/fd/*; do
                fd=${fd##*/}
                if [ "$fd" -gt 2 ]; then eval "exec $fd>&-"; fi
            done
            exec dockerd' </dev/null >>"$ENGINE_LOG" 2>&1 &
        disown
    fi
    local deadline=$((SECONDS + ENGINE_WAIT_S))
    until answers "unix://$DEFAULT_SOCKET"; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            if systemd_runs; then
                journalctl -u docker -n 30 --no-pager >&2 || true
            else
                tail -n 30 "$ENGINE_LOG" >&2 || true
            fi
            die "the engine does not answer after $ENGINE_WAIT_S s; its log is above"
        fi
        sleep 0.3
    done
    if ! systemd_runs; then weigh_containers; fi
    say "the engine answers on $DEFAULT_SOCKET"
}

# With cgroup version 1 and without systemd, all containers together get the CPU shares of one process, 1024, and starve
# on a busy host.
weigh_containers() {
    if [ ! -w "$CPU_GROUPS/cpu.shares" ]; then return; fi
    { mkdir -p "$CPU_GROUPS/docker" && echo 8192 >"$CPU_GROUPS/docker/cpu.shares"; } ||
        say "the CPU shares of containers could not be set"
}

tell_what_to_install() {
    case $(uname -s):$os_id in
        Darwin:*)
            die "no Docker engine answers. Install and start one of:" \
                "  Docker Desktop   brew install --cask docker && open -a Docker" \
                "  Colima           brew install colima docker && colima start"
            ;;
        Linux:debian | Linux:ubuntu)
            die "no Docker engine answers. Run this script as root (sudo $0), or start the engine:" \
                "  sudo systemctl enable --now docker" \
                "If one runs already, your user may not be allowed to use its socket:" \
                "  sudo usermod -aG docker \"\$USER\"   (then log in again)"
            ;;
        Linux:fedora)
            die "no Docker engine answers. Install and start it:" \
                "  sudo dnf install moby-engine docker-cli docker-compose && sudo systemctl enable --now docker"
            ;;
        Linux:arch)
            die "no Docker engine answers. Install and start it:" \
                "  sudo pacman -S docker docker-compose && sudo systemctl enable --now docker"
            ;;
        Linux:alpine)
            die "no Docker engine answers. Install and start it:" \
                "  sudo apk add docker docker-cli-compose && sudo rc-update add docker && sudo service docker start"
            ;;
        *)
            die "no Docker engine answers. Install Docker Engine 20.10 or newer and start it:" \
                "  https://docs.docker.com/engine/install/"
            ;;
    esac
}

ensure_engine() {
    if find_engine; then
        say "a Docker engine answers${DOCKER_HOST:+ on $DOCKER_HOST}; leaving it as it is"
        return
    fi
    case ${DOCKER_HOST:-} in
        '' | "unix://$DEFAULT_SOCKET" | unix:///run/docker.sock) ;;
        # Another engine than the requested one would not help.
        *) die "DOCKER_HOST is $DOCKER_HOST, and no engine answers there" ;;
    esac
    if ! can_install; then tell_what_to_install; fi
    say "no Docker engine answers"
    if [ "$option" = --check ]; then
        say_what_would_change
        exit 2
    fi
    install_engine
    start_engine
}

# --- images ------------------------------------------------------------------------------------------

image_present() {
    if have docker; then
        docker image inspect "$1" >/dev/null 2>&1
    else
        api "/images/$1/json" >/dev/null 2>&1
    fi
}

pull_image() {
    if have docker; then
        limited "$PULL_LIMIT_S" docker pull --quiet "$1" >/dev/null || return 1
    else
        # The engine reports errors in the body, with status 200, so the script checks that the image exists.
        api "/images/create?fromImage=${1%:*}&tag=${1##*:}" \
            -X POST --max-time "$PULL_LIMIT_S" >/dev/null || return 1
    fi
    image_present "$1"
}

# --- the base image ----------------------------------------------------------------------------------

# The tar of a root file system comes on stdin.
import_image() {
    if have docker; then
        docker import --change 'CMD ["bash"]' - "$BASE_IMAGE" >/dev/null
    else
        api "/images/create?fromSrc=-&repo=${BASE_IMAGE%:*}&tag=${BASE_IMAGE##*:}&changes=CMD%20%5B%22bash%22%5D" \
            -X POST -H 'Content-Type: application/x-tar' -T - >/dev/null
    fi
}

# If images cannot be pulled but packages can be downloaded: builds the same suite from Debian's archive, reduced by the
# rules of the official slim images.
make_stand_in() {
    local suite=$1 root extra_ca
    if ! have debootstrap || [ ! -r /usr/share/keyrings/debian-archive-keyring.gpg ]; then
        apt_update
        say "installing debootstrap"
        apt_install debootstrap debian-archive-keyring
    fi
    # Not /tmp: debootstrap needs devices and programs to work there, which a hardened /tmp forbids.
    scratch=$(mktemp -d /var/tmp/llm-sandbox-base.XXXXXX)
    root=$scratch/root

    say "building Debian $suite with debootstrap (a few minutes)"
    quietly debootstrap --variant=minbase --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        "$suite" "$root" || die "debootstrap failed; its last lines are above"

    # The same package settings as the official image: no documentation, no caches, no service starts,
    # so that what is installed on top comes out equally small.
    cat >"$root/etc/dpkg/dpkg.cfg.d/docker" <<'END'
force-unsafe-io
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/linda/*
path-exclude /usr/share/locale/*
path-include /usr/share/locale/locale.alias
path-exclude /usr/share/man/*
END
    cat >"$root/etc/apt/apt.conf.d/docker" <<'END'
Acquire::GzipIndexes "true";
Acquire::Languages "none";
Apt::AutoRemove::SuggestsImportant "false";
DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
APT::Update::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
END
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 0755 "$root/usr/sbin/policy-rc.d"
    rm -f "$root/etc/apt/sources.list"
    cat >"$root/etc/apt/sources.list.d/debian.sources" <<END
Types: deb
URIs: http://deb.debian.org/debian
Suites: $suite $suite-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: $suite-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END

    # A host whose TLS passes through a proxy of its own has that proxy's CA here; without it nothing
    # that a build fetches over https could be checked.
    for extra_ca in /usr/local/share/ca-certificates/*.crt; do
        [ -r "$extra_ca" ] || continue
        say "adding this machine's own CA certificate $(basename "$extra_ca") to the stand-in"
        mkdir -p "$root/usr/local/share/ca-certificates" "$root/etc/ssl/certs"
        cp "$extra_ca" "$root/usr/local/share/ca-certificates/"
        # The host's bundle first: it holds the public authorities and, normally, the extra ones too.
        if [ ! -e "$root/etc/ssl/certs/ca-certificates.crt" ] && [ -r /etc/ssl/certs/ca-certificates.crt ]; then
            cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
        fi
        { printf '\n'; cat "$extra_ca"; } >>"$root/etc/ssl/certs/ca-certificates.crt"
    done

    # Removes the files that the excludes above name, and the remains of this host's build.
    find "$root/usr/share/doc" -mindepth 1 \( -type f -o -type l \) ! -name copyright -delete
    find "$root/usr/share/doc" -mindepth 1 -type d -empty -delete
    rm -rf "$root"/usr/share/{groff,info,lintian,linda,man}/* \
        "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb \
        "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root"/var/log/* "$root"/tmp/* \
        "$root"/etc/hostname "$root"/etc/resolv.conf
    find "$root/usr/share/locale" -mindepth 1 -maxdepth 1 ! -name locale.alias -exec rm -rf {} +
    # Containers must not share one machine id.
    : >"$root/etc/machine-id"

    say "importing it as $BASE_IMAGE"
    tar -C "$root" --numeric-owner --one-file-system --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' -c . | import_image
    rm -rf --one-file-system "$scratch"
    scratch=''
    say "$BASE_IMAGE is a STAND-IN built on this machine from Debian's archive, not the official image;" \
        "to get the official one later: docker rmi $BASE_IMAGE && docker pull $BASE_IMAGE"
}

ensure_base_image() {
    if image_present "$BASE_IMAGE"; then
        say "the base image $BASE_IMAGE is present"
        return
    fi
    say "pulling $BASE_IMAGE"
    if pull_image "$BASE_IMAGE"; then
        say "pulled $BASE_IMAGE"
        return
    fi
    local suite=''
    case $BASE_IMAGE in
        debian:*-slim)
            suite=${BASE_IMAGE#debian:}
            suite=${suite%-slim}
            ;;
    esac
    case $suite in
        # A date or version tag has no suite of that name.
        '' | *[!a-z]*) die "$BASE_IMAGE could not be pulled (the engine's message is above)" ;;
    esac
    if ! can_install; then
        die "$BASE_IMAGE could not be pulled, and a stand-in can only be built as root on Debian or Ubuntu"
    fi
    say "$BASE_IMAGE could not be pulled, building a stand-in for it"
    make_stand_in "$suite"
}

# Optional: if gVisor cannot be installed, the script says so and continues.
ensure_gvisor() {
    if have runsc; then
        say 'gVisor is installed'
    elif ! can_install; then
        say 'gVisor is not installed, and it can only be installed as root on Debian or Ubuntu'
    else
        local package=runsc
        # Bookworm's own runsc is too old for what runs in the sandbox.
        if [ "$os_id:$os_codename" = debian:bookworm ]; then
            package=runsc/$ENGINE_SUITE
            [ -e "$ENGINE_SOURCES" ] || add_engine_source
        fi
        apt_update
        say "installing gVisor ($package)"
        quietly env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
            -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 "$package" || say 'gVisor cannot be installed'
    fi
}

# --- Docker Compose ----------------------------------------------------------------------------------

# Version 2.24 is the first that takes a settings file which need not exist.
compose_is_recent() {
    local version major minor
    version=$(docker compose version --short 2>/dev/null) || return 1
    IFS=.- read -r major minor _ <<<"${version#v}"
    [ "$major" -gt 2 ] || { [ "$major" = 2 ] && [ "$minor" -ge 24 ]; }
}

ensure_compose() {
    if compose_is_recent && docker buildx version >/dev/null 2>&1; then
        say "Docker Compose and buildx are installed"
        return
    fi
    local instead="Docker Compose 2.24 or newer and buildx are missing: install the plugins docker-compose-plugin \
and docker-buildx-plugin from https://docs.docker.com/engine/install/"
    if ! can_install; then die "$instead"; fi
    case $os_id:$os_codename in
        debian:bookworm)
            [ -e "$ENGINE_SOURCES" ] || add_engine_source
            apt_update
            say "installing docker-cli, docker-compose and docker-buildx from $ENGINE_SUITE"
            apt_install "docker-cli/$ENGINE_SUITE" "docker-compose/$ENGINE_SUITE" "docker-buildx/$ENGINE_SUITE"
            ;;
        ubuntu:*)
            apt_update
            say "installing docker-compose-v2 and docker-buildx"
            apt_install docker-compose-v2 docker-buildx
            ;;
        debian:*)
            apt_update
            say "installing docker-cli, docker-compose and docker-buildx"
            apt_install docker-cli docker-compose docker-buildx
            ;;
    esac
    if ! compose_is_recent || ! docker buildx version >/dev/null 2>&1; then die "$instead"; fi
}

# The stand-in of the base image with a compiler and this machine's own Rust, where the official image puts it.
make_rust_stand_in() {
    local sysroot wanted=${BUILD_IMAGE#rust:}
    wanted=${wanted%%-*}
    have rustc || die "$BUILD_IMAGE could not be pulled, and there is no Rust on this machine to build a stand-in from"
    case $(rustc --version) in
        "rustc $wanted".*) ;;
        *) say "the stand-in will have $(rustc --version), not $wanted" ;;
    esac
    sysroot=$(rustc --print sysroot)
    # A distribution's own Rust is spread over the system.
    if [ ! -x "$sysroot/bin/cargo" ] || [ "$sysroot" = /usr ]; then
        die "$BUILD_IMAGE could not be pulled, and only a Rust installed by rustup can be put into a stand-in"
    fi

    say "$BUILD_IMAGE could not be pulled, building a stand-in for it from $BASE_IMAGE and $(rustc --version)"
    scratch=$(mktemp -d /var/tmp/llm-sandbox-rust.XXXXXX)
    cat >"$scratch/Dockerfile" <<END
FROM $BASE_IMAGE
RUN apt-get update \\
 && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev \\
 && rm -rf /var/lib/apt/lists/*
COPY bin/cargo bin/rustc /usr/local/cargo/bin/
COPY lib /usr/local/cargo/lib/
ENV CARGO_HOME=/usr/local/cargo PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
END
    mkdir "$scratch/bin"
    # Links, so that a gigabyte is not copied twice.
    ln "$sysroot/bin/cargo" "$sysroot/bin/rustc" "$scratch/bin/" 2>/dev/null ||
        cp "$sysroot/bin/cargo" "$sysroot/bin/rustc" "$scratch/bin/"
    tar -C "$scratch" -c Dockerfile bin -C "$sysroot" --exclude='lib/rustlib/src' --exclude='lib/rustlib/*/analysis' lib |
        docker build --quiet --tag "$BUILD_IMAGE" - >/dev/null || die "the stand-in could not be built"
    rm -rf "$scratch"
    scratch=''
    say "$BUILD_IMAGE is a STAND-IN built on this machine, not the official image;" \
        "to get the official one later: docker rmi $BUILD_IMAGE && docker pull $BUILD_IMAGE"
}

ensure_build_image() {
    if image_present "$BUILD_IMAGE"; then
        say "the image $BUILD_IMAGE is present"
        return
    fi
    say "pulling $BUILD_IMAGE"
    if pull_image "$BUILD_IMAGE"; then
        say "pulled $BUILD_IMAGE"
        return
    fi
    case $BUILD_IMAGE in
        rust:*) make_rust_stand_in ;;
        *) die "$BUILD_IMAGE could not be pulled (the engine's message is above)" ;;
    esac
}

option=${1:-}
case $option in
    '' | --check | --gvisor | --compose) ;;
    *) die "there is no option $option; the options are --check, --gvisor and --compose" ;;
esac
read_os
ensure_engine
if [ "$option" = --check ]; then exit 0; fi
ensure_base_image
case $option in
    --gvisor) ensure_gvisor ;;
    --compose)
        ensure_compose
        ensure_build_image
        ;;
esac
say "ready"
