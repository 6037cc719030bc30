"""`uow prove`: faults on purpose, and a judge that shares no code with the worker."""
