"""Estimates that say how sure they are, from simulation output; numpy and scipy, nothing else."""

from shmsim.stats.batches import batch_means
from shmsim.stats.compare import paired_difference, paired_ratio
from shmsim.stats.estimate import CONFIDENCE, Estimate, mean_of_replications
from shmsim.stats.multiplicity import Comparison, against_reference, holm
from shmsim.stats.quantile import quantile_of_independent, quantile_of_sections
from shmsim.stats.regenerative import cycles, ratio_of_cycles
from shmsim.stats.selection import Choice, Sample, select
from shmsim.stats.stopping import Precision, run_until
from shmsim.stats.warmup import WarmUp, mser5, steady_mean

__all__ = [
    "CONFIDENCE",
    "Choice",
    "Comparison",
    "Estimate",
    "Precision",
    "Sample",
    "WarmUp",
    "against_reference",
    "batch_means",
    "cycles",
    "holm",
    "mean_of_replications",
    "mser5",
    "paired_difference",
    "paired_ratio",
    "quantile_of_independent",
    "quantile_of_sections",
    "ratio_of_cycles",
    "run_until",
    "select",
    "steady_mean",
]
