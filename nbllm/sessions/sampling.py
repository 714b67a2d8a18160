"""What a session does with a model that is there: sample, switch adapters, export.

Like the session's other methods these choose inputs and move pointers; the rooms they import do the work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbllm.errors import NotFoundError, UsageError, did_you_mean
from nbllm.sessions.models import ModelReference
from nbllm.sessions.pointers import Pointers
from nbllm.store import Manifest

if TYPE_CHECKING:
    from nbllm.export import Exported
    from nbllm.sample import Answers, Generation, SamplingParameters
    from nbllm.sample.trace import Step
    from nbllm.tokenizer import Tokenizer


class Sampling(Pointers):
    """The part of `Session` that uses a model."""

    last_generation: Generation | None = None
    """What `generate` made last with the torch backend."""
    _last_made_with: tuple[ModelReference, str | None, str | None]  # model, adapter, quantize
    _last_asked: tuple[str | None, dict[str, Any]]  # the prompt's text and the options, as they were given

    def generate(
        self,
        prompt: str | Sequence[int] = "",
        *,
        model: str | None = None,
        checkpoint: int | None = None,
        adapter: str | None = None,
        chat: bool = False,
        trace: bool = False,
        on_text: Callable[[int, str], None] | None = None,
        on_step: Callable[[int, Step], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        quantize: str | None = None,
        backend: str = "torch",
        draft: str | None = None,
        **settings: Any,
    ) -> Generation:
        """Continues a prompt with the current model, or another.

        Args:
            prompt: text, or token ids.
            model: a run, folder, file or hub name; the current model by default.
            checkpoint: the step of a run's checkpoint; the newest by default.
            adapter: an adapter's name, `off` for none; the current one by default.
            chat: put the prompt into the model's own chat template first.
            trace: keep each step's alternatives.
            on_text: called with a sample's number and each new piece of its text.
            on_step: called with a sample's number and each token with its alternatives.
            should_stop: asked before every token; True ends the sampling and keeps what there is.
            quantize: `int8` or `int4` weights (on the CPU).
            backend: `torch`, or what runs the model instead, over an export that is made once: `onnx` or `llamacpp`,
                or `vllm`, which draws its own random numbers and gives the text when it is done.
            draft: a smaller model with the same tokenizer that guesses tokens; the text stays the same.
            settings: the fields of `SamplingParameters`; missing ones come from `session.sampling`.
        """
        from nbllm.sample import chat_prompt, generate

        parameters = self.sampling_with(settings)
        with self.lock:
            loaded: Any
            if backend == "torch":
                loaded, tokenizer = self.load_model(
                    model=model, checkpoint=checkpoint, adapter=adapter, quantize=quantize
                )
            elif quantize or draft:
                raise UsageError(f"{'quantize' if quantize else 'draft'} is for the torch backend", received=backend)
            else:
                name = self._chosen_adapter(model, adapter)
                loaded, tokenizer = self.models.runtime(self._chosen(model, checkpoint), name, backend=backend)
            asked = prompt if isinstance(prompt, str) else None
            if chat:
                prompt = chat_prompt(tokenizer, prompt if isinstance(prompt, str) else tokenizer.decode(prompt))
            if backend == "vllm":
                if trace or on_step is not None:
                    raise UsageError("vLLM gives no trace", next="Leave --backend out")
                generation: Generation = loaded.generate([prompt], parameters)[0]
                for number, text in enumerate(generation.texts if on_text is not None else ()):
                    on_text(number, text)  # type: ignore[misc]
                return generation
            generation = generate(
                loaded,
                tokenizer,
                prompt,
                parameters,
                on_text=on_text,
                on_step=on_step,
                should_stop=should_stop,
                trace=trace,
                draft=self.load_model(model=draft)[0] if draft else None,
            )
            if backend == "torch":
                self.last_generation = generation
                made_by = self._chosen(model, checkpoint)
                self._last_made_with = made_by, self._chosen_adapter(model, adapter), quantize
                options = {"model": model, "checkpoint": checkpoint, "adapter": adapter, "quantize": quantize}
                self._last_asked = asked, options | {"chat": chat and asked is not None}
            return generation

    def generate_many(
        self,
        prompts: Sequence[Any] | str | Path,
        to: str | Path | None = None,
        *,
        model: str | None = None,
        checkpoint: int | None = None,
        adapter: str | None = None,
        chat: bool = False,
        quantize: str | None = None,
        overwrite: bool = False,
        progress: Callable[[int, int, float], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        **settings: Any,
    ) -> Answers:
        """Continues many prompts, each as `generate` would; with a file, a call that was interrupted goes on.

        Args:
            prompts: texts, or a file: .jsonl with `prompt` (or `text`, `messages`), or text with one prompt a line.
            to: a .jsonl file that grows with the answers; without one they are in the result.
            model, checkpoint, adapter, chat, quantize, settings: as for `generate`.
            overwrite: replace the file.
            progress: called with prompts done, prompts in all and tokens a second.
            should_stop: asked now and then; True ends it and keeps what is done.
        """
        from nbllm.adapters import attached
        from nbllm.sample import generate_many

        parameters = self.sampling_with(settings)
        with self.lock:
            loaded, tokenizer = self.load_model(model=model, checkpoint=checkpoint, adapter=adapter, quantize=quantize)
            on, path = attached(loaded), self.models.path(self._chosen(model, checkpoint))
            weights = self.models.parents(ModelReference(kind="folder", source=path))[0]
            return generate_many(
                loaded,
                tokenizer,
                prompts,
                parameters,
                to=to,
                made_with={
                    "model": path,
                    "weights": weights.hash,
                    "adapter": None if on is None else on.hash,
                    "quantize": quantize,
                },
                chat=chat,
                overwrite=overwrite,
                progress=progress,
                should_stop=should_stop,
            )

    def sampling_with(self, settings: Mapping[str, Any]) -> SamplingParameters:
        """The session's sampling settings with some replaced; raises UsageError for an unknown one."""

        known = [field.name for field in dataclasses.fields(self.sampling)]
        for key in settings:
            if key not in known:
                raise UsageError(f"Sampling has no setting {key!r}", next=did_you_mean(key, known))
        return dataclasses.replace(self.sampling, **settings)

    def load_model(
        self,
        *,
        model: str | None = None,
        checkpoint: int | None = None,
        adapter: str | None = None,
        quantize: str | None = None,
    ) -> tuple[Any, Tokenizer]:
        """The model (a transformers model, in eval mode) and its tokenizer; kept in memory by content.

        Args:
            model, checkpoint, adapter, quantize: as for `generate`.
        """
        with self.lock:
            reference = self._chosen(model, checkpoint)
            return self.models.load(reference, adapter=self._chosen_adapter(model, adapter), quantize=quantize)

    def _chosen_adapter(self, model: str | None, adapter: str | None) -> str | None:
        """The adapter that is meant: the current one where neither it nor another model is named."""
        if adapter:
            return None if adapter == "off" else adapter
        return None if model else self.adapter

    def _chosen(self, model: str | None, checkpoint: int | None) -> ModelReference:
        """The model that is meant: the current one where none is named."""
        reference = self.models.reference(model) if model else self.model
        if reference is None:
            raise NotFoundError("There is no model yet", next="Train one with %llm_train, or add --model FOLDER")
        return reference if checkpoint is None else dataclasses.replace(reference, checkpoint=checkpoint)

    def prompt_text(self, tokens: Sequence[int]) -> str | None:
        """The text that is exactly these tokens as a prompt of the current model; None where no text is."""
        from nbllm.sample.prompt import encode_prompt

        _, tokenizer = self.load_model()
        text = tokenizer.decode(tokens)
        return text if encode_prompt(tokenizer, text) == list(tokens) else None

    def checkpoints(self) -> list[int]:
        """The steps of the current model's checkpoints, oldest first; none where it isn't a run of this store."""
        from nbllm.train import Run

        reference = self.model
        if reference is None or reference.kind != "run":
            return []
        return [checkpoint.step for checkpoint in Run(self.store, reference.source).checkpoints]

    def adapters(self) -> list[Manifest]:
        """The manifests of every adapter of the store, newest first."""
        return self.store.manifests("adapter")

    def use_adapter(self, name: str | None) -> None:
        """Makes an adapter current (None: none); the base isn't loaded again."""
        if name is not None:
            self.models.adapter_folder(name)
        with self.lock:
            self.adapter = name

    def merge_adapter(self, name: str | None = None, to: str | Path | None = None, *, overwrite: bool = False) -> Path:
        """Writes base and adapter as one ordinary transformers folder, and makes that the current model.

        Args:
            name: the adapter; the current one by default.
            to: the folder to write; `exports/NAME-merged` in the store by default.
            overwrite: replace a folder that isn't empty.
        """
        from nbllm.adapters import merge

        chosen = name or self.adapter
        if chosen is None:
            raise NotFoundError("There is no adapter yet", next="Make one with %llm_finetune --data FILE")
        folder = self.models.adapter_folder(chosen)
        base = self.models.base_of(chosen, self.model)
        target = Path(to) if to else self.store.path("export", f"{chosen}-merged")
        merged = merge(self.models.path(base), folder, target, overwrite=overwrite or to is None)
        with self.lock:
            self.model = self.models.reference(str(merged))
            self.adapter = None
        return merged

    def export(
        self,
        folder: str | Path,
        to: str = "hf",
        *,
        gguf_type: str = "f16",
        overwrite: bool = False,
        push: str | None = None,
    ) -> Exported:
        """Writes the current model, merged with the current adapter, in a form that other tools load; see `export`.

        Args:
            folder, to, gguf_type, overwrite: as for `export`.
            push: the repository of the Hugging Face hub that the folder is uploaded to, `NAME` or `OWNER/NAME`;
                private where it is new.
        """
        from nbllm.export import export
        from nbllm.export import push as hub

        with self.lock:
            reference, adapter = self.model, self.adapter
        if reference is None:
            raise NotFoundError("There is no model yet", next="Train one with %llm_train")
        chosen = self.models.adapter_folder(adapter) if adapter else None
        target = hub.repository(push) if push else None
        written = export(
            self.models.path(reference), Path(folder), to=to, adapter=chosen, gguf_type=gguf_type, overwrite=overwrite
        )
        return written if target is None else dataclasses.replace(written, page=hub.push(written.folder, target))
