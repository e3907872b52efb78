"""Pages that show what a model did: names and arrays in, one HTML file out."""

from handgrad.inspect.data import Curve, ParameterRow, ReportData
from handgrad.inspect.report import render, write_report

__all__ = ["Curve", "ParameterRow", "ReportData", "render", "write_report"]
