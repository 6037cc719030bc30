"""The commands of `uow`, one module each: arguments, output and exit status. The work itself is done in the other wings."""
