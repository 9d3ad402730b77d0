"""Small random pipelines, made and saved by diffusers and transformers themselves, a folder for each family."""
import random
import shutil
from pathlib import Path

import sentencepiece
import torch
import transformers
from diffusers import (AutoencoderDC, AutoencoderKLWan, DPMSolverMultistepScheduler, SanaPipeline, SanaTransformer2DModel,
                       SanaVideoPipeline, SanaVideoTransformer3DModel, UniPCMultistepScheduler, WanImageToVideoPipeline,
                       WanPipeline, WanTransformer3DModel)


class Family:
    """A pipeline, and how it is trained and called."""

    def __init__(self, name, kind, make, frames=5, scale=1, shift=3.0, keys=None, diffusion=None):
        self.name, self.kind, self.make, self.frames, self.scale, self.shift = name, kind, make, frames, scale, shift
        self.keys, self.diffusion, self.tokenizer = keys or {}, diffusion or {}, None

    def transformer(self, folder, part="transformer"):
        classes = {"wan": WanTransformer3DModel, "sana": SanaTransformer2DModel, "sana-video": SanaVideoTransformer3DModel}
        return classes[self.kind].from_pretrained(folder / part).eval()


def pipeline_class(family):
    if family.name == "wan-i2v":
        return WanImageToVideoPipeline
    return {"wan": WanPipeline, "sana": SanaPipeline, "sana-video": SanaVideoPipeline}[family.kind]


def filled(model, spread=0.05):
    """Every parameter gets values: what a model begins with as zero would hide what depends on it."""
    g = torch.Generator().manual_seed(11)
    for name, p in model.named_parameters():
        if p.dim() == 1 and "norm" in name and "bias" not in name:
            p.data = 1 + 0.1 * torch.randn(p.shape, generator=g)
        elif p.dim() <= 2:
            p.data = spread * torch.randn(p.shape, generator=g)
        else:
            p.data = p[0].numel() ** -0.5 * torch.randn(p.shape, generator=g)
    return model.eval()


class Maker:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        corpus = self.folder / "corpus.txt"
        draw, syllables = random.Random(3), [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "an", "er", "ing")]
        corpus.write_text("".join(" ".join("".join(draw.choices(syllables, k=draw.randint(1, 3))) for _ in range(9)) + ".\n"
                                  for _ in range(3000)))
        self.t5 = self.tokenizer("t5", "spiece.model", corpus, "unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        self.gemma = self.tokenizer("gemma", "tokenizer.model", corpus, "bpe", pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                                    bos_piece="<bos>", eos_piece="<eos>", add_dummy_prefix=False)

    def tokenizer(self, name, file, corpus, kind, **ids):
        to = self.folder / f"tokenizer-{name}"
        to.mkdir(exist_ok=True)
        prefix = self.folder / name
        sentencepiece.SentencePieceTrainer.train(input=str(corpus), model_prefix=str(prefix), model_type=kind, vocab_size=900,
                                                 byte_fallback=True, num_threads=1, minloglevel=2, **ids)
        shutil.move(f"{prefix}.model", to / file)
        return to

    def wan(self, cls=WanPipeline, vae=None, second=False, image=False, shift=3.0, **sizes):
        config = dict(patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=24, in_channels=16, out_channels=16,
                      text_dim=64, freq_dim=32, ffn_dim=160, num_layers=2, cross_attn_norm=True,
                      qk_norm="rms_norm_across_heads")
        config.update(sizes)
        parts = dict(tokenizer=transformers.T5TokenizerFast.from_pretrained(self.t5, extra_ids=0),
                     text_encoder=filled(transformers.UMT5EncoderModel(transformers.UMT5Config(
                         vocab_size=1024, d_model=64, d_kv=16, num_heads=4, d_ff=128, num_layers=3,
                         feed_forward_proj="gated-gelu", tie_word_embeddings=False)), 0.1),
                     transformer=filled(WanTransformer3DModel(**config)), vae=vae or self.wan_vae(),
                     scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift))
        if second:
            other = filled(WanTransformer3DModel(**config), 0.04)
            parts.update(transformer_2=other, boundary_ratio=0.875)
        if image:
            size = dict(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
            parts.update(image_encoder=filled(transformers.CLIPVisionModel(transformers.CLIPVisionConfig(
                hidden_size=24, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, image_size=28, patch_size=14,
                hidden_act="gelu"))), image_processor=transformers.CLIPImageProcessor(**size))
        return cls(**parts)

    def wan_vae(self):
        return filled(AutoencoderKLWan(base_dim=8, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2,
                                       temperal_downsample=[False, True, True]))

    def gemma_encoder(self):
        return filled(transformers.Gemma2Model(transformers.Gemma2Config(
            vocab_size=2048, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, query_pre_attn_scalar=16, sliding_window=16, max_position_embeddings=512)), 0.1)

    def sana(self, video=False):
        common = dict(num_attention_heads=4, attention_head_dim=24, num_layers=2, num_cross_attention_heads=4,
                      cross_attention_head_dim=24, cross_attention_dim=96, caption_channels=64, mlp_ratio=2.5, sample_size=8)
        parts = dict(tokenizer=transformers.GemmaTokenizerFast.from_pretrained(self.gemma, add_bos_token=True), text_encoder=self.gemma_encoder())
        if video:
            return SanaVideoPipeline(**parts, vae=self.wan_vae(), transformer=filled(SanaVideoTransformer3DModel(
                **common, in_channels=16, out_channels=16, patch_size=(1, 2, 2), qk_norm="rms_norm_across_heads")),
                scheduler=DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=8.0))
        blocks = ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3
        widths, scales = (8, 16, 32, 32, 64, 64), ((), (), (), (5,), (5,), (5,))
        vae = AutoencoderDC(in_channels=3, latent_channels=32, attention_head_dim=8, encoder_block_types=blocks,
                            decoder_block_types=blocks, encoder_block_out_channels=widths, decoder_block_out_channels=widths,
                            encoder_layers_per_block=(1,) * 6, decoder_layers_per_block=(1,) * 6,
                            encoder_qkv_multiscales=scales, decoder_qkv_multiscales=scales, upsample_block_type="interpolate",
                            downsample_block_type="conv", decoder_norm_types="rms_norm", decoder_act_fns="silu",
                            scaling_factor=0.41407)
        return SanaPipeline(**parts, vae=filled(vae), transformer=filled(SanaTransformer2DModel(
            **common, in_channels=32, out_channels=32, patch_size=1)),
            scheduler=DPMSolverMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0))


def families(folder, wanted):
    """The pipelines that are wanted, saved: pairs of a family and its folder."""
    maker = Maker(folder)
    high = {"experts": {"train": "high_noise", "boundary": 0.875}}
    table = [Family("wan-t2v", "wan", lambda: maker.wan()),
             Family("wan-i2v", "wan", lambda: maker.wan(WanImageToVideoPipeline, image=True, in_channels=36, image_dim=24,
                                                        added_kv_proj_dim=96)),
             Family("wan-a14b", "wan", lambda: maker.wan(second=True), keys=high),
             Family("sana", "sana", lambda: maker.sana(), frames=1, scale=2),
             Family("sana-video", "sana-video", lambda: maker.sana(video=True), shift=8.0, diffusion={"image_share": 0})]
    made = []
    for family in table:
        if wanted and family.name not in wanted:
            continue
        # of UMT5 the model of SentencePiece, which every release has beside the json
        family.tokenizer = maker.t5 if family.kind == "wan" else Path(folder) / family.name / "tokenizer"
        torch.manual_seed(0)
        pipeline = family.make()
        pipeline.save_pretrained(Path(folder) / family.name)
        made.append((family, Path(folder) / family.name))
    return made
