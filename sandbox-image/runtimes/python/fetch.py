"""Gets wheels from an index: the program that a fetcher runs.

A fetcher is a sandbox with a network and nothing else. It reads a request as JSON from its standard input, writes the
wheels to its working folder, and prints a line before each step and a line of JSON at the end. It runs nothing that it
gets: it only asks for wheels, and only stores them.
"""

import configparser
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from importlib import metadata

# The pip of the image, or of the interpreter if there is no image.
PACKED = "/opt/sandbox/pip.zip"

# Ends a process when the one that has started it ends, however that happens.
ENDS_WITH_ITS_PARENT = """
import ctypes, os, signal
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
"""

# Runs pip where it can start no other process. Options alone do not keep it from building: a wheel may need another
# package by its address, which pip takes in any form, and to learn what a source package needs, pip runs its code.
# Packages by their address and files of this machine are not taken, wherever an index leads, as they are not packages
# of the index.
GUARDED = ENDS_WITH_ITS_PARENT + """
import resource, sys

resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
HERE = os.path.realpath(os.getcwd()) + os.sep

STARTS = ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn")

def guard(event, arguments):
    if event in STARTS:
        raise OSError("nothing may be started here")
    if event == "open" and isinstance(arguments[0], str) and arguments[0].endswith((".whl", ".zip", ".gz")):
        if arguments[0] != packed and not os.path.realpath(arguments[0]).startswith(HERE):
            raise OSError("files of this machine are not taken")

packed = sys.argv.pop(1)
if packed:
    sys.path.insert(0, packed)
from pip._vendor.packaging import requirements

parse = requirements.Requirement.__init__

def parse_names_alone(self, text):
    parse(self, text)
    if self.url:
        raise requirements.InvalidRequirement("a package by its address is not taken")

requirements.Requirement.__init__ = parse_names_alone
from pip._internal.cli.main import main
from pip._internal.network.session import LocalFSAdapter

def send_nothing(*_, **__):
    raise OSError("files of this machine are not taken")

LocalFSAdapter.send = send_nothing

sys.addaudithook(guard)
sys.exit(main(sys.argv[1:]))
"""
PIP = [sys.executable, "-I", "-c", GUARDED, PACKED if os.path.exists(PACKED) else ""]

# Options in pip's configuration files that are about this machine and not about the index.
LOCAL_OPTIONS = {
    "build-constraint", "cache-dir", "cert", "client-cert", "constraint", "isolated", "log", "no-binary",
    "only-binary", "prefix", "python", "quiet", "report", "require-hashes", "require-virtualenv", "requirement",
    "root", "src", "target", "user", "verbose",
}  # fmt: skip

# Maximum number of characters of pip's messages that are passed on.
MAX_REASON = 600

# Seconds between two checks of what pip has written, and bytes of lists and copies that may be there beside packages.
LOOK, BESIDE = 0.2, 48 << 20

# The file in which pip says more than it shows.
LOG = "pip.log"

# Maximum number of bytes of pip's output that are read.
MAX_SAID = 1 << 20

# The messages of GUARDED when it refuses a package, and the message after pip was killed for its size.
BY_ADDRESS, LOCAL = "a package by its address is not taken", "files of this machine are not taken"
TOO_LARGE = "it is larger than packages may be"


def main():
    exec(ENDS_WITH_ITS_PARENT, {})
    request = json.load(sys.stdin)
    here = os.getcwd()
    # The server keeps the deadline; this alarm is for the case that the server cannot end the process.
    signal.alarm(request["seconds"] + 5)
    home = os.path.join(here, "home")
    os.makedirs(home)
    environment = {
        name: value for name, value in os.environ.items() if not name.upper().startswith(("PIP_", "PYTHON"))
    }
    environment |= {"HOME": home, "TMPDIR": home, "XDG_CONFIG_HOME": os.path.join(home, ".config")}
    environment |= request["environment"]
    configure(request, home, environment)
    print(f"looking for {request['requirement']}", flush=True)
    answer(get(request, environment))


def answer(found):
    print(json.dumps(found), flush=True)
    sys.exit(0)


def configure(request, home, environment):
    """Writes pip's own configuration, as the server's machine has it."""
    folder = os.path.join(home, ".config", "pip")
    os.makedirs(folder)
    own = configparser.RawConfigParser(strict=False)
    for text in request["configuration"]:
        try:
            own.read_string(text)
        except configparser.Error as error:
            answer({"failed": "index", "reason": f"pip's configuration cannot be read: {error}"})
    for section in own.sections():
        for option in own.options(section):
            value = own.get(section, option)
            is_local = option == "find-links" and "://" not in value
            if option in LOCAL_OPTIONS or is_local:
                own.remove_option(section, option)
    with open(os.path.join(folder, "pip.conf"), "w") as file:
        own.write(file)
    if request["certificates"]:
        certificates = os.path.join(home, "ca.pem")
        with open(certificates, "w") as file:
            file.write(usual_certificates() + "\n" + request["certificates"])
        environment["PIP_CERT"] = certificates


def usual_certificates():
    """Returns the certificates that pip comes with: a proxy may sign only some of the connections."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from pip._vendor import certifi; print(certifi.contents())"
    done = subprocess.run([sys.executable, "-I", "-c", code, PIP[-1]], capture_output=True, text=True)
    return done.stdout


def pip(arguments, environment):
    """Runs pip to its end, or until it has written more than it may. Returns its exit code and its outputs."""
    common = ["--disable-pip-version-check", "--no-input", "--no-color", "--no-cache-dir", "--log", LOG]
    command = PIP + arguments[:1] + common + arguments[1:]
    if os.path.exists(LOG):
        os.remove(LOG)
    with open("pip.out", "w+b") as out, open("pip.err", "w+b") as err:
        running = subprocess.Popen(command, stdout=out, stderr=err, env=environment, stdin=subprocess.DEVNULL)
        is_too_large = False
        while True:
            try:
                running.wait(LOOK)
                break
            except subprocess.TimeoutExpired:
                if not is_too_large and written() > limit:
                    is_too_large = True
                    running.kill()
        for file in (out, err):
            file.seek(0)
        said = [file.read(MAX_SAID).decode(errors="replace") for file in (out, err)]
    if is_too_large:
        said[1] += f"\n{TOO_LARGE}\n"
    return subprocess.CompletedProcess(command, running.returncode, *said)


def written():
    """Bytes of all files below the working folder."""
    total = 0
    for folder, _, names in os.walk("."):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                pass
    return total


def get(request, environment):
    global limit
    limit = request["bytes"] + BESIDE
    # Installed packages stay as they are.
    pure_for, there = request["pure_for"], {}
    if not pure_for:
        there = {plain(known.name): known.version for known in metadata.distributions() if known.name}
    there |= request["present"]
    with open("constraints.txt", "w") as file:
        file.writelines(f"{name}=={version}\n" for name, version in there.items())
    wanted = [*wheels_for(request), "--constraint", "constraints.txt"]
    if pure_for:
        stand_ins(request["present"])
        wanted += ["--ignore-installed", "--target", "nowhere", "--find-links", "there"]
    report = ["--dry-run", "--progress-bar", "off", "--report", "report.json"]
    done = pip(["install", *report, *wanted, request["requirement"]], environment)
    if done.returncode != 0:
        return explained(done, request, environment)
    with open("report.json") as file:
        found = [of_report(one) for one in json.load(file)["install"]]
    found = [one for one in found if plain(one["name"]) not in request["present"]]
    if any(one["sha256"] is None for one in found):
        return {"failed": "refused", "reason": "The index has no SHA-256 hash of it, but another."}
    if found:
        names = ", ".join(f"{one['name']} {one['version']}" for one in found)
        print(f"downloading {names}"[:400], flush=True)
        with open("pinned.txt", "w") as file:
            file.writelines(f"{one['name']}=={one['version']} --hash=sha256:{one['sha256']}\n" for one in found)
        exactly = ["--progress-bar", "off", "--no-deps", "--require-hashes", *wheels_for(request), "--dest", "wheels"]
        done = pip(["download", *exactly, "--requirement", "pinned.txt"], environment)
        if done.returncode != 0:
            return explained(done, request, environment)
        by_name = {}
        for name in os.listdir("wheels"):
            project, version = name.split("-")[:2]
            by_name[plain(project), version] = name
        for one in found:
            # A version may be written in several ways; each project occurs once.
            files = [name for (project, _), name in by_name.items() if project == plain(one["name"])]
            one["file"] = files[0] if len(files) == 1 else None
    name = re.match(r"[\w.-]+", request["requirement"])[0]
    packed = {plain(known.name): known.version for known in metadata.distributions(path=[PACKED])}
    version = there.get(plain(name)) or packed.get(plain(name))
    return {"found": found, "version": version, "stdlib": sorted(sys.stdlib_module_names)}


def wheels_for(request):
    """Returns the options of pip for the wheels that are wanted."""
    only, pure_for = ["--only-binary", ":all:"], request["pure_for"]
    if not pure_for:
        return only
    return [*only, "--platform", "any", "--implementation", "py", "--abi", "none", "--python-version", pure_for]


def stand_ins(present):
    """Writes empty wheels for installed packages that pip does not know: pip would look for pure wheels of them."""
    os.makedirs("there")
    for name, version in present.items():
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(f"there/{stem}-py3-none-any.whl", "w") as wheel:
            about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            wheel.writestr(f"{stem}.dist-info/METADATA", about)
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{stem}.dist-info/RECORD", "")


def of_report(one):
    hashes = one["download_info"].get("archive_info", {}).get("hashes", {})
    return {
        "name": one["metadata"]["name"],
        "version": one["metadata"]["version"],
        "sha256": hashes.get("sha256"),
    }


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def explained(done, request, environment):
    """Returns why pip failed, if that is known."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    text = "\n".join(lines)
    if TOO_LARGE in text or "No space left" in text or "Disk quota" in text:
        return {"failed": "too_large"}
    if BY_ADDRESS in text or LOCAL in text:
        what = "a package by its address" if BY_ADDRESS in text else "a file of the server's machine"
        return {"failed": "refused", "reason": f"It needs {what}, and only packages of the index are taken."}
    if "MemoryError" in text:
        return {"failed": "index", "reason": "The index sent more than can be read"}
    # pip names the requirements that conflict on its standard output, up to a blank line.
    if conflict := re.search(r"conflict is caused by:\n(.*?)\n\s*\n", done.stdout + "\n\n", re.DOTALL):
        # pip also reports a conflict if the version does not exist. A request for this version alone distinguishes the
        # two.
        alone = ["--dry-run", "--no-deps", "--ignore-installed", *wheels_for(request)]
        if request["pure_for"]:
            alone += ["--target", "nowhere"]
        done = pip(["install", *alone, request["requirement"]], environment)
        if done.returncode != 0 and "conflict is caused by" not in done.stdout:
            return explained(done, request, environment)
        reason_given = "; ".join(line.strip() for line in conflict[1].splitlines())
        return {"failed": "conflict", "reason": reason_given[:MAX_REASON]}
    if "DO NOT MATCH THE HASHES" in text or "Hash mismatch" in text:
        return {"failed": "refused", "reason": "What the index sent is not what it says it has."}
    if missing := re.search(r"requirement (\S.*?) \(from versions: (.*?)\)", text):
        versions = [] if missing[2] == "none" else missing[2].split(", ")
        requirement = missing[1].partition(" (from")[0]
        if versions:
            return {"failed": "version", "requirement": requirement, "versions": versions[-20:]}
        if why := unreachable():
            return {"failed": "index", "reason": reason([why])}
        if request["pure_for"]:
            # Finds out whether there is a wheel for this machine.
            here = ["--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:"]
            if pip(["install", *here, requirement], environment).returncode == 0:
                return {"failed": "compiled", "requirement": requirement}
        return {"failed": "missing", "requirement": requirement, "sources": versions_of(requirement, environment)}
    return {"failed": "index", "reason": reason(lines)}


def unreachable():
    """Returns why an index could not be reached, if one could not. pip treats such an index as empty."""
    with open(LOG, errors="replace") as file:
        failed = re.findall(r"Could not fetch URL \S+: (.*) - skipping", file.read(MAX_SAID))
    return next((why for why in failed if not why.startswith("404")), None)


def versions_of(requirement, environment):
    """Returns the versions of a project that exist, in any form."""
    name = re.match(r"[\w.-]+", requirement)
    if not name:
        return []
    done = pip(["index", "versions", "--pre", name[0]], environment)
    versions = re.search(r"Available versions: (.*)", done.stdout)
    return versions[1].split(", ")[:20] if versions else []


def reason(lines):
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-2:]
    text = " ".join(line.removeprefix("ERROR:").strip() for line in errors[:3])
    # Addresses of indexes may contain passwords.
    return re.sub(r"://[^/\s@]*@", "://", text)[:MAX_REASON]


if __name__ == "__main__":
    main()
