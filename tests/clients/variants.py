"""Wan's further transformers by diffusers, as cases for `tessera verify`: what they predict, and every gradient."""
import json
import random
import shutil

import torch
from diffusers import WanAnimateTransformer3DModel, WanVACETransformer3DModel
from safetensors.torch import load_file, save_file

from models import filled

TEXT, IMAGE = 20, 257


def sizes(draw):
    """Of a transformer, with heads that rotate by three axes."""
    return dict(patch_size=(1, 2, 2), num_attention_heads=draw.choice([1, 2, 3]), attention_head_dim=draw.choice([8, 12, 16]),
                out_channels=16, text_dim=TEXT, freq_dim=32, ffn_dim=draw.choice([24, 40]), cross_attn_norm=True,
                qk_norm="rms_norm_across_heads")


def animate(draw):
    common = sizes(draw)
    side = draw.choice([4, 8, 16, 32])
    channels = {str(4 * 2**i): draw.choice([3, 4, 6]) for i in range(side.bit_length() - 2)}
    motion = draw.choice([6, 9, 14])
    common.update(in_channels=36, latent_channels=16, num_layers=draw.choice([5, 10]), image_dim=16,
                  added_kv_proj_dim=common["num_attention_heads"] * common["attention_head_dim"], motion_encoder_size=side,
                  motion_encoder_channel_sizes=channels, motion_style_dim=draw.choice([5, 12]), motion_dim=draw.choice([2, 5]),
                  motion_encoder_dim=motion, face_encoder_hidden_dim=draw.choice([4, 12]), face_encoder_num_heads=draw.choice([1, 3]))
    frames, height, width = draw.choice([2, 3, 4]), draw.choice([4, 6]), draw.choice([2, 4, 8])
    inputs = {"y": (20, frames, height, width), "pose_latents": (16, frames - 1, height, width)}
    shared = {"face_pixel_values": (3, 4 * (frames - 2) + 1, side, side), "clip_fea": (IMAGE, 16)}

    def forward(model, x, context, t, ins, all_ins):
        return model(torch.cat([x, ins["y"]], 1), t, context, all_ins["clip_fea"], ins["pose_latents"],
                     all_ins["face_pixel_values"], return_dict=False)[0]

    return WanAnimateTransformer3DModel, common, "dit_animate", (16, frames, height, width), inputs, shared, forward


def vace(draw):
    common = sizes(draw)
    layers = draw.choice([2, 3, 4])
    common.update(in_channels=16, num_layers=layers, vace_layers=[0] + sorted(draw.sample(range(1, layers), draw.randint(0, layers - 1))),
                  vace_in_channels=draw.choice([96, 40]))
    frames, height, width = draw.choice([1, 2, 3]), draw.choice([4, 6]), draw.choice([2, 4, 8])
    inputs = {"vace_context": (common["vace_in_channels"], frames, height, width)}

    def forward(model, x, context, t, ins, all_ins):
        return model(x, t, context, control_hidden_states=ins["vace_context"], return_dict=False)[0]

    return WanVACETransformer3DModel, common, "dit_vace", (16, frames, height, width), inputs, {}, forward


def write_case(folder, variant, seed, tessera):
    """The model as diffusers saves it, its official form made of it, and a case of two samples. `tessera`: runs it."""
    there = folder.with_name(folder.name + "-there")
    for made in (folder, there):
        shutil.rmtree(made, ignore_errors=True)
    draw, g = random.Random(seed), torch.Generator().manual_seed(seed)
    cls, config, kind, latent, inputs, shared, forward = variant(draw)
    torch.manual_seed(seed)
    model = filled(cls(**config), 0.15)
    if hasattr(model, "motion_encoder"):  # whose convolutions scale themselves
        for p in model.motion_encoder.parameters():
            p.data = torch.randn(p.shape, generator=g)
    model.save_pretrained(there)
    tessera("convert", there, folder, "--to", "official")
    tensors, samples = {}, 2
    every = {}
    for name, shape in inputs.items():
        every[name] = torch.randn((samples, *shape), generator=g).requires_grad_()
    for name, shape in shared.items():
        every[name] = (0.5 * torch.randn((samples, *shape), generator=g)).requires_grad_()
    x, target = (torch.randn((samples, *latent), generator=g) for _ in range(2))
    x.requires_grad_()
    t = torch.tensor([draw.uniform(5, 990) for _ in range(samples)])
    context = torch.zeros(samples, 512, TEXT)
    lengths = [draw.randint(1, 20) for _ in range(samples)]
    rows = [torch.randn(n, TEXT, generator=g).requires_grad_() for n in lengths]
    padded = torch.stack([torch.cat([row, torch.zeros(512 - len(row), TEXT)]) for row in rows])
    out = forward(model, x, padded, t, every, every)
    loss = (out - target).square().mean()
    loss.backward()
    save_file({name: p.grad.contiguous() for name, p in model.named_parameters()}, there / "diffusion_pytorch_model.safetensors")
    tessera("convert", there, folder / "grads", "--to", "official")
    for name, grad in load_file(folder / "grads" / "diffusion_pytorch_model.safetensors").items():
        if not name.endswith(".kernel"):  # constants
            tensors["grad." + name] = grad
    shutil.rmtree(folder / "grads")
    for i in range(samples):
        tensors |= {f"in.x.{i}": x[i], f"in.context.{i}": rows[i], f"in.target.{i}": target[i], f"out.{i}": out[i],
                    f"grad_in.x.{i}": x.grad[i], f"grad_in.context.{i}": rows[i].grad}
        for name in inputs:
            tensors |= {f"in.{name}.{i}": every[name][i], f"grad_in.{name}.{i}": every[name].grad[i]}
    for name in shared:
        tensors |= {f"in.{name}": every[name], f"grad_in.{name}": every[name].grad}
    tokens = latent[1] * latent[2] * latent[3] // 4
    if kind == "dit_vace":
        tensors["in.vace_context_scale"] = torch.ones(())
    tensors |= {"in.t": t, "in.seq_len": torch.tensor(tokens), "out.loss": loss}
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()}, folder / "case.safetensors")
    (folder / "diffusion_pytorch_model.safetensors").rename(folder / "model.safetensors")
    tolerance = {"out": 2e-4, "mid": 2e-4, "loss": 1e-5, "grad": 5e-4, "grad_in": 1e-4, "prep_out": 2e-4}
    if kind == "dit_animate":
        tolerance["train_out"] = 2e-4
    (folder / "case.json").write_text(json.dumps({
        "reference": "diffusers", "kind": kind, "files": {"case.safetensors": "two samples"}, "notes": [], "tensors": {},
        "tolerance": tolerance}))
    return model


def predictions(suite, family, folder):
    for name, variant in (("Animate", animate), ("VACE", vace)):
        def measure():
            case, again = suite.work / f"case-{name}", suite.work / "again"
            shutil.rmtree(again, ignore_errors=True)
            model = write_case(case, variant, 7, suite.tessera)
            suite.tessera("verify", case)
            (case / "model.safetensors").rename(case / "diffusion_pytorch_model.safetensors")
            for file in ("case.safetensors", "case.json"):
                (case / file).unlink()
            suite.tessera("convert", case, again, "--to", "diffusers")
            back, info = type(model).from_pretrained(again, output_loading_info=True)
            assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
            expected = model.state_dict()
            return max((value.float() - expected[key].float()).abs().max().item() for key, value in back.state_dict().items())

        suite.row(f"{name}'s transformer: a prediction, and its names there and back", "diffusers", 0, measure)
