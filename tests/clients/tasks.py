"""Tasks with the Python SDK. It has the types of extensions, and leaves the requests of this one to its users."""

from collections.abc import Sequence
from typing import Any, Literal

import anyio
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.types import CallToolResult, Request, RequestParams, Result

from job import answer_of, as_json, equal, expect

LONG_S = 6  # the server answers calls that take 5 s with a task


class Task(Result):
    result_type: Literal["task"]
    task_id: str
    poll_interval_ms: int


class State(Result):
    status: str
    result: CallToolResult | None = None


class OfTask(RequestParams):
    task_id: str


class GetTask(Request[OfTask, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class Tasks(ClientExtension):
    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.ended: list[str] = []

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Task, resolve=self.resolve)]

    async def resolve(self, task: Task, context: ClaimContext) -> CallToolResult:
        while True:
            await anyio.sleep(task.poll_interval_ms / 1000)
            state = await context.session.send_request(GetTask(params=OfTask(task_id=task.task_id)), State)
            if state.status != "working":
                equal(state.status, "completed")
                self.ended.append(task.task_id)
                expect(state.result, "a task that is completed has its result")
                return state.result  # type: ignore[return-value]


async def of_long_runs(client: Client, tasks: Tasks) -> None:
    """The client calls as always, and its extension fetches the results."""
    for give in (
        {"code": "print(42)"},
        {"code": "import time; time.sleep(1); print(42)", "background": True},
    ):
        answer = answer_of(as_json(await client.call_tool("run_python", give))).answer
        equal(answer["stdout"], "42\n")
        equal(answer["run_id"] in tasks.ended, "background" in give)
    code = f"import time; time.sleep({LONG_S}); 6 * 7"
    answer = answer_of(as_json(await client.call_tool("execute_code", {"code": code}))).answer
    equal(answer["result"], "42")
    expect(answer["run_id"] in tasks.ended, "a call that takes long is answered with a task")
