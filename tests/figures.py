#!/usr/bin/env python3
"""Prints figures of the repository's structure as a Markdown table, to compare from change to change:

    python3 tests/figures.py [--json]

Files are those that git tracks or would add. Test code is `tests.rs`, folders named `tests` or `fuzz`, and modules
under `#[cfg(test)]`; the other Rust files are the product, in which comments and strings are not code.

- modules in the largest cycle: top-level modules of the server's crate that can all reach one another through
  `crate::` and `super::` paths, in imports or elsewhere, re-exports included.
- methods of `Backend`: functions in the trait. Methods of `Sessions`: functions in all its `impl` blocks.
- files on the path of a run: the length of the list PATH, which is maintained by hand. If a listed file does not
  exist, the script names it and exits with 1. Correct the list then.
- files over 500 lines: files of the product that have more lines than that without their test modules.
- lines: all lines, including comments and blank lines. Documents are `.md` files.
- direct dependencies: distinct packages under `[dependencies]` of all members of the workspace, without the members.
- comment sentences with a free relative: sentences in comments of the product that begin with one of RELATIVES, so
  that the noun has to be guessed. Code blocks and headings in comments do not count.
- minutes of the gate: from the row "in total" of the table in tests/README.md between the lines
  `<!-- measured: stages -->` and `<!-- end -->`.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SERVER, MAX_LINES, SCRIPTS = "llm-sandbox", 500, (".sh", ".py", ".mjs", ".js", ".cjs")

# Path of `code` of run_python over standard input to a warm sandbox on Docker, in the order in which files are reached.
# A file counts if each such call passes through one of its functions: with the code, with the order to run it, or with
# the result on the way back. Files do not count if they only look at the code, admit or record the run, or shape the
# result (languages, session state, audit, history, report, notes), or if they only define or encode types.
PATH = {
    "the server": """
        src/mcp/stdio.rs src/mcp/message.rs src/mcp/mod.rs src/mcp/arguments.rs src/mcp/tools/run_python.rs
        src/mcp/call.rs src/sessions/mod.rs src/sessions/open.rs src/session/handle.rs src/session/driver.rs
        src/session/driver/runs.rs src/link/runs.rs src/link/wire.rs src/backend/docker/mod.rs""",
    "the sandbox": """
        crates/agent/src/hold/inbox.rs crates/sandbox-files/src/replies.rs crates/agent/src/serve.rs
        crates/agent/src/run.rs crates/agent/src/runner.rs crates/agent/src/runtimes/mod.rs
        crates/agent/src/runtimes/python/mod.rs crates/agent/src/runtimes/cold.rs
        crates/agent/src/runtimes/python/prefork.rs crates/agent/src/runtimes/python/zygote.rs
        sandbox-image/runtimes/python/zygote.py sandbox-image/runtimes/python/facts.py""",
}
RELATIVES = ("What", "Of", "Where", "That of", "Those of", "One that", "Whoever", "Nobody")

NOT_CODE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|\b[bc]?r(#*)".*?"\1|[bc]?"(?:\\.|[^"\\])*"|'(?:\\[^\n]+?|[^'\\\n])'""", re.DOTALL
)
TEST_MODULE = re.compile(r"^( *)#\[cfg\(test\)\]\n(?: *#\[[^\n]*\n)* *(?:pub\S* )?mod \w+ \{.*?^\1\}", re.M | re.DOTALL)


class RustFile:
    """A file of the product: its code, and its comments, both without test modules."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = (ROOT / path).read_text(encoding="utf-8")
        code = NOT_CODE.sub(lambda part: re.sub(r"[^\n]", " ", part[0]), text)
        tests = [module.span() for module in TEST_MODULE.finditer(code)]
        for start, end in reversed(tests):
            text, code = text[:start] + text[end:], code[:start] + code[end:]
        self.code, self.lines = code, text.count("\n")
        # Strings are gone, so that two slashes begin a comment. Lines without one keep comments apart.
        lines = NOT_CODE.sub(lambda part: part[0] if part[0].startswith("//") else " ", text).split("\n")
        self.comments = "\n".join(line.partition("//")[2].lstrip("/!").strip() for line in lines)


def in_repository() -> list[Path]:
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [Path(name) for name in sorted(set(names)) if name and (ROOT / name).is_file()]


def lines_of(paths: list[Path]) -> int:
    return sum((ROOT / path).read_bytes().count(b"\n") for path in paths)


def is_test(path: Path) -> bool:
    return path.name == "tests.rs" or not {"tests", "fuzz"}.isdisjoint(path.parts)


def read_path(tokens: list[str], at: int, module: list[str], found: list[list[str]]) -> int:
    """Reads a path, or a group of paths in braces, relative to a module; returns the index of what follows."""
    token = tokens[at]
    if token == "{":
        at += 1
        while tokens[at] != "}":
            at = read_path(tokens, at, module, found)
            while tokens[at] not in ",}":  # `as name`
                at += 1
            at += tokens[at] == ","
        return at + 1
    module = {"crate": [], "super": module[:-1], "self": module}.get(token, [*module, token])
    if tokens[at + 1] == "::" and re.match(r"\w|\{", tokens[at + 2]):
        return read_path(tokens, at + 2, module, found)
    found.append(module)
    return at + 1


def module_uses(files: list[RustFile], source: Path) -> dict[str, set[str]]:
    """The top-level modules of a crate, each with the others that its files name."""
    uses: dict[str, set[str]] = {}
    for file in files:
        if source not in file.path.parents or file.path.parent == source and file.path.stem in ("lib", "main"):
            continue
        module = [part for part in file.path.relative_to(source).with_suffix("").parts if part != "mod"]
        tokens, found, at = [*re.findall(r"::|\w+|\S", file.code), "", ""], [], 0
        while at < len(tokens) - 2:
            is_start = tokens[at] in ("crate", "super") and tokens[at + 1] == "::"
            at = read_path(tokens, at, module, found) if is_start else at + 1
        uses.setdefault(module[0], set()).update(path[0] for path in found if path)
    return {module: (used & uses.keys()) - {module} for module, used in uses.items()}


def largest_cycle(uses: dict[str, set[str]]) -> list[str]:
    """The largest group of modules that can all reach one another; empty if there is no cycle."""
    reached = {}
    for start in uses:
        seen, left = set(), [start]
        while left:
            new = uses[left.pop()] - seen
            seen |= new
            left += new
        reached[start] = seen
    groups = [sorted(other for other in reached[it] if it in reached[other]) for it in uses if it in reached[it]]
    return max(groups, key=len, default=[])


def methods(files: list[RustFile], head: str) -> list[str]:
    """The words before `fn` of each function in the blocks that begin with this head."""
    block = re.compile(rf"^{head}\b[^{{;]*\{{\n(.*?)^\}}", re.M | re.DOTALL)
    blocks = [found for file in files for found in block.findall(file.code)]
    return [words for found in blocks for words in re.findall(r"^    ((?:[a-z]\S* )*)fn ", found, re.M)]


def sentences(text: str) -> list[str]:
    """The sentences of comments: without fenced code and headings, items of lists apart."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.DOTALL)
    text = re.sub(r"^\s*(?:#.*|-+ )", "\n\n", text, flags=re.M)
    return [it for paragraph in text.split("\n\n") for it in re.split(r"(?<=[.?!])\s+", paragraph.strip()) if it]


def dependencies() -> tuple[set[str], Path]:
    """Names of direct dependencies, and the folder of the server's source."""
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]
    folders = [ROOT, *(folder for pattern in workspace.get("members", []) for folder in sorted(ROOT.glob(pattern)))]
    manifests = {it: tomllib.loads((it / "Cargo.toml").read_text(encoding="utf-8")) for it in folders}
    own = {it["package"]["name"]: folder for folder, it in manifests.items() if "package" in it}
    names = set()
    for manifest in manifests.values():
        for part in [manifest, *manifest.get("target", {}).values()]:
            for name, about in part.get("dependencies", {}).items():
                names.add(about.get("package", name) if isinstance(about, dict) else name)
    return names - own.keys(), (own[SERVER] / "src").relative_to(ROOT)


def gate_minutes() -> float | str:
    page = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    table = re.search(r"<!-- measured: stages -->\n(.*?)<!-- end -->", page, re.DOTALL)
    total = table and re.search(r"^\| *in total *\| *([\d,]+) s *\|", table[1], re.M)
    return round(int(total[1].replace(",", "")) / 60, 1) if total else "not recorded"


def figures() -> dict[str, list[int | float | str]]:
    """Each figure by its name, followed by its details."""
    paths = in_repository()
    rust = [path for path in paths if path.suffix == ".rs"]
    product = [RustFile(path) for path in rust if not is_test(path)]
    names, source = dependencies()

    uses = module_uses(product, source)
    cycle = largest_cycle(uses)
    sessions = methods(product, "impl Sessions")
    public = Counter(head.split(" ")[0] for head in sessions)
    hops = {part: listed.split() for part, listed in PATH.items()}
    long = sorted((file for file in product if file.lines > MAX_LINES), key=lambda file: -file.lines)
    lines: Counter[str] = Counter()
    for file in product:
        lines[str(file.path).partition("src/")[0].rstrip("/") or "src"] += file.lines
    scripts = {suffix: lines_of([path for path in paths if path.suffix == suffix]) for suffix in SCRIPTS}
    said = [sentence for file in product for sentence in sentences(file.comments)]
    relative = Counter(begin[1] for it in said if (begin := re.match(rf"({'|'.join(RELATIVES)})\b", it)))
    packages = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    return {
        "modules in the largest cycle": [len(cycle), f"of {len(uses)}", *cycle],
        "methods of `Backend`": [len(methods(product, r"(?:pub\S* )?trait Backend"))],
        "methods of `Sessions`": [len(sessions), *(f"{public[it]} `{it}`" for it in ("pub", "pub(crate)"))],
        "files on the path of a run": [sum(map(len, hops.values())), *(f"{len(hops[it])} of {it}" for it in hops)],
        f"files over {MAX_LINES} lines": [len(long), *(f"`{file.path}` {file.lines}" for file in long)],
        "lines of Rust, product": [lines.total(), *(f"{crate} {count:,}" for crate, count in lines.items())],
        "lines of Rust, tests": [lines_of(rust) - lines.total()],
        "lines of scripts": [sum(scripts.values()), *(f"{it[1:]} {count:,}" for it, count in scripts.items())],
        "lines of documents": [lines_of([path for path in paths if path.suffix == ".md"])],
        "direct dependencies": [len(names)],
        "packages in Cargo.lock": [len(packages)],
        "% of comment sentences with a free relative": [
            round(100 * relative.total() / len(said), 1),
            f"{relative.total():,} of {len(said):,}",
            *(f"{it} {relative[it]}" for it in RELATIVES),
        ],
        "minutes of the gate": [gate_minutes()],
    }


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--json"]):
        raise SystemExit(__doc__)
    counted = figures()
    if sys.argv[1:]:
        by_name = {name: {"value": it, "details": details} for name, (it, *details) in counted.items()}
        print(json.dumps(by_name, indent=2))
    else:
        print("| figure | value | details |\n|---|---:|---|")
        for name, (it, *details) in counted.items():
            print(f"| {name} | {f'{it:,}' if isinstance(it, int) else it} | {', '.join(map(str, details))} |")
    if missing := [hop for part in PATH.values() for hop in part.split() if not (ROOT / hop).is_file()]:
        raise SystemExit(f"correct PATH in this script, these files do not exist: {', '.join(missing)}")
