"""The engine's ports in memory: tests and proof."""
