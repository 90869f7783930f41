#!/usr/bin/env bash
# Applies deploy/kubernetes to the cluster of the tests and uses it, in the namespace `deploy-test`, which is removed at
# the end. Changes of the manifests are in files/deploy.yaml.
#
#   deploy.sh [server binary]     default: target/debug/llm-sandbox, built if it is missing
#
# The cluster must be up (`cluster.sh up`), and kustomize must be installed (`manifests.sh` installs it). The server's
# image is made of Debian and the program, because a build of the real one takes long. Settings as in cluster.sh.
#
# Takes a minute. Prints a line for each check. Exit code 0: no check failed. 1: a check failed. 2: the set-up failed.
set -euo pipefail

source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib.sh"
here=$root/tests/kubernetes
image=${SANDBOX_IMAGE:-llm-sandbox:latest}
server_image=llm-sandbox-server:deploy-test
namespace=deploy-test
scratch=$(mktemp -d)

kubectl() { "$here/cluster.sh" kubectl --namespace "$namespace" "$@"; }

tidy() {
    kubectl delete namespace "$namespace" --ignore-not-found --timeout=60s >/dev/null || true
    docker image rm "$server_image" >/dev/null 2>&1 || true
    rm -rf "$scratch"
}

make_server_image() {
    step 'an image of the server, and both for the cluster'
    mkdir "$scratch/image"
    cp "$binary" "$scratch/image/llm-sandbox"
    printf '%s\n' 'FROM debian:trixie-slim' 'COPY llm-sandbox /usr/bin/llm-sandbox' 'USER 65532:65532' \
        'ENTRYPOINT ["llm-sandbox"]' >"$scratch/image/Dockerfile"
    docker build --quiet --tag "$server_image" "$scratch/image" >/dev/null
    rm -r "$scratch/image"
    "$here/cluster.sh" image "$server_image"
    "$here/cluster.sh" image "$image"
}

# Sets `built`.
build() {
    local kustomize=(kubectl kustomize)
    if have kustomize; then kustomize=(kustomize build); fi
    cp -r "$root/deploy/kubernetes" "$scratch/kubernetes"
    mkdir "$scratch/kubernetes/mine"
    sed "s|@SERVER_IMAGE@|${server_image%:*}|; s|@SERVER_TAG@|${server_image#*:}|; s|@IMAGE@|$image|" \
        "$here/files/deploy.yaml" >"$scratch/kubernetes/mine/kustomization.yaml"
    built=$scratch/built.yaml
    # `command` avoids the function above.
    command "${kustomize[@]}" "$scratch/kubernetes/mine" >"$built"
}

make_secret() {
    token=$(openssl rand -hex 32)
    printf 'me:%s\n' "$token" >"$scratch/tokens"
    openssl rand -hex 32 >"$scratch/key"
    openssl rand -hex 32 | tr -d '\n' >"$scratch/metrics-token"
    kubectl create secret generic llm-sandbox --from-file="$scratch/tokens" --from-file="$scratch/key" \
        --from-file="$scratch/metrics-token" >/dev/null
}

doctor() { kubectl exec deployment/llm-sandbox -- llm-sandbox doctor; }
# The address that the Service has for clients: a cluster network would forward to it.
service_address() {
    kubectl get endpoints llm-sandbox --output=jsonpath='{.subsets[0].addresses[0].ip}:{.subsets[0].ports[0].port}'
}
service_means_the_pod() {
    [ "$(service_address)" = "$(kubectl get pods --selector=app=llm-sandbox-server --output=jsonpath='{.items[0].status.podIP}'):18181" ]
}
client() { python3 "$here/files/deploy_client.py" http://127.0.0.1:18181 "$token" "$1"; }
refuses_without_token() { [ "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:18181/sessions)" = 401 ]; }
tells_metrics() {
    curl -fsS -H "Authorization: Bearer $(cat "$scratch/metrics-token")" -o "$scratch/metrics" http://127.0.0.1:18181/metrics &&
        grep '^llm_sandbox_ready 1' "$scratch/metrics"
}
restarts() {
    kubectl rollout restart deployment/llm-sandbox &&
        kubectl rollout status --timeout=120s deployment/llm-sandbox
}
# manifests.sh checks that `restricted` allows the pod; this checks the pod that the API server has made.
pod_is_as_described() {
    kubectl get pods --selector=app=llm-sandbox-server --output=jsonpath='{.items[0].spec.containers[0].securityContext}' |
        grep -q '"readOnlyRootFilesystem":true'
}
may_no_more() {
    local as=system:serviceaccount:$namespace:llm-sandbox
    kubectl auth can-i create pods --subresource=exec --as="$as" &&
        ! kubectl auth can-i get secrets --as="$as" &&
        ! kubectl auth can-i create pods --as="$as" --namespace=default
}
leaves_nothing() {
    kubectl delete --filename="$built" --wait --timeout=60s && ! kubectl get namespace "$namespace"
}

find_server "$@"
"$here/cluster.sh" env >/dev/null
trap tidy EXIT
build
make_server_image
kubectl create namespace "$namespace" >/dev/null
make_secret
check 'the API server would take all of it' kubectl apply --dry-run=server --filename="$built"
check 'it takes all of it' kubectl apply --filename="$built"
check 'the Deployment becomes ready' kubectl rollout status --timeout=120s deployment/llm-sandbox
check 'the pod is as described' pod_is_as_described
check 'the Service means the pod' service_means_the_pod
check 'the servers may do what they need, and no more' may_no_more
check 'the doctor finds nothing wrong' doctor
check 'nobody is let in without a token' refuses_without_token
check 'a session runs' client run
check 'another remembers something' client begin
check 'metrics have a token of their own' tells_metrics
check 'the servers are replaced' restarts
check 'the session remembers it' client go-on
check 'a session runs after that' client run
check 'it goes as a whole' leaves_nothing
tally "$scratch/results"
