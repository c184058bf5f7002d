"""`python`, `counterpoise` and `counterpoise-study`, forked from one process that has imported what they need.

To import the engine takes ten seconds of a processor, and the tests start dozens of programs. Each is still a process
of its own, with its own folder, environment, files, output, signals and exit code, and so are those that it starts with
`sys.executable`. That the installed programs start from nothing is shown by the README's quick start, which `.ci/run`
follows in an environment of its own.

`.ci/run` has one server for all that it runs, `python tests/warm.py FOLDER`, and names its folder by the environment
variable COUNTERPOISE_WARM. Tests that are run otherwise start their own.
"""

import atexit
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType

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
    "timm",
    "torch.distributed.run",
    "torch.onnx",
)

_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
files = [int(name) for name in os.listdir("/dev/fd")]
files = [file for file in files if os.path.exists(f"/dev/fd/{{file}}")]  # not the one of the folder itself
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"."], files)
    server.sendall(json.dumps([{name!r}, sys.argv[1:], files, os.getcwd(), dict(os.environ)]).encode() + b"\\n")
    answers = server.makefile()
    program = int(answers.readline())
    for heard in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(heard, lambda number, _: os.kill(program, number))
    code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@contextmanager
def warm_programs() -> Iterator[Path]:
    """A folder for the PATH with programs that ask a server, which ends with the context or with this process."""
    if given := os.environ.get("COUNTERPOISE_WARM"):
        yield Path(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout.readline() == b"ready\n"
            yield Path(folder)
            server.stdin.close()


def serve(folder: Path) -> None:
    """Fork for every call, until standard input ends."""
    for module in IMPORTED:
        import_module(module)
    gc.freeze()  # a collection would copy the memory that programs share
    address = str(folder / "server")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
        for name in (*PROGRAMS, "python"):
            program = folder / name
            program.write_text(_PROGRAM.format(python=sys.executable, address=address, name=name))
            program.chmod(0o755)
        print("ready", flush=True)  # noqa: T201
        while listening in select.select([listening, sys.stdin], [], [])[0]:
            call, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                answer(call, folder)
            call.close()


def answer(call: socket.socket, programs: Path) -> None:
    """Run one program in a process of its own, send its number and its exit code; it ends with the one that asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, received, _, _ = socket.recv_fds(call, 1, 250)
    with call.makefile("rb") as sent:
        name, arguments, files, folder, environment = json.loads(sent.readline())
    program = os.fork()
    if program == 0:
        call.close()
        os.setsid()
        place_files(received, files)
        os.chdir(folder)
        become(environment)
        sys.executable = str(programs / "python")
        sys.argv = [name, *arguments]
        end(run_python if name == "python" else import_module(PROGRAMS[name]).main)
    for file in received:
        os.close(file)
    with suppress(BrokenPipeError):  # who asked may be gone already, which ends the program below
        call.sendall(f"{program}\n".encode())
    threading.Thread(target=end_with, args=(call, program), daemon=True).start()
    _, status = os.waitpid(program, 0)
    with suppress(BrokenPipeError):
        call.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def end_with(call: socket.socket, program: int) -> None:
    """Kill the program and what it has started, as soon as nobody waits for it any longer."""
    call.recv(1)
    with suppress(ProcessLookupError):
        os.killpg(program, signal.SIGKILL)


def place_files(received: Sequence[int], numbers: Sequence[int]) -> None:
    """Every file under the number that it has where the call came from."""
    beyond = max((*received, *numbers)) + 1
    spare = [os.dup2(file, beyond + place, inheritable=False) for place, file in enumerate(received)]
    for file in received:
        os.close(file)
    for file, number in zip(spare, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def become(environment: dict[str, str]) -> None:
    """Take over the environment, with what else depends on it from the start of a process."""
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    encoding, _, errors = environment.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, errors=errors or "strict", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    import numpy as np
    from lightning.fabric.utilities.rank_zero import _get_rank, rank_zero_only

    np.random.seed(random.getrandbits(32))  # noqa: NPY002
    rank_zero_only.rank = _get_rank() or 0


def end(program: Callable[[], object]) -> None:
    """Run a program, and end as the interpreter would, but leave what is in memory to the system.

    To free the objects of all that is imported would copy the memory that they share with the server first: seconds.
    """
    code: object = None
    try:
        code = program()
    except SystemExit as ended:
        code = ended.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)  # noqa: T201
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code or 0)


def run_python() -> None:
    """What `python ARGUMENTS` runs; of the options those that make no difference here."""
    arguments = sys.argv[1:]
    while arguments[0] in ("-B", "-u"):
        if arguments.pop(0) == "-u":
            sys.stdout.reconfigure(write_through=True)
    kind = arguments[0]
    if kind == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[2:]]
        code = compile(arguments[1], "<string>", "exec")
    else:
        main.__file__ = str(Path(kind).absolute())
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv = arguments
        code = compile(Path(kind).read_bytes(), kind, "exec")
    exec(code, vars(main))  # noqa: S102


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
