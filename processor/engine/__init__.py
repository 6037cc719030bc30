"""The work on a partition: batch in, plan out, commit steps, restore. No I/O library."""
