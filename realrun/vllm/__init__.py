"""Observes an installed, unmodified vLLM, and carries out its waits by policy.

vLLM loads `realrun.vllm.plugin.install` in every process from the entry points of this package.
It does nothing unless one of these is set:

``REALRUN_VLLM_TRACE=DIR``
    Every process writes its waits and messages to a file in DIR; ``realrun vllm-import DIR``
    makes one run of them.
``REALRUN_VLLM_POLICY=FILE[:FILE...]``
    The waits of the message queues are carried out by a policy. With
    ``REALRUN_VLLM_CONTROL=FILE`` another one can be chosen while the engine runs, with
    ``REALRUN_VLLM_COSTS=FILE`` they are told this box's costs of waiting.

Within the engine nothing is imported but the policies, `realrun.native` and what vLLM brings.
docs/vllm.md is the guide.
"""
