"""Hypothesis without a deadline per example: a busy machine is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("wire", deadline=None)
settings.load_profile("wire")
