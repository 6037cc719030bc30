"""Printing on a terminal: tables, JSON, progress."""
