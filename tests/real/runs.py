"""Short runs, as the tests of this folder need them."""

from pathlib import Path

from realrun.run import make_spec
from realrun.spec import RunSpec
from shmsim.config import DeviceConfig, EngineConfig, RunConfig, WorkloadConfig
from shmsim.policies import WakeAhead
from shmsim.units import US
from shmsim.wait import WaitPolicy
from tests.toy import toy_profile

ROOT = Path(__file__).parents[2]
N_REQUESTS = 4
N_TOKENS = 20
DEFAULT_POLICY = WakeAhead()


def config(
    workers: int = 1,
    calls: int = 2,
    scheduling: str = "sync",
    step_ns: int = 500 * US,
    in_flight: int = 2,
    **workload,
) -> RunConfig:
    """Four requests of twenty tokens, two at a time."""
    lengths = {"prompt_p50": 64, "prompt_p95": 64, "output_p50": N_TOKENS, "output_p95": N_TOKENS}
    return RunConfig(
        engine=EngineConfig(workers, calls, scheduling, batches_in_flight=in_flight),
        workload=WorkloadConfig(**({"requests": N_REQUESTS} | lengths | workload)),
        device=DeviceConfig(step_ns=step_ns, per_prefill_token_ns=0, jitter=0.1),
        seed=11,
    )


def spec(of: RunConfig, policy: WaitPolicy = DEFAULT_POLICY) -> RunSpec:
    """What the processes of such a run are told."""
    return make_spec(of, policy, toy_profile(), 0)
