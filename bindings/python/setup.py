"""Builds the shared library with cargo and puts it into the package.

Set NVTE_LIBRARY to take a ready-made libnvte.so instead: neither cargo nor the Rust sources are needed then. CARGO_TARGET_DIR is
respected. The wheel carries no Python extension, so one wheel serves every Python 3 of the platform.
"""

import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    # Without build isolation setuptools may be older than 70.1: the command is then in the package `wheel`.
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent


def cargo_build():
    """Compiles the workspace that this folder belongs to; returns the path of the library."""
    root = HERE.parent.parent
    if not (root / "Cargo.toml").is_file():
        raise SystemExit(f"{root} holds no Cargo.toml: build from a checkout, or set NVTE_LIBRARY to a ready-made libnvte.so")
    command = ["cargo", "build", "--release", "--locked", "--lib", "--message-format=json-render-diagnostics"]
    try:
        done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True)
    except FileNotFoundError:
        raise SystemExit("cargo was not found: install Rust (https://rustup.rs), or set NVTE_LIBRARY to a ready-made libnvte.so") from None
    except subprocess.CalledProcessError as e:
        raise SystemExit(f"{' '.join(command)} failed with status {e.returncode}") from None
    # cargo says itself where it wrote: that covers CARGO_TARGET_DIR and every configuration file.
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == "nvte":
            for name in message["filenames"]:
                if name.endswith(".so"):
                    return Path(name)
    raise SystemExit("cargo built no libnvte.so")


class BuildWithLibrary(build_py):
    """Copies the Python files, then the library."""

    def run(self):
        super().run()
        given = os.environ.get("NVTE_LIBRARY")
        source = Path(given).resolve() if given else cargo_build()
        # In an editable install the package is the source folder itself.
        package = HERE / "nvte" if getattr(self, "editable_mode", False) else Path(self.build_lib) / "nvte"
        package.mkdir(parents=True, exist_ok=True)
        # Replaced, not overwritten: a running process may have the old one mapped.
        temporary = package / ".libnvte.so.new"
        shutil.copyfile(source, temporary)
        temporary.chmod(temporary.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        if shutil.which("strip"):
            subprocess.run(["strip", "--strip-unneeded", str(temporary)], check=False)
        os.replace(temporary, package / "libnvte.so")


class PlatformWheel(bdist_wheel):
    """py3-none-PLATFORM: a shared library, but nothing of one Python version."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Binary(Distribution):
    """Installed below platlib."""

    def has_ext_modules(self):
        return True


setup(distclass=Binary, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": PlatformWheel})
