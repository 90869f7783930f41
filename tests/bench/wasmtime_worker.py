"""Runs inside the virtual environment with the PyPI package `wasmtime`: a Python for WASI, compiled ahead and loaded
once, with a new instance for each program.

Only making the instance and running it are timed.
"""

import tempfile
import time
from pathlib import Path

import wasmtime

from answers import Answer, answer_questions


class Plain:
    def __init__(self) -> None:
        self.engine = wasmtime.Engine()
        self.linker = wasmtime.Linker(self.engine)
        self.linker.define_wasi()
        self.folder = Path(tempfile.mkdtemp())

    def load(self, module: str) -> Answer:
        self.module = wasmtime.Module.from_file(self.engine, module)
        return {}

    def run(self, code: str) -> Answer:
        begun = time.perf_counter()
        config = wasmtime.WasiConfig()
        config.argv = ["python", "-c", code]
        stdout = self.folder / "stdout"
        stdout.write_bytes(b"")
        config.stdout_file = str(stdout)
        store = wasmtime.Store(self.engine)
        store.set_wasi(config)
        exit_code = 0
        try:
            self.linker.instantiate(store, self.module).exports(store)["_start"](store)
        except wasmtime.ExitTrap as end:
            exit_code = end.code
        text = stdout.read_text()
        return {"seconds": time.perf_counter() - begun, "exit_code": exit_code, "stdout": text, "stderr": ""}


if __name__ == "__main__":
    plain = Plain()
    answer_questions(lambda do: getattr(plain, do))
