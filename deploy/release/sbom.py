"""The parts of a release as a CycloneDX document: crates in the program and the agent, and the packages of Python and
npm that the sandbox image and the runtime of the embedded engine are made from."""

import json
import re
import subprocess
import time
import tomllib
import uuid
from pathlib import Path
from typing import Any

from archives import EPOCH

ROOT = Path(__file__).resolve().parents[2]
Component = dict[str, Any]


def component(kind: str, name: str, version: str, sha256: str | None, licence: str | None, scope: str) -> Component:
    """One package, of the index `kind`."""
    purl = f"pkg:{kind}/{name.replace('@', '%40')}@{version}"
    found: Component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    found["scope"] = scope
    if sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": sha256}]
    if licence:
        found["licenses"] = [{"expression": licence.replace("/", " OR ")}]
    return found


def crates(triple: str) -> tuple[list[Component], list[dict[str, Any]]]:
    """Crates that the program and the agent are linked from, and what each depends on."""
    asked = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={triple}"]
    meta = json.loads(subprocess.run(asked, cwd=ROOT, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in meta["packages"]}
    nodes = {node["id"]: node for node in meta["resolve"]["nodes"]}
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text("utf-8"))
    sums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
    ours = {id for id, package in packages.items() if package["source"] is None}
    todo = [id for id in ours if packages[id]["name"] in ("llm-sandbox", "agent")]
    seen: set[str] = set()
    while todo:
        id = todo.pop()
        if id in seen:
            continue
        seen.add(id)
        linked = [d["pkg"] for d in nodes[id]["deps"] if any(kind["kind"] is None for kind in d["dep_kinds"])]
        todo += linked

    def purl(id: str) -> str:
        return f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"

    found = []
    for id in seen:
        package = packages[id]
        digest = sums.get((package["name"], package["version"]))
        found.append(component("cargo", package["name"], package["version"], digest, package["license"], "required"))
    depends = [
        {"ref": purl(id), "dependsOn": sorted({purl(dep) for dep in nodes[id]["dependencies"] if dep in seen})}
        for id in seen
    ]
    return found, depends


def runtime() -> list[Component]:
    """Packages of the embedded engine's runtime, which a user fetches when it is installed."""
    text = (ROOT / "crates/backend/src/wasm/packages.rs").read_text("utf-8")
    pin = re.compile(r'from: Index::(\w+),\s+name: "([^"]+)",\s+version: "([^"]+)",\s+sha256: "([0-9a-f]{64})"')
    kinds = {"Pip": "pypi", "Npm": "npm"}
    return [component(kinds[index], *found, None, "optional") for index, *found in pin.findall(text)]


def image() -> list[Component]:
    """Packages of the sandbox image, which a user fetches when it is built."""
    found = []
    for name in ("python", "javascript"):
        text = (ROOT / f"sandbox-image/runtimes/{name}/requirements.txt").read_text("utf-8")
        for package, version in re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", text, re.MULTILINE):
            found.append(component("pypi", package.lower(), version, None, None, "optional"))
    return found


def document(name: str, version: str, triple: str) -> str:
    """The whole document, as JSON."""
    linked, depends = crates(triple)
    parts: dict[str, Component] = {}
    for part in linked + runtime() + image():
        # A package of both has the hash of the runtime's file.
        parts.setdefault(part["purl"], part)
    return json.dumps(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{name} {version} {triple}')}",
            "version": 1,
            "metadata": {
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(EPOCH)),
                "component": {"type": "application", "bom-ref": name, "name": name, "version": version},
            },
            "components": sorted(parts.values(), key=lambda part: part["purl"]),
            "dependencies": sorted(depends, key=lambda one: one["ref"]),
        },
        indent=1,
    ) + "\n"
