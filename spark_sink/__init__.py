"""Structured Streaming jobs, table writer, audit, file export."""
