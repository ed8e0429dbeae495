"""`python -m fencepost`: the command line, which the package brings as a program of its own."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path


def command() -> Path:
    """The program that was installed with this package."""
    places = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # Installed with `pip install --target`: beside the package.
    places.append(str(Path(__file__).parent.parent / "bin"))
    for place in places:
        program = Path(place) / "fencepost"
        if program.is_file():
            return program
    raise SystemExit(f"the program `fencepost` is missing from {places[0]}; install the package again")


def main() -> None:
    """Becomes the program."""
    program = command()
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
