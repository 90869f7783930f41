#!/usr/bin/env python3
"""An agent's workflow with execute_code: cells that share their variables, on either engine.

It prints the code of each cell and what the agent gets back: load a CSV, analyse it, stop a cell that does not end,
chart, report. A cell that does not end as expected ends the program with exit code 1.
"""

import argparse
import os
import textwrap
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters, stdio_client

ROOT = Path(__file__).resolve().parent.parent
MONTHS = ("January", "February", "March", "April", "May", "June")
CSV = "month,region,orders,revenue\n" + "".join(
    f"{month},{region},{base + 7 * n},{(base + 7 * n) * price}\n"
    for n, month in enumerate(MONTHS)
    for region, base, price in (("North", 120, 19.5), ("South", 80, 24.0), ("West", 150 - 20 * n, 21.0))
)

# Each with the status that it ends with. The next cell has the variables of those before.
CELLS = [
    ("success", "# Load\nimport pandas as pd\nsales = pd.read_csv('sales.csv')\nsales.head(3)"),
    (
        "success",
        "# Analyse\nby_region = sales.groupby('region')[['orders', 'revenue']].sum()\n"
        "by_region['price'] = (by_region.revenue / by_region.orders).round(2)\nby_region",
    ),
    ("timeout", "# A mistake\nby_region = None\nwhile True: pass"),
    (
        "success",
        "# Chart: by_region is what it was before the cell that was stopped\nimport matplotlib.pyplot as plt\n"
        "by_month = sales.pivot(index='month', columns='region', values='revenue').loc[sales.month.unique()]\n"
        "by_month.plot(kind='bar', title='Revenue by month')\nplt.tight_layout()\nplt.show()\nby_region.revenue.idxmax()",
    ),
    (
        "success",
        "# Report\nchange = (by_month.iloc[-1] / by_month.iloc[0] - 1).mul(100).round(1)\n"
        "lines = [f'- {region}: {percent:+} % from {by_month.index[0]} to {by_month.index[-1]}' for region, percent in change.items()]\n"
        "with open('report.md', 'w') as report:\n    report.write('# Sales by region\\n\\n' + '\\n'.join(lines) + '\\n')\n"
        "print(*lines, sep='\\n')",
    ),
]


def show(label: str, text: object) -> None:
    text = str(text).rstrip()
    print(textwrap.indent(f"{label}:\n{text}" if "\n" in text else f"{label}: {text}", "   "), flush=True)


async def call(client: Client, tool: str, **arguments: Any) -> tuple[dict[str, Any], int]:
    """Returns a tool's answer, and the number of images in it."""
    result = await client.call_tool(tool, arguments)
    answer = result.structured_content
    if result.is_error or answer is None:
        raise SystemExit(f"{tool} failed: {result.content}")
    return answer, sum(block.type == "image" for block in result.content)


async def work(server: Path) -> None:
    passed = {name: value for name, value in os.environ.items() if name.startswith(("DOCKER_", "SANDBOX_", "XDG_"))}
    environment = passed | {"SANDBOX_LOG_FILE": "", "SANDBOX_LOG_LEVEL": "ERROR"}
    parameters = StdioServerParameters(command=str(server), args=[], env=environment)
    async with Client(stdio_client(parameters), read_timeout_seconds=120) as client:
        uploaded, _ = await call(client, "upload_file", filename="sales.csv", text=CSV)
        session = {"session_id": uploaded["session_id"]}
        print(f"upload_file: {uploaded['path']}, {uploaded['size_bytes']} bytes, in session {uploaded['session_id']}")
        for number, (wanted, code) in enumerate(CELLS, 1):
            print(f"\nexecute_code {number} of {len(CELLS)}")
            print(textwrap.indent(code, "   > "), flush=True)
            seen, images = await call(client, "execute_code", code=code, timeout=5 if wanted == "timeout" else 60, **session)
            show("status", f"{seen['status']}, variables {seen['state']}, {seen['execution_time_ms']:.0f} ms")
            for field in ("stdout", "stderr", "result", "error_message"):
                if seen.get(field):
                    show(field, seen[field])
            for note in seen.get("notes", []):
                show("note", note)
            for file in seen["artifacts"]:
                show("artifact", f"{file['filename']}, {file['size_bytes']} bytes, {file['download_url']}")
            if images:
                show("images that the agent sees", images)
            if seen["status"] != wanted:
                raise SystemExit(f"The cell ended with {seen['status']}, and {wanted} was expected.")
        info, _ = await call(client, "get_workspace_info", **session)
        print(f"\nget_workspace_info: {', '.join(info['variables'])}; cells that can be undone: {info['can_undo']}")
        listed, _ = await call(client, "list_artifacts", **session)
        names = [file["filename"] for file in listed["artifacts"]]
        print(f"list_artifacts: {', '.join(names)}")
        if names != ["figure_1.png", "report.md", "sales.csv"]:
            raise SystemExit("The chart, the report and the upload were expected.")
        closed, _ = await call(client, "close_session", **session)
        print(f"close_session: {closed['status']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    default = ROOT / "target" / "debug" / "llm-sandbox"
    parser.add_argument("--server", type=Path, default=default, help="the binary (default: %(default)s)")
    anyio.run(work, parser.parse_args().server.resolve())


if __name__ == "__main__":
    main()
