#!/usr/bin/env bash
# Checks the cluster itself: it starts, does what the tests of the server need, survives the sudden end of each of its
# parts, and leaves nothing on the machine. Twice by default, to find leftovers that affect a second start.
#
#   check.sh [times]
#
# The cluster must be down. Settings as in cluster.sh. Exit code 0: all checks passed.
set -euo pipefail

source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib.sh"
here=$root/tests/kubernetes
image=${SANDBOX_IMAGE:-llm-sandbox:latest}
times=${1:-2}
scratch=$(mktemp -d)

cluster() { "$here/cluster.sh" "$@"; }
kubectl() { cluster kubectl "$@"; }

tidy() {
    cluster down || true
    rm -rf "$scratch"
}
trap tidy EXIT

# Lists everything that the cluster could leave behind.
machine() {
    echo '--- mounts'
    sort /proc/self/mounts
    echo '--- cgroups'
    find /sys/fs/cgroup -type d -name '*kube*'
    echo '--- kernel settings'
    (cd /proc/sys && grep -H . vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
        kernel/keys/root_maxkeys kernel/keys/root_maxbytes net/ipv4/ip_forward)
    echo '--- folders'
    ls -d /var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers /run/netns /etc/cni 2>/dev/null || true
    ls -A /run ~
    echo '--- devices and routes'
    # A bridge of Docker's is up only while a container uses it.
    ip -br link | awk '{ print $1 }' | grep -v '^veth' || true
    ip route | sed 's/ linkdown//'
    echo '--- processes'
    # Processes are found by their programs: no other process runs from that folder.
    find /proc -maxdepth 2 -name exe -lname "$programs/*" 2>/dev/null || true
    echo '--- ports'
    ss -Htln | awk '{ print $4 }' | grep -E ':(2[26][0-9]{3})$' || true
}

# pod_identity: changes if the pod is replaced, or its container is restarted.
pod_identity() { kubectl get pod sandbox -o jsonpath='{.metadata.uid} {.status.phase} {.status.containerStatuses[0].containerID}'; }
same_pod() { [ "$(pod_identity)" = "$identity" ]; }
runs_in_pod() { [ "$(kubectl exec sandbox -- echo hello)" = hello ]; }
# Sends bytes both ways, more than fit into any buffer.
carries_bytes() {
    head -c 20000000 /dev/urandom >"$scratch/bytes"
    kubectl exec -i sandbox -- cat <"$scratch/bytes" >"$scratch/echoed"
    cmp "$scratch/bytes" "$scratch/echoed"
}
is_confined() {
    # shellcheck disable=SC2016 # the shell in the pod expands it
    kubectl exec sandbox -- bash -euc '
        grep -q "^Seccomp:.2" /proc/self/status
        grep -q "^NoNewPrivs:.1" /proc/self/status
        grep -q "^CapBnd:.0*$" /proc/self/status
        if touch /file; then exit 1; fi
        [ "$(id -u)" = 1000 ]
        [ "$(ls /sys/class/net)" = lo ]
        [ "$(df --output=size -B1 /tmp | tail -n 1)" -le 128000000 ]
        touch /tmp/file /mnt/data/file'
}
new_pod_runs() {
    kubectl run "$1" --image="$image" --image-pull-policy=Never --restart=Never --command -- sleep infinity
    kubectl wait --for=condition=Ready --timeout=120s "pod/$1"
    kubectl delete pod "$1" --grace-period=0 --force
}

as_server() { "$KUBECTL" --kubeconfig="$SERVER_KUBECONFIG" --cache-dir="$scratch/kubectl" "$@"; }
is_refused() { ! "$@" 2>"$scratch/refused" && grep -q Forbidden "$scratch/refused"; }
client_is_told() { [ "$(kubectl exec -i deployment/client -- python3 - <"$here/files/list_pods.py")" = "$1" ]; }
pods_go_with_their_deployment() {
    # With foreground deletion the owner is removed last.
    kubectl delete deployment client --cascade=foreground --timeout=60s
    [ -z "$(kubectl get pods --selector=app=client --output=name)" ]
}

once() {
    local part variables
    check 'it comes up' cluster up
    variables=$(cluster env)
    eval "$variables"
    sed "s|@IMAGE@|$image|" "$here/files/check.yaml" | kubectl apply -f - >/dev/null
    check 'a sandbox becomes ready' kubectl wait --for=condition=Ready --timeout=120s pod/sandbox
    check 'a program runs in it' runs_in_pod
    check 'its stream carries bytes as they are' carries_bytes
    check 'it is confined as the server describes it' is_confined
    check 'a deployment becomes ready' kubectl rollout status --timeout=120s deployment/client

    check 'a user without a role is refused' is_refused as_server get pods
    check 'a service account without a role is refused' client_is_told 403
    kubectl apply -f "$here/files/check-role.yaml" >/dev/null
    check 'a user with a role may do what it says' as_server get pods
    check 'and no more' is_refused as_server delete pod sandbox
    check 'a service account with a role may do what it says' client_is_told 200

    identity=$(pod_identity)
    for part in apiserver containerd kubelet controllers scheduler etcd; do
        check "$part is killed and comes again" cluster restart "$part"
        check "the sandbox outlives $part" same_pod
        check "a program runs in it after $part" runs_in_pod
        check "a new pod runs after $part" new_pod_runs "after-$part"
    done
    check 'the sandbox is still the same' same_pod

    check 'pods go with their owner' pods_go_with_their_deployment

    # The pod still exists.
    check 'it goes down' cluster down
    machine >"$scratch/after"
    check 'nothing is left of it' diff "$scratch/before" "$scratch/after"
}

if cluster env >/dev/null 2>&1; then
    trap - EXIT
    die 'The cluster is up; take it down first.'
fi
cluster build
programs=$(cluster where)
machine >"$scratch/before"
for ((time = 1; time <= times; time++)); do once; done
tally "$scratch/results"
