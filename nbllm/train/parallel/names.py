"""The names of the parallel plans, and the wishes that can't be met under them. Loads no torch."""

from __future__ import annotations

from nbllm.errors import UsageError, did_you_mean

PLANS = {
    "ddp": "every process holds the whole model and trains on its own rows",
    "fsdp": "weights, gradients and optimizer state are cut into one piece a process (torch's fully_shard)",
    "zero2": "gradients and optimizer state are cut into one piece a process (DeepSpeed)",
    "zero3": "weights too (DeepSpeed)",
    "tp": "the matrices of every block are cut over the processes, by transformers' plan",
    "fsdp,tp": "pairs of processes cut the matrices, and the pairs cut what each holds among themselves",
    "pp": "each process holds some of the blocks; micro-batches pass from one to the next (1F1B)",
}
"""Every plan and what it does."""
_CUT_ADAPTERS = ("lora", "dora", "ia3", "adapter")
"""Methods whose weights stand inside the blocks, in the blocks' own format: `fsdp` cuts them with their block."""


def check_plan(
    parallel: str,
    *,
    optimizer: str,
    precision: str,
    compiled: bool,
    processes: int | str,
    adapter: str | None,
    offload: bool,
) -> None:
    """Raises UsageError for a plan that doesn't exist, or that what else was asked for doesn't go with."""
    if parallel not in PLANS:
        pair = "," in parallel
        raise UsageError(
            "These plans don't go together" if pair else "No parallel plan has that name",
            received=parallel,
            next=f"Use one of {', '.join(PLANS)}" if pair else did_you_mean(parallel, PLANS),
        )
    if offload and not parallel.startswith("zero"):
        raise UsageError(
            "--offload goes with --parallel zero2 or zero3", received=parallel, next="Leave one of them out"
        )
    if parallel == "ddp":
        return
    if processes != "auto":
        check_processes(parallel, int(processes))
    if optimizer == "muon" and parallel != "fsdp":
        raise UsageError(
            f"--optimizer muon needs whole matrices, and --parallel {parallel} cuts them", next="Use --optimizer adamw"
        )
    if precision == "fp16":
        raise UsageError(
            f"--precision fp16 isn't proven under --parallel {parallel}", next="Use --precision bf16 or fp32"
        )
    if compiled:
        raise UsageError(f"--compile isn't proven under --parallel {parallel}", next="Leave one of them out")
    if adapter is not None and (parallel != "fsdp" or adapter not in _CUT_ADAPTERS):
        raise UsageError(
            f"--method {adapter} isn't proven under --parallel {parallel}",
            next=f"Use --parallel {'fsdp or ddp' if adapter in _CUT_ADAPTERS else 'ddp'}",
        )


def check_processes(parallel: str, processes: int) -> None:
    """Raises UsageError where that many processes can't follow the plan."""
    if parallel != "ddp" and processes < 2:
        raise UsageError(f"--parallel {parallel} needs several processes", received=processes, next="Use --processes 2")
    if parallel == "fsdp,tp" and (processes < 4 or processes % 2):
        raise UsageError(
            "--parallel fsdp,tp needs pairs of processes, two at least", received=processes, next="Use --processes 4"
        )


def check_offload(device_type: str) -> None:
    """Raises UsageError where there is nothing to offload from."""
    if device_type != "cuda":
        raise UsageError(
            f"--offload moves state from a GPU to the host's memory, and this run is on {device_type}",
            next="Leave it out",
        )


def check_machines(machines: int, rank: int, main: str | None) -> None:
    """Raises UsageError where these three don't say which machine this is and where they meet."""
    if machines == 1:
        if rank or main:
            raise UsageError("--rank and --main are for several machines", next="Add --machines 2")
        return
    if not 0 <= rank < machines:
        raise UsageError(f"--rank is one of 0 to {machines - 1}", received=rank)
    host, _, port = (main or "").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            "Several machines meet at --main HOST:PORT of the first one", received=main, next="--main 10.0.0.1:29500"
        )
