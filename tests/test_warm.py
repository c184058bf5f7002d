"""Programs that are forked from one process behave as those that start from nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest


def ended(python, code, *arguments, **options):
    done = subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stdout, done.stderr.strip().splitlines()[-1:]


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(sys.argv, __name__, sys.path[0]); print('out'); print('err', file=sys.stderr)",
        "import os; print(os.getcwd(), os.environ['ASKED'], os.environ.get('HOME'), input())",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a reason')",
        "import sys; sys.exit(None)",
        "1 / 0",
        "import atexit; atexit.register(print, 'at the end'); raise SystemExit(4)",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
        "import os; os.abort()",
        "raise KeyboardInterrupt",
        "print('\\u4f60')",
    ],
)
def test_it_ends_as_from_nothing(code, programs, tmp_path):
    options = {
        "cwd": tmp_path,
        "input": "line\n",
        "env": os.environ | {"ASKED": "1", "PYTHONIOENCODING": "cp1252:replace"},
    }
    assert ended(programs / "python", code, "a", "b", **options) == ended(sys.executable, code, "a", "b", **options)


def test_a_script_and_a_module_run_as_from_nothing(programs, tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    (tmp_path / "script.py").write_text("import sys, beside; print(beside.NAME, sys.argv, __file__, __name__)")
    for arguments in (["script.py", "a"], ["-u", tmp_path / "script.py"], ["-m", "script", "a"]):
        printed = [
            subprocess.run([python, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
            for python in (programs / "python", sys.executable)
        ]
        assert printed[0] == printed[1]


def test_files_that_are_handed_down_are_there(programs):
    read, write = os.pipe()
    subprocess.run([programs / "python", "-c", f"import os; os.write({write}, b'said')"], pass_fds=[write], check=True)
    os.close(write)
    assert (os.read(read, 9), os.read(read, 9)) == (b"said", b"")
    os.close(read)


WAITS = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 7), (signal.SIGKILL, -signal.SIGKILL)])
def test_signals_reach_it_and_it_ends_with_the_one_that_asked(programs, sent, code):
    asked = subprocess.Popen([programs / "python", "-c", WAITS], stdout=subprocess.PIPE, text=True)
    numbers = [int(number) for number in asked.stdout.readline().split()]
    asked.send_signal(sent)
    assert asked.wait(timeout=60) == code
    asked.stdout.close()
    for _ in range(100):
        if not any(map(alive, numbers[:1] if sent == signal.SIGTERM else numbers)):
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"{numbers} still run")
    if sent == signal.SIGTERM:
        os.kill(numbers[1], signal.SIGKILL)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
