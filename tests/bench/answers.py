"""The loop of a helper. A helper in a container has this text before its own."""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]


def answer_questions(commands: Callable[[str], Callable[..., Answer]], after: Callable[[str], None] = lambda _: None) -> None:
    """Answers each line on standard input, by the command of its name; calls `after` when a command is answered."""
    # The output of programs and packages must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        do = question.pop("do")
        try:
            answer = commands(do)(**question)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        after(do)
