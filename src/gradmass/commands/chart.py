"""A small line chart in the terminal, of Braille dots."""

from collections.abc import Sequence

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots of a Braille character, by row from the top and by column."""
BLANK = 0x2800


def line_chart(
    values: Sequence[float], low: float, high: float, *, width: int, height: int
) -> list[str]:
    """Draw a line through values at even distances.

    Args:
        values: Two or more.
        low: Value at the bottom.
        high: Value at the top, above ``low``.
        width: Characters across, two dots each.
        height: Lines of text, four dots each.

    Returns:
        The lines from the top down, each ``width`` characters.

    >>> print(*line_chart([0.0, 1.0], 0.0, 1.0, width=2, height=1), sep="|")
    ⡠⠊
    """
    cells = [[0] * width for _ in range(height)]
    columns, rows = 2 * width, 4 * height
    last_row = None
    for column in range(columns):
        place = column / (columns - 1) * (len(values) - 1)
        left = min(int(place), len(values) - 2)
        value = values[left] + (place - left) * (values[left + 1] - values[left])
        row = round((high - value) / (high - low) * (rows - 1))
        # A steep line is drawn without gaps.
        start = row if last_row is None else last_row + (row > last_row) - (row < last_row)
        for dot in range(min(start, row), max(start, row) + 1):
            cells[dot // 4][column // 2] |= DOTS[dot % 4][column % 2]
        last_row = row
    return ["".join(chr(BLANK + bits) for bits in line) for line in cells]


def side_by_side(
    left: Sequence[float],
    right: Sequence[float],
    *,
    titles: tuple[str, str],
    width: int,
    height: int,
) -> list[str]:
    """Two charts on one scale, with 0 and the extremes on the axis, over a solve rate p.

    Args:
        left: Values of the left chart at even distances of p.
        right: Likewise.
        titles: One above each.
        width: Characters across each chart.
        height: Lines of text of each.
    """
    low, high = min(0.0, *left, *right), max(0.0, *left, *right)
    high = high if high > low else low + 1.0
    names = [f"{high:.3g}", *[""] * (height - 2), f"{low:.3g}"]
    zero_line = round(high / (high - low) * (4 * height - 1)) // 4
    names[zero_line] = names[zero_line] or "0"
    margin = max(map(len, names))
    charts = [line_chart(v, low, high, width=width, height=height) for v in (left, right)]
    axis = f"p = 0{'1':>{width - 5}}"
    lines = [" ".join(f"{'':{margin}}  {title:{width}} " for title in titles)]
    for name, *parts in zip(names, *charts, strict=True):
        lines.append(" ".join(f"{name:>{margin}} ▏{part} " for part in parts))
    lines.append(" ".join(f"{'':{margin}}  {axis} " for _ in titles))
    return [line.rstrip() for line in lines]
