"""The decode step of one model, compiled in the background while the plain one answers, and kept on disk.

A package is code without weights, for a configuration, dtype, quantisation, device and version: a model trained
further, or an adapter, needs no other. It is made in a process of its own at the lowest priority, lies in the user's
cache folder (never in a store, since it is code), and is compared with the plain step before it is used. Whatever
goes wrong, the plain step goes on; that compiling failed is noted beside the package, so that the next kernel doesn't
try it again, until another compiler is found or `try_again` is called. `NBLLM_COMPILE=off` switches it off.

Legend: V tokens of the vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor

from nbllm.adapters import attached, in_four_bits
from nbllm.errors import NbllmError
from nbllm.files import read_json, write_json
from nbllm.model import dtype_name
from nbllm.sample.slots import Slots

if TYPE_CHECKING:
    from nbllm.sample.forward import Forward

PATIENCE = 64
"""Plain steps before compiling is worth its while."""
_LOOK_S = 1.0
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""Root mean square, of the logits' spread: several times what another order of sums changes in a deep model in that
dtype; a wrong step is off by about 1."""
_TRIES = 3
_KEPT_PACKAGES = 20
_LIFTED = re.compile(r"constant\d+")
_OFF = ("off", "0", "no")
_FAILED = "failed.json"
_STOPPED = tuple(-number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
"""How a process ends that somebody stopped; that says nothing about the model."""


class Compiled:
    """A model's step, compiled or not yet.

    Args:
        model: a causal language model of transformers.
    """

    def __init__(self, model: Any) -> None:
        self._model = ref(model)
        self._steps = 0
        self._over = False  # something went wrong, or it isn't wanted
        self._looked = 0.0
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._runner: Any = None
        self._compared = 0
        self._taken: Hashable = None  # which weights the runner has
        self._weights: dict[str, Tensor] = {}  # the runner holds their addresses
        self.why_not: str | None = "it hasn't run for long enough"
        """Why the plain step is taken; None once the compiled one is."""
        self.failed = False
        """Whether making the package failed, now or in an earlier kernel: `try_again` forgets it."""
        self.gave_up = False
        """Whether something else went wrong that wasn't expected of this model."""

    @property
    def ready(self) -> bool:
        """Whether the next step is the compiled one."""
        return self._runner is not None

    def step(self, forward: Forward, weights: Hashable, token: Tensor, slots: Slots) -> Tensor | None:
        """Runs the id of the only row.

        Args:
            forward: the plain step.
            weights: which weights it has now, `forward.weights`.
            token: int64 [1].
            slots: one row's; the id is added.

        Returns:
            Logits, float32 [1, V]; None: take the plain step.
        """
        if len(token) != 1 or not self._wanted() or not _mergeable(forward.model):
            return None
        try:
            if self._runner is None and not self._get_ready():
                return None
            if self._taken != weights:
                self._take_weights(weights)
            return self._run(forward, token, slots)
        except Exception as error:  # compilers fail in all kinds of ways; the plain step doesn't
            self._give_up(_said(error), strange=True)
            return None

    def wait(self, timeout_s: float = 600.0) -> bool:
        """Compiles now and waits for it, for measurements. Returns whether the next step is the compiled one."""
        self._steps = max(self._steps, PATIENCE)
        end = time.monotonic() + timeout_s
        while not self.ready and time.monotonic() < end and self._wanted():
            if self._begun() and self._package().is_file():
                try:
                    self._load()
                except Exception as error:  # as in `step`
                    self._give_up(_said(error), strange=True)
            time.sleep(0.2)
        return self.ready

    def switch_off(self) -> None:
        """Takes the plain step from now on."""
        self._give_up("it was switched off")

    def try_again(self) -> None:
        """Forgets that the compiled step failed or was switched off, also on disk."""
        if self._folder is not None:
            (self._folder / _FAILED).unlink(missing_ok=True)
        self._over = self.failed = self.gave_up = False
        self._process, self._folder, self._steps, self._compared = None, None, 0, 0
        self._taken = None
        self.why_not = "it hasn't run for long enough"

    @property
    def on_disk(self) -> bool:
        """Whether the package of this model is there, so that it only has to be loaded."""
        model = self._model()
        job = None if model is None else _job(model)
        return job is not None and (_cache() / _hash(job) / _package_name()).is_file()

    def _wanted(self) -> bool:
        return not self._over and allowed()

    def _get_ready(self) -> bool:
        """Whether the package is loaded; begins to make it, or looks for it, where it is time."""
        self._steps += 1
        if self._folder is None and self._steps > 1 and self._steps < PATIENCE:
            return False
        if time.monotonic() - self._looked < _LOOK_S and self._steps != PATIENCE:
            return False
        self._looked = time.monotonic()
        if not self._begun() or not self._package().is_file():
            return False
        self._load()
        return True

    def _begun(self) -> bool:
        """Looks for the package; starts its process once it is worth it."""
        model = self._model()
        if model is None:
            return False
        if self._folder is None:
            job = _job(model)
            if job is None:
                self._give_up("its kind of model isn't compiled")
                return False
            self._folder = _cache() / _hash(job)
            reason = None if self._package().is_file() else _known_failure(self._folder)
            if reason is not None:
                self._give_up(reason, failed=True)
                return False
        if self._package().is_file() or self._steps < PATIENCE:
            return True
        if self._process is None:
            self._start(_job(model))
        elif (code := self._process.poll()) is not None:
            reason = _last_line(self._folder / "log.txt", code)
            if code not in _STOPPED:
                write_json(self._folder / _FAILED, {"reason": reason, "compiler": _compiler()})
            self._give_up(reason, failed=code not in _STOPPED)
        return True

    def _start(self, job: Any) -> None:
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        _forget_old(self._folder.parent)
        write_json(self._folder / "config.json", job.pop("config"))
        write_json(self._folder / "job.json", job)
        with (self._folder / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nbllm.sample.compile_worker", str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
                start_new_session=True,  # interrupting a cell doesn't stop it; it ends with this process
            )
        self.why_not = "it is being compiled"

    def _load(self) -> None:
        self._runner = torch._inductor.aoti_load_package(str(self._package()))
        os.utime(self._package())
        self.why_not = "it hasn't been compared with the plain step"

    def _take_weights(self, weights: Hashable) -> None:
        from nbllm.model.quantization import GROUP
        from nbllm.sample.step import Step

        model: Any = self._model()
        step = Step(model)
        found = {
            **dict(step.named_parameters(remove_duplicate=False)),
            **dict(step.named_buffers(remove_duplicate=False)),
        }
        wanted = self._runner.get_constant_fqns()
        if getattr(model, "nbllm_quantized", None) == "int4":  # the compiler makes the group size a tensor
            found |= {name: torch.tensor(GROUP) for name in wanted if _LIFTED.fullmatch(name)}
        missing = [name for name in wanted if name not in found]
        if missing:
            raise KeyError(f"no weights for {missing[0]}")
        self._weights = {name: found[name].detach() for name in wanted}
        self._runner.load_constants(self._weights, check_full_update=True, user_managed=True)
        self._taken = weights

    def _run(self, forward: Forward, token: Tensor, slots: Slots) -> Tensor:
        slots.make_room(slots.length + 1)
        place = torch.tensor([slots.length], device=token.device)
        keys, values = [layer.keys for layer in slots.layers], [layer.values for layer in slots.layers]
        logits: Tensor = self._runner(token[:, None], place, keys, values)
        if self.why_not is not None:
            plain = forward(token[:, None], positions=place[None], mask=None, cache=slots)[:, -1]  # adds the id
            far = float((plain - logits).square().mean().sqrt() / (plain - plain.mean()).square().mean().sqrt())
            self._compared += 1
            if far <= _TOLERANCE.get(forward.model.dtype, 0.2):
                self.why_not = None
            elif self._compared == _TRIES:  # after a single id a model in bfloat16 may be off by more, either way
                self._give_up(f"its logits differ from the plain step's by {far:.2g} of their spread", strange=True)
            return plain
        slots.length += 1
        return logits

    def _give_up(self, reason: str, *, failed: bool = False, strange: bool = False) -> None:
        self._over, self.failed, self.gave_up = True, failed, strange
        self._runner, self._weights = None, {}
        self.why_not = reason

    def _package(self) -> Path:
        assert self._folder is not None
        return self._folder / _package_name()


def _mergeable(model: Any) -> bool:
    """Whether the copy that is compiled can hold the model's adapter; another one comes later, perhaps."""
    adapter = attached(model)
    return not in_four_bits(model) and (adapter is None or adapter.plain_lora)


def allowed() -> bool:
    """Whether `NBLLM_COMPILE` lets steps be compiled."""
    return os.environ.get("NBLLM_COMPILE", "").lower() not in _OFF


def _package_name() -> str:
    from nbllm.sample.compile_worker import PACKAGE

    return PACKAGE


def _compiler() -> str | None:
    """The C++ compiler that would be used, where there is one."""
    named = os.environ.get("CXX")
    return next((path for name in (named, "g++", "clang++") if name and (path := shutil.which(name))), None)


def _known_failure(folder: Path) -> str | None:
    """Why an earlier kernel couldn't make the package; None: it wasn't tried, or with another compiler."""
    try:
        noted = read_json(folder / _FAILED)
        return str(noted["reason"]) if noted["compiler"] == _compiler() else None
    except (OSError, ValueError, KeyError, TypeError, NbllmError):
        return None


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _job(model: Any) -> dict[str, Any] | None:
    """What the package is made from; None for a model that a configuration alone doesn't make."""
    import transformers

    config = model.config
    if not type(model).__module__.startswith("transformers.") or Slots.layers_of(config) is None:
        return None
    device = model.get_input_embeddings().weight.device.type
    capability = torch.backends.cpu.get_cpu_capability() if device == "cpu" else str(torch.cuda.get_device_name())
    plain = config.to_dict()
    for key in ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "quantization_config"):
        plain.pop(key, None)
    return {
        "config": plain,
        "dtype": dtype_name(model.dtype),
        "device": device,
        "capability": capability,
        "threads": torch.get_num_threads(),
        "quantize": (quantized := getattr(model, "nbllm_quantized", None)),
        "versions": [torch.__version__, transformers.__version__, _code_version(quantized is not None)],
    }


def _code_version(quantized: bool) -> str:
    """A hash of the code that the package is made from."""
    paths = [Path(__file__).with_name(name) for name in ("step.py", "compile_worker.py")]
    if quantized:
        from nbllm.model import quantization

        paths.append(Path(str(quantization.__file__)))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]


def _hash(job: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(job, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _cache() -> Path:
    base = os.environ.get("NBLLM_CACHE") or os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) / "nbllm" if base else Path.home() / ".cache" / "nbllm"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="nbllm-"))
    return folder / "compiled"


def _forget_old(folder: Path) -> None:
    packages = sorted(folder.glob("*/*.pt2"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in packages[_KEPT_PACKAGES:]:
        shutil.rmtree(path.parent, ignore_errors=True)


def _last_line(log: Path, code: int) -> str:
    """Why the process with this exit code failed, from its output."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    if code == -signal.SIGKILL:
        return "compiling failed: it was killed, perhaps for want of memory"
    return f"compiling failed: {lines[-1][:200] if lines else 'no message'}"
