"""Packs one static program as an image, in the form that `docker save` writes.

usage: make_image.py <name of the image> <architecture, as Debian calls it> <program> <archive to write>
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path


def add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode
    archive.addfile(entry, io.BytesIO(content))


def main() -> None:
    name, architecture, program, output = sys.argv[1:]
    file = Path(program).name

    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        add(archive, file, Path(program).read_bytes(), 0o755)

    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": [f"/{file}"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_file = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": config_file, "RepoTags": [name], "Layers": ["layer.tar"]}]

    with tarfile.open(output, "w") as archive:
        add(archive, "layer.tar", layer.getvalue())
        add(archive, config_file, config)
        add(archive, "manifest.json", json.dumps(manifest).encode())


main()
