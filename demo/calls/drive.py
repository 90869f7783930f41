"""Lets one cell call the tools of three MCP servers, and compares its result with a computation of its own.

The servers are those that run.sh has installed. The answer to the question of the server whether a call may be made is
the one that a person would give on a form.
"""

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import company

HERE = Path(__file__).resolve().parent
ANALYSIS = (HERE / "analysis.py").read_text(encoding="utf-8")

# Code by which a model finds the tools before it writes the analysis.
LOOK = """import tools
for words in "read text file", "sql query", "open nodes": print(tools.search(words, 1))
print(tools.briefs.list_directory("2026-q2")["content"][:60], tools.finance.read_query("SELECT sql FROM sqlite_master"))
print(tools.briefs.read_text_file("2026-q2/email_newsletter.md")["content"][:130])
print(str(tools.people.open_nodes(["Email team"]))[:150])"""
# The analysis by a model that has called the tools itself: it has to write down what they have answered.
RETYPED = f"""import io, pandas as pd

known = '''channel,campaign,budget,amount,target,lead,fee
TABLE'''
key = ["channel", "campaign"]
ads = pd.read_csv("ads.csv").groupby(key)[["spend", "revenue"]].sum()
ads = ads.join(pd.read_csv(io.StringIO(known)).set_index(key))
{ANALYSIS[ANALYSIS.index('ads["over_budget"]') : ANALYSIS.index("rows = ")]}"""
DELETE = "tools.finance.write_query('DELETE FROM budgets')"


class Connection:
    """A client of MCP over standard input and output, that has forms if it is given who answers them."""

    def __init__(self, command: list[str], more: dict[str, str], answers: Callable[[str], str] | None = None) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | more, encoding="utf-8"
        )
        self.number, self.answers = 0, answers
        capabilities = {"elicitation": {}} if answers else {}
        client = {"name": "demo", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client}
        self.request("initialize", hello)
        self.send({"method": "notifications/initialized"})

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()

    def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        self.process.stdin.flush()

    def request(self, method: str, params: dict) -> dict:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("method") == "elicitation/create":
                decision = self.answers(message["params"]["message"])
                result = {"action": "accept", "content": {"decision": decision}}
                self.send({"id": message["id"], "result": result})
            elif message.get("id") == self.number and "method" not in message:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]
        sys.exit("The server has ended; what it said is above.")

    def tools(self) -> list[dict]:
        """The tools as a client shows them to a model."""
        listed = self.request("tools/list", {})["tools"]
        return [{key: tool[key] for key in ("name", "description", "inputSchema")} for tool in listed]

    def call(self, tool: str, arguments: dict) -> dict:
        result = self.request("tools/call", {"name": tool, "arguments": arguments})
        if result.get("isError"):
            sys.exit(f"{tool}: {result['content']}")
        return result


class Person:
    """Answers forms as it was told, and keeps the questions."""

    def __init__(self) -> None:
        self.decision, self.questions = "deny", []

    def __call__(self, question: str) -> str:
        self.questions.append(question)
        print(textwrap.indent(question, "   ? "))
        print(f"   the person answers: {self.decision}", flush=True)
        return self.decision


def expect(holds: object, promise: str, found: object = None) -> None:
    if not holds:
        sys.exit(f"Not as expected: {promise}; found {found!r}")
    print(f"ok  {promise}", flush=True)


def upstreams(folder: Path) -> dict[str, dict[str, Any]]:
    """The section of the settings file."""
    packages, made = folder / "node_modules" / ".bin", folder / "company"
    return {
        "briefs": {
            "command": str(packages / "mcp-server-filesystem"),
            "args": [str(made / "briefs")],
            "cwd": str(made / "briefs"),
            "description": "Briefs of the campaigns, a folder for each quarter",
        },
        "people": {
            "command": str(packages / "mcp-server-memory"),
            "env": {"MEMORY_FILE_PATH": str(made / "graph.jsonl")},
            "description": "Teams, agencies and their fees",
        },
        "finance": {
            "command": str(folder / "venv" / "bin" / "mcp-server-sqlite"),
            "args": ["--db-path", str(made / "finance.db")],
            "description": "Budgets and invoices, in SQLite",
            # This server does not say which of its tools only read.
            "allow": ["read_query", "list_tables", "describe_table"],
            "ask": ["write_query"],
        },
    }


def start(options: argparse.Namespace, person: Person | None, entries: dict[str, Any]) -> Connection:
    """The server, with these upstreams."""
    file = options.folder / "config.yaml"
    # JSON is YAML.
    file.write_text(json.dumps({"upstreams": entries} if entries else {}))
    settings = {"SANDBOX_CONFIG_FILE": str(file), "SANDBOX_ENV_FILE": "/dev/null", "SANDBOX_LOG_FILE": ""}
    settings |= {"SANDBOX_LOG_LEVEL": "ERROR", "SANDBOX_HTTP_PORT": "0"}
    settings |= {"SANDBOX_AUDIT_FILE": str(options.folder / "audit.jsonl")} if entries else {}
    return Connection([str(options.server)], settings, person)


def audited(options: argparse.Namespace) -> list[str]:
    """The calls out of sandboxes that the audit file has, as upstream and tool."""
    lines = map(json.loads, (options.folder / "audit.jsonl").read_text().splitlines())
    return [line["tool"] for line in lines if "." in line.get("tool", "")]


class Model:
    """Uploads the export, and runs cells beside it. Keeps what a model would have sent and read."""

    def __init__(self, server: Connection, known: company.Company, turns: list[dict]) -> None:
        self.server, self.turns = server, turns
        uploaded = server.call("upload_file", {"filename": "ads.csv", "text": known.export})["structuredContent"]
        self.session = {"session_id": uploaded["session_id"]}
        print(f"\nupload_file: ads.csv, {known.rows:,} rows")

    def cell(self, code: str) -> dict:
        print(f"\nexecute_code\n{textwrap.indent(code.rstrip(), '   > ')}", flush=True)
        arguments = {"code": code} | self.session
        result = self.server.call("execute_code", arguments)
        self.turns.append({"call": {"name": "execute_code", "arguments": arguments}, "content": result["content"]})
        ran = result["structuredContent"]
        printed = "\n".join(str(ran[key]) for key in ("stdout", "result", "error_message") if ran.get(key))
        print(textwrap.indent(printed, "   "), flush=True)
        return ran


def analyse(options: argparse.Namespace, known: company.Company) -> dict[str, Any]:
    """Returns what a model was given by code."""
    person, database = Person(), options.folder / "company" / "finance.db"
    turns: list[dict] = []
    with start(options, person, upstreams(options.folder)) as server:
        tools = server.tools()
        model = Model(server, known, turns)
        expect(model.cell(LOOK)["status"] == "success", "a model finds the tools, and sees what they answer")
        before = len(audited(options))
        person.decision = "once"
        ran = model.cell(ANALYSIS)
        expect(ran["status"] == "success", "the analysis ends well", ran)
        table, _, written = ran["stdout"].partition("\n\n")
        calls = Counter(audited(options)[before:])
        made = ", ".join(f"{count} of {name}" for name, count in calls.items())
        count = len(known.campaigns) + len(company.TEAMS) + 4
        expect(calls.total() == count, f"the audit file has {calls.total()} calls: {made}", calls)
        compare(list(csv.DictReader(io.StringIO(table))), known.findings())
        expect("affected_rows" in written and len(person.questions) == 1, "a person was asked once", written)
        rows = company.read(database, "SELECT * FROM reviews ORDER BY 1, 2")
        wanted = [(it["channel"], it["campaign"], it["why"]) for it in known.findings()]
        expect(rows == wanted, "and the reviews are in the database", rows)
        person.decision = "deny"
        ran = model.cell(DELETE)
        expect(ran["status"] != "success" and "Denied" in str(ran), "what the person denies is an exception", ran)
        left = company.read(database, "SELECT count(*) FROM budgets")[0][0]
        expect(left == 3 * len(known.campaigns), "and no budget is deleted", left)
    with start(options, None, {}) as server:
        without = server.tools()
    return {"tools": tools, "without": without, "turns": turns[:2]}


def compare(rows: list[dict], wanted: list[dict]) -> None:
    names = [(row["channel"], row["campaign"], row["lead"], row["why"]) for row in rows]
    known = [(it["channel"], it["campaign"], it["lead"], it["why"]) for it in wanted]
    expect(names == known, f"the {len(known)} campaigns are found, and why", names)
    figures = ("over_budget", "over_invoiced", "return", "target")
    pairs = zip(wanted, rows, strict=True)
    wrong = [(it, row) for it, row in pairs for key in figures if abs(it[key] - float(row[key])) > 0.0011]
    expect(not wrong, "with the figures of a computation without sandbox", wrong)


def direct(options: argparse.Namespace, known: company.Company) -> dict[str, Any]:
    """Returns what a model is given that makes the same calls itself. Each server is asked as a client asks it."""
    where = "WHERE month BETWEEN '2026-04' AND '2026-06' GROUP BY 1, 2"
    sql = "SELECT channel, campaign, sum({0}) AS {0} FROM {1} {2}"
    channels = sorted({it.channel for it in known.campaigns})
    reviews = ", ".join(f"('{it['channel']}', '{it['campaign']}', '{it['why']}')" for it in known.findings())
    calls: dict[str, list[tuple[str, dict]]] = {
        "briefs": [("list_directory", {"path": company.QUARTER})],
        "people": [("open_nodes", {"names": [f"{channel} team"]}) for channel in channels],
        "finance": [
            ("read_query", {"query": sql.format("budget", "budgets", where)}),
            ("read_query", {"query": sql.format("amount", "invoices", where)}),
            ("write_query", {"query": f"INSERT INTO reviews VALUES {reviews}"}),
        ],
    }
    paths = sorted(f"{company.QUARTER}/{company.file_of(it)}" for it in known.campaigns)
    calls["briefs"] += [("read_text_file", {"path": path}) for path in paths]
    listed, turns = [], []
    for name, entry in upstreams(options.folder).items():
        command = [entry["command"], *entry.get("args", [])]
        os.chdir(entry.get("cwd", options.folder))
        with Connection(command, entry.get("env", {})) as server:
            listed += server.tools()
            for tool, given in calls[name]:
                content = server.call(tool, given)["content"]
                turns.append({"call": {"name": tool, "arguments": given}, "content": content})
    with start(options, None, {}) as server:
        table = []
        for it in known.campaigns:
            lead, _, fee = company.TEAMS[it.channel]
            table.append(f"{it.channel},{it.name},{it.budget},{it.invoiced},{it.target},{lead},{fee / 100}")
        ran = Model(server, known, turns).cell(RETYPED.replace("TABLE", "\n".join(table)))
        expect(ran["status"] == "success", "the analysis of retyped values ends well", ran)
        compare(list(csv.DictReader(io.StringIO(ran["stdout"]))), known.findings())
    return {"tools": listed, "turns": turns}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", type=Path, required=True, help="the program")
    parser.add_argument("--folder", type=Path, required=True, help="a temporary folder, with the servers of others")
    parser.add_argument("--transcript", type=Path, help="writes what a model is given, by code and by direct calls")
    options = parser.parse_args()
    known = company.make()
    made = options.folder / "company"
    company.write_briefs(known, made / "briefs" / company.QUARTER)
    company.write_database(known, made / "finance.db")
    company.write_graph(known, made / "graph.jsonl")
    by_code = analyse(options, known)
    if options.transcript:
        options.transcript.write_text(json.dumps({"code": by_code, "direct": direct(options, known)}))
    print("All answers were as expected.")


if __name__ == "__main__":
    main()
