"""Compiles the C loops when the package is built, so that nobody waits for them at first use.

An installation in place (`pip install -e .`) gets them beside their sources; a wheel carries them and is tagged for its
platform, but for no version of Python or PyTorch: they are called through ctypes. Without a compiler the package is
built all the same, and compiles at first use if it finds one then.
"""

import importlib.util
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

FOLDER = "torchcaps/kernels"


class NativeBuildHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self.room = Path(tempfile.mkdtemp(prefix="torchcaps-build-"))
        built = self._build()
        if version == "editable":
            self._place(built)
        elif built:
            build_data["force_include"].update({str(path): f"{FOLDER}/lib/{path.name}" for path in built})
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self.room, ignore_errors=True)

    def _build(self) -> list[Path]:
        compiler = _load(Path(self.root) / FOLDER / "compiler.py")
        command = compiler.command()
        if command is None:
            self.app.display_warning("torchcaps: no C compiler, so the package is built without its C loops")
            return []
        openmp = compiler.shares_openmp(command)

        def build(job: tuple[str, str]) -> Path | None:
            target = self.room / f"{compiler.stem(*job, openmp)}.so"
            try:
                compiler.build(command, *job, openmp, target)
                return target
            except compiler.CompileError as error:
                self.app.display_warning(f"torchcaps: built without a C loop for {job[1]}: {error}")
                return None

        jobs = [(name, level) for name in compiler.sources() for level in compiler.levels()]
        with ThreadPoolExecutor() as pool:
            return [path for path in pool.map(build, jobs) if path is not None]

    def _place(self, built: list[Path]) -> None:
        """Beside the sources, whole or not at all; those of older sources go."""
        folder = Path(self.root) / FOLDER / "lib"
        folder.mkdir(exist_ok=True)
        for path in built:
            shutil.copyfile(path, folder / f".{path.name}")
            (folder / f".{path.name}").replace(folder / path.name)
        names = {path.name for path in built}
        for path in folder.glob("*.so"):
            if path.name not in names:
                path.unlink()


def _platform() -> str:
    """Of this machine, as pip calls it. No `manylinux`: whether other distributions can run it is not checked here."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))


def _load(path: Path) -> Any:
    """A module of the package without the package, which would import PyTorch."""
    spec = importlib.util.spec_from_file_location("torchcaps_compiler", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
