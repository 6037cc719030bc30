"""The program for `spark-submit`, which takes a file: `spark-submit OPTIONS submit.py sink -c uow.toml --tables URI`, and every other command.

Jars, master, resources and secrets are those of `spark-submit` (docs/operations.md). The file works from any folder: with the wheel given by
`--py-files` only this file has to be taken out of it.
"""

import sys
from pathlib import Path


def start() -> None:
    """Runs the command line. The folder of this file is no place to import from: beside it in the package are modules of other names."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    from uow.cli.main import main

    main(prog_name="uow")


if __name__ == "__main__":
    start()
