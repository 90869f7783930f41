"""Checks manifests as kustomize has built them, without a cluster. Prints a line for each check.

    check.py <repository> <folder of schemas>... -- <name>=<file>...

`manifests.sh` runs it."""

import copy
import json
import re
import sys
from pathlib import Path

import yaml

import pod_security
from schemas import Schemas
from wrong import WRONG

# Objects of the whole cluster.
CLUSTER_WIDE = {"Namespace", "RuntimeClass"}
# Kinds whose present version exists since 1.21. Current clusters no longer have the earlier version.
OLDEST, SINCE = "1.20", {("policy/v1", "PodDisruptionBudget")}
# Rights that the server needs only for sessions that outlive it: `llm-sandbox doctor` does not check them.
FOR_HOLDING = {("get", "apps", "replicasets")}


def say(what, faults):
    faults = list(faults)
    print(f"FAIL {what}" if faults else f"ok   {what}")
    for fault in faults:
        print(f"     {fault}")


class Built:
    """All objects of one build."""

    def __init__(self, documents):
        self.documents = documents

    def of(self, kind):
        return [it for it in self.documents if it["kind"] == kind]

    def one(self, kind):
        (only,) = self.of(kind)
        return only

    def named(self, kind, name):
        return [it for it in self.of(kind) if it["metadata"]["name"] == name]


def known(schemas, built):
    for it in built.documents:
        name = f"{it['kind']} {it['metadata']['name']}"
        if schemas.version == OLDEST and (it["apiVersion"], it["kind"]) in SINCE:
            continue
        if not schemas.has(it):
            yield f"{name}: {schemas.version} has no {it['apiVersion']}"
            continue
        yield from (f"{name}: {fault}" for fault in schemas.faults(it))


def templates(built):
    for it in built.documents:
        template = (it.get("spec") or {}).get("template")
        if it["kind"] == "Pod":
            yield it["metadata"]["name"], it["metadata"], it["spec"]
        elif template:
            yield it["metadata"]["name"], template.get("metadata") or {}, template["spec"]


def restricted(built):
    for name, metadata, spec in templates(built):
        yield from (f"{name}: {fault}" for fault in pod_security.faults(metadata, spec))


def belongs_together(built):
    """Checks the references between objects."""
    namespace = built.one("Namespace")["metadata"]["name"]
    for it in built.documents:
        if it["kind"] not in CLUSTER_WIDE and it["metadata"].get("namespace") != namespace:
            yield f"{it['kind']} {it['metadata']['name']} is in no namespace of ours"
        if it["kind"] == "Secret":
            yield "there is a Secret among the manifests"
    template = built.one("Deployment")["spec"]["template"]
    labels, spec = template["metadata"]["labels"], template["spec"]
    (container,) = spec["containers"]
    ports = {port["name"] for port in container["ports"]}
    selectors = [(it, it["spec"]["selector"]) for it in built.of("Service")]
    for kind in ("Deployment", "PodDisruptionBudget"):
        selectors += [(it, it["spec"]["selector"]["matchLabels"]) for it in built.of(kind)]
    for it, selector in selectors:
        if not selector.items() <= labels.items():
            yield f"{it['kind']} {it['metadata']['name']} does not select the servers"
    for service in built.of("Service"):
        for port in service["spec"]["ports"]:
            if port["targetPort"] not in ports:
                yield f"Service {service['metadata']['name']}: no port {port['targetPort']}"
    if len(built.of("Service")) != 1:
        yield "there is not one Service for clients"
    configs = [it["configMapRef"]["name"] for it in container["envFrom"] if "configMapRef" in it]
    configs += [it["configMap"]["name"] for it in spec["volumes"] if "configMap" in it]
    for name in configs:
        if not built.named("ConfigMap", name):
            yield f"there is no ConfigMap {name}"
    binding = built.one("RoleBinding")
    if not built.named("Role", binding["roleRef"]["name"]):
        yield "the RoleBinding's Role is not there"
    for subject in binding["subjects"]:
        if subject["namespace"] != namespace or not built.named(subject["kind"], subject["name"]):
            yield f"the RoleBinding is for {subject['name']}, which is not there"
    if spec["serviceAccountName"] not in [it["name"] for it in binding["subjects"]]:
        yield "the servers do not have the Role"
    for ingress in built.of("Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                backend = path["backend"]["service"]
                for service in built.named("Service", backend["name"]):
                    if backend["port"]["name"] in [port["name"] for port in service["spec"]["ports"]]:
                        break
                else:
                    yield f"Ingress: no Service {backend}"
    for monitor in built.of("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"].items()
        if sum(selector <= it["metadata"]["labels"].items() for it in built.of("Service")) != 1:
            yield "the ServiceMonitor does not mean exactly one Service"


def closed(built, sandbox):
    """Sandboxes have no network, and no way to one; the servers' labels are not theirs."""
    denying = [
        it for it in built.of("NetworkPolicy")
        if it["spec"]["podSelector"] == {} and sorted(it["spec"]["policyTypes"]) == ["Egress", "Ingress"]
    ]
    if not denying:
        yield "no NetworkPolicy means every pod"
    for policy in built.of("NetworkPolicy"):
        opens = policy["spec"].get("ingress") or policy["spec"].get("egress")
        selected = policy["spec"]["podSelector"].get("matchLabels") or {}
        if opens and (not selected or selected.items() <= sandbox["metadata"]["labels"].items()):
            yield f"NetworkPolicy {policy['metadata']['name']} opens what sandboxes have"
    labels = built.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    if labels.items() & sandbox["metadata"]["labels"].items():
        yield "servers have a label of sandboxes"
    modes = built.one("Namespace")["metadata"].get("labels") or {}
    for mode in ("enforce", "warn", "audit"):
        if modes.get(f"pod-security.kubernetes.io/{mode}") != "restricted":
            yield f"the namespace does not {mode} restricted"


def granted(built):
    return {
        (verb, group, resource)
        for rule in built.one("Role")["rules"]
        for verb in rule["verbs"] for group in rule["apiGroups"] for resource in rule["resources"]
    }


def needed(root):
    """The rights that `doctor` checks."""
    source = (root / "crates/backend/src/kubernetes/checks.rs").read_text()
    table = "".join(re.findall(r"const RIGHTS\w*: [^=]*=\s*&\[(.*?)\];", source, re.DOTALL))
    rows = re.findall(r'\("(\w*)", "([\w.]*)", "(\w*)", "(\w*)"\)', table)
    return {(verb, group, f"{resource}/{below}" if below else resource) for verb, group, resource, below in rows}


def rights(built, needs):
    has = granted(built)
    if built.of("ClusterRole") or built.of("ClusterRoleBinding"):
        yield "there are rights to the whole cluster"
    for right in sorted(needs - has):
        yield f"the Role lacks {right}"
    for right in sorted(has - needs - FOR_HOLDING):
        yield f"the Role has {right}, which the server does not use"


def settings(built, rows):
    (container,) = built.one("Deployment")["spec"]["template"]["spec"]["containers"]
    variables = [it["name"] for it in container.get("env") or []]
    for config in built.of("ConfigMap"):
        variables += config["data"]
    for name in variables:
        if name.startswith("SANDBOX_") and name not in rows:
            yield f"{name} is no setting"
    for name in {it for it in variables if variables.count(it) > 1}:
        yield f"{name} is set twice"


def room(built):
    """The quota has room for all that the servers may start, while one of them is replaced."""
    (config,) = [it["data"] for it in built.of("ConfigMap") if "SANDBOX_MAX_SESSIONS" in it["data"]]
    deployment = built.one("Deployment")
    # A pod that is ending keeps its share of the quota until it is removed.
    servers = deployment["spec"]["replicas"] + 1
    sandboxes = deployment["spec"]["replicas"] * int(config["SANDBOX_MAX_SESSIONS"])
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    quota = built.one("ResourceQuota")["spec"]["hard"]
    requests = container["resources"]["requests"]
    wanted = {
        "pods": servers + sandboxes,
        "requests.cpu": servers * amount(requests["cpu"]) + sandboxes * 0.05,
        "requests.memory": servers * amount(requests["memory"]) + sandboxes * 200e6,
    }
    for name, value in wanted.items():
        if amount(quota[name]) < value:
            yield f"{name}: {quota[name]} is less than {value:g}"


def amount(text):
    number, unit = re.fullmatch(r"([0-9.]+)(m|k|M|G|Ki|Mi|Gi)?", str(text)).groups()
    units = {None: 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    return float(number) * units[unit]


def sandbox_of(root):
    """The pod of a sandbox, from the snapshot of its description."""
    folder = root / "crates/backend/src/kubernetes/snapshots"
    (snapshot,) = folder.glob("*the_pod_is_exactly_this.snap")
    return json.loads(snapshot.read_text().split("---\n", 2)[2])


def main():
    root, *rest = sys.argv[1:]
    folders, files = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    root = Path(root)
    versions = [Schemas(folder) for folder in folders]
    sandbox, needs = sandbox_of(root), needed(root)
    rows = set(re.findall(r"^### (SANDBOX_\w+)$", (root / "docs/settings.md").read_text(), re.MULTILINE))
    pod = Built([copy.deepcopy(sandbox)])
    for schemas in versions:
        say(f"sandbox: known to Kubernetes {schemas.version}", known(schemas, pod))
    say("sandbox: Pod Security restricted", restricted(pod))

    def checks(built):
        for schemas in versions:
            yield f"known to Kubernetes {schemas.version}", known(schemas, built)
        yield "Pod Security restricted", restricted(built)
        yield "objects belong together", belongs_together(built)
        yield "sandboxes have no network", closed(built, sandbox)
        yield "the rights that are used, and no more", rights(built, needs)
        yield "settings that there are", settings(built, rows)
        yield "a quota with room", room(built)

    for argument in files:
        name, _, file = argument.partition("=")
        built = Built([it for it in yaml.safe_load_all(Path(file).read_text()) if it])
        for what, faults in checks(built):
            say(f"{name}: {what}", faults)
        if name == "base":
            for what, by, spoil in WRONG:
                spoilt = Built(copy.deepcopy(built.documents))
                spoil(spoilt)
                blind = [check for check, faults in checks(spoilt) if check.startswith(by) and not list(faults)]
                say(f"refused: {what}", (f"not by: {check}" for check in blind))


main()
