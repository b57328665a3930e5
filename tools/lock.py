"""Write the hashes of the packages in `constraints.txt`: `python tools/lock.py`, with a connection to the index.

`requirements.lock` has every package but torch and lists, for each, all wheels that the index offers of that version,
for all systems and versions of Python. `requirements-torch.lock` has torch alone, because its builds differ in what
they need beside them. Where to look is pip's own configuration: its index, extra indexes and folders of files.

Wheels only: what pip would fetch to build anything else is not in the lock. Two files of one name with different
contents are an error, as is a version without any wheel.
"""

import hashlib
import sys
from pathlib import Path

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pip._internal.commands.download import DownloadCommand
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
LOCK = ROOT / "requirements.lock"
TORCH_LOCK = ROOT / "requirements-torch.lock"
HEAD = "# Written by tools/lock.py from constraints.txt; do not edit.\n"


def pins(text: str) -> dict[str, Version]:
    """The versions in a constraints or lock file by their normalised names."""
    lines = [line.split(" ")[0].split("==") for line in text.splitlines() if line and line[0] not in " #"]
    return {canonicalize_name(name): Version(version) for name, version in lines}


def entry(name: str, version: Version, hashes: set[str]) -> str:
    return " \\\n    ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in sorted(hashes))]) + "\n"


def offered(collector: LinkCollector, name: str) -> list[Link]:
    """All files that pip finds for this name, for whatever system they are."""
    sources = collector.collect_sources(name, candidates_from_page=lambda page: [])
    links = [link for source in sources.find_links if source for link in _in_folder(source)]
    for source in sources.index_urls:
        if source and source.link and (page := collector.fetch_response(source.link)):
            links += parse_links(page)
    return links


def _in_folder(source) -> list[Link]:
    return [*source.file_links(), *(candidate.link for candidate in source.page_candidates())]


def wheels(links: list[Link], name: str, version: Version) -> set[str]:
    """SHA-256 of the wheels of this version; local builds such as `2.13.0+cpu` belong to it, as they do for pip."""
    found: dict[str, str] = {}
    for link in links:
        if not link.is_wheel:
            continue
        try:
            its_name, its_version, _, _ = parse_wheel_filename(link.filename)
        except ValueError:  # very old files have names that are not allowed today
            continue
        if its_name != name or Version(its_version.public) != version:
            continue
        digest = link.hash if link.hash_name == "sha256" else None
        if digest is None and link.is_file:
            digest = hashlib.sha256(Path(link.file_path).read_bytes()).hexdigest()
        if digest is None:
            raise SystemExit(f"{link.filename}: the index has no SHA-256 for it")
        if found.setdefault(link.filename, digest) != digest:
            raise SystemExit(f"{link.filename}: two files of this name differ")
    if not found:
        raise SystemExit(f"{name}=={version}: no wheel")
    return set(found.values())


def main() -> None:
    command = DownloadCommand("download", "")
    options, _ = command.parse_args([])
    with command.main_context():
        collector = command._build_package_finder(options, command.get_default_session(options))._link_collector
        entries = {}
        for name, version in pins(CONSTRAINTS.read_text()).items():
            entries[name] = entry(name, version, wheels(offered(collector, name), name, version))
            print(f"{name}=={version}: {entries[name].count('--hash')} wheels", file=sys.stderr)
    TORCH_LOCK.write_text(HEAD + entries.pop("torch"))
    LOCK.write_text(HEAD + "".join(entries[name] for name in sorted(entries)))


if __name__ == "__main__":
    main()
