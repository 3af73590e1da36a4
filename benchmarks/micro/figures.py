# SPDX-License-Identifier: Apache-2.0
"""A figure, its target, and the table of all."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

Unit = Literal["s", "bytes"]


@dataclass(frozen=True)
class Target:
    """The most that a figure may be: a share of stock's, or else a value of its own.

    Attributes:
        limit: the share, or the value in the figure's unit.
        of_stock: whether it is a share.
        text: how the table puts it.
    """

    limit: float
    of_stock: bool
    text: str


def share_of_stock(limit: float, text: str | None = None) -> Target:
    """At most ``limit`` times what stock needs."""
    return Target(limit, True, text or f"{limit:g} x stock")


def at_most_seconds(limit: float) -> Target:
    """At most ``limit`` seconds, whatever the machine."""
    return Target(limit, False, format_quantity(limit, "s"))


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        name: what was measured.
        ours: the value with the tree.
        stock: the value with stock vLLM, or None where it has no counterpart.
        target: None for a line that is there for information.
    """

    name: str
    ours: float
    stock: float | None = None
    target: Target | None = None
    unit: Unit = "s"

    @property
    def ratio(self) -> float | None:
        """Ours as a share of stock's."""
        return None if self.stock is None else self.ours / self.stock

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        value = self.ratio if self.target.of_stock else self.ours
        assert value is not None, f"{self.name}: a share of stock's figure needs that figure"
        return value <= self.target.limit


def format_quantity(value: float, unit: Unit) -> str:
    """``value`` with three digits and a unit of fitting size."""
    if unit == "bytes":
        return f"{value:.0f} B"
    for name, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value * 1e6:.3g} µs"


def table(sections: Iterable[tuple[str, Iterable[Figure]]]) -> Table:
    """All figures next to their targets, by section."""
    result = Table(title_justify="left")
    result.add_column("figure")
    for header in ("vllm-radix", "stock vLLM", "ratio", "target", ""):
        result.add_column(header, justify="right", no_wrap=True)
    for title, figures in sections:
        result.add_row(f"[bold]{title}[/]", *[""] * 5)
        for figure in figures:
            result.add_row(f"  {figure.name}", *_cells(figure))
        result.add_section()
    return result


def _cells(figure: Figure) -> list[str]:
    stock, ratio, target, verdict = "", "", "", ""
    if figure.stock is not None and figure.ratio is not None:
        stock = format_quantity(figure.stock, figure.unit)
        # Shares of a stock that is many times slower read better as one in so many.
        ratio = f"1/{1 / figure.ratio:.1f}" if figure.ratio < 0.5 else f"{figure.ratio:.2f}"
    if figure.target is not None:
        target = figure.target.text
        verdict = "[green]met[/]" if figure.met else "[red]missed[/]"
    return [format_quantity(figure.ours, figure.unit), stock, ratio, target, verdict]
