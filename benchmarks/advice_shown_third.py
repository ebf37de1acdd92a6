"""The third set of `advice_shown.py`: 28 models, 21 of them also for the H200. The list was committed before the gains
were changed for the last time, and the predictions (`advice_shown_cpu_3.json`, `advice_shown_h200_3.json`) before any
model was timed."""

# ruff: noqa: N806 (names of sizes and matrices as research code has them)

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from advice_shown import Subject, ids, images, text_model, timm_model, vision_model, x
from torch import Tensor, nn


class GraphAttention(nn.Module):
    """Attention between the atoms of molecules, with a bias by edges, written out."""

    def __init__(self, width: int = 128, heads: int = 8) -> None:
        super().__init__()
        self.n_heads, self.d_head = heads, width // heads
        self.W_q, self.W_k, self.W_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.W_o = nn.Linear(width, width)

    def forward(self, h: Tensor, edge_bias: Tensor) -> Tensor:
        B, N, C = h.size()
        Q = self.W_q(h).view(B, N, self.n_heads, self.d_head).permute(0, 2, 1, 3)
        K = self.W_k(h).view(B, N, self.n_heads, self.d_head).permute(0, 2, 1, 3)
        V = self.W_v(h).view(B, N, self.n_heads, self.d_head).permute(0, 2, 1, 3)
        attn = torch.matmul(Q, K.transpose(2, 3)) / (self.d_head**0.5)
        attn = attn + edge_bias
        attn = F.softmax(attn, dim=-1)
        out = torch.matmul(attn, V)
        out = out.permute(0, 2, 1, 3).contiguous().view(B, N, C)
        return self.W_o(out)


class Graphormer(nn.Module):
    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.atoms = nn.Embedding(120, 128)
        self.edges = nn.Embedding(40, 8)
        self.layers = nn.ModuleList(GraphAttention() for _ in range(2))
        self.ffns = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in range(2)
        )

    def forward(self, atoms: Tensor, distances: Tensor) -> Tensor:
        h = self.atoms(atoms)
        bias = self.edges(distances).permute(0, 3, 1, 2).contiguous()
        for layer, ffn in zip(self.layers, self.ffns, strict=True):
            h = h + layer(h, bias)
            h = h + ffn(h)
        return h.mean(1)


class CausalSelfAttention(nn.Module):
    """As in small GPTs for teaching: a mask in a buffer, scores filled with it."""

    def __init__(self, width: int, heads: int, block_size: int, fix: str) -> None:
        super().__init__()
        self.fix = fix
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.n_head, self.n_embd = heads, width
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))
        self.register_buffer("hidden", self.bias == 0, persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        B, T, C = h.size()
        q, k, v = self.c_attn(h).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.fix == "attention-by-hand":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            if self.fix == "recomputed-weight":
                att = att.masked_fill(self.hidden[:, :, :T, :T], float("-inf"))
            else:
                att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
            att = F.softmax(att, dim=-1)
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class NewGELU(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * torch.pow(h, 3.0))))


class TeachingGpt(nn.Module):
    """Attention and GELU that are written out, in blocks of 144 channels."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(900, 144), nn.Embedding(256, 144)
        self.attns = nn.ModuleList(CausalSelfAttention(144, 6, 256, fix) for _ in range(3))
        act: Callable[[], nn.Module] = (lambda: nn.GELU("tanh")) if fix == "gelu-by-hand" else NewGELU
        self.mlps = nn.ModuleList(nn.Sequential(nn.Linear(144, 576), act(), nn.Linear(576, 144)) for _ in range(3))
        self.ln = nn.ModuleList(nn.LayerNorm(144) for _ in range(6))

    def forward(self, idx: Tensor) -> Tensor:
        h = self.wte(idx) + self.wpe.weight[: idx.shape[1]]
        for at, (attn, mlp) in enumerate(zip(self.attns, self.mlps, strict=True)):
            h = h + attn(self.ln[2 * at](h))
            h = h + mlp(self.ln[2 * at + 1](h))
        return h


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, h: Tensor) -> Tensor:
        return self.weight * (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps))


def rotary_table(length: int, dim: int, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    inv_freq = 1.0 / (10000.0 ** (torch.arange(0, dim, 2, device=device).float() / dim))
    freqs = torch.outer(torch.arange(length, device=device).float(), inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    return emb.cos(), emb.sin()


def rotated(h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = h.chunk(2, dim=-1)
    return h * cos + torch.cat((-two, one), dim=-1) * sin


class LlamaBlock(nn.Module):
    """Norms that are written out, and a rotary table that each layer computes."""

    def __init__(self, fix: str) -> None:
        super().__init__()
        self.fix = fix
        norm: Callable[[int], nn.Module] = (lambda dim: nn.RMSNorm(dim, 1e-6)) if fix == "norm-by-hand" else RMSNorm
        self.norm1, self.norm2 = norm(192), norm(192)
        self.qkv, self.wo = nn.Linear(192, 576, bias=False), nn.Linear(192, 192, bias=False)
        self.gate, self.up = (nn.Linear(192, 512, bias=False) for _ in range(2))
        self.down = nn.Linear(512, 192, bias=False)
        cos, sin = rotary_table(160, 48)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def attend(self, h: Tensor) -> Tensor:
        B, T, C = h.shape
        q, k, v = self.qkv(h).view(B, T, 3, 4, 48).permute(2, 0, 3, 1, 4)
        if self.fix == "recomputed-constant":
            cos, sin = self.cos, self.sin
        else:
            cos, sin = rotary_table(T, 48, h.device)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C))

    def mlp(self, h: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(h)) * self.up(h))

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.attend(self.norm1(h))
        return h + self.mlp(self.norm2(h))


class SmallLlama(nn.Module):
    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList(LlamaBlock(fix) for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.layers:
            h = layer(h)
        return h


class EqualLinear(nn.Module):
    """StyleGAN's layer with an equalised learning rate: its weight is scaled in every forward."""

    def __init__(self, inp: int, out: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(x(out, inp)), nn.Parameter(torch.zeros(out))
        self.gain = 1 / math.sqrt(inp)

    def forward(self, h: Tensor) -> Tensor:
        return F.leaky_relu(F.linear(h, self.weight * self.gain, self.bias * 0.01), 0.2)


class ScaledLinear(EqualLinear):
    """The same with the scales in its parameters."""

    def __init__(self, inp: int, out: int) -> None:
        super().__init__(inp, out)
        self.weight.data.mul_(self.gain)
        self.bias.data.mul_(0.01)

    def forward(self, h: Tensor) -> Tensor:
        return F.leaky_relu(F.linear(h, self.weight, self.bias), 0.2)


class MappingNetwork(nn.Module):
    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        kind = ScaledLinear if fix == "recomputed-weight" else EqualLinear
        self.layers = nn.Sequential(*(kind(320, 320) for _ in range(6)))

    def forward(self, z: Tensor) -> Tensor:
        if self.fix == "norm-by-hand":
            z = F.rms_norm(z, (320,), eps=1e-8)
        else:
            z = z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-8)
        return self.layers(z)


class UNetDecoder(nn.Module):
    """Stages of a segmentation decoder: features are enlarged, then reduced by a 1×1 convolution."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        self.enc = nn.Sequential(nn.Conv2d(24, 48, 3, 2, 1, bias=False), nn.BatchNorm2d(48), nn.ReLU(inplace=True))
        self.reduce = nn.Conv2d(48, 24, 1)
        self.fuse = nn.Sequential(nn.Conv2d(48, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        self.head = nn.Conv2d(24, 5, 1)

    def forward(self, image: Tensor) -> Tensor:
        skip = self.stem(image)
        h = self.enc(skip)
        if self.fix == "resample-before-pointwise":
            h = F.interpolate(self.reduce(h), scale_factor=2, mode="bilinear", align_corners=True)
        else:
            h = self.reduce(F.interpolate(h, scale_factor=2, mode="bilinear", align_corners=True))
        return self.head(self.fuse(torch.cat([skip, h], dim=1)))


class ClickModel(nn.Module):
    """Categories of an advertisement as one-hot rows, each with a table."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.table = nn.Linear(600, 48, bias=False)
        self.mlp = nn.Sequential(nn.Linear(6 * 48, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, fields: Tensor) -> Tensor:
        if self.fix == "one-hot-product":
            h = F.embedding(fields, self.table.weight.t())
        else:
            h = self.table(F.one_hot(fields, num_classes=600).float())
        return torch.sigmoid(self.mlp(h.flatten(1)))


class MelFrontend(nn.Module):
    """Frames of audio under a window from numpy (float64), then filters and a network."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        window = torch.hann_window(320, periodic=False, dtype=torch.float64)
        self.register_buffer("window", window.float() if fix == "double-precision" else window)
        self.register_buffer("mel", x(161, 40).abs() / 161)
        self.net = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 30))

    def forward(self, wave: Tensor) -> Tensor:
        frames = wave.unfold(-1, 320, 160) * self.window
        power = torch.fft.rfft(frames).abs().pow(2)
        features = torch.log(power.float() @ self.mel + 1e-6)
        return self.net(features)


class TemporalBlocks(nn.Module):
    """Convolutions over time between layers of linear maps: back and forth between layouts around a ReLU."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.convs = nn.ModuleList(nn.Conv1d(96, 96, 3, padding=1) for _ in range(3))
        self.out = nn.Linear(96, 12)

    def forward(self, h: Tensor) -> Tensor:
        h = h.permute(0, 2, 1)
        for conv in self.convs:
            y = conv(h)
            if self.fix in ("cancelling-permutes", "needless-copy"):
                y = F.relu(y)
            else:
                y = y.permute(0, 2, 1).contiguous()
                y = F.relu(y)
                y = y.permute(0, 2, 1).contiguous()
            h = h + y
        return self.out(h.permute(0, 2, 1).mean(1))


class ShuffleUnits(nn.Module):
    """Units of a small image network that clone their shortcuts and copy before elementwise ops."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1)
        self.units = nn.ModuleList(nn.Conv2d(32, 32, 1) for _ in range(3))
        self.head = nn.Linear(32, 10)

    def forward(self, image: Tensor) -> Tensor:
        h = self.stem(image)
        for unit in self.units:
            identity = h.clone()
            h = F.relu(unit(h)) + identity
        return self.head(h.mean((2, 3)))


class Captioner(nn.Module):
    """A caption decoder with attention: the image's projection and the layer of words are called for every word."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.embed, self.cell = nn.Embedding(2000, 80), nn.LSTMCell(80 + 96, 128)
        self.enc_att, self.dec_att, self.full_att = nn.Linear(96, 64), nn.Linear(128, 64), nn.Linear(64, 1)
        self.fc = nn.Linear(128, 300)

    def forward(self, features: Tensor, words: Tensor) -> Tensor:
        emb = self.embed(words)
        hx = emb.new_zeros(words.size(0), 128)
        cx = emb.new_zeros(words.size(0), 128)
        projected = self.enc_att(features) if self.fix == "repeated-work" else None
        outputs = []
        for t in range(words.size(1)):
            att1 = self.enc_att(features) if projected is None else projected
            att = self.full_att(F.relu(att1 + self.dec_att(hx).unsqueeze(1))).squeeze(2)
            context = (features * att.softmax(dim=1).unsqueeze(2)).sum(dim=1)
            hx, cx = self.cell(torch.cat([emb[:, t], context], dim=1), (hx, cx))
            outputs.append(hx if self.fix == "loop-over-steps" else self.fc(hx))
        made = torch.stack(outputs, dim=1)
        return self.fc(made) if self.fix == "loop-over-steps" else made


class SetEncoder(nn.Module):
    """Sets whose members are encoded set by set."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.phi = nn.Sequential(nn.Linear(16, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU())
        self.rho = nn.Sequential(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 4))

    def forward(self, sets: Tensor) -> Tensor:
        if self.fix == "loop-over-samples":
            return self.rho(self.phi(sets).sum(1))
        pooled = []
        for b in range(sets.shape[0]):
            pooled.append(self.phi(sets[b]).sum(dim=0))
        return self.rho(torch.stack(pooled, dim=0))


class Horizons(nn.Module):
    """A forecaster with a head for each of sixteen horizons, which are stacked."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.body = nn.Sequential(nn.Linear(168, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        heads = nn.ModuleList(nn.Linear(256, 7) for _ in range(16))
        if fix == "parallel-linears":
            self.head = nn.Linear(256, 16 * 7)
            self.head.weight.data.copy_(torch.cat([head.weight.data for head in heads]))
            self.head.bias.data.copy_(torch.cat([head.bias.data for head in heads]))
        else:
            self.heads = heads

    def forward(self, history: Tensor) -> Tensor:
        h = self.body(history)
        if self.fix == "parallel-linears":
            return self.head(h).unflatten(-1, (16, 7))
        return torch.stack([head(h) for head in self.heads], dim=1)


class TwoHeads(nn.Module):
    """A policy and a value that each run the shared encoder on the same observation."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.encoder = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Flatten()
        )
        self.policy, self.value = nn.Linear(64 * 9 * 9, 6), nn.Linear(64 * 9 * 9, 1)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        if self.fix == "repeated-work":
            h = self.encoder(frames)
            return self.policy(h), self.value(h)
        return self.policy(self.encoder(frames)), self.value(self.encoder(frames))


class DecoderStack(nn.Module):
    """Torch's attention under a causal mask that is a tensor."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.qkv = nn.ModuleList(nn.Linear(128, 384) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)) for _ in range(2))
        self.register_buffer("mask", torch.full((384, 384), float("-inf")).triu(1))

    def forward(self, h: Tensor) -> Tensor:
        B, T, C = h.shape
        for qkv, mlp in zip(self.qkv, self.mlp, strict=True):
            q, k, v = qkv(h).view(B, T, 3, 4, 32).permute(2, 0, 3, 1, 4)
            if self.fix == "causal-mask":
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask[:T, :T])
            h = h + y.transpose(1, 2).reshape(B, T, C)
            h = h + mlp(h)
        return h


class StreamingDecoder(nn.Module):
    """Steps of a decoder whose history grows by concatenation."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.inp, self.out = nn.Linear(96, 192), nn.Linear(192, 96)

    def forward(self, first: Tensor) -> Tensor:
        steps, token = 40, first
        if self.fix == "grown-by-cat":
            kept = first.new_empty(first.shape[0], steps + 1, 96)
            kept[:, 0] = first
            for t in range(steps):
                token = self.out(torch.tanh(self.inp(token))) + kept[:, : t + 1].mean(1)
                kept[:, t + 1] = token
            return kept
        history = first.unsqueeze(1)
        for _ in range(steps):
            token = self.out(torch.tanh(self.inp(token))) + history.mean(1)
            history = torch.cat([history, token.unsqueeze(1)], dim=1)
        return history


class HalfNorms(nn.Module):
    """A perceiver's MLP with a detour through float16 and a layer norm that is written out."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.fc1, self.fc2 = nn.Linear(160, 480), nn.Linear(480, 160)
        self.g, self.b = nn.Parameter(torch.ones(160)), nn.Parameter(torch.zeros(160))

    def forward(self, h: Tensor) -> Tensor:
        if self.fix == "norm-by-hand":
            y = F.layer_norm(h, (160,), self.g, self.b, 1e-5)
        elif self.fix == "repeated-work":
            centred = h - h.mean(dim=-1, keepdim=True)
            var = (centred**2).mean(dim=-1, keepdim=True)
            y = centred / torch.sqrt(var + 1e-5) * self.g + self.b
        else:
            mu = h.mean(dim=-1, keepdim=True)
            var = ((h - mu) ** 2).mean(dim=-1, keepdim=True)
            y = (h - mu) / torch.sqrt(var + 1e-5) * self.g + self.b
        y = F.gelu(self.fc1(y))
        y = y.half().float()
        return h + self.fc2(y)


def without_standardizing(model: nn.Module) -> nn.Module:
    """timm's layers with standardised weights, as convolutions that hold these."""
    for name, module in list(model.named_modules()):
        if type(module).__name__ != "ScaledStdConv2d":
            continue
        settings = (module.kernel_size, module.stride, module.padding, module.dilation, module.groups)
        plain = nn.Conv2d(module.in_channels, module.out_channels, *settings, bias=module.bias is not None)
        scale = (module.gain * module.scale).view(-1)
        flat = module.weight.reshape(1, module.out_channels, -1)
        with torch.no_grad():
            made = F.batch_norm(flat, None, None, weight=scale, training=True, momentum=0.0, eps=module.eps)
            plain.weight.copy_(made.reshape_as(module.weight))
            if module.bias is not None:
                plain.bias.copy_(module.bias)
        model.set_submodule(name, plain)
    return model


def norm_free(fix: str) -> nn.Module:
    model = timm_model("nf_resnet26")(fix)
    return without_standardizing(model) if fix == "recomputed-weight" else model


def molecules(scale: int) -> tuple[Tensor, Tensor]:
    return ids(120, 8 * scale, 64), ids(40, 8 * scale, 64, 64)


_SMALL = {"vocab_size": 2000, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
_WIDTHS = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
SUBJECTS = [
    Subject("molecules", Graphormer, molecules),
    Subject("teaching GPT", TeachingGpt, lambda scale: (ids(900, 2 * scale, 160),)),
    Subject("small Llama", SmallLlama, lambda scale: (x(2 * scale, 160, 192),)),
    Subject("mapping network", MappingNetwork, lambda scale: (x(64 * scale, 320),)),
    Subject("U-Net decoder", UNetDecoder, lambda scale: (x(scale, 3, 160, 160),)),
    Subject("clicks", ClickModel, lambda scale: (ids(600, 64 * scale, 6),)),
    Subject("mel front end", MelFrontend, lambda scale: (x(2 * scale, 16000),)),
    Subject("temporal blocks", TemporalBlocks, lambda scale: (x(4 * scale, 256, 96),)),
    Subject("shuffle units", ShuffleUnits, lambda scale: (x(scale, 3, 224, 224),)),
    Subject("captions", Captioner, lambda scale: (x(4 * scale, 49, 96), ids(2000, 4 * scale, 20))),
    Subject("sets", SetEncoder, lambda scale: (x(24 * scale, 40, 16),)),
    Subject("horizons", Horizons, lambda scale: (x(48 * scale, 168),)),
    Subject("policy and value", TwoHeads, lambda scale: (x(4 * scale, 4, 84, 84),)),
    Subject("decoder stack", DecoderStack, lambda scale: (x(scale, 384, 128),)),
    Subject("streaming decoder", StreamingDecoder, lambda scale: (x(8 * scale, 96),)),
    Subject("half precision on the way", HalfNorms, lambda scale: (x(400 * scale, 160),)),
    *(Subject(name, timm_model(name), images(224)) for name in (
        "mobilenetv4_conv_small", "efficientvit_b0", "gernet_s", "tiny_vit_5m_224",
    )),
    Subject("nf_resnet26", norm_free, images(224)),
    # On CUDA some of the advice for these would need changes inside of their libraries, or takes long to measure.
    *(Subject(name, timm_model(name), images(224), is_for_cuda=False) for name in (
        "ese_vovnet19b_dw", "swin_tiny_patch4_window7_224",
    )),
    Subject("tinynet_a", timm_model("tinynet_a"), images(192), is_for_cuda=False),
    Subject("fastvit_t8", timm_model("fastvit_t8"), images(256), is_for_cuda=False),
    Subject("shufflenet_v2_x1_5", vision_model("shufflenet_v2_x1_5"), images(224), is_for_cuda=False),
    Subject("Phi", text_model("PhiModel", "PhiConfig", **_WIDTHS, **_SMALL), lambda scale: (ids(2000, scale, 128),),
            is_for_cuda=False),
    Subject("ELECTRA", text_model("ElectraModel", "ElectraConfig", embedding_size=128, hidden_act="gelu_new", **_WIDTHS,
                                  **_SMALL), lambda scale: (ids(2000, scale, 128),), is_for_cuda=False),
]  # fmt: skip
