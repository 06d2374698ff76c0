"""The wait policies: immutable values of numbers that answer with a plan.

They stay within what numba compiles: ints stay ints and floats stay floats on every branch, no
``**``, no ``sum()``, no ``_replace``. `shmsim.sim.compiled` then gives the same bits as CPython.
docs/policies.md lists them with their sources, and says when each loses.
"""

from typing import Any, Final

from shmsim.policies.ahead import WakeAhead
from shmsim.policies.always import BusySpin, Park, Poll, YieldSpin
from shmsim.policies.averages import EmaGrace, HybridFraction
from shmsim.policies.bayes import HazardBayes
from shmsim.policies.growing import GrowShrink
from shmsim.policies.hedge import PlanHedge
from shmsim.policies.intervals import IntervalDetector
from shmsim.policies.parameters import check_parameters
from shmsim.policies.pas import Pas
from shmsim.policies.quantile import QuantileDoze
from shmsim.policies.stepahead import StepAhead
from shmsim.policies.windows import (
    AdaptiveTick,
    AsyncGated,
    CompetitiveSpin,
    GraceThenPark,
    GraceThenPoll,
    KarlinRandom,
    Ladder,
    SpinThenPark,
)
from shmsim.policies.wrappers import Clamped, IfPreempted, SpinBudget
from shmsim.units import MS, US, S
from shmsim.wait import WaitPolicy

__all__ = [
    "POLICIES",
    "PRESETS",
    "SOURCES",
    "AdaptiveTick",
    "AsyncGated",
    "BusySpin",
    "Clamped",
    "CompetitiveSpin",
    "EmaGrace",
    "GraceThenPark",
    "GraceThenPoll",
    "GrowShrink",
    "HazardBayes",
    "HybridFraction",
    "IfPreempted",
    "IntervalDetector",
    "KarlinRandom",
    "Ladder",
    "Park",
    "Pas",
    "PlanHedge",
    "Poll",
    "QuantileDoze",
    "SpinBudget",
    "SpinThenPark",
    "StepAhead",
    "WakeAhead",
    "YieldSpin",
    "check_parameters",
]

#: Every policy class, by the name it has in a config file and on the command line.
POLICIES: Final[dict[str, type[WaitPolicy]]] = {
    "BusySpin": BusySpin,
    "YieldSpin": YieldSpin,
    "Park": Park,
    "Poll": Poll,
    "SpinThenPark": SpinThenPark,
    "CompetitiveSpin": CompetitiveSpin,
    "KarlinRandom": KarlinRandom,
    "GraceThenPark": GraceThenPark,
    "GraceThenPoll": GraceThenPoll,
    "AdaptiveTick": AdaptiveTick,
    "AsyncGated": AsyncGated,
    "Ladder": Ladder,
    "GrowShrink": GrowShrink,
    "EmaGrace": EmaGrace,
    "HybridFraction": HybridFraction,
    "Pas": Pas,
    "IntervalDetector": IntervalDetector,
    "QuantileDoze": QuantileDoze,
    "PlanHedge": PlanHedge,
    "HazardBayes": HazardBayes,
    "WakeAhead": WakeAhead,
    "StepAhead": StepAhead,
    "Clamped": Clamped,
    "SpinBudget": SpinBudget,
    "IfPreempted": IfPreempted,
}

#: Where each idea comes from; docs/policies.md has the constants.
SOURCES: Final[dict[str, str]] = {
    "BusySpin": "vLLM's spin extension",
    "YieldSpin": "vLLM #9994",
    "Park": "vLLM #24618",
    "Poll": "",
    "SpinThenPark": "folly, Seastar, ROCr",
    "CompetitiveSpin": "Karlin 1988, Lim and Agarwal 1993",
    "KarlinRandom": "Karlin 1990",
    "GraceThenPark": "vLLM #28053",
    "GraceThenPoll": "vLLM #16226",
    "AdaptiveTick": "vLLM #24618, zmq_tick2",
    "AsyncGated": "vLLM #24618",
    "Ladder": "Disruptor, Agrona, iceoryx2, crossbeam",
    "GrowShrink": "Linux KVM, haltpoll governor",
    "EmaGrace": "vLLM #52916",
    "HybridFraction": "Linux blk-mq, io_uring",
    "Pas": "DPAS, FAST'26",
    "IntervalDetector": "Linux menu governor",
    "QuantileDoze": "newsvendor",
    "PlanHedge": "Herbster and Warmuth 1998",
    "HazardBayes": "ski rental with a known law",
    "WakeAhead": "ours",
    "StepAhead": "ours",
    "Clamped": "Purohit 2018, Kim and Fan 2026",
    "SpinBudget": "ours",
    "IfPreempted": "folly, Go",
}

#: Policies as people ship them, by the name they are known by. Rounds of a ladder are counted at
#: 40 ns a pause and 1 us a yield; a sleep of less than 30 us is one of 30 us (docs/policies.md).
PRESETS: Final[dict[str, Any]] = {
    "spin": BusySpin(),
    "yield": YieldSpin(),
    "vllm-1s": GraceThenPark(1 * S),
    "forks-2ms": GraceThenPark(2 * MS),
    "competitive": SpinThenPark(),
    "sleep-100ms": GraceThenPoll(3 * S, 100 * MS),
    "park": Park(),
    "wake-ahead": WakeAhead(),
    "rehearse-ahead": WakeAhead(rehearse=True),
    "step-ahead": StepAhead(),
    "step-ahead-rehearsed": StepAhead(rehearse=True),
    "poll-100us": Poll(),
    "folly-2us": SpinThenPark(2 * US),
    "seastar-200us": SpinThenPark(200 * US),
    "rocr-200us": SpinThenPark(200 * US),
    "karlin": KarlinRandom(),
    "zmq-tick": AdaptiveTick(),
    "async-gated": AsyncGated(),
    "disruptor": Ladder(4 * US, 104 * US, 30 * US, 104 * US, 30 * US),
    "agrona": Ladder(400, 5_400, 30 * US, 1_500 * US, MS),
    "iceoryx2": Ladder(0, 10 * MS, 100 * US, 20 * MS, 10 * MS),
    "crossbeam": Ladder(5 * US, 9 * US, 30 * US, 9 * US, 0),
    "kvm": GrowShrink(10 * US, 200 * US, 2, 0),
    "guest-haltpoll": GrowShrink(50 * US, 200 * US, 2, 2),
    "ema-grace": EmaGrace(),
    "hybrid-half": HybridFraction(),
    "pas": Pas(),
    "interval": IntervalDetector(),
    "quantile-doze": QuantileDoze(),
    "plan-hedge": PlanHedge(),
    "hazard-bayes": HazardBayes(),
}
