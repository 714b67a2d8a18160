"""What every Triton kernel takes of a GPU: registers, shared memory and spills, compiled ahead of time without one.

    python benchmarks/kernels_aot.py             # sm_80, sm_90 and gfx942; about half a minute; needs triton
    python benchmarks/kernels_aot.py --only swiglu --print

Registers and spills of NVIDIA's targets are `ptxas -v`'s, a thread's; those of AMD's stand in the amdgcn text, a
lane's. A spill makes the exit code 1. The shapes are the largest that the launchers take. Says nothing about speed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TARGETS = ("sm_80", "sm_90", "gfx942")


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One specialisation of a kernel."""

    name: str
    function: Any
    constants: dict[str, Any]
    warps: int


@dataclass(frozen=True, kw_only=True)
class Use:
    """What it takes on one target."""

    kernel: str
    target: str
    warps: int
    registers: int
    shared_bytes: int
    spilled: int
    """Bytes of spill stores and loads a thread (NVIDIA), spilled vector and scalar registers (AMD)."""


def kernels() -> Iterator[Kernel]:
    """Every kernel, in the forms that need most."""
    from nbllm.ops.kernels import rms_norm, rope, swiglu, token_losses
    from nbllm.ops.kernels.rows import warps
    from nbllm.ops.rms_norm import MOST_WIDE

    for block in (1024, MOST_WIDE):
        for add in (False, True):
            constants = {"ADD": add, "BLOCK": block}
            name = f"rms_norm {block:,}{' + residual' if add else ''}"
            yield Kernel(
                name=f"{name} forward", function=rms_norm.forward_kernel, constants=constants, warps=warps(block)
            )
            yield Kernel(
                name=f"{name} backward", function=rms_norm.backward_kernel, constants=constants, warps=warps(block)
            )
    yield Kernel(name="swiglu forward", function=swiglu.forward_kernel, constants={"BLOCK": 2048}, warps=4)
    yield Kernel(name="swiglu backward", function=swiglu.backward_kernel, constants={"BLOCK": 2048}, warps=4)
    for half in (32, 64, 128):
        for back in (False, True):
            constants = {"BACK": back, "Q_HEADS": 16, "K_HEADS": 8, "HALF": half}
            way = "backward" if back else "forward"
            yield Kernel(name=f"rope {2 * half} {way}", function=rope.turn_kernel, constants=constants, warps=4)
    terms = ("FOCAL", "SMOOTH", "SQUARE", "CAP", "BIAS", "WEIGHTS")
    for name, given in (("cross-entropy", ()), ("focal", ("FOCAL",)), ("with every term", terms)):
        for gradient in (False, True):
            constants = {term: term in given for term in terms} | {"GRADIENT": gradient, "BLOCK": 2048}
            way = "and gradient" if gradient else "alone"
            yield Kernel(name=f"loss {way}, {name}", function=token_losses.rows_kernel, constants=constants, warps=8)


def measure(kernel: Kernel, target: str) -> Use:
    """Compiles it in bf16 and reads what it takes."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    amd = target.startswith("gfx")
    device = GPUTarget("hip", target, 64) if amd else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    names = kernel.function.arg_names
    source = ASTSource(
        kernel.function,
        signature={name: "constexpr" if name in kernel.constants else _kind(name) for name in names},
        constexprs=kernel.constants,
        attrs={(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name.endswith("_ptr")},
    )
    made = triton.compile(source, target=device, options={"num_warps": kernel.warps})
    registers, spilled = _amd(made.asm["amdgcn"]) if amd else _nvidia(made.asm["ptx"], target)
    return Use(
        kernel=kernel.name, target=target, warps=kernel.warps, registers=registers,
        shared_bytes=int(made.metadata.shared), spilled=spilled,
    )  # fmt: skip


def _kind(name: str) -> str:
    if name in ("rstd_ptr", "d_weight_ptr", "losses_ptr", "weights_ptr"):
        return "*fp32"
    if name == "targets_ptr":
        return "*i64"
    if name.endswith("_ptr"):
        return "*bf16"
    return "fp32" if name in ("eps", "offset", "smoothing", "gamma", "z_loss", "softcap") else "i32"


def _amd(text: str) -> tuple[int, int]:
    def number(word: str) -> int:
        found = re.search(rf"\.{word}:\s*(\d+)", text)
        assert found is not None, f"no {word} in the amdgcn text"
        return int(found[1])

    return number("vgpr_count"), number("vgpr_spill_count") + number("sgpr_spill_count")


def _nvidia(ptx: str, target: str) -> tuple[int, int]:
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    newest = tools / "ptxas-blackwell"  # the wheel's ptxas for the PTX that is made from sm_90 on
    tool = newest if target != "sm_80" and newest.exists() else tools / "ptxas"
    architecture = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert architecture is not None, "no target in the PTX"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx, encoding="utf-8")
        command = [tool, "-v", f"--gpu-name={architecture[1]}", path, "-o", Path(folder) / "kernel.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True)
    text = said.stdout + said.stderr
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", text)
    registers = re.search(r"Used (\d+) registers", text)
    assert spills is not None, text
    assert registers is not None, text
    return int(registers[1]), int(spills[1]) + int(spills[2])


def main() -> int:
    """Prints the table and keeps it; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="kernels whose name begins so")
    parser.add_argument("--print", action="store_true", help="as JSON, and keep nothing")
    given = parser.parse_args()
    chosen = [kernel for kernel in kernels() if kernel.name.startswith(tuple(given.only))]
    found = [measure(kernel, target) for kernel in chosen for target in TARGETS]
    if given.print:
        print(json.dumps([asdict(use) for use in found]))
    else:
        import triton
        from kept import keep

        for use in found:
            print(
                f"{use.kernel:<34} {use.target:<7} {use.registers:>4} registers {use.shared_bytes:>6} B  {use.spilled}"
            )
        rows = [asdict(use) for use in found]
        print(f"kept in {keep('kernels_aot', {'triton': triton.__version__, 'dtype': 'bf16', 'kernels': rows})}")
    return 1 if any(use.spilled for use in found) else 0


if __name__ == "__main__":
    sys.exit(main())
