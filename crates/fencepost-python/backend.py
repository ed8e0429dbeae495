"""Builds the wheel: maturin builds the extension, and the command line goes along as a program of its own.

The command is not a function in the extension: `fencepost run` forks before any thread starts and must not
carry an interpreter with it."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import (  # noqa: F401
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

PROFILE = os.environ.get("FENCEPOST_PROFILE", "release")
SCRIPTS = Path(__file__).parent / "fencepost.data" / "scripts"


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _build_command()
    os.environ["MATURIN_PEP517_ARGS"] = f"--profile {PROFILE}"
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _build_command()
    os.environ["MATURIN_PEP517_ARGS"] = f"--profile {PROFILE}"
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit(
        "a source distribution would lack the command line; build a wheel from a checkout: `make wheel`"
    )


def _build_command():
    build = [
        "cargo",
        "build",
        "--locked",
        "--package",
        "fencepost-cli",
        "--bin",
        "fencepost",
        "--profile",
        PROFILE,
    ]
    messages = subprocess.run(
        [*build, "--message-format=json"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    built = [
        message["executable"]
        for message in map(json.loads, messages.splitlines())
        if message.get("executable")
    ]
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    shutil.copy(built[-1], SCRIPTS / "fencepost")
