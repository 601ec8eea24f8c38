"""Which versions of the packages around it Gradian supports. `constraints/` says the same to pip."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """The versions of a package that Gradian supports; both ends belong to it.

    Attributes:
        lowest: first supported release, or None.
        highest: last supported release line ("2.13" covers 2.13.1), or None.
        needed_for: what does not work without the package; None where nothing does.
    """

    lowest: str | None
    highest: str | None
    needed_for: str | None = None

    def __str__(self) -> str:
        if self.lowest and self.highest:
            return f"{self.lowest} to {self.highest}"
        return f"{self.lowest} and above" if self.lowest else f"{self.highest} and below"

    def holds(self, version: str) -> bool:
        """Whether `version` lies in the window."""
        from packaging.version import Version

        installed = Version(version)
        if self.lowest and installed < Version(self.lowest):
            return False
        if not self.highest:
            return True
        last = Version(self.highest).release
        return installed.release[: len(last)] <= last


WINDOWS: dict[str, Window] = {
    "torch": Window("2.4", "2.13"),
    "transformers": Window("4.51", "5.24"),
    "peft": Window("0.18", None),
    "trl": Window("0.13", "1.16", needed_for="`gradian train --backend trl`"),
}
"""What Gradian is tested with."""

SAFE_READERS: Mapping[str, str] = {"torch": "2.6", "pyarrow": "14.0.1"}
"""First releases that run nothing of what they read: torch of a pickle of tensors (CVE-2025-32434), pyarrow of an
Arrow file (CVE-2023-47248)."""

UNSLOTH_WINDOWS: Mapping[str, Window] = {
    "torch": Window("2.4", "2.11"),
    "transformers": Window("4.51", "5.5"),
    "peft": Window("0.18", None),
    "trl": Window(None, "0.24"),
    "datasets": Window(None, "4.3"),
}
"""What unsloth works with: `constraints/unsloth.txt`."""


def installed_version(package: str) -> str | None:
    """Return the version of an installed distribution, or None; nothing is imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def unsafe_reader(package: str) -> str | None:
    """Return `name version` of a package of `SAFE_READERS` that may run what a file tells it to; None if it does not."""
    from packaging.version import Version

    version = installed_version(package)
    if version is None or Version(version) >= Version(SAFE_READERS[package]):
        return None
    return f"{package} {version}"


def unmet_requirements(package: str) -> Iterator[str]:
    """Yield what an installed package asks of others that are installed and does not get: `name>=1 (0.9 is here)`."""
    from packaging.requirements import Requirement

    if installed_version(package) is None:
        return
    for text in importlib.metadata.requires(package) or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        there = installed_version(wanted.name)
        if there is not None and not wanted.specifier.contains(there, prereleases=True):
            yield f"{wanted.name}{wanted.specifier} ({there} is here)"
