"""Packs the program as a wheel, packages of npm, a package of Debian, a bundle of MCP, a plugin, a Helm chart and a
tarball, and writes the descriptions for catalogues. build.sh calls it and sets SOURCE_DATE_EPOCH."""

import argparse
import base64
import gzip
import hashlib
import json
import os
import re
import shutil
import string
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import sbom
from archives import FILE, PROGRAM, Files, content, folder, tgz_of, zip_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SUMMARY = "An MCP server that gives a language model a sandboxed computer for Python, JavaScript and shell code"
# The names of an architecture, by its name in Rust: npm's, Debian's, the wheels'.
ARCHITECTURES = {"x86_64": ("x64", "amd64", "x86_64"), "aarch64": ("arm64", "arm64", "aarch64")}
LICENCE = "MIT OR Apache-2.0"


@dataclass(frozen=True)
class Release:
    """What all artefacts have in common."""

    name: str
    repository: str
    version: str
    server_image: str
    sandbox_image: str
    glibc: str
    program: Path
    packages: Path
    runtime: Path
    scratch: Path
    dist: Path
    # The description of the package with compiled code, for the program.
    compiled: str = ""

    @property
    def machine(self) -> str:
        return self.program.parts[-3].split("-")[0]

    @property
    def url(self) -> str:
        return f"https://github.com/{self.repository}"

    @property
    def mcp_name(self) -> str:
        return f"io.github.{self.repository.split('/')[0]}/{self.name}"

    def filled(self, path: str) -> str:
        """A file of this folder, with the names of the release in the place of `@NAME@` and the like."""

        class Template(string.Template):
            delimiter = "@"
            pattern = r"@(?:(?P<named>[A-Z_]+)@|(?P<braced>$^)|(?P<escaped>$^)|(?P<invalid>$^))"

        names = {
            "NAME": self.name, "VERSION": self.version, "SUMMARY": SUMMARY, "URL": self.url, "LICENCE": LICENCE,
            "MCP_NAME": self.mcp_name, "OWNER": self.repository.split("/")[0], "GLIBC": self.glibc,
            "REPOSITORY": self.repository, "SERVER_IMAGE": self.server_image, "DEBIAN": ARCHITECTURES[self.machine][1],
        }
        return Template((HERE / path).read_text("utf-8")).substitute(names)

    def says(self, *arguments: str) -> bytes:
        """What the program prints."""
        return subprocess.run([self.program, *arguments], check=True, capture_output=True).stdout

    def licences(self, at: str = "") -> Files:
        return {at + name: (ROOT / name, FILE) for name in ("LICENSE-MIT", "LICENSE-APACHE")}

    def installed(self, at: str) -> Files:
        """The program, and beside it the packages where it looks for them."""
        files = {f"{at}llm-sandbox": (self.program, PROGRAM)} | folder(self.packages, f"{at}packages/")
        return files | {f"{at}packages/compiled.json": (self.compiled, FILE)}


def tarball(release: Release) -> None:
    """The program, its manual page and completions, for any Linux."""
    top = f"llm-sandbox-{release.version}-{release.machine}-linux"
    files = release.installed(f"{top}/") | release.licences(f"{top}/")
    files[f"{top}/share/llm-sandbox.1"] = (release.says("man"), FILE)
    for shell in ("bash", "zsh", "fish"):
        files[f"{top}/share/llm-sandbox.{shell}"] = (release.says("completion", shell), FILE)
    tgz_of(release.dist / f"{top}.tar.gz", files)


def write_wheel(release: Release, name: str, tag: str, files: Files, metadata: str, more: Files) -> Path:
    """Writes a wheel: `files`, its description, and `more` of the folder with that."""
    module = name.replace("-", "_")
    info = f"{module}-{release.version}.dist-info"
    files = files | release.licences(f"{info}/licenses/") | {f"{info}/{path}": of for path, of in more.items()}
    files[f"{info}/METADATA"] = (metadata, FILE)
    pure = str(tag.endswith("-any")).lower()
    about = f"Wheel-Version: 1.0\nGenerator: {release.name}\nRoot-Is-Purelib: {pure}\nTag: {tag}\n"
    files[f"{info}/WHEEL"] = (about, FILE)
    lines = []
    for path in sorted(files):
        data = content(files[path][0])
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n", FILE)
    path = release.dist / f"{module}-{release.version}-{tag}.whl"
    zip_of(path, files)
    return path


def compiled(release: Release) -> Release:
    """The wheel with the compiled code of the embedded engine's Python, without which each machine compiles it."""
    # The architecture is in the name, and not in the tag: whatever Python pip has, the code is not for that.
    name = f"{release.name}-compiled-{release.machine.replace('_', '-')}"
    code = {f"{name.replace('-', '_')}/python.cwasm": (release.runtime / "python.cwasm", FILE)}
    about = (
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {release.version}\n"
        f"Summary: Compiled code for {release.name}\nLicense-Expression: {LICENCE}\n"
    )
    wheel = write_wheel(release, name, "py3-none-any", code, about, {})
    known = {
        "name": name,
        "version": release.version,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "key": (release.runtime / "python.cwasm.key").read_text("utf-8"),
    }
    return replace(release, compiled=json.dumps(known, indent=2) + "\n")


def wheel(release: Release) -> None:
    """The wheel. The program is in a module, beside the function that starts it."""
    module = release.name.replace("-", "_")
    tag = f"py3-none-manylinux_{release.glibc.replace('.', '_')}_{ARCHITECTURES[release.machine][2]}"
    start = f"{module}:main"
    files = release.installed(f"{module}/") | {
        f"{module}/__init__.py": (HERE / "wheel/launcher.py", FILE),
        f"{module}/__main__.py": (f"from {module} import main\n\nmain()\n", FILE),
    }
    commands = f"[console_scripts]\n{release.name} = {start}\nllm-sandbox = {start}\n"
    about = release.filled("wheel/METADATA") + "\n" + release.filled("ABOUT.md")
    write_wheel(release, release.name, tag, files, about, {"entry_points.txt": (commands, FILE)})


def npm(release: Release) -> None:
    """A package that starts the program, and a package for this architecture that contains it."""

    def package(name: str, files: Files, more: dict[str, object]) -> None:
        about = {
            "name": name, "version": release.version, "description": SUMMARY, "license": LICENCE,
            "repository": {"type": "git", "url": f"git+{release.url}.git"}, **more,
        }
        files["package/package.json"] = (json.dumps(about, indent=2) + "\n", FILE)
        tgz_of(release.dist / f"{name}-{release.version}.tgz", files | release.licences("package/"))

    cpu = ARCHITECTURES[release.machine][0]
    only = {"os": ["linux"], "cpu": [cpu], "libc": ["glibc"]}
    about = f"The program of `{release.name}` for Linux, {cpu}.\n"
    platform = f"{release.name}-linux-{cpu}"
    package(platform, release.installed("package/bin/") | {"package/README.md": (about, FILE)}, only)
    package(
        release.name,
        {
            "package/launcher.js": (HERE / "npm/launcher.js", PROGRAM),
            "package/README.md": (release.filled("ABOUT.md"), FILE),
        },
        {
            "mcpName": release.mcp_name,
            "bin": {release.name: "launcher.js", "llm-sandbox": "launcher.js"},
            "engines": {"node": ">=18"},
            "optionalDependencies": {
                f"{release.name}-linux-{cpu}": release.version for cpu, _, _ in ARCHITECTURES.values()
            },
        },
    )


def debian(release: Release) -> None:
    """The package of Debian, made by dpkg-deb from a folder."""
    stage = release.scratch / "deb"
    shutil.rmtree(stage, ignore_errors=True)

    def packed(data: bytes) -> bytes:
        return gzip.compress(data, 9, mtime=0)

    doc, lib = f"usr/share/doc/{release.name}", "usr/lib/llm-sandbox"
    files = release.installed(f"{lib}/") | {
        "etc/llm-sandbox/config.yaml": (HERE / "debian/config.yaml", FILE),
        "etc/llm-sandbox/service.env": (HERE / "debian/service.env", FILE),
        "usr/lib/sysusers.d/llm-sandbox.conf": (HERE / "debian/sysusers.conf", FILE),
        "usr/share/man/man1/llm-sandbox.1.gz": (packed(release.says("man")), FILE),
        "usr/share/bash-completion/completions/llm-sandbox": (release.says("completion", "bash"), FILE),
        "usr/share/zsh/vendor-completions/_llm-sandbox": (release.says("completion", "zsh"), FILE),
        "usr/share/fish/vendor_completions.d/llm-sandbox.fish": (release.says("completion", "fish"), FILE),
        f"{doc}/copyright": (release.filled("debian/copyright"), FILE),
        f"{doc}/changelog.gz": (packed((ROOT / "CHANGELOG.md").read_bytes()), FILE),
    }
    for unit in ("llm-sandbox.service", "llm-sandbox-runtime.service"):
        files[f"usr/lib/systemd/system/{unit}"] = (HERE / "debian" / unit, FILE)
    sums = [f"{hashlib.md5(content(files[name][0])).hexdigest()}  {name}\n" for name in sorted(files)]
    size = sum(len(content(data)) for data, _ in files.values()) // 1024 + 1
    conffiles = [f"/{name}\n" for name in sorted(files) if name.startswith("etc/")]
    files |= {
        "DEBIAN/control": (release.filled("debian/control") + f"Installed-Size: {size}\n", FILE),
        "DEBIAN/conffiles": ("".join(conffiles), FILE),
        "DEBIAN/md5sums": ("".join(sums), FILE),
        "DEBIAN/postinst": (HERE / "debian/postinst", PROGRAM),
        "DEBIAN/prerm": (HERE / "debian/prerm", PROGRAM),
        "DEBIAN/postrm": (HERE / "debian/postrm", PROGRAM),
    }
    for name, (data, mode) in files.items():
        path = stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(data))
        path.chmod(mode)
    (stage / "usr/bin").mkdir()
    for name in ("llm-sandbox", release.name):
        (stage / "usr/bin" / name).symlink_to("../lib/llm-sandbox/llm-sandbox")
    (stage / f"usr/share/man/man1/{release.name}.1.gz").symlink_to("llm-sandbox.1.gz")
    deb = release.dist / f"{release.name}_{release.version}_{ARCHITECTURES[release.machine][1]}.deb"
    made = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z6", "--threads-max=1", "--build", stage, deb]
    subprocess.run(made, check=True, stdout=subprocess.DEVNULL)


def mcpb(release: Release) -> None:
    """The bundle of MCP, which Claude Desktop installs."""
    cpu = ARCHITECTURES[release.machine][0]
    files = {"manifest.json": (release.filled("mcpb/manifest.json"), FILE)} | release.licences()
    files |= release.installed("server/")
    zip_of(release.dist / f"{release.name}-{release.version}-linux-{cpu}.mcpb", files, ("manifest.json",))


def plugin(release: Release) -> None:
    """The plugin of Claude Code: the server, and a skill that says how to use it."""
    top = HERE / "plugin"
    files = {
        str(path.relative_to(top)): (release.filled(f"plugin/{path.relative_to(top)}"), FILE)
        for path in top.rglob("*") if path.is_file()
    }
    zip_of(release.dist / f"{release.name}-{release.version}-claude-code.zip", files)


def chart(release: Release) -> None:
    """The Helm chart, with the manifests of kustomize, which it has as links, and the published images."""
    top = ROOT / "deploy/helm"
    files = folder(top / "templates", "llm-sandbox/templates/")
    files |= folder(ROOT / "deploy/kubernetes/base", "llm-sandbox/base/")
    files |= folder(ROOT / "deploy/kubernetes/components", "llm-sandbox/components/")
    values = {
        "Chart.yaml": {"version": release.version, "appVersion": release.version, "sources": f"[{release.url}]"},
        "values.yaml": {
            "server": f"{release.server_image}:{release.version}",
            "sandbox": f"{release.sandbox_image}:{release.version}",
        },
        "values.schema.json": {},
    }
    for name, changed in values.items():
        text = (top / name).read_text("utf-8")
        for key, value in changed.items():
            text, count = re.subn(rf"^( *{key}: ).*$", rf"\g<1>{value}", text, flags=re.MULTILINE)
            assert count == 1, f"{name}: {key}"
        files[f"llm-sandbox/{name}"] = (text, FILE)
    tgz_of(release.dist / f"llm-sandbox-{release.version}.tgz", files | release.licences("llm-sandbox/"))


def descriptions(release: Release) -> None:
    """Entries for the registry of MCP and the catalogue of Docker, and the list of parts."""
    for name in ("server.json", "server.yaml"):
        (release.dist / name).write_text(release.filled(f"catalogues/{name}"), "utf-8")
    triple = release.program.parts[-3]
    parts = sbom.document(release.name, release.version, triple)
    (release.dist / f"{release.name}-{release.version}-{release.machine}.cdx.json").write_text(parts, "utf-8")


def main() -> None:
    """Packs everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("name", "repository", "version", "server-image", "sandbox-image", "glibc"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("program", "packages", "runtime", "scratch", "dist"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    release = Release(**vars(parser.parse_args()))
    os.umask(0o022)
    release = compiled(release)
    for make in (tarball, wheel, npm, debian, mcpb, plugin, chart, descriptions):
        make(release)


if __name__ == "__main__":
    main()
