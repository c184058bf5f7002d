"""The commands `counterpoise` and `counterpoise-study`, forked from one process that has imported what they need.

To import the engine takes ten seconds of a processor, and pages of the documentation give dozens of commands. Each is
still a process of its own, with its own folder, environment, output and exit code. That the installed programs start
from nothing is shown by the README's quick start, which `.ci/run` follows in an environment of its own.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

PROGRAMS = {"counterpoise": "counterpoise.cli", "counterpoise-study": "counterpoise_study.cli"}
IMPORTED = (
    *PROGRAMS.values(),
    "counterpoise.export.onnx",
    "counterpoise.report.page",
    "counterpoise.scoring",
    "counterpoise.training.tuning",
    "counterpoise_study.grid",
    "counterpoise_study.report",
    "onnxscript",
    "optuna",
    "sklearn.datasets",
    "torch.onnx",
)

_PROGRAM = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], [0, 1, 2])
    server.sendall(json.dumps([{name!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
    server.shutdown(socket.SHUT_WR)
    sys.exit(int(server.recv(8) or 1))
"""


@contextmanager
def warm_programs() -> Iterator[Path]:
    """A folder for the PATH with programs that ask a server, which ends with the context or with this process."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/server"
        for name in PROGRAMS:
            program = Path(folder) / name
            program.write_text(_PROGRAM.format(python=sys.executable, address=address, name=name))
            program.chmod(0o755)
        command = [sys.executable, __file__, address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout.readline() == b"ready\n"
            yield Path(folder)
            server.stdin.close()


def serve(address: str) -> None:
    """Fork for every call, until standard input ends."""
    for module in IMPORTED:
        import_module(module)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
        print("ready", flush=True)  # noqa: T201
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            call, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                answer(call)
            call.close()


def answer(call: socket.socket) -> None:
    """Run one program in a process of its own, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(call, 1, 3)
    with call.makefile("rb") as sent:
        name, arguments, folder, environment = json.load(sent)
    program = os.fork()
    if program == 0:
        call.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [name, *arguments]
        sys.exit(import_module(PROGRAMS[name]).main())
    _, status = os.waitpid(program, 0)
    call.sendall(str(os.waitstatus_to_exitcode(status) % 256).encode())
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
