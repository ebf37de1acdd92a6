"""The fourth set of `advice_shown.py`: 57 models for the CPU, 55 for the H200, hidden from those who changed the rules
until these were frozen. Their author had read the table of rules in the docs, not the rules, and had seen predictions.
Two models were timed before the predictions were committed, to try the script; those results were deleted unread."""

# ruff: noqa: N803, N806 (names of sizes and matrices as research code has them)

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from advice_shown import Inputs, Subject, ids, images, text_model, timm_model, vision_model, x
from advice_shown_third import without_standardizing
from torch import Tensor, nn

_SMALL = {"vocab_size": 2000, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
_WIDTHS = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 768}

# Earth, weather and physics


class ConvLSTMCell(nn.Module):
    def __init__(self, c_in: int, c_hid: int) -> None:
        super().__init__()
        self.c_hid = c_hid
        self.gates = nn.Conv2d(c_in + c_hid, 4 * c_hid, 3, padding=1)

    def forward(self, frame: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        i, f, o, g = self.gates(torch.cat([frame, h], dim=1)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class RainNowcast(nn.Module):
    """Radar images of the last hour; each is encoded on its own, then a ConvLSTM carries the state on."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.encode = nn.Sequential(
            nn.Conv2d(1, 24, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(24, 32, 3, 2, 1), nn.LeakyReLU(0.2)
        )
        self.cell = ConvLSTMCell(32, 32)
        self.decode = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.PixelShuffle(4))

    def forward(self, radar: Tensor) -> Tensor:
        B, T, _, H, W = radar.shape
        h = radar.new_zeros(B, 32, H // 4, W // 4)
        c = torch.zeros_like(h)
        encoded = None
        if self.fix == "loop-over-samples":
            encoded = self.encode(radar.flatten(0, 1)).unflatten(0, (B, T))
        for t in range(T):
            e = self.encode(radar[:, t]) if encoded is None else encoded[:, t]
            h, c = self.cell(e, (h, c))
        return self.decode(h)


class SpectralConv(nn.Module):
    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        scale = 1 / width**2
        self.w1 = nn.Parameter(scale * torch.randn(width, width, modes, modes, dtype=torch.cfloat))
        self.w2 = nn.Parameter(scale * torch.randn(width, width, modes, modes, dtype=torch.cfloat))

    def forward(self, u: Tensor) -> Tensor:
        B, C, H, W = u.shape
        m = self.modes
        u_ft = torch.fft.rfft2(u)
        out = torch.zeros(B, C, H, W // 2 + 1, dtype=torch.cfloat, device=u.device)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", u_ft[:, :, :m, :m], self.w1)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", u_ft[:, :, -m:, :m], self.w2)
        return torch.fft.irfft2(out, s=(H, W))


class PorousFlow(nn.Module):
    """A Fourier neural operator; the coordinates of the grid are joined to the field."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.lift = nn.Linear(3, 24)
        self.spectral = nn.ModuleList(SpectralConv(24, 8) for _ in range(3))
        self.local = nn.ModuleList(nn.Conv2d(24, 24, 1) for _ in range(3))
        self.q1, self.q2 = nn.Linear(24, 96), nn.Linear(96, 1)
        if fix == "recomputed-constant":
            self.register_buffer("coordinates", self.grid(torch.empty(1, 48, 48, 1)), persistent=False)

    def grid(self, a: Tensor) -> Tensor:
        B, H, W, _ = a.shape
        gx = torch.linspace(0, 1, H, device=a.device).reshape(1, H, 1, 1).repeat(B, 1, W, 1)
        gy = torch.linspace(0, 1, W, device=a.device).reshape(1, 1, W, 1).repeat(B, H, 1, 1)
        return torch.cat((gx, gy), dim=-1)

    def forward(self, a: Tensor) -> Tensor:
        once = self.fix == "recomputed-constant"
        grid = self.coordinates.expand(a.shape[0], -1, -1, -1) if once else self.grid(a)
        u = self.lift(torch.cat((a, grid), dim=-1)).permute(0, 3, 1, 2)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            u = F.gelu(spectral(u) + local(u))
        u = u.permute(0, 2, 3, 1)
        return self.q2(F.gelu(self.q1(u)))


class SeismicPicker(nn.Module):
    """Three-component traces: tapered, standardised, then a stack of strided convolutions with batch norms."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        ramp = torch.linspace(0, 1, 200, dtype=torch.float64)
        taper = torch.cat([ramp, torch.ones(2600, dtype=torch.float64), ramp.flip(0)])
        self.register_buffer("taper", taper.float() if fix == "double-precision" else taper)
        widths = [3, 16, 32, 48, 64]
        self.down = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 7, 2, 3), nn.BatchNorm1d(b), nn.ReLU()) for a, b in itertools.pairwise(widths)
        )
        self.pick = nn.Conv1d(64, 3, 1)

    def forward(self, traces: Tensor) -> Tensor:
        z = traces * self.taper
        z = z - z.mean(-1, keepdim=True)
        z = z / (z.std(-1, keepdim=True) + 1e-8)
        h = z.float()
        for layer in self.down:
            h = layer(h)
        return self.pick(h).softmax(dim=1)


class HyperspectralCrops(nn.Module):
    """Small cubes of a satellite image with many bands: convolutions in 3-D, then in 2-D, all with batch norms."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv3d(1, 8, (7, 3, 3)), nn.BatchNorm3d(8)
        self.conv2, self.bn2 = nn.Conv3d(8, 16, (5, 3, 3)), nn.BatchNorm3d(16)
        self.conv3, self.bn3 = nn.Conv2d(16 * 20, 64, 3), nn.BatchNorm2d(64)
        self.fc = nn.Linear(64 * 5 * 5, 16)

    def forward(self, cube: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(cube)))
        h = F.relu(self.bn2(self.conv2(h)))
        h = h.reshape(h.shape[0], -1, h.shape[3], h.shape[4])
        h = F.relu(self.bn3(self.conv3(h)))
        return self.fc(h.flatten(1))


class RoadTraffic(nn.Module):
    """Graph WaveNet in small: an adjacency learned from two tables of nodes, and gated convolutions over time."""

    def __init__(self, fix: str = "", nodes: int = 120, width: int = 24) -> None:
        super().__init__()
        self.fix = fix
        self.start = nn.Conv2d(2, width, 1)
        self.source, self.target = nn.Parameter(torch.randn(nodes, 10)), nn.Parameter(torch.randn(10, nodes))
        self.filters = nn.ModuleList(nn.Conv2d(width, width, (1, 2), dilation=2**i) for i in range(3))
        self.gates = nn.ModuleList(nn.Conv2d(width, width, (1, 2), dilation=2**i) for i in range(3))
        self.mix = nn.ModuleList(nn.Conv2d(3 * width, width, 1) for _ in range(3))
        self.norm = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.end = nn.Conv2d(width, 12, 1)
        if fix == "recomputed-weight":
            self.register_buffer("kept", self.adjacency().detach(), persistent=False)

    def adjacency(self) -> Tensor:
        return F.softmax(F.relu(torch.mm(self.source, self.target)), dim=1)

    def forward(self, speeds: Tensor) -> Tensor:
        adp = self.kept if self.fix == "recomputed-weight" else self.adjacency()
        h = self.start(speeds)
        for filt, gate, mix, norm in zip(self.filters, self.gates, self.mix, self.norm, strict=True):
            residual = h
            h = torch.tanh(filt(h)) * torch.sigmoid(gate(h))
            hops = [h]
            for _ in range(2):
                hops.append(torch.einsum("ncvl,vw->ncwl", hops[-1], adp).contiguous())
            h = mix(torch.cat(hops, dim=1))
            h = norm(h + residual[..., -h.size(3) :])
        return self.end(F.relu(h))[..., -1]


# Life sciences


class TriangleUpdate(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(dim), nn.LayerNorm(hidden)
        self.a, self.b = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.a_gate, self.b_gate = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.gate, self.out = nn.Linear(dim, dim), nn.Linear(hidden, dim)

    def forward(self, z: Tensor) -> Tensor:
        z = self.norm_in(z)
        a = self.a(z) * torch.sigmoid(self.a_gate(z))
        b = self.b(z) * torch.sigmoid(self.b_gate(z))
        prod = torch.einsum("bikc,bjkc->bijc", a, b)
        return torch.sigmoid(self.gate(z)) * self.out(self.norm_out(prod))


class RowAttention(nn.Module):
    """Rows of a pair table with a bias by the third edge."""

    def __init__(self, dim: int, heads: int, fix: str) -> None:
        super().__init__()
        self.fix, self.heads = fix, heads
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_bias = nn.Linear(dim, heads, bias=False)
        self.gate, self.proj = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, z: Tensor) -> Tensor:
        B, R, J, D = z.shape
        z = self.norm(z)
        q, k, v = self.to_qkv(z).view(B, R, J, 3, self.heads, D // self.heads).permute(3, 0, 1, 4, 2, 5)
        bias = self.to_bias(z).permute(0, 3, 1, 2).unsqueeze(1)
        if self.fix == "attention-by-hand":
            mask = bias.expand(B, R, self.heads, J, J).flatten(0, 1)
            out = F.scaled_dot_product_attention(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), attn_mask=mask)
            out = out.transpose(1, 2).reshape(B, R, J, D)
        else:
            logits = torch.einsum("bihqd,bihkd->bihqk", q, k) * (D // self.heads) ** -0.5 + bias
            attn = logits.softmax(-1)
            out = torch.einsum("bihqk,bihkd->bihqd", attn, v).transpose(2, 3).reshape(B, R, J, D)
        return self.proj(torch.sigmoid(self.gate(z)) * out)


class ProteinPairs(nn.Module):
    """The pair table of a folding network: clipped distances in the sequence as one-hot rows before a linear layer."""

    def __init__(self, fix: str = "", dim: int = 48) -> None:
        super().__init__()
        self.fix = fix
        self.left, self.right = nn.Linear(21, dim), nn.Linear(21, dim)
        self.relpos = nn.Linear(65, dim)
        self.tri = TriangleUpdate(dim, 32)
        self.row = RowAttention(dim, 4, fix)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        at = torch.arange(64)
        far = F.one_hot((at[:, None] - at[None]).clamp(-32, 32) + 32, 65).float()
        if fix == "recomputed-constant":
            self.register_buffer("far", far, persistent=False)
        if fix == "recomputed-weight":
            self.register_buffer("placed", self.relpos(far).detach(), persistent=False)

    def forward(self, residues: Tensor) -> Tensor:
        seq = F.one_hot(residues, 21).float()
        z = self.left(seq)[:, :, None] + self.right(seq)[:, None]
        if self.fix == "recomputed-weight":
            z = z + self.placed
        elif self.fix == "recomputed-constant":
            z = z + self.relpos(self.far)
        else:
            n = torch.arange(residues.shape[1], device=residues.device)
            d = (n[:, None] - n[None]).clamp(-32, 32) + 32
            z = z + self.relpos(F.one_hot(d, 65).float())
        z = z + self.tri(z)
        z = z + self.row(z)
        return z + self.mlp(z)


class RegulatoryDna(nn.Module):
    """Bases as one-hot channels, a wide convolution, and pooling by learned weights."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.stem, self.stem_bn = nn.Conv1d(4, 96, 15, padding=7), nn.BatchNorm1d(96)
        self.conv, self.conv_bn = nn.Conv1d(96, 128, 5, padding=2), nn.BatchNorm1d(128)
        self.score, self.head = nn.Conv1d(128, 1, 1), nn.Linear(128, 50)

    def act(self, h: Tensor) -> Tensor:
        return h * torch.sigmoid(1.702 * h)

    def forward(self, bases: Tensor) -> Tensor:
        h = F.one_hot(bases, 4).permute(0, 2, 1).float()
        h = F.max_pool1d(self.act(self.stem_bn(self.stem(h))), 4)
        h = self.act(self.conv_bn(self.conv(h)))
        w = torch.softmax(self.score(h), dim=-1)
        return self.head((h * w).sum(dim=-1))


class EcgLeads(nn.Module):
    """Twelve leads that share one branch, lead by lead."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.branch = nn.Sequential(
            nn.Conv1d(1, 16, 15, 4, 7), nn.ReLU(), nn.Conv1d(16, 32, 9, 4, 4), nn.ReLU(), nn.AdaptiveAvgPool1d(1)
        )
        self.fc = nn.Linear(12 * 32, 5)

    def forward(self, leads: Tensor) -> Tensor:
        if self.fix == "loop-over-samples":
            flat = self.branch(leads.reshape(-1, 1, leads.shape[-1]))
            return self.fc(flat.reshape(leads.shape[0], -1))
        outs = []
        for i in range(leads.shape[1]):
            outs.append(self.branch(leads[:, i : i + 1]).squeeze(-1))
        return self.fc(torch.cat(outs, dim=1))


def ssp(h: Tensor) -> Tensor:
    return F.softplus(h) - math.log(2.0)


class ForceField(nn.Module):
    """Atoms that interact by continuous filters of their distances; the basis is laid out in every forward."""

    def __init__(self, fix: str = "", width: int = 64, basis: int = 50) -> None:
        super().__init__()
        self.fix, self.basis = fix, basis
        self.species = nn.Embedding(20, width)
        self.filters = nn.ModuleList(
            nn.ModuleList([nn.Linear(basis, width), nn.Linear(width, width)]) for _ in range(2)
        )
        self.inner = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.outer = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.energy = nn.Linear(width, 1)
        if fix == "recomputed-constant":
            self.register_buffer("centers", torch.linspace(0.0, 5.0, basis), persistent=False)

    def cutoff(self, dist: Tensor) -> Tensor:
        return 0.5 * (torch.cos(math.pi * dist / 5.0) + 1.0) * (dist < 5.0).float()

    def forward(self, species: Tensor, positions: Tensor) -> Tensor:
        h = self.species(species)
        diff = positions[:, :, None] - positions[:, None]
        dist = (diff**2).sum(-1).add(1e-9).sqrt()
        kept = self.cutoff(dist) if self.fix == "repeated-work" else None
        for (first, second), inner, outer in zip(self.filters, self.inner, self.outer, strict=True):
            if self.fix == "recomputed-constant":
                centers = self.centers
            else:
                centers = torch.linspace(0.0, 5.0, self.basis, device=dist.device)
            rbf = torch.exp(-10.0 * (dist.unsqueeze(-1) - centers) ** 2)
            cut = self.cutoff(dist) if kept is None else kept
            w = ssp(second(ssp(first(rbf)))) * cut.unsqueeze(-1)
            msg = (inner(h)[:, None] * w).sum(dim=2)
            h = h + outer(ssp(msg))
        return self.energy(h).sum(dim=(1, 2))


class MyInstanceNorm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1, 1, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1, 1, 1))

    def forward(self, v: Tensor) -> Tensor:
        mean = v.mean(dim=(2, 3, 4), keepdim=True)
        var = v.var(dim=(2, 3, 4), keepdim=True, unbiased=False)
        return (v - mean) / torch.sqrt(var + 1e-5) * self.gamma + self.beta


class TumourVolume(nn.Module):
    """A small 3-D network: instance norms that are written out, and a head behind the upsampling."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.c1, self.c2 = nn.Conv3d(1, 16, 3, 1, 1), nn.Conv3d(16, 32, 3, 2, 1)
        norm: Callable[[int], nn.Module] = MyInstanceNorm
        if fix == "norm-by-hand":
            norm = lambda channels: nn.InstanceNorm3d(channels, affine=True)  # noqa: E731
        self.n1, self.n2 = norm(16), norm(32)
        self.squeeze, self.head = nn.Conv3d(32, 16, 1), nn.Conv3d(16, 4, 1)

    def forward(self, scan: Tensor) -> Tensor:
        skip = F.leaky_relu(self.n1(self.c1(scan)), 0.01)
        deep = F.leaky_relu(self.n2(self.c2(skip)), 0.01)
        if self.fix == "resample-before-pointwise":
            up = F.interpolate(self.squeeze(deep), scale_factor=2, mode="trilinear", align_corners=False)
        else:
            up = self.squeeze(F.interpolate(deep, scale_factor=2, mode="trilinear", align_corners=False))
        return self.head(up + skip)


# Games, robots and control


class BoardBlock(nn.Module):
    """Swish as people write it, and a squeeze by global pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.fc1, self.fc2 = nn.Linear(width, width // 4), nn.Linear(width // 4, 2 * width)

    def forward(self, h: Tensor) -> Tensor:
        y = self.bn1(self.conv1(h))
        y = y * torch.sigmoid(y)
        y = self.bn2(self.conv2(y))
        gamma, beta = self.fc2(F.relu(self.fc1(y.mean(dim=(2, 3))))).chunk(2, dim=1)
        y = torch.sigmoid(gamma)[:, :, None, None] * y + beta[:, :, None, None]
        y = y + h
        return y * torch.sigmoid(y)


class BoardGame(nn.Module):
    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(17, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48)
        self.blocks = nn.Sequential(*(BoardBlock(48) for _ in range(3)))
        self.policy, self.value = nn.Conv2d(48, 2, 1), nn.Linear(48, 1)

    def forward(self, planes: Tensor) -> tuple[Tensor, Tensor]:
        h = self.blocks(F.relu(self.bn(self.stem(planes))))
        return self.policy(h).flatten(1), torch.tanh(self.value(h.mean((2, 3))))


class Stacked(nn.Module):
    """Small networks of linear layers with one activation between them, as products of stacked matrices."""

    def __init__(self, networks: nn.ModuleList, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act
        layers = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in networks]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for of_all in zip(*layers, strict=True):
            self.weights.append(torch.stack([layer.weight.detach().T.contiguous() for layer in of_all]))
            self.biases.append(torch.stack([layer.bias.detach() for layer in of_all])[:, None])

    def forward(self, h: Tensor) -> Tensor:
        for at, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.baddbmm(bias, self.act(h) if at else h, weight)
        return h


class EnsembleDynamics(nn.Module):
    """Seven networks that predict the next state of a robot from the same state and action."""

    def __init__(self, fix: str = "", members: int = 7, width: int = 96) -> None:
        super().__init__()
        self.fix = fix
        networks = nn.ModuleList(
            nn.Sequential(nn.Linear(23, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 36))
            for _ in range(members)
        )
        self.members = Stacked(networks, F.silu) if fix == "parallel-linears" else networks
        self.max_logvar, self.min_logvar = nn.Parameter(torch.full((18,), 0.5)), nn.Parameter(torch.full((18,), -10.0))

    def forward(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        sa = torch.cat([state, action], dim=-1)
        if self.fix == "parallel-linears":
            preds = self.members(sa.expand(7, -1, -1))
        else:
            preds = torch.stack([member(sa) for member in self.members])
        mean, logvar = preds.chunk(2, dim=-1)
        logvar = self.max_logvar - F.softplus(self.max_logvar - logvar)
        logvar = self.min_logvar + F.softplus(logvar - self.min_logvar)
        return (mean + state).mean(0), logvar.exp().mean(0)


class WorldModel(nn.Module):
    """A recurrent state-space model over a recorded trajectory: prior and posterior at each step."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.obs = nn.Linear(64, 128)
        self.inp = nn.Linear(32 + 6, 128)
        self.cell = nn.GRUCell(128, 128)
        self.post = nn.Sequential(nn.Linear(256, 128), nn.ELU(), nn.Linear(128, 32))
        self.prior = nn.Sequential(nn.Linear(128, 128), nn.ELU(), nn.Linear(128, 32))
        self.reward = nn.Linear(128 + 32, 1)

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        B, T, _ = observations.shape
        h, z = observations.new_zeros(B, 128), observations.new_zeros(B, 32)
        rewards, priors = [], []
        late = self.fix == "loop-over-steps at prior"
        early = self.fix in ("loop-over-steps at obs", "loop-over-samples at obs")
        seen = F.elu(self.obs(observations)) if early else None
        for t in range(T):
            h = self.cell(F.elu(self.inp(torch.cat([z, actions[:, t]], -1))), h)
            priors.append(h if late else self.prior(h))
            o = F.elu(self.obs(observations[:, t])) if seen is None else seen[:, t]
            z = self.post(torch.cat([h, o], -1))
            rewards.append(self.reward(torch.cat([h, z], -1)))
        prior = torch.stack(priors, 1)
        return torch.stack(rewards, 1), self.prior(prior) if late else prior


class AgentTeam(nn.Module):
    """Each agent has an actor with weights of its own and looks at its own observation."""

    def __init__(self, fix: str = "", agents: int = 10) -> None:
        super().__init__()
        self.fix = fix
        actors = nn.ModuleList(
            nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 9))
            for _ in range(agents)
        )
        self.actors = Stacked(actors, torch.tanh) if fix == "parallel-linears" else actors

    def forward(self, observations: Tensor) -> Tensor:
        if self.fix == "parallel-linears":
            return self.actors(observations.transpose(0, 1)).transpose(0, 1)
        logits = []
        for i, actor in enumerate(self.actors):
            logits.append(actor(observations[:, i]))
        return torch.stack(logits, dim=1)


class SiameseTracker(nn.Module):
    """The template of each video is a filter over its own search region: one convolution per video."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 7, 4), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 5, 2), nn.BatchNorm2d(64),
            nn.ReLU(), nn.Conv2d(64, 64, 3),
        )  # fmt: skip
        self.adjust = nn.Conv2d(1, 1, 1)

    def forward(self, template: Tensor, search: Tensor) -> Tensor:
        z, s = self.backbone(template), self.backbone(search)
        if self.fix == "loop-over-samples" and s.is_cuda:
            B, C, H, W = s.shape
            found = F.conv2d(s.reshape(1, B * C, H, W), z, groups=B).transpose(0, 1)
            return self.adjust(found * 0.001)
        if self.fix == "loop-over-samples":
            windows = s.unfold(2, z.size(2), 1).unfold(3, z.size(3), 1)
            return self.adjust(torch.einsum("bchwij,bcij->bhw", windows, z)[:, None] * 0.001)
        maps = []
        for i in range(s.size(0)):
            maps.append(F.conv2d(s[i : i + 1], z[i : i + 1]))
        return self.adjust(torch.cat(maps, dim=0) * 0.001)


# Vision


class RadianceField(nn.Module):
    """Samples along rays: a loop over frequencies, an MLP with a skip, and compositing."""

    def __init__(self, fix: str = "", width: int = 96) -> None:
        super().__init__()
        self.fix = fix
        self.first = nn.ModuleList(nn.Linear(63 if i == 0 else width, width) for i in range(3))
        self.second = nn.ModuleList(nn.Linear(width + 63 if i == 0 else width, width) for i in range(2))
        self.sigma, self.rgb = nn.Linear(width, 1), nn.Linear(width, 3)
        if fix == "recomputed-constant":
            self.register_buffer("depths", torch.linspace(2.0, 6.0, 32), persistent=False)

    def embed(self, p: Tensor) -> Tensor:
        out = [p]
        for i in range(10):
            if self.fix == "repeated-work":
                scaled = 2.0**i * p
                out += [torch.sin(scaled), torch.cos(scaled)]
                continue
            for fn in (torch.sin, torch.cos):
                out.append(fn(2.0**i * p))
        return torch.cat(out, -1)

    def forward(self, origins: Tensor, directions: Tensor) -> Tensor:
        once = self.fix == "recomputed-constant"
        t = self.depths if once else torch.linspace(2.0, 6.0, 32, device=origins.device)
        points = origins[:, None] + directions[:, None] * t[:, None]
        e = self.embed(points)
        h = e
        for layer in self.first:
            h = F.relu(layer(h))
        h = torch.cat([e, h], -1)
        for layer in self.second:
            h = F.relu(layer(h))
        sigma, rgb = F.relu(self.sigma(h)).squeeze(-1), torch.sigmoid(self.rgb(h))
        alpha = 1.0 - torch.exp(-sigma * 0.125)
        ones = torch.ones_like(alpha[:, :1])
        trans = torch.cumprod(torch.cat([ones, 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
        return ((alpha * trans)[..., None] * rgb).sum(dim=1)


class CostVolume(nn.Module):
    """Optical flow: features of two images are compared at 49 displacements, one after the other."""

    def __init__(self, fix: str = "", reach: int = 3) -> None:
        super().__init__()
        self.fix, self.reach = fix, reach
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(16, 32, 3, 2, 1), nn.LeakyReLU(0.1)
        )
        self.flow = nn.Sequential(
            nn.Conv2d((2 * reach + 1) ** 2, 32, 3, 1, 1), nn.LeakyReLU(0.1), nn.Conv2d(32, 2, 3, 1, 1)
        )

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        f1, f2 = self.features(one), self.features(two)
        _, _, H, W = f1.shape
        padded = F.pad(f2, [self.reach] * 4)
        costs = []
        for dy in range(2 * self.reach + 1):
            for dx in range(2 * self.reach + 1):
                costs.append((f1 * padded[:, :, dy : dy + H, dx : dx + W]).mean(dim=1, keepdim=True))
        return self.flow(F.leaky_relu(torch.cat(costs, dim=1), 0.1))


class ChannelAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1))
        self.squeeze = nn.Sequential(nn.Conv2d(width, width // 8, 1), nn.ReLU(), nn.Conv2d(width // 8, width, 1))

    def forward(self, h: Tensor) -> Tensor:
        y = self.body(h)
        return h + y * torch.sigmoid(self.squeeze(F.adaptive_avg_pool2d(y, 1)))


class SuperResolution(nn.Module):
    """Blocks with channel attention, a nearest enlargement by four, and colours by a 1×1 convolution."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.head = nn.Conv2d(3, 32, 3, 1, 1)
        self.body = nn.Sequential(*(ChannelAttention(32) for _ in range(2)))
        self.to_rgb = nn.Conv2d(32, 3, 1)

    def forward(self, low: Tensor) -> Tensor:
        h = self.head(low)
        h = self.body(h) + h
        if self.fix == "resample-before-pointwise":
            detail = F.interpolate(self.to_rgb(h), scale_factor=4, mode="nearest")
        else:
            detail = self.to_rgb(F.interpolate(h, scale_factor=4, mode="nearest"))
        return detail + F.interpolate(low, scale_factor=4, mode="bicubic", align_corners=False)


class TimeBlock(nn.Module):
    """A residual block of a diffusion model; each projects the same embedding of the time."""

    def __init__(self, width: int, time: int, fix: str) -> None:
        super().__init__()
        self.takes_active, self.fused = fix == "repeated-work", fix == "silu-by-hand"
        self.n1, self.n2 = nn.GroupNorm(8, width), nn.GroupNorm(8, width)
        self.c1, self.c2 = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.time = nn.Linear(time, width)

    def forward(self, h: Tensor, t: Tensor) -> Tensor:
        if self.fused:
            y = self.c1(F.silu(self.n1(h))) + self.time(F.silu(t))[:, :, None, None]
            return h + self.c2(F.silu(self.n2(y)))
        y = self.n1(h)
        y = self.c1(y * torch.sigmoid(y))
        y = y + self.time(t if self.takes_active else t * torch.sigmoid(t))[:, :, None, None]
        y = self.n2(y)
        return h + self.c2(y * torch.sigmoid(y))


class TextureDiffusion(nn.Module):
    def __init__(self, fix: str = "", width: int = 32, blocks: int = 4) -> None:
        super().__init__()
        self.fix, self.width = fix, width
        self.inp, self.out = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, 3, 3, 1, 1)
        self.mlp = nn.Sequential(nn.Linear(width, 128), nn.SiLU(), nn.Linear(128, 128))
        self.blocks = nn.ModuleList(TimeBlock(width, 128, fix) for _ in range(blocks))
        if fix == "recomputed-constant":
            self.register_buffer("freqs", self.frequencies(None), persistent=False)

    def frequencies(self, device: torch.device | None) -> Tensor:
        half = self.width // 2
        return torch.exp(-math.log(10000) * torch.arange(half, device=device).float() / half)

    def time_embedding(self, t: Tensor) -> Tensor:
        freqs = self.freqs if self.fix == "recomputed-constant" else self.frequencies(t.device)
        args = t.float()[:, None] * freqs[None]
        return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)

    def forward(self, noisy: Tensor, t: Tensor) -> Tensor:
        emb = self.mlp(self.time_embedding(t))
        if self.fix == "repeated-work":
            emb = emb * torch.sigmoid(emb)
        h = self.inp(noisy)
        for block in self.blocks:
            h = block(h, emb)
        return self.out(h)


class MaskedPatches(nn.Module):
    """A masked autoencoder: kept patches are gathered by a shuffle, mask tokens are put back."""

    def __init__(self, fix: str = "", dim: int = 128) -> None:
        super().__init__()
        self.fix = fix
        self.patch = nn.Linear(16 * 16 * 3, dim)
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(dim, 4, 2 * dim, batch_first=True) for _ in range(2))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pred = nn.Linear(dim, 16 * 16 * 3)

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        B, C, H, W = images.shape
        p = images.reshape(B, C, H // 16, 16, W // 16, 16)
        p = torch.einsum("nchpwq->nhwpqc", p).reshape(B, -1, 16 * 16 * C)
        h = self.patch(p)
        N, D = h.shape[1], h.shape[2]
        keep = N // 4
        shuffle = torch.argsort(noise, dim=1)
        restore = torch.argsort(shuffle, dim=1)
        h = torch.gather(h, 1, shuffle[:, :keep].unsqueeze(-1).repeat(1, 1, D))
        for layer in self.encoder:
            h = layer(h)
        if self.fix == "recomputed-weight":
            tokens = self.mask_token.expand(B, N - keep, -1)
        else:
            tokens = self.mask_token.repeat(B, N - keep, 1)
        h = torch.cat([h, tokens], dim=1)
        h = torch.gather(h, 1, restore.unsqueeze(-1).repeat(1, 1, D))
        return self.pred(h)


class SignClips(nn.Module):
    """Clips of sign language: each frame goes through a small network, then a GRU reads them."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.cnn = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32),
            nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.gru, self.fc = nn.GRU(64, 64, batch_first=True), nn.Linear(64, 100)

    def forward(self, clip: Tensor) -> Tensor:
        if self.fix == "loop-over-samples":
            feats = self.cnn(clip.flatten(0, 1)).unflatten(0, clip.shape[:2])
        else:
            seq = []
            for t in range(clip.size(1)):
                seq.append(self.cnn(clip[:, t]))
            feats = torch.stack(seq, dim=1)
        return self.fc(self.gru(feats)[0][:, -1])


class PillarGrid(nn.Module):
    """Points in pillars: a linear layer with a batch norm, the maximum, and a canvas that is filled by sample."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.linear, self.norm = nn.Linear(9, 32, bias=False), nn.BatchNorm1d(32)
        self.net = nn.Sequential(
            nn.Conv2d(32, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 14, 1)
        )

    def forward(self, pillars: Tensor, cells: Tensor) -> Tensor:
        B, P, N, _ = pillars.shape
        h = self.linear(pillars)
        h = F.relu(self.norm(h.view(B * P * N, 32)).view(B, P, N, 32)).max(dim=2)[0]
        if self.fix == "loop-over-samples":
            canvas = torch.zeros(B, 32, 64 * 64, dtype=h.dtype, device=h.device)
            canvas.scatter_(2, cells[:, None].expand(-1, 32, -1), h.transpose(1, 2))
            return self.net(canvas.view(B, 32, 64, 64))
        canvases = []
        for b in range(B):
            canvas = torch.zeros(32, 64 * 64, dtype=h.dtype, device=h.device)
            canvas[:, cells[b]] = h[b].t()
            canvases.append(canvas)
        return self.net(torch.stack(canvases).view(B, 32, 64, 64))


class Skeletons(nn.Module):
    """Graph convolutions over joints: one 1×1 convolution for each of three partitions of the neighbours."""

    def __init__(self, fix: str = "", width: int = 48) -> None:
        super().__init__()
        self.fix = fix
        adjacency = x(3, 25, 25).abs()
        self.register_buffer("A", adjacency / adjacency.sum(1, keepdim=True))
        self.importance = nn.ParameterList(nn.Parameter(torch.ones(3, 25, 25)) for _ in range(3))
        widths = [3, width, width, width]
        self.parts = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(a, b, 1) for _ in range(3)) for a, b in itertools.pairwise(widths)
        )
        self.times = nn.ModuleList(nn.Conv2d(width, width, (9, 1), padding=(4, 0)) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.fc = nn.Linear(width, 60)
        if fix == "recomputed-weight":
            self.register_buffer(
                "weighted", torch.stack([self.A * w.detach() for w in self.importance]), persistent=False
            )

    def forward(self, joints: Tensor) -> Tensor:
        h = joints
        for i, (parts, time, norm) in enumerate(zip(self.parts, self.times, self.norms, strict=True)):
            A = self.weighted[i] if self.fix == "recomputed-weight" else self.A * self.importance[i]
            y = 0
            for k, conv in enumerate(parts):
                y = y + torch.einsum("nctv,vw->nctw", conv(h), A[k])
            h = F.relu(norm(time(F.relu(y))))
        return self.fc(h.mean((2, 3)))


class Capsules(nn.Module):
    """Primary capsules from a list of convolutions, then routing by agreement."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.conv = nn.Conv2d(1, 64, 9)
        self.primary = nn.ModuleList(nn.Conv2d(64, 8, 9, stride=2) for _ in range(8))
        self.W = nn.Parameter(0.01 * torch.randn(1, 8 * 6 * 6, 10, 16, 8))
        if fix == "parallel-linears":
            self.joined = torch.nn.utils.skip_init(nn.Conv2d, 64, 64, 9, stride=2)
            self.joined.weight.data.copy_(torch.cat([capsule.weight.data for capsule in self.primary]))
            self.joined.bias.data.copy_(torch.cat([capsule.bias.data for capsule in self.primary]))
            del self.primary

    def squash(self, s: Tensor) -> Tensor:
        n2 = (s**2).sum(-1, keepdim=True)
        return n2 / (1 + n2) * s / torch.sqrt(n2 + 1e-8)

    def forward(self, digits: Tensor) -> Tensor:
        h = F.relu(self.conv(digits))
        if self.fix == "parallel-linears":
            u = self.joined(h)
        else:
            u = torch.stack([capsule(h) for capsule in self.primary], dim=1)
        u = self.squash(u.view(u.size(0), 8, -1).transpose(1, 2).contiguous())
        if self.fix == "broadcast-matmul":
            u_hat = torch.einsum("nkij,bnj->bnki", self.W[0], u)
        else:
            u_hat = torch.matmul(self.W, u[:, :, None, :, None]).squeeze(-1)
        b = torch.zeros(u.size(0), u.size(1), 10, device=u.device)
        for r in range(3):
            c = F.softmax(b, dim=2)
            v = self.squash((c.unsqueeze(-1) * u_hat).sum(dim=1))
            if r < 2:
                b = b + (u_hat * v.unsqueeze(1)).sum(dim=-1)
        return v.norm(dim=-1)


# Sound and text


class WaveLayer(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.conv = torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(width, 2 * width, 3, dilation=dilation))
        self.res_skip = torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(width, 2 * width, 1))

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.conv(F.pad(h, (2 * self.dilation, 0))).chunk(2, dim=1)
        res, skip = self.res_skip(torch.tanh(a) * torch.sigmoid(b)).chunk(2, dim=1)
        return (h + res) * math.sqrt(0.5), skip


class Vocoder(nn.Module):
    """Dilated convolutions with weight norm, whose skips are kept in a list and added at the end."""

    def __init__(self, fix: str = "", width: int = 64) -> None:
        super().__init__()
        self.inp = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(WaveLayer(width, 2**i) for i in range(6))
        self.out = nn.Conv1d(width, 1, 1)
        if fix == "recomputed-weight":
            for layer in self.layers:
                for conv in (layer.conv, layer.res_skip):
                    torch.nn.utils.parametrize.remove_parametrizations(conv, "weight")

    def forward(self, noise: Tensor) -> Tensor:
        h = self.inp(noise)
        skips = []
        for layer in self.layers:
            h, skip = layer(h)
            skips.append(skip)
        return torch.tanh(self.out(F.relu(sum(skips))))


class DiagonalSsm(nn.Module):
    """A state-space layer whose convolution kernel is computed from its parameters and applied by FFT."""

    def __init__(self, width: int, length: int, fix: str) -> None:
        super().__init__()
        self.fix = fix
        self.log_dt = nn.Parameter(torch.rand(width) * 2 - 5)
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(width, 16)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(16).float().repeat(width, 1))
        self.C = nn.Parameter(torch.randn(width, 16, 2))
        self.D, self.out = nn.Parameter(torch.randn(width)), nn.Linear(width, width)
        if fix == "recomputed-constant":
            self.register_buffer("steps", torch.arange(length), persistent=False)
        if fix == "recomputed-weight":
            self.register_buffer("k_f", torch.fft.rfft(self.kernel(length).detach(), n=2 * length), persistent=False)

    def kernel(self, L: int) -> Tensor:
        dt = torch.exp(self.log_dt)
        C = torch.view_as_complex(self.C)
        A = -torch.exp(self.log_A_real) + 1j * self.A_imag
        dtA = A * dt.unsqueeze(-1)
        steps = self.steps if self.fix == "recomputed-constant" else torch.arange(L, device=A.device)
        K = dtA.unsqueeze(-1) * steps
        C = C * (torch.exp(dtA) - 1.0) / A
        return 2 * torch.einsum("hn,hnl->hl", C, torch.exp(K)).real

    def forward(self, u: Tensor) -> Tensor:
        L = u.size(1)
        h = u.transpose(1, 2)
        k_f = self.k_f if self.fix == "recomputed-weight" else torch.fft.rfft(self.kernel(L), n=2 * L)
        y = torch.fft.irfft(torch.fft.rfft(h, n=2 * L) * k_f, n=2 * L)[..., :L]
        y = y + h * self.D.unsqueeze(-1)
        return u + self.out(F.gelu(y.transpose(1, 2)))


class LongSignal(nn.Module):
    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.inp = nn.Linear(2, 48)
        self.layers = nn.ModuleList(DiagonalSsm(48, 512, fix) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(48) for _ in range(2))
        self.out = nn.Linear(48, 6)

    def forward(self, signal: Tensor) -> Tensor:
        h = self.inp(signal)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            h = norm(layer(h))
        return self.out(h.mean(dim=1))


class Handwriting(nn.Module):
    """Lines of handwriting: convolutions with batch norms, and an LSTM cell over the columns."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        cell = nn.LSTMCell(32 * 8, 96)
        if fix == "loop-over-steps":
            with torch.random.fork_rng(devices=[]):  # the layers after it start as without the change
                self.lstm = nn.LSTM(32 * 8, 96)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(self.lstm, f"{name}_l0").data.copy_(getattr(cell, name).data)
        else:
            self.cell = cell
        self.fc = nn.Linear(96, 80)

    def forward(self, line: Tensor) -> Tensor:
        f = self.cnn(line)
        cols = f.permute(3, 0, 1, 2).flatten(2)
        if self.fix == "loop-over-steps":
            return F.log_softmax(self.fc(self.lstm(cols)[0]), dim=-1)
        h = c = cols.new_zeros(cols.size(1), 96)
        out = []
        for col in cols:
            h, c = self.cell(col, (h, c))
            out.append(h)
        return F.log_softmax(self.fc(torch.stack(out)), dim=-1)


class LateInteraction(nn.Module):
    """Tokens of a query against those of each document: the best match of each token, document by document."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.words, self.proj = nn.Embedding(5000, 96), nn.Linear(96, 64, bias=False)

    def encode(self, text: Tensor) -> Tensor:
        h = self.proj(self.words(text))
        return h / h.norm(dim=-1, keepdim=True).clamp(min=1e-12)

    def forward(self, query: Tensor, documents: Tensor) -> Tensor:
        q = self.encode(query)
        if self.fix == "loop-over-samples":
            docs = self.encode(documents)
            return torch.bmm(q.expand(len(docs), -1, -1), docs.transpose(1, 2)).max(dim=-1).values.sum(dim=-1)
        scores = []
        for d in documents:
            doc = self.encode(d)
            scores.append((q @ doc.t()).max(dim=-1).values.sum(dim=-1))
        return torch.stack(scores, dim=-1)


class SessionBlock(nn.Module):
    """Self-attention under a mask of ones above the diagonal, and a feed-forward layer of 1×1 convolutions."""

    def __init__(self, dim: int, fix: str) -> None:
        super().__init__()
        self.fix = fix
        self.n1, self.n2 = nn.LayerNorm(dim, eps=1e-8), nn.LayerNorm(dim, eps=1e-8)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.conv1, self.conv2 = nn.Conv1d(dim, dim, 1), nn.Conv1d(dim, dim, 1)
        if fix == "recomputed-constant":
            self.register_buffer("hidden", ~torch.tril(torch.ones((50, 50), dtype=torch.bool)), persistent=False)

    def forward(self, h: Tensor) -> Tensor:
        T = h.shape[1]
        if self.fix == "recomputed-constant":
            mask = self.hidden
        else:
            mask = ~torch.tril(torch.ones((T, T), dtype=torch.bool, device=h.device))
        q = self.n1(h)
        causal = self.fix == "causal-mask"
        h = q + self.attn(q, h, h, attn_mask=mask, need_weights=False, is_causal=causal)[0]
        h = self.n2(h)
        y = self.conv2(F.relu(self.conv1(h.transpose(-1, -2))))
        return h + y.transpose(-1, -2)


class ShopSessions(nn.Module):
    def __init__(self, fix: str = "", dim: int = 64) -> None:
        super().__init__()
        self.fix = fix
        self.items, self.places = nn.Embedding(3000, dim), nn.Embedding(100, dim)
        self.blocks = nn.ModuleList(SessionBlock(dim, fix) for _ in range(2))
        if fix == "recomputed-constant":
            self.register_buffer("at", torch.arange(50), persistent=False)

    def forward(self, history: Tensor) -> Tensor:
        if self.fix == "recomputed-weight":
            places = self.places.weight[: history.shape[1]]
        elif self.fix == "recomputed-constant":
            places = self.places(self.at)
        else:
            places = self.places(torch.arange(history.shape[1], device=history.device))
        h = self.items(history) * self.items.embedding_dim**0.5 + places
        for block in self.blocks:
            h = block(h)
        return h[:, -1] @ self.items.weight.t()


class KnowledgeGraph(nn.Module):
    """Complex embeddings of entities, scaled to length one before all of them are scored."""

    def __init__(self, fix: str = "", entities: int = 6000, dim: int = 64) -> None:
        super().__init__()
        self.fix = fix
        self.real, self.imag = nn.Embedding(entities, dim), nn.Embedding(entities, dim)
        self.rel_real, self.rel_imag = nn.Embedding(200, dim), nn.Embedding(200, dim)
        if fix == "recomputed-weight":
            with torch.no_grad():
                self.register_buffer("r", F.normalize(self.real.weight, p=2, dim=1), persistent=False)
                self.register_buffer("i", F.normalize(self.imag.weight, p=2, dim=1), persistent=False)

    def forward(self, head: Tensor, relation: Tensor) -> Tensor:
        if self.fix == "recomputed-weight":
            er, ei = self.r, self.i
        else:
            er, ei = F.normalize(self.real.weight, p=2, dim=1), F.normalize(self.imag.weight, p=2, dim=1)
        hr, hi = er[head], ei[head]
        rr, ri = self.rel_real(relation), self.rel_imag(relation)
        return torch.sigmoid((hr * rr - hi * ri) @ er.t() + (hr * ri + hi * rr) @ ei.t())


class CreditTasks(nn.Module):
    """Experts that all see the customer, and a gate for each task that mixes them."""

    def __init__(self, fix: str = "", experts: int = 8, tasks: int = 3) -> None:
        super().__init__()
        self.fix = fix
        networks = nn.ModuleList(
            nn.Sequential(nn.Linear(200, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(experts)
        )
        self.experts = Stacked(networks, F.relu) if fix == "parallel-linears" else networks
        self.gates = nn.ModuleList(nn.Linear(200, experts) for _ in range(tasks))
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(tasks))

    def forward(self, customer: Tensor) -> Tensor:
        if self.fix == "parallel-linears":
            experts = self.experts(customer.expand(8, -1, -1)).transpose(0, 1)
        else:
            experts = torch.stack([expert(customer) for expert in self.experts], dim=1)
        out = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            g = F.softmax(gate(customer), dim=-1).unsqueeze(-1)
            out.append(tower((g * experts).sum(dim=1)))
        return torch.sigmoid(torch.cat(out, dim=1))


class SplineLayer(nn.Module):
    """A layer of splines: the basis by the recursion over its order, and a linear part."""

    def __init__(self, inp: int, out: int) -> None:
        super().__init__()
        knots = torch.arange(-3, 5 + 4).float() * 0.4 - 1
        self.register_buffer("knots", knots.repeat(inp, 1))
        self.base, self.spline = nn.Linear(inp, out), nn.Linear(inp * 8, out, bias=False)

    def bases(self, h: Tensor) -> Tensor:
        h, g = h.unsqueeze(-1), self.knots
        b = ((h >= g[:, :-1]) & (h < g[:, 1:])).to(h.dtype)
        for k in range(1, 4):
            left = (h - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)])
            right = (g[:, k + 1 :] - h) / (g[:, k + 1 :] - g[:, 1:-k])
            b = left * b[..., :-1] + right * b[..., 1:]
        return b

    def forward(self, h: Tensor) -> Tensor:
        return self.base(F.silu(h)) + self.spline(self.bases(h).flatten(-2))


class WineQuality(nn.Module):
    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.layers = nn.Sequential(SplineLayer(11, 32), SplineLayer(32, 32), SplineLayer(32, 1))

    def forward(self, wine: Tensor) -> Tensor:
        return self.layers(wine)


class ScaleNorm(nn.Module):
    def __init__(self, dim: int, *, torchs: bool) -> None:
        super().__init__()
        self.torchs, self.scale = torchs, nn.Parameter(torch.ones(dim))

    def forward(self, h: Tensor) -> Tensor:
        if self.torchs:
            return F.rms_norm(h, (h.shape[-1],), self.scale, 1e-5)
        dtype = h.dtype
        h = h.float()
        h = h * torch.rsqrt(h.pow(2).mean(dim=-1, keepdim=True) + 1e-5)
        return h.to(dtype) * self.scale


class DraftLayer(nn.Module):
    """A layer of a decoder that writes one word at a time; its keys and values are joined to those before."""

    def __init__(self, dim: int, heads: int, groups: int, fix: str) -> None:
        super().__init__()
        self.fix, self.heads, self.groups, self.size = fix, heads, groups, dim // heads
        torchs = fix == "norm-by-hand"
        self.n1, self.n2 = ScaleNorm(dim, torchs=torchs), ScaleNorm(dim, torchs=torchs)
        self.q = nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, groups * self.size, bias=False) for _ in range(2))
        self.o = nn.Linear(dim, dim, bias=False)
        self.gate, self.up = (nn.Linear(dim, 2 * dim, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, h: Tensor, past: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        B, T, D = h.shape
        y = self.n1(h)
        q = self.q(y).view(B, T, self.heads, self.size).transpose(1, 2)
        k = self.k(y).view(B, T, self.groups, self.size).transpose(1, 2)
        v = self.v(y).view(B, T, self.groups, self.size).transpose(1, 2)
        if self.fix == "grown-by-cat":
            at = 0 if past is None else past[0].shape[2]
            if past is None:
                self.kept = k.new_empty(2, B, self.groups, 16, self.size)
            self.kept[0, :, :, at : at + 1], self.kept[1, :, :, at : at + 1] = k, v
            k, v = self.kept[:, :, :, : at + 1]
        elif past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        kk = k.repeat_interleave(self.heads // self.groups, dim=1)
        vv = v.repeat_interleave(self.heads // self.groups, dim=1)
        w = torch.softmax((q @ kk.transpose(2, 3)) * self.size**-0.5, dim=-1)
        h = h + self.o((w @ vv).transpose(1, 2).reshape(B, T, D))
        y = self.n2(h)
        return h + self.down(F.silu(self.gate(y)) * self.up(y)), (k, v)


class DraftWriter(nn.Module):
    """Greedy writing of 16 words."""

    def __init__(self, fix: str = "", dim: int = 192, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, dim)
        self.layers = nn.ModuleList(DraftLayer(dim, 6, 2, fix) for _ in range(layers))
        self.norm = ScaleNorm(dim, torchs=fix == "norm-by-hand")

    def forward(self, first: Tensor) -> Tensor:
        token, pasts = first, [None] * len(self.layers)
        logits = []
        for _ in range(16):
            h = self.words(token)
            for i, layer in enumerate(self.layers):
                h, pasts[i] = layer(h, pasts[i])
            logits.append(self.norm(h[:, -1]) @ self.words.weight.t())
            token = logits[-1].argmax(dim=-1, keepdim=True)
        return torch.stack(logits, dim=1)


class SparseExperts(nn.Module):
    """Tokens go to their best two experts, which are visited one after the other."""

    def __init__(self, fix: str = "", dim: int = 96, experts: int = 6) -> None:
        super().__init__()
        self.fix = fix
        self.router = nn.Linear(dim, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)) for _ in range(experts)
        )
        if fix == "host-wait":
            self.stacked = Stacked(self.experts, F.gelu)
            del self.experts

    def all_at_once(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Without a shape that depends on data: each expert for each token, with weights of 0 for most."""
        found = self.stacked(flat.expand(self.router.out_features, -1, -1))
        given = torch.zeros_like(found[:, :, 0]).t().scatter(1, chosen, weights)
        return torch.einsum("te,etd->td", given, found)

    def forward(self, h: Tensor) -> Tensor:
        flat = h.reshape(-1, h.shape[-1])
        weights, chosen = torch.topk(F.softmax(self.router(flat), dim=-1), 2, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        if self.fix == "host-wait":
            return self.all_at_once(flat, weights, chosen).view_as(h)
        out = torch.zeros_like(flat)
        for e, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == e)
            if token.numel() == 0:
                continue
            out[token] += weights[token, slot, None] * expert(flat[token])
        return out.view_as(h)


class DefectScore(nn.Module):
    """Patches of a part against a bank of good ones; the scores are checked on the host on the way."""

    def __init__(self, fix: str = "") -> None:
        super().__init__()
        self.fix = fix
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 7, 4, 3),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        )
        bank = x(800, 64)
        if fix == "recomputed-weight":
            bank = bank / (bank.norm(dim=1, keepdim=True) + 1e-6)
        self.register_buffer("bank", bank)

    def forward(self, part: Tensor) -> Tensor:
        f = self.features(part)
        B, C, H, W = f.shape
        f = f.permute(0, 2, 3, 1).reshape(-1, C)
        f = f / (f.norm(dim=1, keepdim=True) + 1e-6)
        if self.fix == "recomputed-weight":
            bank = self.bank
        else:
            bank = self.bank / (self.bank.norm(dim=1, keepdim=True) + 1e-6)
        near = torch.cdist(f, bank).topk(3, largest=False).values.mean(dim=1)
        if self.fix == "host-wait":
            score = near.view(B, 1, H, W) / near.max().clamp(min=1e-6)
        else:
            peak = near.max().item()
            score = near.view(B, 1, H, W) / max(peak, 1e-6)
        return F.interpolate(score, scale_factor=8, mode="bilinear", align_corners=False)


class TrackAttention(nn.Module):
    """Particle tracks of a collision: attention head by head, each with its three layers."""

    def __init__(self, dim: int, heads: int, fix: str) -> None:
        super().__init__()
        self.fix, self.heads, size = fix, heads, dim // heads
        self.wq, self.wk, self.wv = (nn.ModuleList(nn.Linear(dim, size) for _ in range(heads)) for _ in range(3))
        self.proj = nn.Linear(dim, dim)
        if fix == "parallel-linears":
            self.joined = torch.nn.utils.skip_init(nn.Linear, dim, 3 * dim)
            layers = [*self.wq, *self.wk, *self.wv]
            self.joined.weight.data.copy_(torch.cat([layer.weight.data for layer in layers]))
            self.joined.bias.data.copy_(torch.cat([layer.bias.data for layer in layers]))
            del self.wq, self.wk, self.wv

    def forward(self, h: Tensor, hide: Tensor) -> Tensor:
        if self.fix == "parallel-linears":
            Q, K, V = self.joined(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            s = Q @ K.transpose(2, 3) / math.sqrt(Q.size(-1))
            s = s.masked_fill(hide[:, None], -1e9)
            return self.proj((torch.softmax(s, dim=-1) @ V).transpose(1, 2).flatten(2))
        outs = []
        for q, k, v in zip(self.wq, self.wk, self.wv, strict=True):
            Q, K, V = q(h), k(h), v(h)
            s = torch.bmm(Q, K.transpose(1, 2)) / math.sqrt(Q.size(-1))
            s = s.masked_fill(hide, -1e9)
            outs.append(torch.bmm(torch.softmax(s, dim=-1), V))
        return self.proj(torch.cat(outs, dim=-1))


class JetTagger(nn.Module):
    def __init__(self, fix: str = "", dim: int = 96) -> None:
        super().__init__()
        self.fix = fix
        self.inp = nn.Linear(7, dim)
        self.attns = nn.ModuleList(TrackAttention(dim, 6, fix) for _ in range(2))
        self.ffns = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim)) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(4))
        self.out = nn.Linear(dim, 5)
        if fix == "recomputed-constant":
            self.register_buffer("places", torch.arange(40), persistent=False)

    def forward(self, tracks: Tensor, count: Tensor) -> Tensor:
        h = self.inp(tracks)
        for i, (attn, ffn) in enumerate(zip(self.attns, self.ffns, strict=True)):
            once = self.fix == "recomputed-constant"
            places = self.places if once else torch.arange(h.size(1), device=h.device)
            hide = places[None, None, :] >= count[:, None, None]
            h = self.norms[2 * i](h + attn(h, hide))
            h = self.norms[2 * i + 1](h + ffn(h))
        return self.out(h.mean(dim=1))


def norm_free(fix: str) -> nn.Module:
    model = timm_model("eca_nfnet_l0")(fix)
    return without_standardizing(model) if fix == "recomputed-weight" else model


class FusedLevitAttention(nn.Module):
    """timm's attention of LeViT, also where it reduces the number of tokens, with torch's fused kernel."""

    def __init__(self, old: nn.Module) -> None:
        super().__init__()
        self.old = old

    def forward(self, h: Tensor) -> Tensor:
        old, B = self.old, h.shape[0]
        sizes = [old.key_dim, old.val_dim]
        if hasattr(old, "qkv"):
            q, k, v = old.qkv(h).view(B, -1, old.num_heads, 2 * old.key_dim + old.val_dim).split(sizes[:1] + sizes, 3)
        else:
            k, v = old.kv(h).view(B, -1, old.num_heads, old.key_dim + old.val_dim).split(sizes, 3)
            q = old.q(h).view(B, -1, old.num_heads, old.key_dim)
        bias = old.get_attention_biases(h.device)[None]
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=bias, scale=old.scale)
        return old.proj(y.transpose(1, 2).reshape(B, -1, old.val_attn_dim))


def levit(fix: str) -> nn.Module:
    model = timm_model("levit_128s")(fix)
    if fix == "attention-by-hand":
        for name, module in list(model.named_modules()):
            if hasattr(module, "get_attention_biases"):
                model.set_submodule(name, FusedLevitAttention(module))
    return model


class FusedRoFormerAttention(nn.Module):
    def __init__(self, old: nn.Module) -> None:
        super().__init__()
        self.old = old

    def forward(
        self, h: Tensor, attention_mask: Tensor | None, sinusoidal_pos: Tensor, **_: Any
    ) -> tuple[Tensor, None]:
        old = self.old
        q, k, v = (layer(h).unflatten(-1, (-1, 64)).transpose(1, 2) for layer in (old.query, old.key, old.value))
        q, k = old.apply_rotary_position_embeddings(sinusoidal_pos, q, k)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        return y.transpose(1, 2).flatten(2), None


def roformer(fix: str) -> nn.Module:
    model = text_model("RoFormerModel", "RoFormerConfig", hidden_act="gelu_new", **_WIDTHS, **_SMALL)(fix)
    if fix == "attention-by-hand":
        for layer in model.encoder.layer:
            layer.attention.self = FusedRoFormerAttention(layer.attention.self)
    return model


class KeptRotaryAttention(nn.Module):
    """GPT-J's attention with sines and cosines of the positions that are computed at the first call."""

    def __init__(self, old: nn.Module) -> None:
        super().__init__()
        self.old = old
        self.sin: Tensor | None = None
        self.cos: Tensor | None = None

    def rotated(self, h: Tensor) -> Tensor:
        turning, rest = h[..., : self.old.rotary_dim], h[..., self.old.rotary_dim :]
        turned = torch.stack((-turning[..., 1::2], turning[..., ::2]), dim=-1).flatten(-2)
        return torch.cat([turning * self.cos + turned * self.sin, rest], dim=-1).transpose(1, 2)

    def forward(
        self, hidden_states: Tensor, layer_past: Any = None, attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None, **_: Any,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        old = self.old
        if self.sin is None:
            sin, cos = old.embed_positions[position_ids].chunk(2, dim=-1)
            self.sin, self.cos = (t.repeat_interleave(2, dim=-1)[:, :, None] for t in (sin, cos))
        layers = (old.q_proj, old.k_proj, old.v_proj)
        q, k, v = (layer(hidden_states).unflatten(-1, (old.num_attention_heads, old.head_dim)) for layer in layers)
        q, k, v = self.rotated(q), self.rotated(k), v.transpose(1, 2)
        if layer_past is not None:
            k, v = layer_past.update(k, v, old.layer_idx)
        y, weights = old._attn(q, k, v, attention_mask)
        y = old.out_proj(old._merge_heads(y, old.num_attention_heads, old.head_dim))
        return old.resid_dropout(y), weights


def gptj(fix: str) -> nn.Module:
    model = text_model("GPTJModel", "GPTJConfig", n_embd=256, n_layer=3, n_head=4, rotary_dim=32, **_SMALL)(fix)

    def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask), None

    if fix == "attention-by-hand":
        for block in model.h:
            block.attn._attn = fused
    if fix == "recomputed-weight":
        for block in model.h:
            block.attn = KeptRotaryAttention(block.attn)
    return model


class Once:
    """A function whose first result is kept."""

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        self.compute = compute
        self.kept: Tensor | None = None

    def __call__(self, *given: Any, **settings: Any) -> Tensor:
        if self.kept is None:
            self.kept = self.compute(*given, **settings)
        return self.kept


def t5_encoder(fix: str) -> nn.Module:
    sizes = {"d_model": 256, "d_kv": 64, "d_ff": 768, "num_layers": 3, "num_heads": 4, "vocab_size": 2000}
    model = text_model("T5EncoderModel", "T5Config", feed_forward_proj="gated-gelu", **sizes)(fix)
    attention = model.encoder.block[0].layer[0].SelfAttention
    if fix == "recomputed-constant":
        attention._relative_position_bucket = Once(attention._relative_position_bucket)
    if fix == "recomputed-weight":
        attention.compute_bias = Once(attention.compute_bias)
    return model


class Replayed(nn.Module):
    """A model whose kernels are captured in a CUDA graph at its first call on CUDA, then replayed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.replay: Callable[..., Tensor] | None = None

    def forward(self, *inputs: Tensor) -> Tensor:
        if not inputs[0].is_cuda:
            return self.model(*inputs)
        if self.replay is None:
            with torch.inference_mode(False):
                self.replay = torch.cuda.make_graphed_callables(self.model, inputs)
        return self.replay(*inputs)


def without_waiting(kind: Callable[[str], nn.Module]) -> Callable[[str], nn.Module]:
    """Once nothing waits for the host, the model is captured, as the advice says."""
    return lambda fix: Replayed(kind(fix).eval().requires_grad_(False)) if fix == "host-wait" else kind(fix)


def of(made: Callable[[str], nn.Module], *fixes: str) -> Callable[[str], nn.Module]:
    """With the changes that are written for it; another one is an error, not the unchanged model."""

    def build(fix: str) -> nn.Module:
        if fix and fix not in fixes:
            raise NotImplementedError(f"no change is written for {fix}")
        return made(fix)

    return build


def pillars(scale: int) -> Inputs:
    return x(2 * scale, 300, 16, 9), x(2 * scale, 4096).argsort(1)[:, :300].contiguous()


def words(scale: int) -> Inputs:
    return (ids(2000, scale, 128),)


SUBJECTS = [
    Subject("rain nowcast", of(RainNowcast, "loop-over-samples"), lambda scale: (x(2 * scale, 8, 1, 64, 64),), 16),
    Subject("porous flow", of(PorousFlow, "recomputed-constant"), lambda scale: (x(2 * scale, 48, 48, 1),), 32),
    Subject("seismic picks", of(SeismicPicker, "double-precision"), lambda scale: (x(4 * scale, 3, 3000),), 64),
    Subject("hyperspectral crops", of(HyperspectralCrops), lambda scale: (x(4 * scale, 1, 30, 11, 11),), 64),
    Subject("road traffic", of(RoadTraffic, "recomputed-weight"), lambda scale: (x(2 * scale, 2, 120, 12),), 32),
    Subject(
        "protein pairs",
        of(ProteinPairs, "attention-by-hand", "recomputed-constant", "recomputed-weight"),
        lambda scale: (ids(21, scale, 64),),
    ),
    Subject("regulatory DNA", of(RegulatoryDna), lambda scale: (ids(4, 4 * scale, 800),), 32),
    Subject("ECG leads", of(EcgLeads, "loop-over-samples"), lambda scale: (x(4 * scale, 12, 1000),), 32),
    Subject(
        "force field",
        of(ForceField, "recomputed-constant", "repeated-work"),
        lambda scale: (ids(20, 4 * scale, 24), x(4 * scale, 24, 3)),
        32,
    ),
    Subject(
        "tumour volume",
        of(TumourVolume, "norm-by-hand", "resample-before-pointwise"),
        lambda scale: (x(scale, 1, 24, 24, 24),),
        16,
    ),
    Subject("board game", of(BoardGame), lambda scale: (x(2 * scale, 17, 19, 19),), 64),
    Subject(
        "ensemble dynamics",
        of(EnsembleDynamics, "parallel-linears"),
        lambda scale: (x(64 * scale, 18), x(64 * scale, 5)),
        64,
    ),
    Subject(
        "world model",
        of(WorldModel, "loop-over-steps at obs", "loop-over-samples at obs", "loop-over-steps at prior"),
        lambda scale: (x(8 * scale, 24, 64), x(8 * scale, 24, 6)),
        16,
        is_by_place=True,
    ),
    Subject("agent team", of(AgentTeam, "parallel-linears"), lambda scale: (x(32 * scale, 10, 40),), 64),
    Subject(
        "Siamese tracker",
        of(SiameseTracker, "loop-over-samples"),
        lambda scale: (x(4 * scale, 3, 63, 63), x(4 * scale, 3, 127, 127)),
    ),
    Subject(
        "radiance field",
        of(RadianceField, "recomputed-constant", "repeated-work"),
        lambda scale: (x(64 * scale, 3), x(64 * scale, 3)),
        64,
    ),
    Subject("cost volume", of(CostVolume), lambda scale: (x(scale, 3, 96, 96), x(scale, 3, 96, 96) + 0.1), 16),
    Subject(
        "super-resolution", of(SuperResolution, "resample-before-pointwise"), lambda scale: (x(scale, 3, 48, 48),), 32
    ),
    Subject(
        "texture diffusion",
        of(TextureDiffusion, "recomputed-constant", "repeated-work", "silu-by-hand"),
        lambda scale: (x(2 * scale, 3, 32, 32), ids(1000, 2 * scale)),
        16,
    ),
    Subject(
        "masked patches",
        of(MaskedPatches, "recomputed-weight"),
        lambda scale: (x(2 * scale, 3, 224, 224), x(2 * scale, 196)),
        32,
    ),
    Subject("sign clips", of(SignClips, "loop-over-samples"), lambda scale: (x(2 * scale, 12, 3, 64, 64),), 16),
    Subject("pillar grid", of(PillarGrid, "loop-over-samples"), pillars),
    Subject("skeletons", of(Skeletons, "recomputed-weight"), lambda scale: (x(2 * scale, 3, 50, 25),), 32),
    Subject(
        "capsules", of(Capsules, "broadcast-matmul", "parallel-linears"), lambda scale: (x(4 * scale, 1, 28, 28),), 32
    ),
    Subject("vocoder", of(Vocoder, "recomputed-weight"), lambda scale: (x(scale, 1, 1600),)),
    Subject(
        "long signal",
        of(LongSignal, "recomputed-constant", "recomputed-weight"),
        lambda scale: (x(2 * scale, 512, 2),),
        16,
    ),
    Subject("handwriting", of(Handwriting, "loop-over-steps"), lambda scale: (x(2 * scale, 1, 32, 200),), 16),
    Subject(
        "late interaction",
        of(LateInteraction, "loop-over-samples"),
        lambda scale: (ids(5000, 24), ids(5000, 40 * scale, 90)),
        4,
    ),
    Subject(
        "shop sessions",
        of(ShopSessions, "causal-mask", "recomputed-constant", "recomputed-weight"),
        lambda scale: (ids(3000, 8 * scale, 50),),
        32,
    ),
    Subject(
        "knowledge graph",
        of(KnowledgeGraph, "recomputed-weight"),
        lambda scale: (ids(6000, 16 * scale), ids(200, 16 * scale)),
        16,
    ),
    Subject("credit tasks", of(CreditTasks, "parallel-linears"), lambda scale: (x(64 * scale, 200),), 64),
    Subject("wine quality", of(WineQuality), lambda scale: (x(128 * scale, 11),), 64),
    Subject("draft writer", of(DraftWriter, "grown-by-cat", "norm-by-hand"), lambda scale: (ids(1000, 2 * scale, 1),)),
    Subject(
        "sparse experts", of(without_waiting(SparseExperts), "host-wait"), lambda scale: (x(4 * scale, 64, 96),), 16
    ),
    Subject(
        "defect score",
        of(without_waiting(DefectScore), "host-wait", "recomputed-weight"),
        lambda scale: (x(scale, 3, 128, 128),),
    ),
    Subject(
        "jet tagger",
        of(JetTagger, "parallel-linears", "recomputed-constant"),
        lambda scale: (x(8 * scale, 40, 7), 20 + ids(20, 8 * scale)),
        32,
    ),
    *(
        Subject(name, of(timm_model(name)), images(224), 32)
        for name in ("resnest14d", "repghostnet_050", "visformer_tiny", "convnextv2_atto", "pvt_v2_b0")
    ),
    Subject("eca_nfnet_l0", of(norm_free, "recomputed-weight"), images(224), 16),
    *(Subject(name, of(vision_model(name)), images(224), 32) for name in ("vgg11_bn", "mnasnet0_5", "squeezenet1_1")),
    # On CUDA some of the advice for these would need changes inside of their libraries.
    Subject("levit_128s", of(levit, "attention-by-hand"), images(224), is_for_cuda=False),
    *(
        Subject(name, of(timm_model(name)), images(224), is_for_cuda=False)
        for name in ("res2net50_14w_8s", "gcresnext26ts", "mixnet_s", "cspresnet50", "ghostnetv2_100")
    ),
    Subject(
        "RoFormer",
        of(roformer, "attention-by-hand"),
        words,
        is_for_cuda=False,
    ),
    Subject(
        "T5 encoder",
        of(t5_encoder, "recomputed-constant", "recomputed-weight"),
        words,
        is_for_cuda=False,
    ),
    Subject(
        "Qwen",
        of(text_model("Qwen2Model", "Qwen2Config", num_key_value_heads=2, **_WIDTHS, **_SMALL)),
        words,
        is_for_cuda=False,
    ),
    Subject(
        "GPT-J",
        of(gptj, "attention-by-hand", "recomputed-weight"),
        words,
        is_for_cuda=False,
    ),
    Subject(
        "Wav2Vec2",
        of(text_model("Wav2Vec2Model", "Wav2Vec2Config", conv_dim=(64,) * 7, **_WIDTHS)),
        lambda scale: (x(scale, 8000),),
        is_for_cuda=False,
    ),
    # Widths and sizes as they are used on a GPU.
    Subject(
        "large knowledge graph",
        of(lambda fix: KnowledgeGraph(fix, 100_000, 256), "recomputed-weight"),
        lambda scale: (ids(100_000, 512), ids(200, 512)),
        is_for_cpu=False,
    ),
    Subject(
        "large radiance field",
        of(lambda fix: RadianceField(fix, 256), "recomputed-constant", "repeated-work"),
        lambda scale: (x(4096, 3), x(4096, 3)),
        is_for_cpu=False,
    ),
    Subject(
        "large super-resolution",
        of(SuperResolution, "resample-before-pointwise"),
        lambda scale: (x(scale, 3, 180, 320),),
        4,
        is_for_cpu=False,
    ),
    Subject(
        "large vocoder",
        of(lambda fix: Vocoder(fix, 256), "recomputed-weight"),
        lambda scale: (x(scale, 1, 22050),),
        4,
        is_for_cpu=False,
    ),
    Subject(
        "large ensemble dynamics",
        of(lambda fix: EnsembleDynamics(fix, width=512), "parallel-linears"),
        lambda scale: (x(20_000, 18), x(20_000, 5)),
        is_for_cpu=False,
    ),
    Subject(
        "large road traffic",
        of(lambda fix: RoadTraffic(fix, 1000, 32), "recomputed-weight"),
        lambda scale: (x(8 * scale, 2, 1000, 12),),
        is_for_cpu=False,
    ),
    Subject(
        "large skeletons",
        of(lambda fix: Skeletons(fix, 128), "recomputed-weight"),
        lambda scale: (x(4 * scale, 3, 300, 25),),
        is_for_cpu=False,
    ),
    Subject(
        "masked patches in bfloat16",
        of(lambda fix: MaskedPatches(fix, 768).bfloat16(), "recomputed-weight"),
        lambda scale: (x(4 * scale, 3, 224, 224).bfloat16(), x(4 * scale, 196)),
        16,
        is_for_cpu=False,
    ),
    Subject(
        "jet tagger in bfloat16",
        of(lambda fix: JetTagger(fix, 384).bfloat16(), "parallel-linears", "recomputed-constant"),
        lambda scale: (x(64 * scale, 40, 7).bfloat16(), 20 + ids(20, 64 * scale)),
        is_for_cpu=False,
    ),
    # The last, since a patch compiles it.
    Subject(
        "Mamba",
        of(text_model("MambaModel", "MambaConfig", hidden_size=192, num_hidden_layers=2, state_size=16, **_SMALL)),
        lambda scale: (ids(2000, scale, 48),),
    ),
]
