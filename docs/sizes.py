"""Measures the contents of a sandbox image, and writes the table into docs/image.md:

    python3 docs/sizes.py [IMAGE]

Sizes are those of the files, in MB of a million bytes; bytecode is counted with what it belongs to.

    python3 docs/sizes.py --recipes [IMAGE]

measures the recipes: builds each on the image without the builder's cache, and removes the result.
"""

import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import time

from measured import ROOT, put

# Runs in the image.
LOOK = r"""
import json, os, re, sys
from importlib import metadata
from importlib.util import cache_from_source

seen = set()

def size(path):
    try:
        stat = os.lstat(path)
    except OSError:
        return 0
    if os.path.isdir(path) and not os.path.islink(path):
        return sum(size(os.path.join(path, name)) for name in os.listdir(path))
    if (stat.st_dev, stat.st_ino) in seen:
        return 0
    seen.add((stat.st_dev, stat.st_ino))
    return stat.st_size

def distribution(known):
    total = 0
    for file in known.files or ():
        path = os.path.realpath(known.locate_file(file))
        total += size(path)
        if path.endswith(".py"):
            total += size(cache_from_source(path))
    return total

plain = lambda name: re.sub("[-_.]+", "-", name).lower()
sizes = {plain(known.name): (known.version, distribution(known)) for known in metadata.distributions()}
stdlib = os.path.dirname(os.__file__)
print(json.dumps({
    "libraries": [(name, *sizes.pop(plain(name))) for name in WANTED],
    "others": sorted(sizes.items()),
    "venv": size("/opt/venv"),
    "fonts": size("/usr/share/fonts"),
    "python": size(stdlib) + size(os.path.realpath(sys.executable)),
    "python_version": sys.version.split()[0],
}))
"""


def output(*command: str, given: str = "") -> str:
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


def mb(size: int) -> str:
    return f"{size / 1e6:.1f}" if size < 9.95e6 else f"{size / 1e6:.0f}"


def table(image: str) -> str:
    whole = int(output("docker", "image", "inspect", "--format", "{{.Size}}", image))
    kind = output("docker", "image", "inspect", "--format", "{{.Os}}/{{.Architecture}}", image).strip()
    lines = (ROOT / "sandbox-image/runtimes/python/requirements.in").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    options = ("--rm", "-i", "--network", "none", "--user", "0:0", "--entrypoint", "python3")
    found = json.loads(output("docker", "run", *options, image, "-IB", "-", given=f"WANTED = {wanted}\n{LOOK}"))
    rows = [(f"{name} {version}", size) for name, version, size in found["libraries"]]
    needed = [(f"{name} {version}, a dependency", size) for name, (version, size) in found["others"]]
    small = [row for row in needed if row[1] < 2e6]
    rows += [row for row in needed if row not in small]
    rows.sort(key=lambda row: -row[1])
    rows.append((f"{len(small)} more dependencies", found["venv"] + sum(size for _, size in small)))
    rows.append(("fonts", found["fonts"]))
    rows.append((f"Python {found['python_version']}", found["python"]))
    rows.append(("Debian and the rest", whole - sum(size for _, size in rows)))
    rows.append(("**in all**", whole))
    lines = ["| part | MB |", "|---|---:|", *(f"| {part} | {mb(size)} |" for part, size in rows)]
    return "\n".join(lines) + f"\n\nMeasured on {kind}."


RECIPES = ROOT / "sandbox-image/recipes"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def size_of(image: str) -> int:
    return int(output("docker", "image", "inspect", "--format", "{{.Size}}", image))


def context(recipe: str, image: str) -> bytes:
    """The context of the build of a recipe on this image."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        dockerfile = (RECIPES / recipe / "Dockerfile").read_text(encoding="utf-8")
        dockerfile = dockerfile.replace("\nFROM libraries\n", f"\nFROM {image}\nUSER root\n").encode()
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(dockerfile)
        archive.addfile(entry, io.BytesIO(dockerfile))
        archive.add(RECIPES / recipe, f"recipes/{recipe}")
        certificates = tarfile.TarInfo("ca-certificates.crt")
        trusted = pathlib.Path(CERTIFICATES).read_bytes()
        certificates.size = len(trusted)
        archive.addfile(certificates, io.BytesIO(trusted))
    return packed.getvalue()


def recipes_table(image: str) -> str:
    lines = ["| recipe | MB | seconds |", "|---|---:|---:|"]
    for recipe in sorted(path.parent.name for path in RECIPES.glob("*/Dockerfile")):
        command = ["docker", "build", "--quiet", "--no-cache", "--force-rm", "-"]
        began = time.monotonic()
        classic = {**os.environ, "DOCKER_BUILDKIT": "0"}
        done = subprocess.run(command, input=context(recipe, image), stdout=subprocess.PIPE, env=classic, check=True)
        seconds, built = time.monotonic() - began, done.stdout.decode().split()[-1]
        lines.append(f"| `{recipe}` | {mb(size_of(built) - size_of(image))} | {seconds:.0f} |")
        subprocess.run(["docker", "image", "rm", built], stdout=subprocess.DEVNULL, check=True)
    return "\n".join(lines)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    of_recipes = arguments[:1] == ["--recipes"]
    if len(arguments) > 1 + of_recipes:
        raise SystemExit(__doc__)
    image = arguments[of_recipes] if len(arguments) > of_recipes else "llm-sandbox:latest"
    if of_recipes:
        put("docs/image.md", "recipes", recipes_table(image))
    else:
        put("docs/image.md", "sizes", table(image))
