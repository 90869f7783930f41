"""The rules of Pod Security `restricted` for a pod, one by one:
https://kubernetes.io/docs/concepts/security/pod-security-standards

Clusters before 1.23 cannot be asked, and the others only where one runs."""

PROFILES = {"RuntimeDefault", "Localhost"}
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
}
SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t"}


def faults(metadata, spec):
    """The faults of a pod, a sentence each."""
    pod = spec.get("securityContext") or {}
    kinds = ("initContainers", "containers", "ephemeralContainers")
    containers = [container for kind in kinds for container in spec.get(kind) or []]

    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field} is set"
    for volume in spec.get("volumes") or []:
        for kind in volume.keys() - {"name"} - VOLUMES:
            yield f"volume {volume['name']} is a {kind}"
    for sysctl in pod.get("sysctls") or []:
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctl {sysctl['name']} is set"
    for key, value in (metadata.get("annotations") or {}).items():
        if key.startswith("container.apparmor.security.beta.kubernetes.io/") and value == "unconfined":
            yield f"annotation {key} is unconfined"
    yield from of_both("the pod", pod)
    if not containers:
        yield "there is no container"
    for container in containers:
        own = container.get("securityContext") or {}
        name = f"container {container['name']}"
        yield from of_both(name, own)
        if own.get("privileged"):
            yield f"{name} is privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name} may gain privileges"
        if own.get("procMount") not in (None, "Default"):
            yield f"{name} sees all of /proc"
        if own.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"{name} may run as root"
        if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in PROFILES:
            yield f"{name} has no seccomp profile"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or []):
            yield f"{name} keeps capabilities"
        for capability in set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
            yield f"{name} has {capability}"
        for port in container.get("ports") or []:
            if port.get("hostPort"):
                yield f"{name} has port {port['hostPort']} of its node"
        for hook in ("livenessProbe", "readinessProbe", "startupProbe"):
            probe = container.get(hook) or {}
            if any((probe.get(kind) or {}).get("host") for kind in ("httpGet", "tcpSocket")):
                yield f"{name}: {hook} asks another host"


def of_both(name, context):
    """The faults of a security context, which pods and containers have."""
    if context.get("runAsUser") == 0:
        yield f"{name} has user 0"
    if context.get("runAsNonRoot") is False:
        yield f"{name} is allowed to run as root"
    for field in ("seccompProfile", "appArmorProfile"):
        profile = context.get(field)
        if profile is not None and profile.get("type") not in PROFILES:
            yield f"{name}: {field} is {profile.get('type')}"
    selinux = context.get("seLinuxOptions") or {}
    if selinux.get("type") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{name} has SELinux options of its own"
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{name} is a process of its node"
