"""Runs inside a container of the same image, beside a Jupyter kernel: sends cells with Jupyter's own client, and times
the client's call."""

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from answers import Answer, answer_questions


class Kernel:
    def start(self) -> Answer:
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
        return {}

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


if __name__ == "__main__":
    shutil.copytree("/opt/sandbox/home", os.environ["HOME"], dirs_exist_ok=True)
    kernel = Kernel()
    try:
        answer_questions(lambda do: getattr(kernel, do))
    finally:
        kernel.end()
