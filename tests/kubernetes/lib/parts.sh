# shellcheck shell=bash disable=SC2154,SC2164 # its variables and `set -e` are those of cluster.sh
# The parts of the cluster: the files they read, how each is started, and when it is ready.

# In the order in which each finds what it needs.
PARTS=(etcd containerd apiserver controllers scheduler kubelet)

# Loopback, and far from the usual ones: a machine may run another cluster.
API_PORT=26443
ETCD_PORT=22379
ETCD_PEER_PORT=22380
KUBELET_PORT=26250
KUBELET_HEALTH_PORT=26248
CONTROLLERS_PORT=26257
SCHEDULER_PORT=26259

# --- the files ---------------------------------------------------------------------------------------

# fill <file of files/> <file to write> [name=value]...
fill() {
    local source=$here/files/$1 target=$2 name pair edits=()
    shift 2
    for name in RUN:"$run" PAUSE_IMAGE:"$PAUSE_IMAGE" CGROUP:"$CGROUP" API_PORT:"$API_PORT" \
        KUBELET_PORT:"$KUBELET_PORT" KUBELET_HEALTH_PORT:"$KUBELET_HEALTH_PORT"; do
        edits+=(-e "s|@${name%%:*}@|${name#*:}|g")
    done
    for pair; do edits+=(-e "s|@${pair%%=*}@|${pair#*=}|g"); done
    sed "${edits[@]}" "$source" >"$target"
}

write_files() {
    local admin server ca
    mkdir -p "$run/pki" "$run/cni"
    make_keys
    admin=$(openssl rand -hex 16)
    server=$(openssl rand -hex 16)
    # The server has no group: it may do what tests bind to it, and nothing else.
    printf '%s\n' "$admin,admin,1,\"system:masters\"" "$server,server,2" >"$run/pki/tokens.csv"
    ca=$(base64 -w0 "$run/pki/ca.crt")
    fill kubeconfig.yaml "$run/kubeconfig" "CA=$ca" USER=admin "TOKEN=$admin"
    fill kubeconfig.yaml "$run/kubeconfig-server" "CA=$ca" USER=server "TOKEN=$server"
    fill containerd.toml "$run/containerd.toml"
    fill kubelet.yaml "$run/kubelet.yaml"
    cp "$here/files/cni.sh" "$run/cni/none"
    cp "$here/files/cni.sh" "$run/cni/loopback"
    echo '{"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "none"}]}' >"$run/cni/10-none.conflist"
}

# An authority, one certificate for all that the API server and etcd are and ask, and the key that tokens of
# service accounts are signed with.
make_keys() {
    (
        cd "$run/pki"
        cat >openssl.cnf <<END
[req]
distinguished_name = name
prompt = no
[name]
CN = llm-sandbox-tests
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[machine]
basicConstraints = CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:127.0.0.1, DNS:localhost, DNS:kubernetes.default.svc
END
        quietly openssl ecparam -name prime256v1 -genkey -noout -out ca.key
        quietly openssl req -x509 -new -key ca.key -days 30 -config openssl.cnf -extensions authority -out ca.crt
        quietly openssl ecparam -name prime256v1 -genkey -noout -out machine.key
        quietly openssl req -new -key machine.key -subj /CN=llm-sandbox-tests-machine -config openssl.cnf -out machine.csr
        quietly openssl x509 -req -in machine.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 \
            -extfile openssl.cnf -extensions machine -out machine.crt
        quietly openssl genrsa -out accounts.key 2048
        quietly openssl rsa -in accounts.key -pubout -out accounts.pub
    )
}

# --- starting and ending -----------------------------------------------------------------------------

command_of() {
    local pki=$run/pki
    case $1 in
        etcd)
            # A client without a certificate would be root on the machine: it could write a privileged pod.
            command=(etcd --data-dir="$run/disk/etcd" --unsafe-no-fsync --initial-cluster="default=https://127.0.0.1:$ETCD_PEER_PORT"
                --listen-client-urls="https://127.0.0.1:$ETCD_PORT" --advertise-client-urls="https://127.0.0.1:$ETCD_PORT"
                --listen-peer-urls="https://127.0.0.1:$ETCD_PEER_PORT" --initial-advertise-peer-urls="https://127.0.0.1:$ETCD_PEER_PORT"
                --client-cert-auth --trusted-ca-file="$pki/ca.crt" --cert-file="$pki/machine.crt" --key-file="$pki/machine.key"
                --peer-client-cert-auth --peer-trusted-ca-file="$pki/ca.crt" --peer-cert-file="$pki/machine.crt"
                --peer-key-file="$pki/machine.key")
            ;;
        containerd) command=(containerd --config="$run/containerd.toml") ;;
        apiserver)
            # The address is advertised to nobody, but may not be a loopback one. The last are what clusters
            # do by themselves since 1.21: tokens that belong to a pod and expire.
            command=(hyperkube kube-apiserver --etcd-servers="https://127.0.0.1:$ETCD_PORT" --etcd-cafile="$pki/ca.crt"
                --etcd-certfile="$pki/machine.crt" --etcd-keyfile="$pki/machine.key"
                --bind-address=127.0.0.1 --secure-port="$API_PORT" --advertise-address=192.0.2.2 --endpoint-reconciler-type=none
                --tls-cert-file="$pki/machine.crt" --tls-private-key-file="$pki/machine.key"
                --service-cluster-ip-range=10.96.0.0/24 --token-auth-file="$pki/tokens.csv" --authorization-mode=RBAC
                --anonymous-auth=false --kubelet-preferred-address-types=Hostname
                --kubelet-client-certificate="$pki/machine.crt" --kubelet-client-key="$pki/machine.key"
                --feature-gates=BoundServiceAccountTokenVolume=true --service-account-issuer=https://kubernetes.default.svc
                --service-account-key-file="$pki/accounts.pub" --service-account-signing-key-file="$pki/accounts.key")
            ;;
        controllers)
            command=(hyperkube kube-controller-manager --kubeconfig="$run/kubeconfig" --bind-address=127.0.0.1
                --secure-port="$CONTROLLERS_PORT" --port=0 --cert-dir="$run/pki" --leader-elect=false
                --feature-gates=BoundServiceAccountTokenVolume=true --root-ca-file="$pki/ca.crt"
                --service-account-private-key-file="$pki/accounts.key")
            ;;
        scheduler)
            command=(hyperkube kube-scheduler --kubeconfig="$run/kubeconfig" --bind-address=127.0.0.1
                --secure-port="$SCHEDULER_PORT" --port=0 --cert-dir="$run/pki" --leader-elect=false)
            ;;
        kubelet)
            # As localhost it is found by the API server without an address.
            command=(hyperkube kubelet --config="$run/kubelet.yaml" --kubeconfig="$run/kubeconfig" --hostname-override=localhost
                --container-runtime=remote --container-runtime-endpoint="unix:///run/containerd.sock")
            ;;
        *) die "There is no part $1: ${PARTS[*]}." ;;
    esac
}

start_part() {
    local part=$1 command=()
    command_of "$part"
    if part_runs "$part"; then return; fi
    # The shell ends at once, so the part is a child of the cluster's first process, which reaps it.
    # shellcheck disable=SC2016 # the inner shell expands it
    inside bash -c 'log=$1 number=$2; shift 2; setsid "$@" </dev/null >>"$log" 2>&1 & echo $! >"$number"' \
        bash "$log/$part.log" "$run/$part.number" "${command[@]}"
    wait_for 180 is_ready_or_dead "$part" || die "$part does not become ready."
    if ! part_runs "$part"; then
        show_log "$part"
        die "$part has ended, see above."
    fi
}

# As suddenly as a part can end.
stop_part() {
    # For its complaint about a part that there is not.
    local command=()
    command_of "$1"
    if ! part_runs "$1"; then return; fi
    signal_part "$1" KILL
    wait_for 30 part_is_gone "$1" || die "$1 does not end."
    rm "$run/$1.number"
}

# The number is one of the cluster's own namespace.
signal_part() {
    local number
    read -r number 2>/dev/null <"$run/$1.number" || return 1
    # shellcheck disable=SC2016 # the inner shell expands it
    inside bash -c 'kill -s "$1" "$2"' bash "$2" "$number" 2>/dev/null
}
part_runs() { signal_part "$1" 0; }
part_is_gone() { ! part_runs "$1"; }
is_ready_or_dead() { part_is_ready "$1" || part_is_gone "$1"; }

part_is_ready() {
    case $1 in
        etcd)
            probe "https://127.0.0.1:$ETCD_PORT/health" --cacert "$run/pki/ca.crt" \
                --cert "$run/pki/machine.crt" --key "$run/pki/machine.key"
            ;;
        containerd) containerd_client version >/dev/null 2>&1 && kubelet_reaches_containerd ;;
        apiserver) [ "$(kubectl get --raw /readyz 2>/dev/null)" = ok ] ;;
        # Their certificates are their own.
        controllers) probe "https://127.0.0.1:$CONTROLLERS_PORT/healthz" --insecure ;;
        scheduler) probe "https://127.0.0.1:$SCHEDULER_PORT/healthz" --insecure ;;
        kubelet) probe "http://127.0.0.1:$KUBELET_HEALTH_PORT/healthz" ;;
    esac
}

# The kubelet tries again at growing intervals; what needs containerd fails until then. This asks it, others a cache.
kubelet_reaches_containerd() {
    if ! part_runs kubelet; then return; fi
    probe "https://127.0.0.1:$KUBELET_PORT/stats/summary" --insecure --cert "$run/pki/machine.crt" --key "$run/pki/machine.key"
}

probe() { curl --noproxy '*' --max-time 5 -fsS -o /dev/null "$@" 2>/dev/null; }

# --- asking ------------------------------------------------------------------------------------------

# The one of the same version; newer ones speak to it in ways that it does not know.
# Nothing is kept in the home of the caller.
kubectl() { "$bin/kubectl" --kubeconfig="$run/kubeconfig" --cache-dir="$run/kubectl" "$@"; }
containerd_client() { inside "$bin/ctr" --address /run/containerd.sock --namespace k8s.io "$@"; }

node_is_ready() {
    # shellcheck disable=SC2016 # not of the shell
    [ "$(kubectl get node localhost -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null)" = True ] &&
        kubectl get serviceaccount default >/dev/null 2>&1 &&
        kubectl get configmap kube-root-ca.crt >/dev/null 2>&1
}

import_from_docker() {
    have docker || die 'The docker client is missing.'
    docker image inspect "$1" >/dev/null 2>&1 || die "Docker has no image $1."
    docker save "$1" | quietly containerd_client images import -
}
