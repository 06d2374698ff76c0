"""What came out of a run, as a picture and as a page to read and pass on.

A page is one HTML file: verdict first, then the evidence, how to get the same again, and limits.
"""

from realrun.report.frontier import draw_frontier
from realrun.report.of_validation import disturbed_in
from realrun.report.write import write_report

__all__ = ["disturbed_in", "draw_frontier", "write_report"]
