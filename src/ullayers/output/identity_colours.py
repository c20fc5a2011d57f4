"""A colour and a marker for each object, the same in the overlay and in the report."""

from __future__ import annotations

from typing import Literal

import numpy as np

Colour = tuple[int, int, int]
Marker = Literal["o", "s", "^", "D"]  # as in matplotlib: circle, square, triangle, diamond

# Any two differ by at least 0.13 in OKLab, with normal vision and with simulated protanopia,
# deuteranopia and tritanopia, and all are visible on white and on black.
PALETTE: tuple[Colour, ...] = (
    (255, 120, 14),  # orange
    (100, 217, 255),  # sky blue
    (148, 18, 152),  # purple
    (218, 218, 96),  # yellow
    (17, 60, 231),  # blue
    (6, 151, 158),  # teal
    (193, 10, 0),  # red
    (205, 112, 255),  # violet
)
MARKERS: tuple[Marker, ...] = ("o", "s", "^", "D")
SHADES = (0.0, 0.45, -0.4, 0.2)  # of each pass through the palette: towards white, or black if < 0


def identity_colour(number: int) -> Colour:
    """Return the colour of an object as red, green and blue from 0 to 255.

    Args:
        number: Number of the object, from 1. After eight objects, the colours repeat in another
            shade and with another marker.

    Example:
        >>> identity_colour(1), identity_colour(9)
        ((255, 120, 14), (255, 181, 122))
    """
    turn, place = divmod(number - 1, len(PALETTE))
    shade = SHADES[turn % len(SHADES)]
    target = 255 if shade > 0 else 0
    red, green, blue = (round(v + abs(shade) * (target - v)) for v in PALETTE[place])
    return red, green, blue


def identity_hex(number: int) -> str:
    """Return the colour of an object for HTML and matplotlib.

    >>> identity_hex(1)
    '#ff780e'
    """
    return "#{:02x}{:02x}{:02x}".format(*identity_colour(number))


def identity_marker(number: int) -> Marker:
    """Return the marker of an object, which changes with each pass through the palette.

    >>> [identity_marker(number) for number in (1, 8, 9, 17)]
    ['o', 'o', 's', '^']
    """
    return MARKERS[(number - 1) // len(PALETTE) % len(MARKERS)]


def text_colour(background: Colour) -> Colour:
    """Return black or white, whichever is more legible on a colour.

    >>> text_colour((218, 218, 96)), text_colour((17, 60, 231))
    ((0, 0, 0), (255, 255, 255))
    """
    shares = np.array(background) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    luminance = float(linear @ (0.2126, 0.7152, 0.0722))
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)
