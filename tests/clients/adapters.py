"""Adapters of every form: merged by the programs that make and load them, and by `tessera convert --merge`.

Programs that no registry has (ComfyUI) are loaded from a checkout in the folder TESSERA_CLIENT_SOURCES; where there is none, the
rule that their source has is computed here, and the row says so.
"""
import json
import os
import shutil
import sys
from pathlib import Path

import peft
import torch
from diffusers import SanaPipeline, SanaVideoPipeline, WanPipeline
from diffsynth.utils.lora.general import GeneralLoRALoader
from lycoris import LycorisNetwork, create_lycoris
from safetensors.torch import load_file, save_file

MERGE = 2e-5


def share_of_change(found, base, merged):
    """The largest difference of the weights, as a share of the largest change of any."""
    most = max((merged[name] - base[name]).abs().max().item() for name in merged)
    return max((found[name].float() - merged[name]).abs().max().item() for name in merged) / most


def distance(found, base, merged):
    """The same by Euclidean lengths: of weights that were trained apart, where Adam turns single signs of nothing around."""
    off = sum(((found[name].double() - merged[name].double()) ** 2).sum() for name in merged)
    moved = sum(((merged[name].double() - base[name].double()) ** 2).sum() for name in merged)
    return (off / moved).sqrt().item()


def pipeline_around(family, model):
    """A pipeline that has the transformer alone: what loading adapters needs."""
    if family.kind == "wan":
        return WanPipeline(tokenizer=None, text_encoder=None, vae=None, scheduler=None, transformer=model)
    cls = SanaPipeline if family.kind == "sana" else SanaVideoPipeline
    return cls(tokenizer=None, text_encoder=None, vae=None, scheduler=None, transformer=model)


def official(suite, family, folder, state=None):
    """A transformer's weights under official names; `state`: other values of them."""
    source = folder / "transformer"
    if state is not None:
        source = suite.work / f"state-{family.name}"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        shutil.copy(folder / "transformer/config.json", source)
        save_file({name: value.contiguous() for name, value in state.items()},
                  source / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    out = suite.work / f"official-{family.name}"
    shutil.rmtree(out, ignore_errors=True)
    suite.tessera("convert", source, out, "--to", "official")
    return load_file(out / "diffusion_pytorch_model.safetensors")


def by_diffsynth(suite, family, folder, file, merged):
    base, expected = official(suite, family, folder), official(suite, family, folder, merged)
    model = torch.nn.Module()
    for name, value in base.items():  # modules by the names of the file, as DiffSynth's own model has them
        if not name.endswith(".weight") or value.dim() != 2:
            continue
        parent = model
        for part in name.split(".")[:-1]:
            if part not in dict(parent.named_children()):
                parent.add_module(part, torch.nn.Module())
            parent = getattr(parent, part)
        parent.register_parameter("weight", torch.nn.Parameter(value.clone(), requires_grad=False))
    GeneralLoRALoader().fuse_lora_to_base_model(model, load_file(file))
    found = model.state_dict()
    return share_of_change({**base, **found}, base, expected)


def comfyui_source():
    sources = os.environ.get("TESSERA_CLIENT_SOURCES")
    folder = Path(sources or "/nonexistent") / "ComfyUI"
    return folder if (folder / "comfy/weight_adapter/lora.py").exists() else None


def comfyui_weight(base, a, b, alpha, scale_of_rows):
    """LoRAAdapter.calculate_weight at strength 1; its rule, where there is no checkout."""
    if comfyui_source():
        sys.path.insert(0, str(comfyui_source()))
        from comfy.weight_adapter.lora import LoRAAdapter
        adapter = LoRAAdapter(set(), (b, a, alpha, None, scale_of_rows, None))
        return adapter.calculate_weight(base.clone(), "key", 1.0, 1.0, None, lambda x: x)
    changed = base + (b.flatten(1) @ a.flatten(1)).reshape(base.shape) * (1 if alpha is None else alpha / a.shape[0])
    if scale_of_rows is None:
        return changed
    if scale_of_rows.shape[0] == base.shape[0]:  # of the output axis: divided by the lengths of the base
        length = base.reshape(base.shape[0], -1).norm(dim=1).reshape(scale_of_rows.shape)
    else:
        length = changed.transpose(0, 1).reshape(changed.shape[1], -1).norm(dim=1).reshape(scale_of_rows.shape)
    return changed * (scale_of_rows / length)


def in_comfyui(suite, family, folder, kind, naming, file, merged):
    def measure():
        base, expected, tensors = official(suite, family, folder), official(suite, family, folder, merged), load_file(file)
        down, up = (("lora_A", "lora_B") if naming == "comfyui" else ("lora_down", "lora_up"))
        found, used = dict(base), set()
        for name in base:
            if not name.endswith(".weight"):
                continue
            module = name[:-len(".weight")]
            key = f"diffusion_model.{module}" if naming == "comfyui" else "lora_unet_" + module.replace(".", "_")
            if f"{key}.{up}.weight" not in tensors:
                continue
            alpha, rows = tensors.get(f"{key}.alpha"), tensors.get(f"{key}.dora_scale")
            found[name] = comfyui_weight(base[name], tensors[f"{key}.{down}.weight"], tensors[f"{key}.{up}.weight"],
                                         None if alpha is None else alpha.item(), rows)
            used |= {t for t in tensors if t.startswith(f"{key}.")}
        assert used == set(tensors), f"not loaded: {sorted(set(tensors) - used)[:3]}"
        return share_of_change(found, base, expected)

    against = "ComfyUI" if comfyui_source() else "ComfyUI: rule from the source, not run"
    suite.row(f"export of {kind} under {naming} names, merged", against, MERGE, measure)


def linears(model):
    return [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]


def forms_of_peft(family):
    """Options of LoraConfig: every kind that is merged, and those that are refused, with the name they are refused by."""
    last, conv = "proj_out", "patch_embedding" if family.kind != "sana" else "patch_embed.proj"
    attention = ["to_q", "to_v"]
    merged = {
        "LoRA": dict(target_modules=attention),
        "rsLoRA": dict(target_modules=attention, use_rslora=True),
        "DoRA": dict(target_modules=attention, use_dora=True),
        "rank and alpha patterns": dict(target_modules=attention, rank_pattern={"to_v": 2}, alpha_pattern={r".*1\.to_q": 7}),
        "rsLoRA, DoRA, patterns": dict(target_modules=attention, use_rslora=True, use_dora=True, rank_pattern={"to_q": 3}),
        "all linears": dict(target_modules="all-linear"),
        "the head and the patches": dict(target_modules=[last, conv, "to_k"]),
        "patches alone": dict(target_modules=[conv]),
        "DoRA of patches": dict(target_modules=[conv, "to_k"], use_dora=True),
        "bias of B": dict(target_modules=["to_out.0"], lora_bias=True),
        "gaussian start": dict(target_modules=attention, init_lora_weights="gaussian"),
        "orthogonal start": dict(target_modules=attention, init_lora_weights="orthogonal"),
    }
    if family.kind != "wan":  # one matrix there, two here
        merged["the gated convolution"] = dict(target_modules=["conv_inverted", "conv_point"])
        merged["DoRA of the gated convolution"] = dict(target_modules=["conv_inverted"], use_dora=True)
    refused = {"PiSSA": dict(init_lora_weights="pissa"), "PiSSA by iterations": dict(init_lora_weights="pissa_niter_4"),
               "OLoRA": dict(init_lora_weights="olora")}
    return merged, {name: dict(target_modules=attention, **options) for name, options in refused.items()}


def shaken(model):
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                p.copy_(0.1 * torch.randn(p.shape, generator=g))
            elif "magnitude" in name or "dora_scale" in name:
                p.mul_(1 + 0.1 * torch.randn(p.shape, generator=g))
    return model


def merged_here(suite, family, folder, adapter, *more):
    out = suite.work / f"merged-{family.name}"
    shutil.rmtree(out, ignore_errors=True)
    suite.tessera("convert", folder / "transformer", out, "--merge", adapter, *more)
    return load_file(out / "diffusion_pytorch_model.safetensors")


def every_form(suite, family, folder):
    """peft, diffusers and LyCORIS write; they and this program merge."""
    base = family.transformer(folder).state_dict()
    merged, refused = forms_of_peft(family)

    def made(options, start=None):
        model = peft.get_peft_model(family.transformer(folder), peft.LoraConfig(r=4, lora_alpha=6, **options))
        return model if start else shaken(model)

    for name, options in merged.items():
        adapter = suite.work / f"form-{family.name}"

        def both():
            shutil.rmtree(adapter, ignore_errors=True)
            model = made(options)
            model.save_pretrained(adapter)
            found = merged_here(suite, family, folder, adapter)
            return share_of_change(found, base, model.merge_and_unload().state_dict())

        suite.row(f"adapter, {name}: merged there and here", "peft", MERGE, both)

        def pipeline():
            shutil.rmtree(adapter, ignore_errors=True)
            model, config = family.transformer(folder), peft.LoraConfig(r=4, lora_alpha=6, **options)
            model.add_adapter(config)
            cls = type(pipeline_around(family, shaken(model)))
            cls.save_lora_weights(adapter, transformer_lora_layers=peft.get_peft_model_state_dict(model),
                                  transformer_lora_adapter_metadata=model.peft_config["default"].to_dict())
            return share_of_change(merged_here(suite, family, folder, adapter / "pytorch_lora_weights.safetensors"), base,
                                   made(options).merge_and_unload().state_dict())  # shaken alike

        if name in ("LoRA", "rsLoRA", "DoRA", "rank and alpha patterns"):
            suite.row(f"adapter, {name}: saved by the pipeline", "diffusers", MERGE, pipeline)

    for name, options in refused.items():
        def refusal():
            adapter = suite.work / f"form-{family.name}"
            for old in (adapter, suite.work / "refused"):
                shutil.rmtree(old, ignore_errors=True)
            made(options, start="its own").save_pretrained(adapter)
            text = suite.tessera("convert", folder / "transformer", suite.work / "refused", "--merge", adapter, code=3)
            assert name.split()[0] in text, text

        suite.row(f"adapter, {name}: refused by name", "peft", 0, refusal)

    for name, options in {"LoRA": {}, "DoRA of rows": dict(dora_wd=True, wd_on_out=True),
                          "DoRA of columns": dict(dora_wd=True, wd_on_out=False), "rsLoRA": dict(rs_lora=True)}.items():
        suite.row(f"adapter, {name}: merged there and here", "LyCORIS", MERGE,
                  lambda: lycoris_form(suite, family, folder, base, options))


def lycoris_form(suite, family, folder, base, options):
    LycorisNetwork.apply_preset({"target_module": [], "target_name": [r".*attn\d\.to_[qv]"]})
    model = family.transformer(folder)
    network = create_lycoris(model, 1.0, linear_dim=4, linear_alpha=3, algo="lora", **options)
    network.apply_to()
    shaken(network)
    file = suite.work / "lycoris.safetensors"
    network.save_weights(str(file), torch.float32, {})
    assert all(name.startswith("lycoris_") for name in load_file(file)), "LyCORIS has another prefix now"
    merged = dict(base)
    by_flat = {name[:-len(".weight")].replace(".", "_"): name for name in base if name.endswith(".weight")}
    with torch.no_grad():
        for lora in network.loras:
            merged[by_flat[lora.lora_name.removeprefix("lycoris_")]] = lora.get_merged_weight(1.0)[0].detach()
    assert merged.keys() == base.keys() and len(network.loras) > 0
    return share_of_change(merged_here(suite, family, folder, file), base, merged)


def input_axis(suite, family, folder):
    """DoRA of columns under official names, as LyCORIS writes it with wd_on_out = False, square and wide."""
    base = official(suite, family, folder)
    for module in ("blocks.0.self_attn.q", "blocks.0.ffn.0"):
        def measure():
            w = base[f"{module}.weight"]
            g = torch.Generator().manual_seed(3)
            a, b = (0.1 * torch.randn(*shape, generator=g) for shape in ((4, w.shape[1]), (w.shape[0], 4)))
            m = w.norm(dim=0, keepdim=True) * (1 + 0.1 * torch.randn(1, w.shape[1], generator=g))
            key, file = "lora_unet_" + module.replace(".", "_"), suite.work / "columns.safetensors"
            save_file({f"{key}.lora_down.weight": a, f"{key}.lora_up.weight": b, f"{key}.alpha": torch.tensor(2.0),
                       f"{key}.dora_scale": m}, file)
            out = suite.work / "columns-merged.safetensors"
            suite.tessera("convert", suite.work / f"official-{family.name}/diffusion_pytorch_model.safetensors", out, "--merge",
                          file, "--force")
            return share_of_change({f"{module}.weight": load_file(out)[f"{module}.weight"]}, {f"{module}.weight": w},
                                   {f"{module}.weight": comfyui_weight(w, a, b, 2.0, m)})

        suite.row(f"adapter, DoRA of columns, {module}", "ComfyUI" if comfyui_source() else
                  "ComfyUI: rule from the source, not run", MERGE, measure)


def names(suite, family, folder):
    """Names that another program would not find are refused with the reason."""
    for naming in ("comfyui", "kohya", "diffsynth"):
        def refusal():
            adapter = suite.work / f"form-{family.name}"
            shutil.rmtree(adapter, ignore_errors=True)
            shaken(peft.get_peft_model(family.transformer(folder), peft.LoraConfig(
                r=4, target_modules=["to_q"]))).save_pretrained(adapter)
            out = suite.work / "refused.safetensors"
            out.unlink(missing_ok=True)
            text = suite.tessera("convert", adapter, out, "--to", naming, code=2)
            assert not out.exists(), "a file was written"
            assert "no program loads" in text, text

        suite.row(f"{naming} names: refused, as no program has them", "", 0, refusal)


def patterns_as_start(suite, family, folder):
    """A peft adapter of several ranks as lora.init: the advice is followed once, and is enough."""
    def measure():
        adapter, run = suite.work / f"form-{family.name}", suite.work / f"run-patterns-{family.name}"
        shutil.rmtree(adapter, ignore_errors=True)
        shaken(peft.get_peft_model(family.transformer(folder), peft.LoraConfig(
            r=4, lora_alpha=6, target_modules=["to_q", "to_v"], rank_pattern={"to_v": 8}))).save_pretrained(adapter)
        flags = ["train", suite.recipe(family, folder), "--run.out", run, "--run.steps", 1, "--train.mode", "lora", "--lora.init",
                 adapter, "--lora.targets", "to_q,to_v"]
        text = suite.tessera(*flags, "--lora.rank", 4, code=3)
        assert "lora.rank = 8" in text, text
        suite.tessera(*flags, "--lora.rank", 8)
        config = json.loads((adapter / "adapter_config.json").read_text())
        assert config["rank_pattern"], "peft writes it in another way now"

    suite.row("adapter of several ranks, as lora.init", "peft", 0, measure)
