"""Answers about a language model as plain data: what it is, what passes cost, what the cache holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from torchgauge.capture import unwrap
from torchgauge.errors import ForwardError, InputError
from torchgauge.facts import Capture, Environment, OpRecord, ParamRecord, RunRecord, TargetRecord
from torchgauge.facts.experts import find_mixtures
from torchgauge.facts.language import (
    Answer,
    HeldFacts,
    IdleModule,
    ModelFacts,
    ModuleCost,
    PassFacts,
    PassTime,
    PointFacts,
)
from torchgauge.predict.kernels import Library
from torchgauge.predict.language.costs import FIGURES, MAX_OPS, PARTS, cost_of, extended, lagrange
from torchgauge.predict.language.layers import layer_rows
from torchgauge.predict.language.passes import (
    Held,
    Interface,
    Observed,
    Pass,
    Point,
    Reduce,
    Seen,
    T,
    language_part,
    observe,
    whole_observation,
)
from torchgauge.progress import Progress

# Lengths at which a model shows what its layers are: a window is longer than the first, and experts share the tokens
# of the second, in which loops over chunks (of 64 tokens in Qwen3-Next) go around several times.
_SHORT_PROMPT_TOKENS, _LONG_PROMPT_TOKENS = 3, 290
# Between the lengths that a longer one is extended from, and how many of them each length has: chunks and rounding have
# to divide a step, and the memory at the peak follows from the last two lengths.
STEPS = {64: (1, 2, 3, 8, 16), 512: (1, 2, 3, 4, 5), 1024: (1, 2, 3, 4, 5)}


@dataclass(frozen=True)
class Question:
    """Points, and the devices whose times are asked for; `describes` asks what the model is as well."""

    points: Sequence[Point] = ()
    devices: Sequence[str] = ()
    execution: str = "eager"
    describes: bool = False
    dtype: torch.dtype | None = None
    fold: bool = True
    adapter: tuple[int, str] | None = None
    ops_per_token: float | None = None
    context_limit: int | None = None


def answer(model: nn.Module, question: Question, library: Library, progress: Progress | None = None) -> Answer:
    """Answer a question about a live model. Lengths beyond its limit are refused."""
    whole = unwrap(model)
    inside, model = language_part(whole)
    limit = Interface(model, question.context_limit).context_limit
    interface = Interface(model)
    _check_points(question.points, limit, interface)

    def run(points: Sequence[Point], reduce: Reduce[T], positions: int | None = None) -> tuple[Seen, dict[Point, T]]:
        return observe(
            model,
            points,
            library,
            dtype=question.dtype,
            adapter=question.adapter,
            fold=question.fold,
            limit=positions or limit,
            progress=progress,
            reduce=reduce,
        )

    stored: dict[str, int] = getattr(model, "stored_bytes", {})
    facts = _Facts(question, stored, inside)
    result: Answer = {"points": []}
    per_token = question.ops_per_token
    if question.describes or per_token is None:
        some = max(min(_LONG_PROMPT_TOKENS, (limit or 2 * _LONG_PROMPT_TOKENS) // 2), _SHORT_PROMPT_TOKENS + 1)
        probes = [Point(tokens, 1, _probe_encoder(interface, tokens)) for tokens in (_SHORT_PROMPT_TOKENS, some)]
        seen, probed = run(probes, whole_observation)
        # A model whose code loops over tokens in Python has more ops for more tokens.
        traced = [sum(len(part.ops) for part in probed[probe].prefill.segments) for probe in probes]
        per_token = max(traced[1] - traced[0], 0) / (some - _SHORT_PROMPT_TOKENS)
    if question.describes:
        tokens = min(limit or 32_768, 131_072)
        if per_token * tokens > MAX_OPS:
            tokens = max(int(MAX_OPS / per_token) // 512 * 512, 2 * _LONG_PROMPT_TOKENS)
        tokens = min(tokens, limit - 1) if limit and limit > 2 else tokens  # a step needs a position too

        def prompt(tokens: int, positions: int | None = None) -> tuple[Point, Observed]:
            point = Point(tokens, 1, _probe_encoder(interface, tokens))
            return point, run([point], whole_observation, positions)[1][point]

        try:
            long, wide = prompt(tokens)
        except ForwardError as error:
            if limit is None:
                raise
            seen.warnings.append(f"the config gives {limit:,} positions, but long prompts fail: {error}")
            limit = _longest_prompt(prompt, some, tokens)
            long, wide = prompt(limit - 1)
        result["model"] = _description(model, interface, seen, probed, probes, long, wide, limit)
        result["model"]["ops_per_token"] = per_token
        result["warnings"] = seen.warnings
        if inside:
            _add_surroundings(result["model"], whole, inside)
            result["warnings"] = [
                f"{type(whole).__name__} does not take text and a cache itself: the figures of prefill, "
                f"decode and cache are those of its language model, '{inside}'", *seen.warnings
            ]  # fmt: skip
    too_long = [point for point in question.points if per_token * point.tokens > MAX_OPS]
    direct = [point for point in question.points if point not in too_long]
    found: dict[Point, PointFacts] = run(direct, facts.of_point)[1] if direct else {}
    shorter: dict[Point, PointFacts] = {}
    for point in too_long:
        found[point] = _extend(point, lambda points: run(points, facts.of_point)[1], shorter)
    result["points"] = [found[point] for point in question.points]
    return result


def _check_points(points: Sequence[Point], limit: int | None, interface: Interface) -> None:
    for point in points:
        if point.tokens < 1 or point.batch < 1 or point.encoder_tokens < 0:
            raise InputError("tokens and sequences must be at least 1")
        if limit is not None and point.tokens > limit:
            raise InputError(f"{point.tokens:,} tokens exceed the model's context limit of {limit:,} positions")
        if point.prefix >= point.tokens:
            raise InputError(f"a prefix of {point.prefix:,} tokens leaves nothing of a prompt of {point.tokens:,}")
        if point.encoder_tokens and not interface.is_encoder_decoder:
            raise InputError("encoder_tokens is for encoder-decoder models; this one has only a decoder")


def _longest_prompt(prompt: Callable[[int, int], object], works: int, fails: int) -> int:
    """The last length that runs, given as many positions: their table may begin at an offset (RoBERTa) or be read ahead
    (ProphetNet)."""
    while fails - works > 1:
        middle = (works + fails) // 2
        try:
            prompt(middle, middle)
            works = middle
        except ForwardError:
            fails = middle
    return works


def _probe_encoder(interface: Interface, tokens: int) -> int:
    return tokens if interface.is_encoder_decoder and interface.main == "input_ids" else 0


@dataclass
class _Facts:
    question: Question
    stored: Mapping[str, int]
    inside: str  # the path of the language model in a larger model

    def of_point(self, point: Point, one: Observed, params: Sequence[ParamRecord]) -> PointFacts:
        # Lengths that the cache has after a step and had not before: the next step has other ones.
        before = {(held.layer, held.name): held.spec.shape for held in one.cache}
        grown: set[int] = set()
        for held in one.cache_after:
            earlier = before.get((held.layer, held.name), ())
            grown |= {size for size, old in zip(held.spec.shape, earlier, strict=False) if size != old}
        return {
            **asdict(point),  # type: ignore[typeddict-item]
            "prefill": self.of_pass(one.prefill, params),
            "decode": self.of_pass(one.decode, params, grown),
            "cache": held_rows(one.cache),
            "cache_after": held_rows(one.cache_after),
            "extended_from": None,
        }

    def of_pass(self, run: Pass, params: Sequence[ParamRecord], new_lengths: Collection[int] = ()) -> PassFacts:
        cost = cost_of(run, params, self.stored)
        return {
            **{name: getattr(cost, name) for name in (*FIGURES, *PARTS)},  # type: ignore[typeddict-item]
            "peak_bytes": run.peak_bytes,
            "before_bytes": run.before_bytes,
            "after_bytes": run.after_bytes,
            "modules": [_module_facts(f"{self.inside}.{path}".strip("."), row) for path, row in cost.modules.items()],
            "uncounted": dict(cost.uncounted),
            "times": {device: self.time(run, device, new_lengths) for device in self.question.devices},
        }

    def time(self, run: Pass, device: str, new_lengths: Collection[int]) -> PassTime:
        from torchgauge.predict.time import predict_ops

        ops = [op for part in run.segments for _ in range(part.times) for op in part.ops]
        calls = sum(len({op.module for op in part.ops}) * part.times for part in run.segments)
        found = predict_ops(ops, device, execution=self.question.execution, module_calls=calls, new_lengths=new_lengths)
        return {
            "time_s": found.time_s, "low_s": found.low_s, "high_s": found.high_s, "energy_j": found.energy_j,
            "energy_low_j": found.energy_low_j, "energy_high_j": found.energy_high_j, "bound": found.bound,
        }  # fmt: skip


def _module_facts(path: str, row: Sequence[int]) -> ModuleCost:
    macs, flops, bytes_read, bytes_written, weights, matrices = row
    return {
        "path": path, "macs": macs, "flops": flops, "bytes_read": bytes_read, "bytes_written": bytes_written,
        "weight_bytes": weights, "matrix_bytes": matrices,
    }  # fmt: skip


def _extend(
    point: Point, run: Callable[[Sequence[Point]], dict[Point, PointFacts]], known: dict[Point, PointFacts]
) -> PointFacts:
    """A point with too many ops to be traced, from five shorter ones; traced after all where these do not agree.
    `known` are those that were traced for other points, and is added to."""
    for step, multiples in STEPS.items():
        lengths = [point.prefix + (point.tokens - point.prefix) % step + step * number for number in multiples]
        if lengths[-1] >= point.tokens:
            break
        shorter = [replace(point, tokens=length) for length in lengths]
        if missing := [one for one in shorter if one not in known]:
            known |= run(missing)
        rows = [known[one] for one in shorter]
        found = extended(lengths, [_costs(row) for row in rows], point.tokens)
        if found is not None:
            last = rows[-1]
            result: PointFacts = {**last, "tokens": point.tokens, "extended_from": lengths}
            for name in ("prefill", "decode"):
                row: Any = {**last[name], **found[name]}
                row["modules"] = [_module_facts(path, values) for path, values in found[name]["modules"].items()]
                for key in ("peak_bytes", "before_bytes", "after_bytes"):
                    # Memory at the peak is the largest of several polynomials: that of the longest prompts.
                    known_bytes = [(length, one[name][key]) for length, one in zip(lengths, rows, strict=True)][-3:]
                    row[key] = max(int(lagrange(known_bytes, point.tokens)), known_bytes[-1][1])
                row["times"] = {}
                for device, latest in last[name]["times"].items():
                    # Each further token is assumed to cost as much as the last ones.
                    earlier: Mapping[str, object] = {**rows[-2][name]["times"][device]}
                    times: dict[str, object] = {**latest}
                    for key, value in latest.items():
                        before = earlier[key]
                        if isinstance(value, float) and isinstance(before, int | float):
                            slope = (value - before) / (lengths[-1] - lengths[-2])
                            times[key] = max(value + slope * (point.tokens - lengths[-1]), 0.0)
                    row["times"][device] = times
                result[name] = row
            for name in ("cache", "cache_after"):
                result[name] = [  # type: ignore[literal-required]
                    {**held, "bytes": nbytes}
                    for held, nbytes in zip(last[name], found[name], strict=True)  # type: ignore[literal-required]
                ]
            return result
    return run([point])[point]


def _costs(row: PointFacts) -> dict[str, object]:
    """The figures that must follow a polynomial."""
    found: dict[str, object] = {
        "cache": [held["bytes"] for held in row["cache"]],
        "cache_after": [held["bytes"] for held in row["cache_after"]],
    }
    for name, part in (("prefill", row["prefill"]), ("decode", row["decode"])):
        figures: Mapping[str, object] = {**part}
        modules = {one["path"]: [value for key, value in one.items() if key != "path"] for one in part["modules"]}
        kept = {key: figures[key] for key in (*FIGURES, *PARTS)}
        found[name] = {**kept, "modules": modules}
    return found


def held_rows(cache: list[Held]) -> list[HeldFacts]:
    return [
        {
            "layer": held.layer,
            "name": held.name,
            "of": "encoder" if held.group else "text",
            "shape": list(held.spec.shape),
            "dtype": str(held.spec.dtype).removeprefix("torch."),
            "bytes": held.nbytes,
        }
        for held in cache
    ]


def _description(
    model: nn.Module,
    interface: Interface,
    seen: Seen,
    probed: dict[Point, Observed],
    probes: list[Point],
    long: Point,
    wide: Observed,
    limit: int | None,
) -> ModelFacts:
    own = [param for param in seen.params if not param.is_buffer]
    run = probed[probes[1]].prefill
    idle = idle_params(run, seen.params)
    rows = layer_rows(
        seen.layers, probed[probes[0]].cache, wide.cache, (_SHORT_PROMPT_TOKENS, long.tokens), run, seen.params, idle
    )
    loose = [held for held in wide.cache if not held.layer and held.spec.shape]
    if loose and all(row["cache_fixed_bytes"] == 0 and not row["cache_bytes_per_token"] for row in rows):
        rows = [{**row, "kind": "linear"} for row in rows]  # states of all layers in one tensor
    ops = [op for part in run.segments for op in part.ops]
    embedding, head, tied, vocabulary = _ends(ops, own)
    params = sum(param.spec.numel for param in own)
    types: Counter[str] = Counter()
    for param in own:
        types[param.spec.dtype] += param.spec.nbytes
    stored: Mapping[str, int] = getattr(model, "stored_bytes", {})
    weight_bytes = sum(stored.get(param.name, param.spec.nbytes) for param in own)
    return {
        "type": type(model).__name__,
        "params": params,
        "active_params": params - sum(idle.values()),
        "embedding_params": embedding,
        "head_params": head,
        "tied": tied,
        "vocabulary": vocabulary,
        "context_limit": limit,
        "positions": _positions(model, seen.params, ops, limit),
        "dtype": types.most_common(1)[0][0] if types else None,
        "weight_bytes": weight_bytes,
        "buffer_bytes": sum(param.spec.nbytes for param in seen.params if param.is_buffer),
        "bits_per_weight": 8 * weight_bytes / max(params, 1),
        "encoder": interface.is_encoder_decoder,
        "encoder_fixed": interface.is_encoder_decoder and interface.main != "input_ids",
        "cache_class": seen.fed,
        "layers": rows,
        "not_run": _not_run(model, seen.params, seen.called, {row["path"] for row in rows}),
        "layer_matrix_params": sum(row["matrix_params"] for row in rows),
        "loose_cache_bytes": sum(held.nbytes for held in loose),
    }


def _add_surroundings(facts: ModelFacts, whole: nn.Module, inside: str) -> None:
    """Count the parameters around the language model `inside` a larger one: they are loaded with it, but not run."""
    tied = {id(param) for param in whole.get_submodule(inside).parameters()}
    around = [param for param in whole.parameters() if id(param) not in tied]
    facts["not_run"] = [{**row, "path": f"{inside}.{row['path']}"} for row in facts["not_run"]]
    waiting = list(whole.named_children())
    while waiting:
        path, module = waiting.pop()
        if inside.startswith(f"{path}."):
            waiting += [(f"{path}.{name}", child) for name, child in module.named_children()]
        elif path != inside and (count := sum(param.numel() for param in module.parameters())):
            facts["not_run"].append({"path": path, "type": type(module).__name__, "params": count})
    facts["not_run"].sort(key=lambda row: -row["params"])
    facts["layers"] = [{**row, "path": f"{inside}.{row['path']}"} for row in facts["layers"]]
    facts["params"] += sum(param.numel() for param in around)
    facts["active_params"] += sum(param.numel() for param in around)
    facts["weight_bytes"] += sum(param.nbytes for param in around)
    facts["buffer_bytes"] = sum(buffer.nbytes for buffer in whole.buffers())
    facts["bits_per_weight"] = 8 * facts["weight_bytes"] / max(facts["params"], 1)
    facts["type"] = type(whole).__name__


def idle_params(run: Pass, params: Sequence[ParamRecord]) -> dict[str, int]:
    """By layer, parameters of experts that one token does not reach; "" for those outside of layers."""
    ops = tuple(op for part in run.segments for op in part.ops)
    capture = Capture(
        TargetRecord("", "module"),
        Environment("", "", "", "", None, None, 1),
        "",
        "",
        RunRecord("fake", None, "cpu", False),
        (),
        (),
        tuple(params),
        ops,
    )
    found: dict[str, int] = defaultdict(int)
    alike = {path: part.paths for part in run.segments for path in part.paths[:1]}
    for mixture in find_mixtures(capture):
        owners: Counter[str] = Counter()
        for param in mixture.params:
            owner = next((path for path in alike if param.name.startswith(f"{path}.")), "")
            owners[owner] += param.spec.numel
        total = sum(owners.values())
        for owner, count in owners.items():
            for path in alike.get(owner, [""]):
                found[path] += round(mixture.idle_params * count / max(total, 1))
    return dict(found)


def _ends(ops: list[OpRecord], params: list[ParamRecord]) -> tuple[int, int, bool, int | None]:
    """Parameters of the embedding and of the head, whether these are one tensor, and the size of the vocabulary."""
    shapes = {param.name: param.spec for param in params}
    tables = [name for op in ops if op.op == "aten::embedding" for name in op.weights if name in shapes]
    embedding = max(tables, key=lambda name: shapes[name].numel, default=None)
    if embedding is None:
        return 0, 0, False, None
    rows = shapes[embedding].shape[0]
    heads = [
        name for op in ops if op.cost.macs for name in op.weights if name in shapes and rows in shapes[name].shape[:1]
    ]
    head = heads[-1] if heads else None
    tied = head == embedding
    extra = 0 if head is None or tied else shapes[head].numel
    return shapes[embedding].numel, extra, tied, rows


def _positions(model: nn.Module, params: Sequence[ParamRecord], ops: list[OpRecord], limit: int | None) -> str:
    names = [param.name for param in params]
    if any("relative_attention_bias" in name for name in names):
        return "relative bias"
    if any(name.endswith("inv_freq") for name in names):
        return "rotary"
    tables = {name for op in ops if op.op in ("aten::embedding", "aten::index") for name in op.weights}
    known = {param.name: param for param in params}
    sized = [known[name] for name in tables if name in known and known[name].spec.shape]
    found = [param for param in sized if limit and limit <= param.spec.shape[0] <= limit + 2]
    found = found or [param for param in params if "embed_positions" in param.name or "wpe" in param.name]
    if found:
        return "fixed table" if all(param.is_buffer for param in found) else "learned"
    if getattr(getattr(model, "config", None), "alibi", False):
        return "linear bias (ALiBi)"
    return "none found"


def _not_run(model: nn.Module, params: Sequence[ParamRecord], called: set[str], layers: set[str]) -> list[IdleModule]:
    """The largest modules that text alone does not reach: towers for images and sound, further heads."""
    reached = {""}
    for path in (*called, *layers):
        while path not in reached:
            reached.add(path)
            path = path.rpartition(".")[0]
    found: list[IdleModule] = []
    waiting = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if path not in reached:
            count = sum(p.spec.numel for p in params if not p.is_buffer and p.name.startswith(f"{path}."))
            if count:
                found.append({"path": path, "type": type(module).__name__, "params": count})
        elif path not in layers:
            waiting += [(f"{path}.{name}".strip("."), child) for name, child in module.named_children()]
    return sorted(found, key=lambda row: -row["params"])
