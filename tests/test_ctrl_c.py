"""A training that is interrupted from the keyboard."""

import os
import signal
import subprocess


def test_ctrl_c_says_how_to_go_on(tmp_path, programs):
    folder = tmp_path / "a run"
    # Where the tests run in the background of a shell, SIGINT is ignored, and by the processes they start as well.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [programs / "python", "-c", f"{heard}; from counterpoise.cli import main; main()"]
    command += ["train", "digits", "--epochs", "2000", "--engine.checkpoint-epochs", "1", "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        while "validation" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert said.endswith(f"interrupted; to continue: counterpoise resume '{folder}'\n")
    assert "Traceback" not in said
