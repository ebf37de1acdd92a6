"""Advice on public model files that the rules' authors did not write.

    python benchmarks/advice_corpus.py FOLDER [--half 1|2|3|4] [--only TEXT] [--build-only] [-o results.json]

FOLDER holds one checkout per repository, named `owner+name`. Each model is built with random weights and analysed for
the CPU; what is shown is printed, to be judged by hand (docs/advice-corpus.md). Models are in two halves: rules were
changed after reading the first, the second was read once, at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

import torchgauge as tg
from torchgauge.source.packages import import_optional

Built = tuple[nn.Module, tuple[Any, ...]]


def image(*shape: int) -> torch.Tensor:
    return torch.rand(*shape)


def ids(*shape: int, below: int = 100) -> torch.Tensor:
    return torch.randint(1, below, shape)


@dataclass(frozen=True)
class Model:
    """`build` gets the file as a module; `paths` are folders of the checkout that its imports need."""

    repository: str
    path: str
    field: str
    build: Callable[[Any], Built]
    paths: tuple[str, ...] = ("",)

    @property
    def name(self) -> str:
        return f"{self.repository}/{self.path}"


def _settings(**known: Any) -> SimpleNamespace:
    return SimpleNamespace(**known)


class _Args(SimpleNamespace):
    """argparse's namespace: `in` asks for names."""

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)


_SERIES = _settings(
    seq_len=96, label_len=48, pred_len=96, enc_in=7, dec_in=7, c_out=7, d_model=512, n_heads=8, e_layers=2, d_layers=1,
    d_ff=2048, factor=3, dropout=0.05, embed="timeF", freq="h", activation="gelu", output_attention=False,
    moving_avg=25, individual=False, use_norm=True, class_strategy="projection", fc_dropout=0.2, head_dropout=0.0,
    patch_len=16, stride=8, padding_patch="end", revin=True, affine=False, subtract_last=False, decomposition=False,
    kernel_size=25,
)  # fmt: skip


def _series_inputs() -> tuple[torch.Tensor, ...]:
    return torch.rand(32, 96, 7), torch.rand(32, 96, 4), torch.rand(32, 144, 7), torch.rand(32, 144, 4)


def _fastspeech(m: Any) -> Built:
    text = {
        "encoder_layer": 4, "encoder_head": 2, "encoder_hidden": 256, "decoder_layer": 6, "decoder_head": 2,
        "decoder_hidden": 256, "conv_filter_size": 1024, "conv_kernel_size": [9, 1], "encoder_dropout": 0.2,
        "decoder_dropout": 0.2,
    }  # fmt: skip
    config = {"transformer": text, "max_seq_len": 1000, "multi_speaker": False}
    return m.Encoder(config), (ids(8, 120), torch.zeros(8, 120, dtype=torch.bool))


def _nerf_embedder(m: Any) -> Built:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.points, width = m.get_embedder(10)
            self.views, views = m.get_embedder(4)
            self.net = m.NeRF(8, 256, width, views, 5, [4], use_viewdirs=True)

        def forward(self, points: torch.Tensor, views: torch.Tensor) -> torch.Tensor:
            return self.net(torch.cat([self.points(points), self.views(views)], -1))

    return Embedded(), (torch.rand(4096, 3), torch.rand(4096, 3))


def _stgcn(m: Any) -> Built:
    vertices = 200
    args = _settings(
        Kt=3, Ks=3, act_func="glu", graph_conv_type="cheb_graph_conv", gso=torch.rand(vertices, vertices),
        enable_bias=True, droprate=0.5, n_his=12,
    )  # fmt: skip
    blocks = [[1], [64, 16, 64], [64, 16, 64], [128, 128], [1]]
    return m.STGCNChebGraphConv(args, blocks, vertices), (torch.rand(16, 1, 12, vertices),)


def _hifi(m: Any) -> Built:
    h = _settings(
        resblock="1", upsample_rates=[8, 8, 2, 2], upsample_kernel_sizes=[16, 16, 4, 4], upsample_initial_channel=512,
        resblock_kernel_sizes=[3, 7, 11], resblock_dilation_sizes=[[1, 3, 5]] * 3,
    )  # fmt: skip
    return m.Generator(h), (torch.rand(1, 80, 64),)


def _sinc(m: Any) -> Built:
    options = {
        "cnn_N_filt": [80, 60, 60], "cnn_len_filt": [251, 5, 5], "cnn_max_pool_len": [3, 3, 3],
        "cnn_act": ["leaky_relu"] * 3, "cnn_drop": [0.0] * 3, "cnn_use_laynorm": [True] * 3,
        "cnn_use_batchnorm": [False] * 3, "cnn_use_laynorm_inp": True, "cnn_use_batchnorm_inp": False,
        "input_dim": 3200, "fs": 16000,
    }  # fmt: skip
    return m.SincNet(options), (torch.rand(16, 3200),)


def _set_transformer(m: Any) -> Built:
    return m.SetTransformer(2, 4, 5), (torch.rand(10, 500, 2),)


def _rainbow(m: Any) -> Built:
    args = _settings(atoms=51, architecture="canonical", history_length=4, hidden_size=512, noisy_std=0.1)
    return m.DQN(args, 6), (torch.rand(32, 4, 84, 84),)


def _ddim(m: Any) -> Built:
    model = _settings(
        ch=128, out_ch=3, ch_mult=[1, 2, 2, 2], num_res_blocks=2, attn_resolutions=[16], dropout=0.1, in_channels=3,
        resamp_with_conv=True, type="simple",
    )  # fmt: skip
    config = _settings(model=model, data=_settings(image_size=32), diffusion=_settings(num_diffusion_timesteps=1000))
    return m.Model(config), (torch.rand(2, 3, 32, 32), ids(2))


def _superpoint(m: Any) -> Built:
    load, torch.load = torch.load, lambda *_, **__: {}
    strict, nn.Module.load_state_dict = nn.Module.load_state_dict, lambda *_, **__: None  # type: ignore[assignment]
    try:
        net = m.SuperPoint({})
    finally:
        torch.load, nn.Module.load_state_dict = load, strict  # type: ignore[method-assign]
    return net, ({"image": torch.rand(1, 1, 240, 320)},)


def _yolo3(m: Any) -> Built:
    return m.YOLOv3(num_classes=20), (torch.rand(1, 3, 416, 416),)


def _edsr_args(**more: Any) -> SimpleNamespace:
    known = {"n_resblocks": 16, "n_feats": 64, "scale": [2], "rgb_range": 255, "n_colors": 3, "res_scale": 1}
    return _settings(**known | more)


def _glow_tts(m: Any) -> Built:
    net = m.FlowGenerator(
        148, 192, 768, 256, 80, n_layers_enc=6, window_size=4, n_sqz=2, hidden_channels_enc=192,
        hidden_channels_dec=192, prenet=True, mean_only=True,
    )  # fmt: skip
    return net.encoder, (ids(4, 100), torch.full((4,), 100))


def _raft(m: Any) -> Built:
    net = m.RAFT(_Args(small=False, mixed_precision=False, alternate_corr=False))
    return net, (255 * torch.rand(1, 3, 256, 320), 255 * torch.rand(1, 3, 256, 320), 6)


MODELS = [
    # language
    Model("karpathy/nanoGPT", "model.py", "language",
          lambda m: (m.GPT(m.GPTConfig(n_layer=6, n_head=6, n_embd=384, block_size=256)), (ids(4, 256),))),
    Model("karpathy/minGPT", "mingpt/model.py", "language", lambda m: (m.GPT(_mingpt(m)), (ids(4, 128),))),
    Model("codertimo/BERT-pytorch", "bert_pytorch/model/bert.py", "language",
          lambda m: (m.BERT(5000, 256, 6, 8), (ids(8, 64), ids(8, 64, below=3)))),
    Model("johnma2006/mamba-minimal", "model.py", "language",
          lambda m: (m.Mamba(m.ModelArgs(d_model=256, n_layer=4, vocab_size=1000)), (ids(2, 64),))),
    Model("karpathy/llama2.c", "model.py", "language",
          lambda m: (m.Transformer(m.ModelArgs(dim=288, n_layers=6, n_heads=6, n_kv_heads=2, vocab_size=32000)),
                     (ids(4, 256),))),
    Model("BlinkDL/RWKV-LM", "RWKV-v1/src/model.py", "language",
          lambda m: (m.GPT(m.GPTConfig(500, 128, n_layer=6, n_head=8, n_embd=512, n_attn=512, n_ffn=512,
                                       model_type="RWKV", rwkv_emb_scale=0.4, rwkv_tiny_attn=0, rwkv_tiny_head=0)),
                     (ids(4, 128),)), ("RWKV-v1",)),
    Model("jadore801120/attention-is-all-you-need-pytorch", "transformer/Models.py", "language",
          lambda m: (m.Transformer(5000, 5000, 0, 0, n_position=100), (ids(8, 60), ids(8, 50)))),
    Model("hyunwoongko/transformer", "models/model/transformer.py", "language",
          lambda m: (m.Transformer(0, 0, 1, 5000, 5000, 512, 8, 256, 2048, 6, 0.1, "cpu"), (ids(8, 60), ids(8, 50)))),
    Model("kuangliu/pytorch-cifar", "models/resnext.py", "classification",
          lambda m: (m.ResNeXt29_32x4d(), (image(8, 3, 32, 32),))),
    Model("salesforce/awd-lstm-lm", "model.py", "language",
          lambda m: _awd(m)),
    Model("pytorch/examples", "word_language_model/model.py", "language",
          lambda m: (m.TransformerModel(5000, 200, 2, 200, 2), (ids(35, 20),))),
    Model("graykode/nlp-tutorial", "4-2.Seq2Seq(Attention)/Seq2Seq(Attention).py", "language", lambda m: _attention(m)),
    Model("davidmrau/mixture-of-experts", "moe.py", "language",
          lambda m: (m.MoE(256, 10, 10, 128, noisy_gating=False, k=4), (torch.rand(64, 256),))),
    # vision
    Model("milesial/Pytorch-UNet", "unet/unet_model.py", "segmentation",
          lambda m: (m.UNet(3, 2, bilinear=True), (image(1, 3, 320, 480),))),
    Model("xinntao/ESRGAN", "RRDBNet_arch.py", "super-resolution",
          lambda m: (m.RRDBNet(3, 3, 64, 6), (image(1, 3, 64, 64),))),
    Model("sanghyun-son/EDSR-PyTorch", "src/model/edsr.py", "super-resolution",
          lambda m: (m.EDSR(_edsr_args()), (image(1, 3, 96, 96),)), ("src",)),
    Model("yjn870/SRCNN-pytorch", "models.py", "super-resolution", lambda m: (m.SRCNN(), (image(1, 1, 256, 256),))),
    Model("JingyunLiang/SwinIR", "models/network_swinir.py", "super-resolution",
          lambda m: (m.SwinIR(upscale=2, img_size=64, window_size=8, depths=[6, 6], embed_dim=60, num_heads=[6, 6],
                              upsampler="pixelshuffledirect"), (image(1, 3, 64, 64),))),
    Model("swz30/Restormer", "basicsr/models/archs/restormer_arch.py", "restoration",
          lambda m: (m.Restormer(num_blocks=[2, 2, 2, 4], num_refinement_blocks=2), (image(1, 3, 128, 128),))),
    Model("megvii-research/NAFNet", "basicsr/models/archs/NAFNet_arch.py", "restoration",
          lambda m: (m.NAFNet(width=32, middle_blk_num=1, enc_blk_nums=[1, 1, 1, 4], dec_blk_nums=[1, 1, 1, 1]),
                     (image(1, 3, 256, 256),))),
    Model("cszn/KAIR", "models/network_dncnn.py", "restoration",
          lambda m: (m.DnCNN(in_nc=1, out_nc=1, nc=64, nb=17, act_mode="BR"), (image(1, 1, 180, 180),))),
    Model("xuebinqin/U-2-Net", "model/u2net.py", "segmentation", lambda m: (m.U2NETP(), (image(1, 3, 320, 320),))),
    Model("davidtvs/PyTorch-ENet", "models/enet.py", "segmentation",
          lambda m: (m.ENet(20), (image(1, 3, 360, 480),))),
    Model("jfzhang95/pytorch-deeplab-xception", "modeling/deeplab.py", "segmentation",
          lambda m: _deeplab(m)),
    Model("4uiiurz1/pytorch-nested-unet", "archs.py", "medical",
          lambda m: (m.NestedUNet(1, 3, True), (image(1, 3, 96, 96),))),
    Model("LeeJunHyun/Image_Segmentation", "network.py", "medical",
          lambda m: (m.R2AttU_Net(), (image(1, 3, 128, 128),))),
    Model("mattmacy/vnet.pytorch", "vnet.py", "medical",
          lambda m: _vnet(m)),
    Model("wolny/pytorch-3dunet", "pytorch3dunet/unet3d/model.py", "medical",
          lambda m: (m.UNet3D(1, 2, f_maps=16, num_levels=3), (image(1, 1, 32, 64, 64),))),
    Model("facebookresearch/segment-anything", "segment_anything/modeling/image_encoder.py", "segmentation",
          lambda m: (m.ImageEncoderViT(img_size=256, embed_dim=192, depth=4, num_heads=3, use_rel_pos=True,
                                       window_size=14, global_attn_indexes=(1, 3)), (image(1, 3, 256, 256),))),
    Model("aladdinpersson/Machine-Learning-Collection", "ML/Pytorch/object_detection/YOLOv3/model.py", "detection",
          _yolo3),
    Model("Tianxiaomo/pytorch-YOLOv4", "models.py", "detection",
          lambda m: (m.Yolov4(n_classes=80, inference=True), (image(1, 3, 320, 320),))),
    Model("magicleap/SuperGluePretrainedNetwork", "models/superpoint.py", "keypoints", _superpoint),
    Model("princeton-vl/RAFT", "core/raft.py", "optical flow", _raft, ("core",)),
    Model("nianticlabs/monodepth2", "networks/pose_cnn.py", "depth",
          lambda m: (m.PoseCNN(2), (image(1, 6, 192, 640),))),
    Model("kuangliu/pytorch-cifar", "models/dla.py", "classification", lambda m: (m.DLA(), (image(8, 3, 32, 32),))),
    Model("weiaicunzai/pytorch-cifar100", "models/shufflenet.py", "classification",
          lambda m: (m.shufflenet(), (image(8, 3, 32, 32),))),
    Model("lukemelas/EfficientNet-PyTorch", "efficientnet_pytorch/model.py", "classification",
          lambda m: (m.EfficientNet.from_name("efficientnet-b0"), (image(1, 3, 224, 224),))),
    Model("facebookresearch/ConvNeXt", "models/convnext.py", "classification",
          lambda m: (m.convnext_tiny(), (image(1, 3, 224, 224),))),
    Model("microsoft/Swin-Transformer", "models/swin_transformer.py", "classification",
          lambda m: (m.SwinTransformer(), (image(1, 3, 224, 224),))),
    Model("lucidrains/vit-pytorch", "vit_pytorch/vit.py", "classification",
          lambda m: (m.ViT(image_size=224, patch_size=16, num_classes=1000, dim=384, depth=6, heads=6, mlp_dim=768),
                     (image(2, 3, 224, 224),))),
    Model("lucidrains/vit-pytorch", "vit_pytorch/levit.py", "classification",
          lambda m: (m.LeViT(image_size=224, num_classes=1000, stages=3, dim=(256, 384, 512), depth=4,
                             heads=(4, 6, 8), mlp_mult=2), (image(1, 3, 224, 224),))),
    Model("openai/CLIP", "clip/model.py", "vision and language",
          lambda m: (m.CLIP(256, 224, 4, 192, 32, 77, 5000, 256, 4, 4), (image(2, 3, 224, 224), ids(2, 77)))),
    Model("kenshohara/3D-ResNets-PyTorch", "models/resnet.py", "video",
          lambda m: (m.generate_model(18), (image(1, 3, 16, 112, 112),)), ("",)),
    Model("HobbitLong/SupContrast", "networks/resnet_big.py", "self-supervision",
          lambda m: (m.SupConResNet("resnet18"), (image(8, 3, 32, 32),))),
    Model("chenxin061/pdarts", "model.py", "architecture search", lambda m: _darts(m)),
    Model("meijieru/crnn.pytorch", "models/crnn.py", "text recognition",
          lambda m: (m.CRNN(32, 1, 37, 256), (image(4, 1, 32, 100),))),
    Model("zhanghang1989/ResNeSt", "resnest/torch/models/resnest.py", "classification",
          lambda m: (m.resnest50(), (image(1, 3, 224, 224),))),
    # generative
    Model("openai/guided-diffusion", "guided_diffusion/unet.py", "diffusion",
          lambda m: (m.UNetModel(32, 3, 64, 3, 2, (2, 4), channel_mult=(1, 2, 2), num_heads=4,
                                 use_scale_shift_norm=True), (image(2, 3, 32, 32), ids(2)))),
    Model("ermongroup/ddim", "models/diffusion.py", "diffusion", _ddim),
    Model("lucidrains/denoising-diffusion-pytorch", "denoising_diffusion_pytorch/denoising_diffusion_pytorch.py",
          "diffusion", lambda m: (m.Unet(dim=64, dim_mults=(1, 2, 4)), (image(2, 3, 64, 64), ids(2)))),
    Model("facebookresearch/DiT", "models.py", "diffusion",
          lambda m: (m.DiT(input_size=32, depth=6, hidden_size=384, num_heads=6),
                     (image(2, 4, 32, 32), ids(2), ids(2)))),
    Model("AntixK/PyTorch-VAE", "models/vq_vae.py", "autoencoder",
          lambda m: (m.VQVAE(3, 64, 512, img_size=64), (image(8, 3, 64, 64),)), ("",)),
    Model("rosinality/glow-pytorch", "model.py", "flow", lambda m: (m.Glow(3, 4, 3), (image(4, 3, 32, 32),))),
    Model("ajbrock/BigGAN-PyTorch", "BigGAN.py", "GAN",
          lambda m: (m.Generator(G_ch=32, resolution=64, n_classes=10, G_attn="32", no_optim=True),
                     (torch.rand(4, 128), torch.rand(4, 128)))),
    Model("CompVis/taming-transformers", "taming/modules/diffusionmodules/model.py", "autoencoder",
          lambda m: (m.Decoder(ch=64, out_ch=3, ch_mult=(1, 2, 4), num_res_blocks=2, attn_resolutions=[16],
                               in_channels=3, resolution=64, z_channels=64), (torch.rand(1, 64, 16, 16),))),
    Model("yenchenlin/nerf-pytorch", "run_nerf_helpers.py", "NeRF", _nerf_embedder),
    Model("vsitzmann/siren", "modules.py", "implicit", lambda m: _siren(m)),
    # points and graphs
    Model("fxia22/pointnet.pytorch", "pointnet/model.py", "point cloud",
          lambda m: (m.PointNetCls(16, feature_transform=True), (torch.rand(8, 3, 1024),))),
    Model("WangYueFt/dgcnn", "pytorch/model.py", "point cloud", lambda m: _dgcnn(m)),
    Model("yanx27/Pointnet_Pointnet2_pytorch", "models/pointnet2_cls_ssg.py", "point cloud",
          lambda m: (m.get_model(40, normal_channel=False), (torch.rand(4, 3, 1024),)), ("models",)),
    Model("tkipf/pygcn", "pygcn/models.py", "graph",
          lambda m: (m.GCN(500, 16, 7, 0.5), (torch.rand(700, 500), torch.eye(700).to_sparse()))),
    Model("Diego999/pyGAT", "models.py", "graph",
          lambda m: (m.GAT(500, 8, 7, 0.6, 0.2, 8), (torch.rand(700, 500), torch.eye(700)))),
    Model("hazdzz/STGCN", "model/models.py", "graph and time", _stgcn),
    Model("juho-lee/set_transformer", "models.py", "sets", _set_transformer),
    # speech and sound
    Model("openai/whisper", "whisper/model.py", "speech",
          lambda m: (m.Whisper(m.ModelDimensions(80, 1500, 384, 6, 4, 51865, 448, 384, 6, 4)),
                     (torch.rand(1, 80, 3000), ids(1, 32)))),
    Model("jik876/hifi-gan", "models.py", "speech", _hifi),
    Model("facebookresearch/denoiser", "denoiser/demucs.py", "sound",
          lambda m: (m.Demucs(hidden=32), (torch.rand(1, 1, 16000),))),
    Model("sooftware/conformer", "conformer/model.py", "speech",
          lambda m: (m.Conformer(10, 80, 144, 4, 4), (torch.rand(4, 400, 80), torch.full((4,), 400)))),
    Model("descriptinc/melgan-neurips", "mel2wav/modules.py", "speech",
          lambda m: (m.Generator(80, 32, 3), (torch.rand(1, 80, 64),))),
    Model("mravanelli/SincNet", "dnn_models.py", "speech", _sinc),
    Model("ming024/FastSpeech2", "transformer/Models.py", "speech", _fastspeech),
    Model("jaywalnut310/glow-tts", "models.py", "speech", _glow_tts),
    Model("lmnt-com/diffwave", "src/diffwave/model.py", "speech", lambda m: _diffwave(m)),
    Model("JusperLee/Conv-TasNet", "Conv_TasNet_Pytorch/Conv_TasNet.py", "sound",
          lambda m: (m.ConvTasNet(N=256, B=128, H=256, X=4, R=2), (torch.rand(2, 16000),))),
    # time series, tables, recommenders, reinforcement learning
    Model("locuslab/TCN", "TCN/tcn.py", "time series",
          lambda m: (m.TemporalConvNet(16, [64] * 5, 7), (torch.rand(8, 16, 400),))),
    Model("cure-lab/LTSF-Linear", "models/DLinear.py", "time series",
          lambda m: (m.Model(_SERIES), (torch.rand(32, 96, 7),))),
    Model("zhouhaoyi/Informer2020", "models/model.py", "time series",
          lambda m: (m.Informer(7, 7, 7, 96, 48, 96, device=torch.device("cpu")), _series_inputs())),
    Model("thuml/Autoformer", "models/Autoformer.py", "time series", lambda m: (m.Model(_SERIES), _series_inputs())),
    Model("thuml/iTransformer", "model/iTransformer.py", "time series",
          lambda m: (m.Model(_SERIES), _series_inputs())),
    Model("yuqinie98/PatchTST", "PatchTST_supervised/models/PatchTST.py", "time series",
          lambda m: (m.Model(_SERIES), (torch.rand(32, 96, 7),)), ("PatchTST_supervised",)),
    Model("dreamquark-ai/tabnet", "pytorch_tabnet/tab_network.py", "tables",
          lambda m: (m.TabNet(54, 7, group_attention_matrix=torch.eye(54)), (torch.rand(256, 54),))),
    Model("rixwew/pytorch-fm", "torchfm/model/xdfm.py", "recommender",
          lambda m: (m.ExtremeDeepFactorizationMachineModel([1000] * 20, 16, (128, 64), 0.2, (32, 32)),
                     (ids(256, 20),))),
    Model("shenweichen/DeepCTR-Torch", "deepctr_torch/models/deepfm.py", "recommender", lambda m: _deepfm(m)),
    Model("ikostrikov/pytorch-a2c-ppo-acktr-gail", "a2c_ppo_acktr/model.py", "reinforcement learning",
          lambda m: (m.CNNBase(4, recurrent=True), (torch.rand(16, 4, 84, 84), torch.zeros(16, 512),
                                                    torch.ones(16, 1)))),
    Model("Kaixhin/Rainbow", "model.py", "reinforcement learning", _rainbow),
    Model("dulucas/siMLPe", "exps/baseline_h36m/mlp.py", "motion",
          lambda m: (m.TransMLP(66, 50, True, False, 48, "spatial"), (torch.rand(32, 66, 50),))),
]  # fmt: skip


def _mingpt(m: Any) -> Any:
    config = m.GPT.get_default_config()
    config.model_type, config.vocab_size, config.block_size = "gpt-mini", 1000, 128
    return config


def _awd(m: Any) -> Built:
    net = m.RNNModel("LSTM", 5000, 400, 1150, 3, wdrop=0.0, tie_weights=True)
    return net, (ids(70, 8), net.init_hidden(8))


def _attention(m: Any) -> Built:
    m.n_class, m.n_hidden, m.n_step = 30, 128, 5
    return m.Attention(), (torch.rand(1, 5, 30), torch.zeros(1, 1, 128), torch.rand(1, 5, 30))


def _deeplab(m: Any) -> Built:
    from modeling.backbone import mobilenet  # type: ignore[import-not-found]

    mobilenet.MobileNetV2._load_pretrained_model = lambda self: None
    return m.DeepLab(backbone="mobilenet", output_stride=16, sync_bn=False), (image(1, 3, 256, 256),)


def _darts(m: Any) -> Built:
    from genotypes import PDARTS  # type: ignore[import-not-found]

    net = m.NetworkCIFAR(16, 10, 8, False, PDARTS)
    net.drop_path_prob = 0.0
    return net, (image(4, 3, 32, 32),)


def _vnet(m: Any) -> Built:
    m.ContBatchNorm3d._check_input_dim = lambda self, x: None  # torch's own raises since 1.0
    return m.VNet(elu=False), (image(1, 1, 32, 64, 64),)


def _siren(m: Any) -> Built:
    return m.FCBlock(2, 1, 3, 256, outermost_linear=True, nonlinearity="sine"), (torch.rand(1, 4096, 2),)


def _dgcnn(m: Any) -> Built:
    real = torch.device
    m.torch = types.SimpleNamespace(**{**vars(torch), "device": lambda *_: real("cpu")})
    return m.DGCNN(_settings(k=20, emb_dims=512, dropout=0.5)), (torch.rand(4, 3, 512),)


def _diffwave(m: Any) -> Built:
    params = _settings(
        residual_channels=64, noise_schedule=[0.0] * 50, unconditional=False, n_mels=80, residual_layers=12,
        dilation_cycle_length=10,
    )  # fmt: skip
    return m.DiffWave(params), (torch.rand(1, 16384), ids(1, below=50), torch.rand(1, 80, 64))


def _deepfm(m: Any) -> Built:
    from deepctr_torch.inputs import DenseFeat, SparseFeat  # type: ignore[import-not-found]

    columns = [SparseFeat(f"C{n}", 1000, 8) for n in range(20)] + [DenseFeat(f"I{n}") for n in range(10)]
    return m.DeepFM(columns, columns), (torch.cat([ids(256, 20).float(), torch.rand(256, 10)], 1),)


def _csdi(m: Any) -> Built:
    known = {"channels": 64, "num_steps": 50, "diffusion_embedding_dim": 128, "side_dim": 145, "nheads": 8}
    net = m.diff_CSDI({**known, "is_linear": False, "layers": 4})
    return net, (torch.randn(4, 2, 36, 48), torch.randn(4, 145, 36, 48), torch.randint(0, 50, (4,)))


def _waveglow(m: Any) -> Built:
    net = m.WaveGlow(80, 12, 8, 4, 2, {"n_layers": 8, "n_channels": 256, "kernel_size": 3})
    return net, ((torch.randn(1, 80, 63), torch.randn(1, 16000)),)


def _point_transformer(m: Any) -> Built:
    sizes = _settings(nblocks=4, nneighbor=16, transformer_dim=256)
    net = m.PointTransformerCls(_settings(num_point=512, model=sizes, num_class=40, input_dim=6))
    return net, (torch.randn(2, 512, 6),)


def _rcan(m: Any) -> Built:
    given = _settings(
        n_resgroups=4, n_resblocks=8, n_feats=64, reduction=16, scale=[2], data_train="DIV2K", rgb_range=255,
        n_colors=3, res_scale=1,
    )  # fmt: skip
    return m.RCAN(given), (image(1, 3, 48, 48),)


def _wavernn(m: Any) -> Built:
    m.np.cumproduct = m.np.cumprod  # numpy's name for it until 2.0
    net = m.WaveRNN(512, 512, 9, 2, (5, 5, 11), 80, 128, 128, 10, 275, 22050)
    return net, (torch.randn(1, 275 * 5), torch.randn(1, 80, 9))


def _lstnet(m: Any) -> Built:
    given = _settings(
        cuda=False, window=168, hidRNN=100, hidCNN=100, hidSkip=5, CNN_kernel=6, skip=24, highway_window=24,
        dropout=0.2, output_fun="sigmoid",
    )  # fmt: skip
    net = m.Model(given, _settings(m=321))
    net.pt = int(net.pt)  # Python 2's division
    return net, (torch.randn(32, 168, 321),)


def _retinaface(m: Any) -> Built:
    given = {"name": "mobilenet0.25", "pretrain": False, "in_channel": 32, "out_channel": 64}
    net = m.RetinaFace({**given, "return_layers": {"stage1": 1, "stage2": 2, "stage3": 3}}, "test")
    return net, (image(1, 3, 320, 320),)


# Fetched later and not read before: halves 3 and 4, in turns.
MODELS_2 = [
    Model("fatchord/WaveRNN", "models/fatchord_version.py", "speech", _wavernn),
    Model("dhlee347/pytorchic-bert", "models.py", "language", lambda m: (
        m.Transformer(m.Config(vocab_size=30522, n_layers=4)),
        (ids(2, 128), ids(2, 128, below=2), torch.ones(2, 128)),
    )),
    Model("huggingface/pytorch-openai-transformer-lm", "model_pytorch.py", "language", lambda m: (
        m.TransformerModel(m.DEFAULT_CONFIG, vocab=40990, n_ctx=512), (ids(1, 128, 2),),
    )),
    Model("guoyang9/NCF", "model.py", "recommender", lambda m: (
        m.NCF(6040, 3706, 32, 3, 0.0, "NeuMF-end"), (ids(256), ids(256)),
    )),
    Model("whai362/PVT", "classification/pvt.py", "classification", lambda m: (
        m.pvt_small(), (image(1, 3, 224, 224),),
    )),
    Model("yulunzhang/RCAN", "RCAN_TestCode/code/model/rcan.py", "super-resolution", _rcan, ("RCAN_TestCode/code",)),
    Model("twtygqyy/pytorch-LapSRN", "lapsrn.py", "super-resolution", lambda m: (m.Net(), (image(1, 1, 32, 32),))),
    Model("qq456cvb/Point-Transformers", "models/Hengshuang/model.py", "point cloud", _point_transformer),
    Model("zfjsail/gae-pytorch", "gae/model.py", "graph", lambda m: (
        m.GCNModelVAE(1433, 32, 16, 0.0), (torch.rand(2708, 1433), torch.eye(2708).to_sparse()),
    )),
    Model("gpleiss/efficient_densenet_pytorch", "models/densenet.py", "classification", lambda m: (
        m.DenseNet(num_classes=10, small_inputs=True), (image(4, 3, 32, 32),),
    )),
    Model("Cadene/pretrained-models.pytorch", "pretrainedmodels/models/senet.py", "classification", lambda m: (
        m.se_resnext50_32x4d(pretrained=None), (image(1, 3, 224, 224),),
    )),
    Model("ermongroup/CSDI", "diff_models.py", "time series", _csdi),
    Model("tkipf/c-swm", "modules.py", "world model", lambda m: (
        m.ContrastiveSWM(2, (3, 50, 50), 512, 4, 5, encoder="small").transition_model,
        (torch.randn(128, 5, 2), ids(128, below=20)),
    )),
    Model("NVIDIA/waveglow", "glow.py", "speech", _waveglow),
    Model("ZhaoJ9014/face.evoLVe", "backbone/model_irse.py", "faces", lambda m: (
        m.IR_SE_50([112, 112]), (image(1, 3, 112, 112),),
    )),
    Model("asyml/vision-transformer-pytorch", "src/model.py", "classification", lambda m: (
        m.VisionTransformer(image_size=(224, 224), num_layers=4), (image(1, 3, 224, 224),),
    )),
    Model("laiguokun/LSTNet", "models/LSTNet.py", "time series", _lstnet),
    Model("facebookresearch/LeViT", "levit.py", "classification", lambda m: (
        m.LeViT_128S(num_classes=1000, distillation=False, pretrained=False), (image(1, 3, 224, 224),),
    )),
    Model("biubug6/Pytorch_Retinaface", "models/retinaface.py", "faces", _retinaface),
    Model("KaiyangZhou/deep-person-reid", "torchreid/models/osnet.py", "re-identification", lambda m: (
        m.osnet_x1_0(pretrained=False), (image(1, 3, 256, 128),),
    )),
    Model("philipperemy/n-beats", "nbeats_pytorch/model.py", "time series", lambda m: (
        m.NBeatsNet(forecast_length=24, backcast_length=120, hidden_layer_units=512), (torch.randn(64, 120),),
    )),
]  # fmt: skip


class _Stub(ModuleType):
    """A package that a file imports and the model does not use."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *_, **__: None, "__class_getitem__": lambda item: item})


_ABSENT = (
    "PIL.ImageEnhance", "accelerate", "adamp", "baselines", "blobfile", "cv2", "deepctr_torch.callbacks",
    "diffusers", "ema_pytorch", "fairscale", "gym", "h5py", "hydra", "hyper_connections", "imageio", "inflect",
    "jpeg4py", "layers.stft", "librosa", "linear_attention_transformer", "lmdb", "matplotlib",
    "mlperf_logger", "mlperf_logging", "mmcv", "mmseg",
    "monotonic_align", "more_itertools", "mpi4py", "nltk", "onnx", "pytorch3dunet.datasets", "pytorch_fid",
    "pytorch_lightning", "reformer_pytorch", "skimage", "sklearn", "stable_baselines3", "tensorboard",
    "tensorboardX", "tensorflow", "tensorflow.python", "tiktoken", "torch.utils.tensorboard", "torchaudio",
    "torchmeta", "torchtext", "unidecode",
)  # fmt: skip


class _Absent(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        known = any(name == absent or name.startswith(f"{absent}.") for absent in _ABSENT)
        return ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def imported(model: Model, folder: Path) -> Iterator[ModuleType]:
    """The file with its neighbours; what it imported from the checkout is forgotten afterwards."""
    root = folder / model.repository.replace("/", "+")
    file = root / model.path
    before, paths = set(sys.modules), list(sys.path)
    sys.path[:0] = [str(root / path) for path in dict.fromkeys((*model.paths, "", str(file.parent.relative_to(root))))]
    package = ".".join(file.relative_to(root).with_suffix("").parts)
    is_package = (file.parent / "__init__.py").exists() or "from ." in file.read_text(
        encoding="utf-8", errors="replace"
    )
    try:
        if is_package and all(part.isidentifier() for part in package.split(".")):
            try:
                module = importlib.import_module(package)
            except (ImportError, AttributeError):
                module = _alone(file)
        else:
            module = _alone(file)
        yield module
    finally:
        sys.path[:] = paths
        for name in set(sys.modules) - before:
            module = sys.modules[name]
            origins = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", ())]
            if isinstance(module, _Stub) or any(origin.startswith(str(folder)) for origin in origins):
                del sys.modules[name]


def _alone(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem.replace("(", "_").replace(")", ""), file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def analyse(model: Model, folder: Path) -> tg.Analysis:
    torch.manual_seed(0)
    with imported(model, folder) as module:
        net, inputs = model.build(module)
        return tg.analyze(net.eval(), inputs=inputs, device="cpu")


def shown(analysis: tg.Analysis) -> list[dict[str, Any]]:
    return [dict(row) for row in analysis.to_dict()["advice"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", type=int, choices=(1, 2, 3, 4))
    parser.add_argument("--only", default="")
    parser.add_argument("--build-only", action="store_true", help="say only which models can be analysed")
    parser.add_argument("-o", dest="output", type=Path)
    options = parser.parse_args()
    for package in ("torchvision", "timm", "transformers"):
        import_optional(package, "the corpus")
    sys.meta_path.append(_Absent())
    warnings.simplefilter("ignore")
    results, failed = {}, 0
    halves = [(1 + number % 2, model) for number, model in enumerate(MODELS)]
    halves += [(3 + number % 2, model) for number, model in enumerate(MODELS_2)]
    for half, model in halves:
        if options.only not in model.name or options.half not in (None, half):
            continue
        try:
            analysis = analyse(model, options.folder)
        except BaseException as error:  # a model of somebody else's may raise anything
            if isinstance(error, KeyboardInterrupt):
                raise
            failed += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            print(f"FAILED {model.name}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})", flush=True)
            continue
        if options.build_only:
            print(f"{model.name}: {analysis.totals.ops} ops", flush=True)
            continue
        rows = results[model.name] = shown(analysis)
        whole = analysis.to_dict()["totals"]
        print(f"\n## {model.name} [{model.field}] {whole['ops']} ops", flush=True)
        for row in rows:
            print(_line(row), flush=True)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"\n{len(results)} models, {sum(map(len, results.values()))} pieces of advice, {failed} failed")
    return 1 if failed else 0


def _line(row: dict[str, Any]) -> str:
    gain, where = row["expected_gain"], row["where"]
    worth = (
        "bug" if gain is None else f"{gain['quantity']} {gain['low']:.1%}-{gain['high']:.1%} {gain.get('device') or ''}"
    )
    evidence = {key: value for key, value in row["evidence"].items() if key != "places"}
    places = [f"{p['module']}@{p['source']}" for p in row["evidence"].get("places", [])[:4]]
    place = f"{where['module']} {where['weight'] or ''} @{where['source']}"
    return f"- {row['rule']} | {worth} | {place} | {row['recommendation']}\n    {str(evidence)[:300]} {places}"


if __name__ == "__main__":
    sys.exit(main())
