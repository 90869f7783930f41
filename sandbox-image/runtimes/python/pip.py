"""Takes the place of pip, conda, uv, npm and apt: there is no network, so nothing can be installed.

Says so at once, in one line, and names the installed replacements. `pip list`, `freeze` and `show` work. Root, who
builds images on this one, gets the real program.
"""

import os
import re
import sys
from importlib import metadata

# The real pip and npm, and the names of the libraries that are installed on purpose.
REAL_PIP = "/opt/sandbox/pip.zip/pip"
REAL_NPM = "/opt/sandbox/npm/bin"
LIBRARIES = "/opt/sandbox/runtimes/python/requirements.in"

# The folder into which packages are put from outside. If that is disabled, it cannot be written to.
PACKAGES = "/opt/packages"

# Programs that install packages for JavaScript, and the commands that do it.
OF_JAVASCRIPT = ("npm", "npx", "yarn", "pnpm")
INSTALLS = ("install", "i", "add", "ci", "exec", "dlx")

# Options that take the next argument, those that are likely.
WITH_VALUE = {
    "-c", "--constraint", "-f", "--find-links", "-i", "--index-url", "--extra-index-url", "-t", "--target",
    "--platform", "--prefix", "--proxy", "--python-version", "--root", "--timeout", "--trusted-host",
    "-n", "--name", "-p", "--python", "--channel",
}  # fmt: skip


def main(arguments=None, name="pip"):
    """Does what a command line asks for. Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else [*arguments]
    words = [word for word in arguments if not word.startswith("-")]
    if name == "uv" and words[:1] == ["pip"]:
        arguments.remove("pip")
        del words[0]
    command = words[0] if words else ""
    rest = arguments[arguments.index(command) + 1 :] if words else []
    if name in ("apt", "apt-get"):
        print(f"{name}: there is no network here, so nothing can be installed.", file=sys.stderr)
        return 1
    if name in OF_JAVASCRIPT:
        return refuse_javascript(name, words)
    if {"-V", "--version"} & {*arguments}:
        here = os.path.dirname(os.path.abspath(__file__))
        print(f"{name} 0 from {here} (python {sys.version_info.major}.{sys.version_info.minor})")
        return 0
    if command in ("", "help") or {"-h", "--help"} & {*arguments}:
        print(f"{name} list, freeze and show work; there is no network here, so nothing can be installed.")
        return 0
    if command in ("install", "add"):
        return install(rest, name)
    if command in ("list", "freeze"):
        return show_all(rest, command)
    if command == "show":
        return show_some(rest)
    return refuse(name, f"{command} is not possible")


def install(arguments, name):
    here, missing = [], []
    for requirement in requirements(arguments):
        known, meets = installed(requirement)
        if known:
            here.append(known)
        if not meets:
            missing.append(re.sub(r"[^!-~]", "?", requirement)[:80])
    if missing:
        there = f" (installed: {', '.join(here)})" if here else ""
        return refuse(name, f"{' '.join(missing)} cannot be installed{there}")
    if not here:
        return refuse(name, "nothing can be installed")
    for known in here:
        print(f"{known} is already installed.")
    return 0


def requirements(arguments):
    """Yields the requirements to be installed, also those in files."""
    arguments = iter(arguments)
    for argument in arguments:
        if argument in WITH_VALUE:
            next(arguments, None)
        elif argument in ("-r", "--requirement"):
            try:
                with open(next(arguments, "")) as lines:
                    yield from requirements(line.split(" #")[0].strip() for line in lines)
            except OSError:
                pass
        elif argument and not argument.startswith(("-", "#")):
            yield argument


def installed(requirement):
    """Returns name and version of the package that a requirement names, if it is installed, and whether it meets the
    requirement."""
    parts = re.fullmatch(r"([A-Za-z0-9][\w.-]*)\s*(?:\[.*?\])?\s*([^;]*)(?:;.*)?", requirement)
    if not parts:
        return None, False
    name, versions = parts.groups()
    if name in sys.stdlib_module_names:
        return f"{name} (a part of Python)", True
    try:
        known = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        # The name may be the one by which it is imported.
        others = metadata.packages_distributions().get(name)
        if not others:
            return None, False
        known = metadata.metadata(others[0])
    meets = True
    if versions:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        try:
            meets = SpecifierSet(versions.strip("() ")).contains(known["Version"], prereleases=True)
        except InvalidSpecifier:
            meets = False
    return f"{known['Name']} {known['Version']}", meets


def refuse(name, what):
    if os.access(PACKAGES, os.W_OK):
        instead = "The tool install_package can install packages for Python."
        print(f"{name}: there is no network here, so {what} this way. {instead}", file=sys.stderr)
        return 1
    try:
        with open(LIBRARIES) as lines:
            names = [line.strip() for line in lines if not line.startswith("#")]
        instead = f"Use what is installed: {', '.join(names)}; `pip list` shows all."
    except OSError:
        instead = "`pip list` shows what is installed."
    print(f"{name}: there is no network here, so {what}. {instead}", file=sys.stderr)
    return 1


def refuse_javascript(name, words):
    wanted = words if name == "npx" else words[1:]
    is_install = name == "npx" or not words or words[0] in INSTALLS
    if wanted and is_install:
        what = f"{re.sub(r'[^!-~]', '?', wanted[0])[:80]} cannot be installed"
    else:
        what = "nothing can be installed" if is_install else f"{re.sub(r'[^!-~]', '?', words[0])[:80]} is not possible"
    if os.access(PACKAGES, os.W_OK):
        what += " this way. The tool install_package, with language javascript, can install npm packages"
    else:
        what += ". Use Node's own modules"
    print(f"{name}: there is no network here, so {what}.", file=sys.stderr)
    return 1


def everything():
    """Name and version of all that is installed."""
    found = {(known.name, known.version) for known in metadata.distributions()}
    return sorted(found, key=lambda known: known[0].lower())


def show_all(arguments, command):
    text = " ".join(arguments)
    if "json" in text:
        import json

        print(json.dumps([{"name": name, "version": version} for name, version in everything()]))
    elif command == "freeze" or "freeze" in text:
        for name, version in everything():
            print(f"{name}=={version}")
    else:
        known = [("Package", "Version"), *everything()]
        width = max(len(name) for name, _ in known)
        known.insert(1, ("-" * width, "-" * max(len(version) for _, version in known)))
        for name, version in known:
            print(f"{name:{width}} {version}")
    return 0


def show_some(arguments):
    code = 0
    for name in arguments:
        if name.startswith("-"):
            continue
        try:
            known = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            print(f"{name[:80]} is not installed.", file=sys.stderr)
            code = 1
            continue
        needs = dict.fromkeys(re.match(r"[\w.-]+", need)[0] for need in known.requires or () if "extra ==" not in need)
        about = known.metadata
        print(f"Name: {about['Name']}\nVersion: {about['Version']}\nSummary: {about['Summary'] or ''}")
        print(f"License: {about['License-Expression'] or (about['License'] or '').partition('\n')[0]}")
        print(f"Location: {known.locate_file('')}\nRequires: {', '.join(needs)}")
    return code


def command():
    """The entry point, for calls by name and as `python -m pip`."""
    name = os.path.basename(sys.argv[0])
    name = "pip" if name.startswith(("pip", "__main__")) else name
    if os.geteuid() == 0:
        become_real(name)
    sys.exit(main(name=name))


def become_real(name):
    """Runs the program that this one replaces."""
    if name == "pip":
        os.execv(sys.executable, [sys.executable, REAL_PIP, *sys.argv[1:]])
    if name in ("npm", "npx"):
        os.execvp("node", ["node", f"{REAL_NPM}/{name}-cli.js", *sys.argv[1:]])
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        program = os.path.join(folder, name)
        if os.access(program, os.X_OK) and os.path.realpath(program) != os.path.realpath(sys.argv[0]):
            os.execv(program, [program, *sys.argv[1:]])
    sys.exit(f"{name} is not in this image.")


if __name__ == "__main__":
    command()
