"""One style for all pictures: notebooks, reports, experiments and paper.

Colours are Okabe and Ito's, then some of Tol's, which colour-blind readers tell apart. No picture
leaves it to colour alone: markers, dashes and hatches say the same once more, for a grey print.
"""

import io
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font

COLOURS: Final = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#44AA99",
    "#999933", "#767676",
)  # fmt: skip
MARKERS: Final = ("o", "D", "s", "^", "v", "P", "X", "<", ">", "*")
DASHES: Final = ("-", "--", "-.", ":")
INK: Final = "#1b1b20"  #: lines and letters
FAINT: Final = "#6e6e78"  #: what is there for comparison only
GRID: Final = "#e2e2e8"
PAPER: Final = "#fefefd"  #: what is under the picture

#: Widths of a picture in inches: of a page, and of a telephone, where legends go below.
WIDE: Final = 7.2
NARROW: Final = 3.7
_BESIDE_FROM: Final = 6.0  # inches of width that leave room for a legend beside the axes
_LONGEST_NAME: Final = 28
_FONT: Final = "DejaVu Sans"  # comes with matplotlib, so that a picture is the same everywhere

#: A decorator: what is drawn within a function is drawn in the style.
styled: Final = mpl.rc_context(
    {
        "font.family": _FONT,
        "font.size": 8.5,
        "axes.titlesize": 9.5,
        "axes.labelsize": 8.5,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.facecolor": "none",
        "axes.titlelocation": "left",
        "figure.facecolor": PAPER,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "hatch.linewidth": 0.6,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "text.color": INK,
        # A name may come from a file of somebody else, and "$\frac$" in it is no formula.
        "text.parse_math": False,
        "xtick.color": INK,
        "ytick.color": INK,
        "svg.fonttype": "path",
        "svg.hashsalt": "shmsim",
    }
)


class Look(NamedTuple):
    """How one of several things of a picture is drawn, in colour and without."""

    colour: str
    marker: str
    dashes: str


def look(index: int) -> Look:
    """The look of the thing with that number; those beyond the tenth share colours."""
    return Look(
        COLOURS[index % len(COLOURS)],
        MARKERS[index % len(MARKERS)],
        DASHES[index % len(DASHES)],
    )


class Picture(Figure):
    """A figure that a notebook shows as it is.

    IPython knows by itself only figures that `matplotlib.pyplot` made.
    """

    @styled
    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Twice as many dots as it is wide, for screens that have them."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=2 * self.dpi)
        width, height = (int(inches * self.dpi) for inches in self.get_size_inches())
        return buffer.getvalue(), {"width": width, "height": height}


def new_figure(width_in: float, height_in: float) -> Picture:
    """Make a figure whose parts are laid out without overlap."""
    return Picture(figsize=(width_in, height_in), layout="constrained")


def is_narrow(width_in: float) -> bool:
    """Whether a legend has to go below the axes."""
    return width_in < _BESIDE_FROM


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str], n_columns: int) -> None:
    """Put a legend beside the axes, or below them in columns where there is no room."""
    if is_narrow(figure.get_size_inches()[0]):
        figure.legend(handles, labels, loc="outside lower left", ncols=n_columns)
    else:
        figure.legend(handles, labels, loc="outside right upper")


def name_in_legend(text: str, width_in: float) -> str:
    """A name as `name_of` shows it, short enough for two columns of a legend below."""
    return name_of(text, 16 if is_narrow(width_in) else _LONGEST_NAME)


def name_of(text: str, longest: int = _LONGEST_NAME) -> str:
    r"""A name as a picture can show it: its middle cut, and what the font lacks as a question mark.

    Examples
    --------
    >>> name_of("tuned"), name_of("_x\n"), name_of("tp1-sync-2ms-1pct-spin, scheduler", 20)
    ('tuned', ' _x?', 'tp1-sync-2… scheduler')
    """
    has = _characters()
    plain = "".join(c if ord(c) in has and c.isprintable() else "?" for c in text)
    if len(plain) > longest:
        plain = f"{plain[: longest // 2]}…{plain[-(longest // 2) :]}"
    # Matplotlib leaves labels that begin with an underscore out of legends.
    return f" {plain}" if plain.startswith("_") else plain


@cache
def _characters() -> frozenset[int]:
    return frozenset(get_font(findfont(_FONT)).get_charmap())


def title_axes(axes: Axes, title: str) -> None:
    """Set the title of a picture's only axes, if it has one."""
    if title:
        axes.set_title(title)
