"""Records by address: what compiled code is told of a field it need not read."""

import numba
import numpy as np

from shmsim.policies import Park
from shmsim.sim.recurrence import store
from shmsim.sim.recurrence.loop import loop_for
from shmsim.sim.recurrence.memory import records_at

PAIR = np.dtype([("told", np.int64), ("read", np.int64)])


def test_a_field_that_is_told_is_not_read():
    for fixed, expected in (((), [(1, 2), (3, 4)]), ((("told", 7),), [(7, 2), (7, 4)])):
        pair_at = records_at(PAIR, fixed)
        both = numba.njit(lambda address, i, at=pair_at: (at(address, i).told, at(address, i).read))
        rows = np.array([(1, 2), (3, 4)], PAIR)
        assert [both(rows.ctypes.data, i) for i in (0, 1)] == expected


def test_a_loop_for_one_worker_is_kept_by_itself():
    one, more = (loop_for(Park(), None, one_worker=x) for x in (True, False))
    assert store.fingerprint(one) != store.fingerprint(more)
    assert loop_for(Park(), None, one_worker=True) is one
