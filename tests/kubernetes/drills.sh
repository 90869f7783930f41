#!/usr/bin/env bash
# The drills on the real cluster of `cluster.sh`: starts it, gives the server's user its rights, runs the drills, and
# ends the cluster. `tests/run.sh full --kubernetes` runs it.
#
#   drills.sh
#
# Settings as in cluster.sh. Takes some minutes, and ten more if the cluster is not built. Exit code 0: no drill failed.
set -euo pipefail

source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib.sh"
here=$root/tests/kubernetes
export TEST_CLUSTER=$here/cluster.sh
cd "$root"

tidy() { "$TEST_CLUSTER" down >/dev/null 2>&1 || true; }
trap tidy EXIT

step 'the cluster'
"$TEST_CLUSTER" up >/dev/null
eval "$("$TEST_CLUSTER" env)"
export SERVER_KUBECONFIG

step 'a namespace, and the rights of the server in it'
"$TEST_CLUSTER" kubectl apply --filename - >/dev/null <<'YAML'
apiVersion: v1
kind: Namespace
metadata: { name: sandboxes }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: server, namespace: sandboxes }
rules:
  - { apiGroups: [""], resources: [pods], verbs: [create, get, list, watch, patch, delete] }
  - { apiGroups: [""], resources: [pods/exec], verbs: [create, get] }
  - { apiGroups: [coordination.k8s.io], resources: [leases], verbs: [create, get, list, watch, patch, delete] }
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: server, namespace: sandboxes }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: server }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: User, name: server }]
YAML

step 'the drills'
cargo build --workspace --all-features --locked
cargo test --workspace --all-features --locked --test drills -- cluster:: conformance::the_table_is_true_of_pods --test-threads=1 --nocapture
