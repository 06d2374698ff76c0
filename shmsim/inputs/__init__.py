"""Readers for what others have: profiles, logs, traces, datasheets.

Each checks every row and says what is wrong with it: file, line, column, value, what is allowed.
What a reader leaves out it counts, see `shmsim.inputs.rows.Loaded`.
"""
