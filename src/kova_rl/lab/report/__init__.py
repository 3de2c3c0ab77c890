"""The report: stored runs read, summarised, drawn, and written as one page and as a table."""

from kova_rl.lab.report.reading import DamagedRun, RunRecord, read
from kova_rl.lab.report.table import table
from kova_rl.lab.report.write import report

__all__ = ["DamagedRun", "RunRecord", "read", "report", "table"]
