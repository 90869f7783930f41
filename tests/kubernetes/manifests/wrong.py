"""Changes that must not pass, each with the checks that must find it: what looks for nothing finds nothing."""

KNOWN = "known to Kubernetes"
RESTRICTED = "Pod Security"
TOGETHER = "objects belong together"
CLOSED = "sandboxes have no network"
RIGHTS = "the rights"


def pod(built):
    return built.one("Deployment")["spec"]["template"]["spec"]


def container(built):
    return pod(built)["containers"][0]


def context(built):
    return container(built)["securityContext"]


def policy(built, name):
    return built.named("NetworkPolicy", name)[0]["spec"]


def verbs(built):
    return built.one("Role")["rules"][0]["verbs"]


def secret(built):
    metadata = {"name": "llm-sandbox", "namespace": "llm-sandbox"}
    built.documents.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})


WRONG = [
    ("an unknown field", KNOWN, lambda it: pod(it).update(hostNetworks=True)),
    ("an unknown field far down", KNOWN, lambda it: policy(it, "servers")["egress"][0]["ports"][0].update(prot="TCP")),
    ("an unknown field of a probe", KNOWN, lambda it: container(it)["livenessProbe"]["httpGet"].update(url="/health")),
    ("a number for a text", KNOWN, lambda it: pod(it).update(serviceAccountName=1)),
    ("the node's network", RESTRICTED, lambda it: pod(it).update(hostNetwork=True)),
    ("a path of the node", RESTRICTED, lambda it: pod(it)["volumes"].append({"name": "x", "hostPath": {"path": "/"}})),
    ("a container that may be root", RESTRICTED, lambda it: pod(it)["securityContext"].pop("runAsNonRoot")),
    ("user 0", RESTRICTED, lambda it: context(it).update(runAsUser=0)),
    ("no seccomp", RESTRICTED, lambda it: pod(it)["securityContext"].pop("seccompProfile")),
    ("no seccomp for one", RESTRICTED, lambda it: context(it).update(seccompProfile={"type": "Unconfined"})),
    ("capabilities", RESTRICTED, lambda it: context(it).pop("capabilities")),
    ("one capability", RESTRICTED, lambda it: context(it)["capabilities"].update(add=["NET_ADMIN"])),
    ("new privileges", RESTRICTED, lambda it: context(it).pop("allowPrivilegeEscalation")),
    ("a privileged container", RESTRICTED, lambda it: context(it).update(privileged=True)),
    ("a port of the node", RESTRICTED, lambda it: container(it)["ports"][0].update(hostPort=8080)),
    ("one right too many", RIGHTS, lambda it: verbs(it).append("update")),
    ("one right too few", RIGHTS, lambda it: verbs(it).remove("watch")),
    ("a misspelt setting", "settings", lambda it: it.one("ConfigMap")["data"].update(SANDBOX_IMAG="x")),
    ("a Service for nobody", TOGETHER, lambda it: it.of("Service")[0]["spec"]["selector"].update(app="x")),
    ("a Role for another", TOGETHER, lambda it: it.one("RoleBinding")["subjects"][0].update(namespace="default")),
    ("a Secret", TOGETHER, secret),
    ("servers that pass for sandboxes", CLOSED, lambda it: it.one("Deployment")["spec"]["template"]["metadata"]
     ["labels"].update(app="llm-sandbox")),
    ("a policy for some", CLOSED, lambda it: policy(it, "nothing").update(podSelector={"matchLabels": {"team": "x"}})),
    ("a policy that opens all", CLOSED, lambda it: policy(it, "nothing").update(egress=[{}])),
    ("a namespace that lets all in", CLOSED, lambda it: it.one("Namespace")["metadata"].pop("labels")),
    ("a quota without room", "a quota", lambda it: it.one("ResourceQuota")["spec"]["hard"].update(pods="21")),
]
