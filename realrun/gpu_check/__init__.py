"""Checks a machine with a GPU by one command: calibrates, predicts, measures, judges."""

from realrun.gpu_check.asked import Cell, Figures, Row, cells, config_of, name_of, row_of
from realrun.gpu_check.flow import Clock, Found, Ran, Spent, check, run_cells, write_found
from realrun.gpu_check.judge import claims_of
from realrun.gpu_check.predictions import draw_predictions, predict_cell, prediction_claims
from realrun.gpu_check.tables import cells_table, spent_sentence

__all__ = [
    "Cell",
    "Clock",
    "Figures",
    "Found",
    "Ran",
    "Row",
    "Spent",
    "cells",
    "cells_table",
    "check",
    "claims_of",
    "config_of",
    "draw_predictions",
    "name_of",
    "predict_cell",
    "prediction_claims",
    "row_of",
    "run_cells",
    "spent_sentence",
    "write_found",
]
