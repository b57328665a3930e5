"""The loops in C under AddressSanitizer and UndefinedBehaviorSanitizer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchcaps.kernels import compiler


def runtime() -> str | None:
    """The sanitizer's library that has to be loaded before Python's own memory functions."""
    command = compiler.command()
    if command is None or sys.platform != "linux":
        return None
    asked = subprocess.run([*command, "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    path = asked.stdout.strip()
    return path if os.path.isabs(path) and os.path.exists(path) else None


ASTRAY = "#include <stdlib.h>\nvoid astray(void) { volatile int *p = malloc(4); p[1] = 1; }\n"


@pytest.mark.slow
def test_no_loop_reads_or_writes_astray(tmp_path: Path) -> None:
    library, command = runtime(), compiler.command()
    if library is None or command is None:
        pytest.skip("no compiler here that brings the runtime of AddressSanitizer")
    environment = {
        **os.environ,
        "CC": " ".join([*command, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]),
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",
        "XDG_CACHE_HOME": str(tmp_path),
        "ATEN_CPU_CAPABILITY": "default",
        "TORCHCAPS_KERNELS": "fast",
    }
    (tmp_path / "astray.c").write_text(ASTRAY)
    build = [*environment["CC"].split(), "-shared", "-fPIC", tmp_path / "astray.c", "-o", tmp_path / "astray.so"]
    subprocess.run(build, check=True)
    code = f"import ctypes; ctypes.CDLL({str(tmp_path / 'astray.so')!r}).astray()"
    caught = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert "heap-buffer-overflow" in caught.stderr, "the sanitizer is at work"
    answer = subprocess.run(
        [sys.executable, Path(__file__).with_name("sanitized.py")], capture_output=True, text=True, env=environment
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert "no fault" in answer.stdout
