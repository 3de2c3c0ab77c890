"""How pictures are saved: whole or not at all. Needs matplotlib."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image

from kova_rl.lab import files

matplotlib.use("Agg")
from matplotlib import pyplot as plt

__all__ = ["plt", "save"]


def save(figure: Any, stem: Path, dpi: int = 150) -> None:
    """As PNG, with a palette, which is a third of the bytes, and as PDF; then close it."""
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", dpi=dpi)
    small = io.BytesIO()
    with Image.open(pixels) as image:
        image.convert("RGB").quantize(255, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="pdf", metadata={"CreationDate": None})
    plt.close(figure)
    for suffix, content in ((".png", small), (".pdf", drawn)):
        files.write(stem.with_name(f"{stem.name}{suffix}"), content.getvalue())
