"""Checks the descriptions among the artefacts in a folder: DIST VERSION."""

import base64
import json
import re
import sys
import urllib.parse
import zipfile
from pathlib import Path

dist, version = Path(sys.argv[1]), sys.argv[2]

server = json.loads((dist / "server.json").read_text("utf-8"))
# The registry's schema of 2025-12-11 asks for these.
assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", server["name"]), server["name"]
assert 1 <= len(server["description"]) <= 100 and 1 <= len(server["title"]) <= 100
assert server["version"] == version
for package in server["packages"]:
    assert set(package) == {"registryType", "identifier", "version", "runtimeHint", "transport"}, package
    assert package["version"] == version and package["transport"] == {"type": "stdio"}, package

(wheel,) = dist.glob("*manylinux*.whl")
with zipfile.ZipFile(wheel) as files:
    (about,) = (name for name in files.namelist() if name.endswith("/METADATA"))
    text = files.read(about).decode()
# The registry looks there for the proof that both have the same owner.
assert f"mcp-name: {server['name']}" in text and f"\nVersion: {version}\n" in text

(plugin,) = dist.glob("*-claude-code.zip")
with zipfile.ZipFile(plugin) as files:
    assert json.loads(files.read(".claude-plugin/plugin.json"))["version"] == version
    assert version in json.loads(files.read(".mcp.json"))["mcpServers"]["sandbox"]["args"][0]
    assert files.read("skills/sandbox/SKILL.md").startswith(b"---\nname: sandbox\n")

assert f":{version}\n" in (dist / "server.yaml").read_text("utf-8")

for sbom in dist.glob("*.cdx.json"):
    parts = json.loads(sbom.read_text("utf-8"))
    found = {part["purl"].split("/")[0] for part in parts["components"]}
    assert found == {"pkg:cargo", "pkg:pypi", "pkg:npm"}, found
    references = {part["bom-ref"] for part in parts["components"]}
    assert len(references) == len(parts["components"]) > 300
    assert all(set(one["dependsOn"]) <= references for one in parts["dependencies"])
for artefact in dist.iterdir():
    text = artefact.read_bytes() if artefact.suffix in (".json", ".yaml") else b""
    assert not re.search(rb"@[A-Z_]+@", text), artefact

# The links of the pages start what is published.
pages = Path(__file__).resolve().parents[2] / "docs/clients"
wanted = {"command": "uvx", "args": [server["packages"][0]["identifier"]]}
for page, decode in (("vscode.md", str), ("cursor.md", lambda text: base64.b64decode(text).decode())):
    link = re.search(r"\((https://\S+install\S+)\)", (pages / page).read_text("utf-8"))
    assert link, page
    query = urllib.parse.parse_qs(urllib.parse.urlsplit(link[1]).query)
    assert query["name"] == ["sandbox"] and json.loads(decode(query["config"][0])) == wanted, query
