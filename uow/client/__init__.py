"""The client: senders, readers and forwarding hops.

Belongs here: everything an application calls through `uow.connect`. Does not belong here: looking into and repairing a destination (`uow.ops`).
"""
