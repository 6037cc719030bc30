"""The worker: core (a group), engine (a partition), kafka (sockets), shell (Faust)."""
