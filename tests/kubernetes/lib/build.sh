# shellcheck shell=bash disable=SC2154,SC2164 # its variables and `set -e` are those of cluster.sh
# Makes the programs of the cluster, into $bin: Kubernetes from Debian's source package, which Debian itself
# builds no server from; the rest unpacked from Debian's packages, never installed.
#
# Everything is of bookworm on every machine, so that what runs is the same everywhere.

KUBERNETES_SOURCE=1.20.5+really1.20.2-1.1+deb12u1
KUBERNETES_VERSION=1.20.2
GO_VERSION=1.19
KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

build_all() {
    mkdir -p "$bin"
    need_programs
    build_unpacked
    build_pause
    build_hyperkube
    # Removes two gigabytes that are not needed any more.
    rm -rf "$work"
}

# Packages that a small installation of Debian may lack.
need_programs() {
    local program package missing=() packages=()
    for program in curl:curl ip:iproute2 mkfs.ext4:e2fsprogs openssl:openssl python3:python3; do
        package=${program#*:}
        program=${program%%:*}
        have "$program" && continue
        missing+=("$program")
        packages+=("$package")
    done
    # runc needs it, and is the only one to need more than the C library.
    if ! ldconfig -p | grep -qF libseccomp.so.2; then
        missing+=(libseccomp)
        packages+=(libseccomp2)
    fi
    # gcc only recommends libc6-dev, which has the library to link statically.
    if [ ! -x "$bin/pause" ] && ! (have cc && echo 'int main(void) { return 0; }' | cc -static -xc -o /dev/null - 2>/dev/null); then
        missing+=('a C compiler')
        packages+=(gcc libc6-dev)
    fi
    [ "${#missing[@]}" = 0 ] || need_packages "${missing[*]}" "${packages[@]}"
}

# --- Debian's packages -------------------------------------------------------------------------------

# The machine's own apt with lists, sources and downloads of ours: nothing of the system's changes, but its
# proxy and certificates hold.
private_apt() {
    "$@" -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/apt/sources" \
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
        -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root
}

# The mirror from which this machine gets bookworm, if it has one.
bookworm_mirror() {
    local mirror
    # shellcheck disable=SC2016 # apt expands it
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Codename: bookworm' 2>/dev/null | sed -n 1p)
    printf '%s' "${mirror:-http://deb.debian.org/debian}"
}

read_lists() {
    [ ! -e "$work/apt/read" ] || return 0
    [ -r "$KEYRING" ] || die "$KEYRING is missing: it is in Debian's package debian-archive-keyring."
    mkdir -p "$work/apt/sources" "$work/apt/lists/partial" "$work/apt/cache/archives/partial"
    cat >"$work/apt/sources/bookworm.sources" <<END
Types: deb deb-src
URIs: ${DEBIAN_MIRROR:-$(bookworm_mirror)}
Suites: bookworm
Components: main
Targets: Packages Sources
Signed-By: $KEYRING
END
    quietly private_apt apt-get update
    touch "$work/apt/read"
}

# unpack <folder> <Debian package>...
unpack() {
    local folder=$1 archive
    shift
    read_lists
    rm -rf "$work/archives" "$folder"
    mkdir -p "$work/archives" "$folder"
    (cd "$work/archives" && quietly private_apt apt-get download "$@")
    for archive in "$work"/archives/*.deb; do dpkg-deb --extract "$archive" "$folder"; done
    rm -r "$work/archives"
}

build_unpacked() {
    local programs=(containerd containerd-shim-runc-v2 ctr etcd kubectl runc) program
    for program in "${programs[@]}"; do
        [ -x "$bin/$program" ] || break
    done
    # The last is there if the loop came to its end.
    if [ -x "$bin/$program" ]; then return; fi
    step 'containerd, runc, etcd and kubectl, from packages of bookworm'
    unpack "$work/packages" containerd runc etcd-server kubernetes-client
    for program in "${programs[@]}"; do
        find "$work/packages/usr" -type f -name "$program" -perm -u+x -exec cp {} "$bin/$program" \;
        [ -x "$bin/$program" ] || die "The packages of bookworm have no $program."
    done
    rm -r "$work/packages"
}

# --- the pause image ---------------------------------------------------------------------------------

build_pause() {
    if [ -x "$bin/pause" ] && [ -e "$bin/pause.tar" ]; then return; fi
    step 'the pause image'
    cc -Os -static -s -o "$bin/pause" "$here/files/pause.c"
    python3 "$here/files/make_image.py" "$PAUSE_IMAGE" "$(dpkg --print-architecture)" "$bin/pause" "$bin/pause.tar"
}

# --- Kubernetes --------------------------------------------------------------------------------------

build_hyperkube() {
    if [ -x "$bin/hyperkube" ]; then return; fi
    local source=$work/gopath/src/k8s.io/kubernetes
    step "Kubernetes $KUBERNETES_VERSION: Go and the source"
    unpack "$work/go" "golang-$GO_VERSION-go" "golang-$GO_VERSION-src"
    mkdir -p "$work/archives"
    (cd "$work/archives" && quietly private_apt apt-get source --download-only "kubernetes=$KUBERNETES_SOURCE")
    rm -rf "$source"
    mkdir -p "$source"
    # Debian's patches change the client alone.
    tar -xzf "$work"/archives/kubernetes_*.orig.tar.gz -C "$source" --strip-components=1
    rm -r "$work/archives"

    (
        cd "$source"
        use_go
        step "Kubernetes $KUBERNETES_VERSION: the generated part that the source leaves out"
        generate_openapi
        step "Kubernetes $KUBERNETES_VERSION: compiling it (some minutes)"
        compile_hyperkube
    )
}

# For a subshell. What the caller has set for Go of its own would end the build.
use_go() {
    local name
    for name in "${!GO@}"; do
        # The version above is no setting of Go.
        [ "$name" = GO_VERSION ] || unset "$name"
    done
    export GOROOT=$work/go/usr/lib/go-$GO_VERSION GOPATH=$work/gopath GOCACHE=$work/gocache
    export GO111MODULE=off GOFLAGS='' CGO_ENABLED=0
    # Less work for more memory (1.2 GB).
    export GOGC=400
    export PATH=$GOROOT/bin:$PATH
}

# The API server will not compile without the OpenAPI definitions of all types that are marked for it.
generate_openapi() {
    local packages
    nice -n 5 go build -p "$jobs" -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    packages=$(
        grep -rl --include='*.go' '+k8s:openapi-gen=' staging/src/k8s.io pkg vendor/k8s.io/kube-openapi |
            # Tests, samples, the generators themselves, and clients that are not built here.
            grep -vE '_test\.go|zz_generated|/openapi-gen|kube-openapi/(pkg|cmd)/(generators|openapi)|/testdata/|/test/|sample-|code-generator|kubectl/|cli-runtime|metrics/pkg/client' |
            xargs -n1 dirname | sort -u |
            sed -e 's#^staging/src/#k8s.io/kubernetes/vendor/#' -e 's#^pkg/#k8s.io/kubernetes/pkg/#' -e 's#^vendor/#k8s.io/kubernetes/vendor/#' |
            paste -sd,
    )
    # The exit code is ignored: it also reports the style of the API.
    quietly "$work/openapi-gen" --logtostderr -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi \
        -O zz_generated.openapi -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations.txt" || true
    [ -s pkg/generated/openapi/zz_generated.openapi.go ] || die 'The OpenAPI definitions were not generated.'
}

compile_hyperkube() {
    local version package flags='-s -w'
    # Without these it calls itself v0.0.0-master. The packages are below the vendor folder, and linked so.
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        for version in gitMajor=1 gitMinor=20 "gitVersion=v$KUBERNETES_VERSION" gitTreeState=clean; do
            flags+=" -X k8s.io/kubernetes/vendor/$package.$version"
        done
    done
    mkdir -p cmd/hyperkube
    cp "$here/files/hyperkube.go" cmd/hyperkube/main.go
    # Cloud providers are a third of it, and none is used.
    nice -n 5 go build -p "$jobs" -trimpath -tags 'providerless osusergo netgo' -ldflags "$flags" \
        -o "$work/hyperkube" ./cmd/hyperkube
    mv "$work/hyperkube" "$bin/hyperkube"
}
