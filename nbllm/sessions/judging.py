"""What a session says about how good a model is: held-out loss, a text's tokens, speed, and what is wrong.

Like the session's other methods these choose inputs; the rooms they import do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nbllm.errors import DataError, NotFoundError, RunError
from nbllm.sessions.sampling import Sampling
from nbllm.sessions.starting import plain_corpus

if TYPE_CHECKING:
    from nbllm.bench import Bench
    from nbllm.bench.op_result import OpsBench
    from nbllm.doctor import Diagnosis
    from nbllm.evaluate import Comparison, EvalResult, TaskScores
    from nbllm.sample import Score
    from nbllm.tokenizer import Tokenizer
    from nbllm.train import Run


class Judging(Sampling):
    """The part of `Session` that measures a model."""

    def diagnose(
        self, prompt: str | Sequence[int] | None = None, *, run: str | Run | None = None, **options: Any
    ) -> Diagnosis:
        """Findings about the last generation, about one that is made now, or about a run: evidence and a remedy each.

        Args:
            prompt: sample this first, with its trace.
            run: look at this run, its log and its data, instead; without a text so far, the current run is taken.
            options: as for `generate`.

        Each finding's line asks for the same model, adapter, weights and settings. Where something looks slow, the
        remedy is tried for some seconds.
        """
        from nbllm.doctor import Asked
        from nbllm.doctor.diagnose import diagnose
        from nbllm.doctor.fit import no_template

        if run is None and prompt is None and self.last_generation is None:
            run = self.run
        if run is not None:
            from nbllm.doctor.run import diagnose_run
            from nbllm.train import Run

            return diagnose_run(Run(self.store, run) if isinstance(run, str) else run)
        with self.lock:
            untold = False
            if prompt is not None:
                if options.get("chat"):
                    which = {name: options.get(name) for name in ("model", "checkpoint", "adapter")}
                    untold = not self.load_model(**which)[1].chat_template
                self.generate(prompt, trace=True, **{**options, "chat": bool(options.get("chat")) and not untold})
            if self.last_generation is None:
                raise NotFoundError("There is no text and no run yet", next='Type %llm_doctor "a prompt"')
            reference, adapter, quantize = self._last_made_with
            loaded, tokenizer = self.models.load(reference, adapter=adapter, quantize=quantize)
            text, given = self._last_asked
            asked = Asked(prompt=text, options=given, defaults=self.sampling)
            more = (no_template(tokenizer, self.last_generation, asked),) if untold else ()
            return diagnose(loaded, tokenizer, self.last_generation, asked, more=more)

    def compile_again(self, **options: Any) -> str:
        """Forgets that compiling the current model's decode step failed, compiles it now and waits: minutes.

        Args:
            options: `model`, `checkpoint`, `adapter`, `quantize`, as for `load_model`.

        Returns:
            How it went, in one line.

        Raises:
            RunError: it failed again; the message says why.
        """
        from nbllm.sample.forward import Forward

        with self.lock:
            loaded, _ = self.load_model(**options)
            state = Forward.of(loaded).compiled
            state.try_again()
            if not state.wait():
                raise RunError(f"The decode step isn't compiled: {state.why_not}", next="The plain step goes on")
        return "The decode step is compiled, and is taken from now on."

    def evaluate(
        self,
        *,
        on: str = "held-out",
        text: str | None = None,
        tasks: Sequence[str] | None = None,
        limit: int | None = None,
        shots: int | None = None,
        model: str | None = None,
        models: Sequence[str] | None = None,
        held_out: float = 0.05,
        progress: Callable[[int, int], None] | None = None,
    ) -> EvalResult | TaskScores | Comparison:
        """Loss, perplexity and bits a byte on a text, or scores of benchmark tasks; of one model, or several beside
        each other.

        Args:
            on: `held-out` for that part of the current corpus, or a file or another source.
            text: this text instead.
            tasks: names that lm-eval knows, or YAML files of tasks, instead of a text.
            limit: ask only so many examples of each task.
            shots: how many solved examples stand before each; by default what the task says.
            model: a run, folder, file or hub name; the current model, with the current adapter, by default.
            models: several of these, or adapters.
            held_out: the share of documents that were held out.
            progress: called with tokens (or a task's requests) done and in all, for each model.
        """
        from nbllm.evaluate import Comparison, evaluate, run_tasks

        texts: list[str] = []
        if text is not None:
            texts = [text]
        elif not tasks and on == "held-out":
            texts = list(self.current_corpus(None).texts("held-out", held_out))
        elif not tasks:
            texts = list(plain_corpus(self, on, "evaluation").texts())
        if not tasks and not texts:
            raise DataError(f"There is no text to evaluate on in {on}", next="Name a file, or raise --held-out")

        def measure(loaded: Any, tokenizer: Tokenizer) -> EvalResult | TaskScores:
            if tasks:
                return run_tasks(loaded, tokenizer, tasks, limit=limit, shots=shots, progress=progress)
            return evaluate(loaded, tokenizer, texts, progress=progress)

        with self.lock:
            if not models:
                return measure(*self.load_model(model=model))
            return Comparison(
                models=tuple(models), results=tuple(measure(*self._model_or_adapter(name)) for name in models)
            )

    def _model_or_adapter(self, name: str) -> tuple[Any, Tokenizer]:
        """A model by name, or an adapter on the base that it belongs to."""
        try:
            self.models.adapter_folder(name)
        except (NotFoundError, RunError):
            return self.load_model(model=name)
        return self.models.load(self.models.base_of(name, self.model), adapter=name)

    def score(self, text: str, *, model: str | None = None, adapter: str | None = None) -> Score:
        """How well the current model (or another) expects each token of a text; a notebook shows them coloured."""
        from nbllm.sample.score import score

        with self.lock:
            loaded, tokenizer = self.load_model(model=model, adapter=adapter)
            return score(loaded, tokenizer, text)

    def _bench_ops(self, model: str | None, *, compile: bool, say: Callable[[str], None] | None) -> OpsBench:
        from nbllm.bench.op_forms import Shapes
        from nbllm.bench.ops import compare_ops
        from nbllm.model import best_device

        with self.lock:
            config = None
            if model is not None or self.model is not None:
                config = self.load_model(model=model)[0].config.get_text_config()
            device = "cuda" if best_device() == "cuda" else "cpu"
            return compare_ops(shapes=Shapes.of(config, device=device), device=device, compile=compile, say=say)

    def bench(
        self,
        *,
        backends: Sequence[str] | None = None,
        model: str | None = None,
        prompt: str = "The first thing that a program does is to",
        new_tokens: int = 64,
        batch: Sequence[int] = (1, 8),
        compile: bool = True,
        ops: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> Bench | OpsBench:
        """The same model through every runtime of this machine: speed, memory, agreement; or the fused ops.

        Args:
            backends: of `eager`, `compiled`, `int8`, `int4`, `onnx`, `llamacpp`, `vllm`, `tensorrt`; all by default.
            model: a run, folder, file or hub name; the current model, with its adapter, by default.
            prompt: the text to continue.
            new_tokens: tokens made a text.
            batch: how many texts at once, each.
            compile: wait for the compiled step, minutes where it isn't on disk yet.
            ops: measure the fused ops instead, in the shapes of the named or current model (SmolLM2-135M's where there
                is none), and keep for `--fused auto` which kernels are right and faster on this GPU.
            say: called with a line of progress for each op.
        """
        if ops:
            return self._bench_ops(model, compile=compile, say=say)
        from nbllm.bench.compare import Source, compare

        with self.lock:
            reference, adapter = self._chosen(model, None), self._chosen_adapter(model, None)
            base = self.models.base_of(adapter, reference) if adapter else reference
            folder = str(self.models.adapter_folder(adapter)) if adapter else None
            loaded, tokenizer = self.load_model(model=model)
            return compare(
                loaded,
                lambda backend: self.models.load_runtime(reference, adapter, backend=backend),
                name=reference.name if adapter is None else f"{reference.name} + {adapter}",
                prompt=tokenizer.encode(prompt),
                backends=backends,
                new_tokens=new_tokens,
                batch=batch,
                compile=compile,
                source=Source(path=self.models.path(base), adapter=folder),
            )
