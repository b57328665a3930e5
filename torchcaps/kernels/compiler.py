"""How the C loops of this folder are compiled: when the package is built, or else at first use.

Only the standard library is imported, because the package is built where PyTorch is not. Every `.c` file of the folder
becomes one library for each level of the processor, all from the same source; `native.py` loads the best one that the
processor can run. A library's name holds a digest of its source and flags, so that an edited source is never taken for
the library of an older one.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PACKAGED = FOLDER / "lib"
"""Where the libraries lie that were built with the package."""

# Sums may be reordered, as every BLAS does; what is not a number stays so.
FLAGS = ("-O3", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fPIC")
# What PyTorch's own names of the levels promise, no more: AVX2 is x86-64-v3, AVX512 is x86-64-v4.
AVX2 = ("-mavx2", "-mfma")
LEVELS = {"avx512": (*AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl"), "avx2": AVX2, "base": ()}
SECONDS = 60
"""A compiler that takes longer is taken for a broken one."""


class CompileError(Exception):
    """Why there is no library: one line."""


def sources() -> list[str]:
    """Names of the loops: every C file of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.c"))


def levels() -> tuple[str, ...]:
    """Those that processors of this architecture may have, best first."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return tuple(LEVELS) if x86 else ("base",)


def command() -> list[str] | None:
    """The compiler that `CC` names, with its arguments, or the system's; None where there is none."""
    wanted = os.environ.get("CC")
    candidates = [shlex.split(wanted)] if wanted else [["cc"], ["gcc"], ["clang"]]
    for program, *arguments in filter(None, candidates):
        found = shutil.which(program)
        if found is not None:
            return [found, *arguments]
    return None


def shares_openmp(compiler: list[str]) -> bool:
    """Whether its loops run on the OpenMP that PyTorch brings: GNU's, on Linux. Clang calls another one's functions."""
    if sys.platform != "linux":
        return False
    try:
        version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return "clang" not in version.stdout.lower()


def flags(level: str, openmp: bool) -> tuple[str, ...]:
    return (*FLAGS, *LEVELS[level], "-fopenmp" if openmp else "-fopenmp-simd")


def stem(name: str, level: str, openmp: bool, compiler: tuple[str, ...] = ()) -> str:
    """What the library of these is called, without its ending."""
    texts = [path.read_text() for path in (FOLDER / f"{name}.c", *sorted(FOLDER.glob("*.h")))]
    digest = hashlib.sha256("\0".join([*texts, *flags(level, openmp), *compiler]).encode())
    return f"{name}-{level}-{digest.hexdigest()[:16]}"


def build(compiler: list[str], name: str, level: str, openmp: bool, target: Path) -> None:
    """Writes the library to `target`. OpenMP is not linked: PyTorch has loaded it, and a second one must not come."""
    part = target.with_suffix(".o")
    undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    steps = (
        [*compiler, *flags(level, openmp), "-c", str(FOLDER / f"{name}.c"), "-o", str(part)],
        [*compiler, "-shared", *undefined, str(part), "-o", str(target)],
    )
    try:
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.CalledProcessError as error:
        said = next((line for line in error.stderr.splitlines() if "error" in line), error.stderr.strip()[:200])
        raise CompileError(f"{compiler[0]} ended with {error.returncode} on {name}.c: {said or 'no message'}") from None
    except subprocess.TimeoutExpired:
        raise CompileError(f"{compiler[0]} took more than {SECONDS} s on {name}.c") from None
    except OSError as error:
        raise CompileError(f"{compiler[0]} does not start: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    if not target.is_file() or not target.stat().st_size:
        raise CompileError(f"{compiler[0]} wrote nothing for {name}.c")
