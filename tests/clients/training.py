"""Training against diffusers' models, torch's AdamW and peft's adapters: the same losses, gradients and weights.

The program draws noise and timesteps by a generator of its own, which client.Draws has in NumPy; latents and texts are those
of its cache. So a step here is a step there, to rounding.
"""
import shutil

import peft
import torch
from diffusers import SanaTransformer2DModel, SanaVideoTransformer3DModel, WanTransformer3DModel

import adapters as forms
from client import Draws, cached, steps_of

LOSS, GRADIENT, WEIGHTS = 2e-6, 2e-5, 2e-3


def noisy(family, latent, step, boundary=0.0):
    """sigma, the noisy latent and its velocity: of step 1, 2, ..., the only sample of the batch."""
    u = Draws(0, Draws.TIMESTEP, step).uniform()
    low = boundary / (family.shift - (family.shift - 1) * boundary)
    u = low + (1 - low) * u
    sigma = family.shift * u / (1 + (family.shift - 1) * u)
    noise = Draws(0, Draws.NOISE, step).normal(latent.shape)
    return sigma, (1 - sigma) * latent + sigma * noise, noise - latent


def padded(context, length):
    rows = torch.zeros(1, length, context.shape[-1])
    rows[0, :context.shape[0]] = context
    mask = torch.zeros(1, length)
    mask[0, :context.shape[0]] = 1
    return rows, mask


def prediction(family, model, x, sigma, sample):
    t = torch.tensor([1000 * sigma])
    if family.kind == "wan":
        rows, _ = padded(sample["context"], 512)
        beside = {}
        if "y" in sample:
            x = torch.cat([x, sample["y"]])
            beside["encoder_hidden_states_image"] = sample["clip_fea"][None]
        return model(x[None], t, rows, return_dict=False, **beside)[0][0]
    rows, mask = padded(sample["context"], 300)
    if family.kind == "sana":
        return model(x[:, 0][None], rows, t, encoder_attention_mask=mask, return_dict=False)[0][0][:, None]
    return model(x[None], rows, t, encoder_attention_mask=mask, return_dict=False)[0][0]


def train_there(family, model, sample, steps, boundary):
    """Losses and gradient norms of AdamW with clipping, on the same draws."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    losses, norms = [], []
    for step in range(1, steps + 1):
        sigma, x, target = noisy(family, sample["latent"], step, boundary)
        loss = ((prediction(family, model, x, sigma, sample) - target) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0).item())
        losses.append(loss.item())
        optimiser.step()
    return losses, norms


def full(suite, family, folder):
    boundary = 0.875 if family.name == "wan-a14b" else 0.0
    recipe, run = suite.recipe(family, folder), suite.work / f"run-{family.name}"
    there = {}

    def first():
        suite.tessera("train", recipe, "--run.out", run)
        there["steps"] = steps_of(run)
        there["sample"] = cached(suite.work / f"cache-{family.name}")
        model = family.transformer(folder)
        there["losses"], there["norms"] = train_there(family, model, there["sample"], 5, boundary)
        there["model"] = model
        return abs(there["steps"][0]["loss"] / there["losses"][0] - 1)

    suite.row("loss of the first step", "diffusers", LOSS, first)
    if "model" not in there:
        return
    suite.row("gradient norm of the first step", "diffusers", GRADIENT,
              lambda: abs(there["steps"][0]["grad_norm"] / there["norms"][0] - 1))
    suite.row("losses of five steps of AdamW", "diffusers, torch", 20 * LOSS,
              lambda: max(abs(ours["loss"] / theirs - 1) for ours, theirs in zip(there["steps"], there["losses"])))

    def weights():
        exported = suite.work / f"export-{family.name}"
        shutil.rmtree(exported, ignore_errors=True)
        source = run / "model"
        if (source / "high_noise_model").exists():
            source = source / "high_noise_model"
        suite.tessera("convert", source, exported, "--to", "diffusers")
        model = opened(family, exported)
        return forms.distance(model.state_dict(), family.transformer(folder).state_dict(), there["model"].state_dict())

    suite.row("weights after five steps, opened strictly", "diffusers, torch", WEIGHTS, weights)


def opened(family, folder):
    """As diffusers opens it, with nothing missing, unexpected or of another shape."""
    classes = {"wan": WanTransformer3DModel, "sana": SanaTransformer2DModel, "sana-video": SanaVideoTransformer3DModel}
    model, info = classes[family.kind].from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), info
    return model.eval()


TARGETS = {"wan": ["to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2"]}
KINDS = {"LoRA": {}, "rsLoRA": {"use_rslora": True}, "DoRA": {"use_dora": True}}


def adapters(suite, family, folder):
    """A run that starts from an adapter of peft, and what other programs make of its files."""
    targets = TARGETS.get(family.kind, ["to_q", "to_k", "to_v", "to_out.0"])
    for kind, options in KINDS.items():
        if family.name in ("wan-i2v", "wan-a14b") and kind != "LoRA":
            continue
        run, start = suite.work / f"run-{family.name}-{kind}", suite.work / f"peft-{family.name}-{kind}"
        boundary = 0.875 if family.name == "wan-a14b" else 0.0
        there = {}

        def train():
            torch.manual_seed(1)
            model = peft.get_peft_model(family.transformer(folder), peft.LoraConfig(
                r=4, lora_alpha=6, target_modules=targets, init_lora_weights=False, **options))
            with torch.no_grad():  # peft draws both as noise of size one, which turns a small model over
                for name, p in model.named_parameters():
                    if "lora_B" in name:
                        p.mul_(0.05)
            model.save_pretrained(start)
            namings = "diffusers,peft" + (",comfyui,kohya" if family.kind == "wan" else "")
            if family.kind == "wan" and kind != "DoRA":
                namings += ",diffsynth"
            suite.tessera("train", suite.recipe(family, folder), "--run.out", run, "--train.mode", "lora", "--lora.init", start,
                          "--lora.rank", 4, "--lora.alpha", 6, "--lora.targets", ",".join(targets), "--lora.export", namings,
                          "--lora.rslora", str(kind == "rsLoRA").lower(), "--lora.dora", str(kind == "DoRA").lower())
            model.train()
            there["losses"], there["norms"] = train_there(family, model, cached(suite.work / f"cache-{family.name}"), 5, boundary)
            there["steps"] = steps_of(run)
            there["merged"] = model.eval().merge_and_unload().state_dict()
            return max(abs(ours["loss"] / theirs - 1) for ours, theirs in zip(there["steps"], there["losses"]))

        suite.row(f"losses of five steps of {kind}", "peft", 20 * LOSS, train)
        if "merged" not in there:
            continue
        suite.row(f"gradient norms of {kind}", "peft", 20 * GRADIENT,
                  lambda: max(abs(ours["grad_norm"] / theirs - 1) for ours, theirs in zip(there["steps"], there["norms"])))
        exported = run / "model"
        if (exported / "high_noise_model").exists():
            exported = exported / "high_noise_model"
        base = family.transformer(folder).state_dict()
        check_exports(suite, family, folder, kind, exported, base, there["merged"])


def check_exports(suite, family, folder, kind, exported, base, trained):
    """Each file that the run wrote, merged by the program that it is for. The first against what peft trained, the others
    against the first: they are the same adapter."""
    there = {}

    def by_diffusers(file):
        model = family.transformer(folder)
        pipeline = forms.pipeline_around(family, model)
        pipeline.load_lora_weights(str(file.parent), weight_name=file.name)
        pipeline.fuse_lora(components=["transformer"])
        pipeline.unload_lora_weights()
        return model.state_dict()

    def first():
        there["merged"] = by_diffusers(exported / "pytorch_lora_weights.safetensors")
        return forms.distance(there["merged"], base, trained)

    def by_peft():
        model = peft.PeftModel.from_pretrained(family.transformer(folder), exported / "peft")
        return forms.share_of_change(model.merge_and_unload().state_dict(), base, merged)

    suite.row(f"export of {kind} under diffusers names, merged", "diffusers, peft", WEIGHTS, first)
    if "merged" not in there:
        return
    merged = there["merged"]
    if family.kind != "wan":
        return suite.row(f"export of {kind} under peft names, merged", "peft", forms.MERGE, by_peft)
    for naming in ("comfyui", "kohya"):
        file = exported / f"lora_{naming}.safetensors"
        if kind != "DoRA":  # diffusers leaves dora_scale out, and says so
            suite.row(f"export of {kind} under {naming} names, merged", "diffusers", forms.MERGE,
                      lambda: forms.share_of_change(by_diffusers(file), base, merged))
        forms.in_comfyui(suite, family, folder, kind, naming, file, merged)
    if kind != "DoRA":
        suite.row(f"export of {kind} under diffsynth names, merged", "DiffSynth", forms.MERGE,
                  lambda: forms.by_diffsynth(suite, family, folder, exported / "lora_diffsynth.safetensors", merged))
