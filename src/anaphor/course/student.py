"""A student's own class or function: found in a file, made with the sizes of a reference, and called.

An error that the student's code raises is one line, with the file and the line where it was raised.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from anaphor.config import nearest
from anaphor.course.placeholder import Placeholder, find_placeholder
from anaphor.course.reference import Case, Outputs, Reference, Sizes
from anaphor.errors import ConfigError, describe_exception
from anaphor.imported_files import MODULE_PREFIX, execute_file

Value = TypeVar("Value")

ALIASES: dict[str, str] = {
    "dim": "dim d_model dmodel embed_dim n_embd emb_dim embedding_dim hidden_size d width embed_size d_embed emb size"
    " input_dim in_dim d_in dims model_dim input_size emsize in_features",
    "n_hidden": "n_hidden head_dim d_k dk head_size d_head attn_dim key_dim d_attn head_width hidden d_out out_dim"
    " output_dim hidden_dim dim_head",
    "num_heads": "num_heads n_heads heads h n_head nhead nheads num_head",
    "attn_dim": "attn_dim head_dim d_k dk head_size d_head n_hidden dim_head d_attn key_dim",
    "mlp_dim": "mlp_dim d_ff ff_dim ffn_dim dim_feedforward feedforward ffn_hidden mlp_hidden d_mlp hidden_dim dff",
    "num_layers": "num_layers n_layers layers depth n_layer num_blocks n_blocks nlayers",
    "vocab_size": "vocab_size vocab n_vocab num_tokens ntoken ntokens num_embeddings vocabulary_size",
    "max_seq_len": "max_seq_len max_len block_size max_length context_length max_positions seq_len ctx_len n_positions"
    " max_sequence_length",
    "img_size": "img_size image_size img image_dim",
    "patch_size": "patch_size patch p",
    "in_chans": "in_chans in_channels channels num_channels c n_channels",
    "embed_dim": "embed_dim dim d_model emb_dim width embedding_dim hidden_size emb_size hidden_dim",
    "num_classes": "num_classes n_classes classes num_labels out_dim",
    "hidden_size": "hidden_size hidden_dim hidden n_hidden d_hidden nhid h num_units units hid_dim",
    "input_size": "input_size input_dim n_input d_in in_dim embed_dim ninp d_input in_features x_dim",
    "x": "x input inputs inp tokens h hidden_states embeddings seq images image img src data tgt trg emb embedded",
    "attn_mask": "attn_mask mask attention_mask m src_mask attn_masks",
    "data": "data tokens text corpus ids x",
    "bsz": "bsz batch_size bs batch b rows num_rows n_batch columns",
    "source": "source data text corpus src memory encoder_outputs enc_outputs encoder_output enc_out encoder_out"
    " annotations context keys x batches",
    "source_mask": "source_mask src_mask mask memory_mask attn_mask encoder_mask enc_mask",
    "lengths": "lengths source_lengths src_lengths src_lens lens src_len",
    "i": "i start index begin offset idx t pos position",
    "bptt": "bptt seq_len length size seq_length segment block_size sequence_length max_len",
    "logits": "logits output outputs out preds predictions pred scores",
    "input_mask": "input_mask inp_mask mask attention_mask masks pad_mask",
    "references": "references reflists list_of_refs refs reference list_of_references gold targets ref",
    "hypotheses": "hypotheses hyps hypothesis candidates predictions outputs hyp translations",
    "h": "h hidden hx h_prev prev_h h_t h0 h_0 h_tm1 hidden_state prev_hidden last_hidden state s",
    "c": "c cell cx c_prev prev_c c_t c0 c_0 c_tm1 cell_state memory prev_cell",
    "state": "state states hc hx hidden h carry prev_state state_prev hidden_states init_states memory",
    "heads": "heads x outputs out context contexts h head_outputs values o attended attn",
    "length": "length seq_len t n tokens seq_length num_positions max_len context_length size n_tokens max_seq_len",
    "grad_y": "grad_y grad_output grad_outputs grad_out dout d_out dy d_y upstream upstream_grad g grad delta dl_dy dz"
    " do da dl_dout out_grad grad_o",
    "w": "w weight weights weight_matrix matrix",
    "b": "b bias b_",
    "y": "y out output a act activation t h s tanh_x",
    "targets": "targets target y labels label y_true ids classes gold t",
    "gamma": "gamma weight w scale gain",
    "beta": "beta bias b shift",
    "log_probs": "log_probs log_probs_fn logprobs step step_fn step_function next_log_probs model net network lm gpt"
    " decoder transformer predict score_fn fn f",
    "start": "start bos sos start_id bos_id sos_id start_token bos_token begin prompt prefix start_tokens start_ids",
    "end": "end eos end_id eos_id end_token eos_token stop stop_id",
    "beam_width": "beam_width width beam_size num_beams beams k beam n_beams bw",
    "max_length": "max_length max_len max_steps max_new_tokens num_tokens steps length t_max max_tokens",
    "length_penalty": "length_penalty alpha penalty len_penalty length_alpha lp",
    "eps": "eps epsilon",
    "q": "q query queries",
    "k": "k key keys",
    "v": "v value values",
    "mask": "mask attn_mask attention_mask m valid keep input_mask padding_mask",
    "input_ids": "inp_ids targets input_ids ids tokens x idx token_ids input inputs",
}
"""Names that arguments have in courses, papers and libraries."""
PLAIN_VALUES = {"dropout": 0.0, "bias": True, "batch_first": True}
"""What other arguments get, by a part of their names."""


class StudentError(Exception):
    """What the student's own code raised, in one line."""

    name = "raises"
    """Of the finding."""

    def __init__(self, error: BaseException, path: Path) -> None:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).parent == path.parent
        ]
        self.where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else path.name
        self.text = describe_exception(error, "")
        super().__init__(f"{self.where}: {self.text}")


class NotWritten(StudentError):
    """The student's own is a stub still: it has `...` in place of code."""

    name = "not-written"

    def __init__(self, placeholder: Placeholder) -> None:
        self.where = placeholder.where
        self.text = f"this is not written yet: {placeholder.source}"
        Exception.__init__(self, f"{self.where}: {self.text}")


@dataclass(frozen=True)
class Subject:
    """A class or a function of a student's, by its file."""

    path: Path
    name: str
    target: Any

    def protect(self, call: Callable[[], Value]) -> Value:
        """The result of a call of the student's code; what it prints goes to stderr."""
        with quiet():
            try:
                return call()
            except (ConfigError, StudentError):
                raise
            except Exception as error:  # noqa: BLE001 (a student's code may raise anything)
                self.check_written()
                raise StudentError(error, self.path) from None

    def check_written(self) -> None:
        """Raise NotWritten where it has `...` in place of code. Asked only if something is wrong: a `...` may be
        overwritten by a later line."""
        placeholder = find_placeholder(self.path, self.name)
        if placeholder is not None:
            raise NotWritten(placeholder) from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside the block the default dtype is torch's own, stdout is stderr, and nothing warns."""
    dtype = torch.get_default_dtype()
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


@contextlib.contextmanager
def importable_neighbors(folder: Path) -> Iterator[None]:
    """Inside the block a file may import those beside it, as a script may. What was imported from there is forgotten
    afterwards: another folder has files of the same names."""
    before = {*sys.modules}
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in {*sys.modules} - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).parent == folder and not name.startswith(MODULE_PREFIX):
                del sys.modules[name]


def load_subject(target: str) -> Subject:
    """The class or function that `FILE.py::NAME` names. The file is executed; it may import those beside it."""
    file, separator, name = target.rpartition("::")
    if not separator or not file or not name.isidentifier():
        raise ConfigError(f"{target!r} is not of the form FILE.py::NAME, for example attention.py::AttentionHead")
    path = Path(file).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"there is no file {file}" if not path.exists() else f"{file} is not a regular file")
    with quiet(), importable_neighbors(path.parent):
        module = execute_file(file, path, "check")
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    if not hasattr(module, name):
        listed = ", ".join(own) or "nothing"
        raise ConfigError(f"{file} has no class or function {name!r}{nearest(name, own)} (it defines: {listed})")
    target_object = getattr(module, name)
    if not callable(target_object):
        raise ConfigError(f"{name} in {file} is neither a class nor a function, but {type(target_object).__name__}")
    return Subject(path, name, target_object)


class Settings:
    """An object of settings, for constructors that want one: its attributes are sizes, by any of their names."""

    def __init__(self, sizes: Mapping[str, int], used: set[str]) -> None:
        self.__dict__["_sizes"], self.__dict__["_used"] = sizes, used

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        size = match_name(name, self._sizes)
        if size is not None:
            self._used.add(size)
            return self._sizes[size]
        for part, value in PLAIN_VALUES.items():
            if part in name or (part == "dropout" and name.endswith("pdrop")):
                return value
        raise AttributeError(f"no setting is known as {name!r}: sizes are {', '.join(self._sizes)}")


def match_name(name: str, known: Mapping[str, Any] | Sequence[str]) -> str | None:
    """The argument or size of ours that a name stands for: our own name first."""
    lower = name.lower()
    if lower in known:
        return lower
    return next((one for one in known if lower in ALIASES.get(one, one).split()), None)


def build(reference: Reference, subject: Subject) -> tuple[nn.Module, Sizes]:
    """The student's module with the sizes of the reference, and the sizes it was given."""
    kind = subject.target
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ConfigError(f"{subject.name} must be a class derived from torch.nn.Module, as {reference.call}")
    arguments, used = match_constructor(reference, kind, subject.name)
    module = subject.protect(partial(kind, **arguments) if isinstance(arguments, dict) else partial(kind, *arguments))
    return module, reference.derived({name: reference.sizes[name] for name in reference.sizes if name in used})


def match_constructor(reference: Reference, kind: type, name: str) -> tuple[dict[str, Any] | list[Any], set[str]]:
    """Arguments of a constructor, and the sizes that it was given: by the names of its arguments, else by their
    order."""
    parameters = [
        one for one in list(inspect.signature(kind).parameters.values()) if one.kind not in (one.VAR_KEYWORD,)
    ]
    if any(one.kind is one.VAR_POSITIONAL for one in parameters) and len(parameters) == 1:
        form = reference.constructors[0]
        return [reference.sizes[size] for size in form], {*form}
    required = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_POSITIONAL]
    used: set[str] = set()
    if [one.name for one in required] in (["config"], ["cfg"], ["args"], ["settings"], ["hparams"]):
        settings = Settings(reference.sizes, used)
        return {required[0].name: settings}, used
    values: dict[str, Any] = {}
    unknown = []
    for one in parameters:
        free = [size for form in reference.constructors for size in form if size not in used]
        size = match_name(one.name, free)
        plain = next((value for part, value in PLAIN_VALUES.items() if part in one.name.lower()), None)
        if size is not None:
            values[one.name] = reference.sizes[size]
            used.add(size)
        elif one.default is one.empty and one.kind is not one.VAR_POSITIONAL:
            if plain is None:
                unknown.append(one.name)
            else:
                values[one.name] = plain
        elif one.name == "batch_first":
            values[one.name] = True
    forms = [{*form} for form in reference.constructors]
    if not unknown and used in forms:
        return values, used
    for form in reference.constructors:
        if len(required) == len(form) and not any(part in one.name for one in required for part in PLAIN_VALUES):
            return {one.name: reference.sizes[size] for one, size in zip(required, form, strict=True)}, {*form}
    wanted = " or ".join(f"{reference.name}({', '.join(form)})" for form in reference.constructors)
    raise ConfigError(
        f"{name}({', '.join(one.name for one in parameters)}) has other arguments than expected: {wanted}"
    )


def match_call(reference: Reference, function: Callable[..., Any], name: str) -> dict[str, str]:
    """Which argument of a student's function gets which of ours, by name, else by order."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return {one: one for one in reference.arguments}
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return {}
    positional = [one for one in parameters if one.kind is not one.VAR_KEYWORD]
    matched: dict[str, str] = {}
    for one in positional:
        ours = match_name(one.name, [name for name in reference.arguments if name not in matched])
        if ours is not None:
            matched[ours] = one.name
    required = [one for one in positional if one.default is one.empty]
    if any(one.name not in matched.values() for one in required):
        matched = {ours: one.name for ours, one in zip(reference.arguments, positional, strict=False)}
    needed = [ours for ours in reference.arguments if ours not in reference.optional]
    if len(required) > len(reference.arguments) or any(ours not in matched for ours in needed):
        raise ConfigError(
            f"{name}({', '.join(one.name for one in positional)}) has other arguments than expected: {reference.call}"
        )
    return matched


def has_default(function: Callable[..., Any], name: str) -> bool:
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is not parameter.empty


def call(
    reference: Reference, subject: Subject, target: Callable[..., Any], function: Callable[..., Any], case: Case
) -> Outputs:
    """The outputs of a student's function or module on a case. It gets copies of the inputs, with gradients."""
    matched = match_call(reference, function, subject.name)
    positional, named = [], {}
    for ours, value in case.inputs.items():
        if not matched:
            if value is not None:
                positional.append(value)
        elif ours in matched and not (value is None and has_default(function, matched[ours])):
            named[matched[ours]] = value
    returned = subject.protect(lambda: target(*positional, **named))
    return name_outputs(reference, subject, returned)


def name_outputs(reference: Reference, subject: Subject, returned: Any) -> Outputs:
    """What was returned, by name: one value, or a tuple that begins as ours does."""
    if returned is Ellipsis:
        subject.check_written()
    if len(reference.outputs) == 1 and not _is_single(returned):
        return {reference.outputs[0]: returned}
    is_several = isinstance(returned, tuple) or (isinstance(returned, list) and len(returned) == len(reference.outputs))
    values = list(returned) if is_several else [returned]
    outputs = {}
    for name, value in zip(reference.outputs, values, strict=False):
        if isinstance(value, list | tuple) and value and all(isinstance(one, Tensor) for one in value):
            with contextlib.suppress(RuntimeError, IndexError):
                value = torch.stack(list(value), dim=1)  # one of each layer or head
        if value is not None:
            outputs[name] = value
    if any(value is Ellipsis for value in outputs.values()):
        subject.check_written()
    if reference.outputs[0] not in outputs:
        raise StudentError(TypeError(f"it returned {returned!r}; expected: {reference.call}"), subject.path)
    return outputs


def describe_returned(returned: Any) -> str:
    """What was returned, in a few words: tensors by their shapes."""
    if isinstance(returned, Tensor):
        return f"a tensor {list(returned.shape)}"
    if isinstance(returned, tuple | list) and any(isinstance(one, Tensor) for one in returned):
        return f"a {type(returned).__name__} of {', '.join(map(describe_returned, returned))}"
    text = repr(returned)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _is_single(returned: Any) -> bool:
    return isinstance(returned, tuple) and len(returned) >= 1 and isinstance(returned[0], Tensor)


def copy_inputs(inputs: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Inputs of a dtype that belong to the student alone; floating ones ask for gradients."""

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor):
            own = value.detach().clone().to(device)
            return own.to(dtype).requires_grad_() if own.dtype == torch.float64 else own
        return copy.deepcopy(value)

    return {name: convert(value) for name, value in inputs.items()}


def hidden_modules(module: nn.Module) -> list[str]:
    """Attributes that hold modules or parameters where torch does not find them: in lists and dicts."""
    found = []
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name.startswith("_"):
                continue
            values = list(value.values()) if isinstance(value, dict) else value
            if isinstance(values, list | tuple) and any(isinstance(one, nn.Module | nn.Parameter) for one in values):
                found.append(f"{path}.{name}" if path else name)
    return found


def register_hidden(module: nn.Module, names: Sequence[str]) -> None:
    """Make modules in lists and dicts known to torch, so that the rest can be checked."""
    for name in names:
        path, _, attribute = name.rpartition(".")
        owner = module.get_submodule(path)
        held = getattr(owner, attribute)
        values = held.values() if isinstance(held, dict) else held
        for number, value in enumerate(values):
            if isinstance(value, nn.Module):
                owner.add_module(f"{attribute}_{number}", value)
            elif isinstance(value, nn.Parameter):
                owner.register_parameter(f"{attribute}_{number}", value)
