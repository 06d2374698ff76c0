"""Compiled kernels in a graph compute the logits of eager ones; compiling takes minutes."""

import pytest

torch = pytest.importorskip("torch", reason="the decoder needs torch")

from tests.gpu.conftest import N_ROWS  # noqa: E402 - after what says why there is no torch
from tests.gpu.test_decode_paths import compare  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's, of its own
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bucket", [1, 2, N_ROWS])
def test_a_graph_of_compiled_kernels_gives_the_logits_of_the_eager_step(bucket, dtype):
    pytest.importorskip("triton", reason="torch.compile needs Triton on a GPU")
    compare(bucket, dtype, "compiled")
