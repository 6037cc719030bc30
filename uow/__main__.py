"""`python -m uow` is the command `uow`."""

from uow.cli.main import main

if __name__ == "__main__":
    main(prog_name="uow")
