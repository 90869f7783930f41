# shellcheck shell=bash
# Empty containers in which the artefacts in the folder `dist` are used, and the set-up of the scripts that use them. They
# set the variables `dist` and `volume`, the name of a volume for runtimes.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../lib.sh"
source "$root/deploy/release/names.env"
unset_settings

only() { # only <pattern>: the one file of this name
    local found
    found=$(find "$dist" -maxdepth 1 -name "$1" -printf '%f\n')
    [ "$(wc -w <<<"$found")" = 1 ] || die "There is not one $1 in $dist."
    echo "$found"
}

# in_container <Debian packages> <script>: as on a machine of a user. All share the cache, so that the runtime is made
# once. Certificates and indexes are those of this machine.
in_container() {
    local ca=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt} name passed=()
    for name in PIP_INDEX_URL UV_DEFAULT_INDEX NPM_CONFIG_REGISTRY HTTP_PROXY HTTPS_PROXY NO_PROXY http_proxy https_proxy no_proxy; do
        if [ -n "${!name:-}" ]; then passed+=(--env "$name"); fi
    done
    docker run --rm --volume "$dist:/dist:ro" --volume "$here:/tests:ro" --volume "$ca:/run/ca.pem:ro" \
        --volume "$volume:/runtime" --env SANDBOX_RUNTIME_DIR=/runtime --env SANDBOX_ENGINE=wasm \
        --env PIP_FIND_LINKS=/dist \
        --env SSL_CERT_FILE=/run/ca.pem --env PIP_CERT=/run/ca.pem --env NODE_EXTRA_CA_CERTS=/run/ca.pem \
        --env DEBIAN_FRONTEND=noninteractive ${passed[@]+"${passed[@]}"} debian:trixie-slim sh -euc "
            apt-get update -qq; apt-get install -y -qq --no-install-recommends $1 >/dev/null 2>&1
            if command -v cargo; then exit 1; fi
            $2"
}
