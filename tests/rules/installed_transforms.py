"""A package with transforms, as an application would install it."""

from __future__ import annotations

from pathlib import Path

NAMES = ("upper_case", "only_odd", "every_fourth_fails", "leaves", "forges", "half_a_name", "no_bytes", "not_there")

CODE = """
import sys

def upper_case(record):
    return record.value.upper(), [("by", record.topic.encode())]

def only_odd(record):
    return (record.value, []) if record.offset % 2 else None

def every_fourth_fails(record):
    if record.offset % 4 == 3:
        raise KeyError("no price")
    return record.value, ()

def leaves(record):
    sys.exit(3)

def forges(record):
    return record.value, [("uow-input", b"elsewhere/0/0")]

def half_a_name(record):
    return record.value, [("\\ud800", b"")]

def no_bytes(record):
    return "text", []
"""


def install(folder: Path) -> None:
    """The module and its entry points, as `pip install` leaves them."""
    (folder / "shop_transforms.py").write_text(CODE)
    about = folder / "shop_transforms-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-transforms\nVersion: 1\n")
    rows = [f"{name} = shop_transforms:{name}" for name in NAMES]
    (about / "entry_points.txt").write_text("\n".join(["[uow.transforms]", *rows]))
