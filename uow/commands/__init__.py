"""The commands of `uow`, one module each: arguments, output and exit status. What they do lives elsewhere."""
