"""What runs promised, cost and leaked, for people to look at: a table for the terminal, one HTML page.

Numbers come in as `RunSummary`; nothing here knows how they were made.
"""

from tpsl.report.page import write_page
from tpsl.report.summary import RunSummary
from tpsl.report.table import summary_table

__all__ = ["RunSummary", "summary_table", "write_page"]
