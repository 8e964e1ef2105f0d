"""A program of ours that answers lines of JSON: started once, asked often."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def build_example(package: str, name: str) -> Path:
    """Builds an example of this repository, optimized; where cargo put it."""
    command = ["cargo", "build", "--release", "--locked", "-p", package, "--example", name]
    print("+", *command, file=sys.stderr)
    built = subprocess.run(
        [*command, "--message-format=json-render-diagnostics"],
        check=True, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
    )
    messages = map(json.loads, built.stdout.splitlines())
    return next(
        Path(message["executable"])
        for message in messages
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == name
    )


class Worker:
    """Sends requests to a program and waits for its answers."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env=environment,
        )
        self._name = Path(command[0]).name

    def send(self, request: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)

    def receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._name} ended with status {self._process.wait()}")
        return json.loads(line)

    def ask(self, request: Any) -> Any:
        self.send(request)
        return self.receive()

    def close(self) -> None:
        """Ends the input, which ends the program."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
