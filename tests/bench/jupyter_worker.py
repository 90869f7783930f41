"""Runs inside a container of the same image, beside a Jupyter kernel: sends cells with Jupyter's own client, and times
the client's call."""

import json
import os
import shutil
import sys
import time
from typing import Any

Answer = dict[str, Any]


class Kernel:
    def __init__(self) -> None:
        from jupyter_client.manager import KernelManager

        # The image's own setting would override the kernel's.
        os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
        # Sockets of files are the faster transport, and the only one if a sandbox has no others.
        self.manager = KernelManager(kernel_name="python3", transport="ipc", ip="/tmp/kernel")
        # No kernel specification is installed, so the interpreter itself is used.
        self.manager._kernel_spec = None
        self.manager.start_kernel(cwd="/mnt/data")
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=120)

    def run(self, code: str) -> Answer:
        said: dict[str, list[str]] = {"stdout": [], "stderr": []}
        shown: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream":
                said[content["name"]].append(content["text"])
            elif kind in ("execute_result", "display_data"):
                data = content["data"]
                shown.append("image/png" if "image/png" in data else data.get("text/plain", ""))
            elif kind == "error":
                said["stderr"].append("\n".join(content["traceback"]))

        begun = time.perf_counter()
        reply = self.client.execute_interactive(code, output_hook=hear, timeout=120)
        seconds = time.perf_counter() - begun
        ok = reply["content"]["status"] == "ok"
        return {
            "seconds": seconds,
            "exit_code": 0 if ok else 1,
            "stdout": "".join(said["stdout"]),
            "stderr": "".join(said["stderr"]),
            "about": {"shown": shown},
        }

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def first(code: str) -> Answer:
    """Runs a program in a new kernel: from its start to the answer."""
    begun = time.perf_counter()
    kernel = Kernel()
    answer = kernel.run(code)
    seconds = time.perf_counter() - begun
    kernel.end()
    return answer | {"seconds": seconds}


def main() -> None:
    shutil.copytree("/opt/sandbox/home", os.environ["HOME"], dirs_exist_ok=True)
    # Output of this process must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    kernel = None
    for line in sys.stdin:
        question = json.loads(line)
        do = question.pop("do")
        try:
            if do == "start":
                kernel = Kernel()
                answer: Answer = {}
            elif do == "first":
                answer = first(**question)
            else:
                assert kernel
                answer = kernel.run(**question)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
    if kernel:
        kernel.end()


if __name__ == "__main__":
    main()
