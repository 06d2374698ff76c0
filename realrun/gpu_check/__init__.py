"""Checks a machine with a GPU by one command: calibrates, predicts, measures, judges.

``realrun gpu-check``, or ``python -m realrun.gpu_check`` where only torch, numpy and pyzmq are.
"""
