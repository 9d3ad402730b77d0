"""What goes into a model and comes out of it: latents, texts, samples; and who may start a run."""
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import torch
import transformers
import webdataset
from diffusers import AutoencoderDC, AutoencoderKLWan
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from client import CAPTION, SIDE, Draws, cached, data_set, relative, steps_of
from models import pipeline_class

PIXELS = 1 / 255 + 1e-6


def frames_of(family):
    side = SIDE * family.scale
    pictures = [np.frombuffer(data_set.picture(0, f, side, side), np.uint8).reshape(side, side, 3) for f in range(family.frames)]
    return torch.from_numpy(np.stack(pictures).astype(np.float32) / 127.5 - 1).permute(3, 0, 1, 2)[None]


def encoders(suite, family, folder):
    pipeline = pipeline_class(family).from_pretrained(folder)
    suite.tessera("prepare", suite.recipe(family, folder))
    sample = cached(suite.work / f"cache-{family.name}")

    def latents():
        with torch.no_grad():
            video = frames_of(family)
            if family.kind == "sana":
                found = pipeline.vae.encode(video[:, :, 0]).latent * pipeline.vae.config.scaling_factor
                return relative(sample["latent"][:, 0], found[0])
            found = pipeline.vae.encode(video).latent_dist.mode()[0]
        shape = (-1, 1, 1, 1)
        mean, std = (torch.tensor(getattr(pipeline.vae.config, key)).view(shape) for key in ("latents_mean", "latents_std"))
        return relative(sample["latent"], (found - mean) / std)

    def texts():
        with torch.no_grad():
            if family.kind == "wan":
                found = pipeline.encode_prompt(CAPTION, do_classifier_free_guidance=False, max_sequence_length=512)[0][0]
            else:
                found, mask = pipeline.encode_prompt(CAPTION, do_classifier_free_guidance=False, complex_human_instruction=None)[:2]
                found = found[0][mask[0].bool()]
        rows = sample["context"].shape[0]
        assert family.kind != "wan" or found[rows:].abs().max() == 0, "the pipeline has more rows"
        return relative(sample["context"], found[:rows])

    suite.row("latents of a clip", "diffusers", 2e-5, latents)
    suite.row("text features", "transformers", 2e-5, texts)


def samples(suite, family, folder):
    pipeline = pipeline_class(family).from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    solver = "unipc_diffusers" if family.kind == "wan" else "dpmpp_diffusers"
    side = SIDE * family.scale

    def measure():
        out = suite.work / f"sample-{family.name}"
        suite.tessera("sample", suite.recipe(family, folder), "--weights", folder / "transformer", "--prompt", CAPTION, "--out", out,
                      "--format", "frames", "--sample.sampler", solver, "--sample.steps", 4, "--sample.guidance", 3)
        ours = np.stack([np.asarray(Image.open(f).convert("RGB")) for f in sorted(out.rglob("*.png"))]).astype(np.float32)
        shape = cached(suite.work / f"cache-{family.name}")["latent"].shape
        noise = Draws(0, Draws.SAMPLE, 0).normal(shape)[None]
        options = dict(prompt=CAPTION, negative_prompt="", latents=noise, num_inference_steps=4, guidance_scale=3.0, height=side,
                       width=side, output_type="np")
        if family.kind == "sana":
            options.update(latents=noise[:, :, 0], complex_human_instruction=None, use_resolution_binning=False)
            theirs = pipeline(**options).images
        elif family.kind == "sana-video":
            theirs = pipeline(**options, frames=family.frames, complex_human_instruction=None,
                              use_resolution_binning=False).frames[0]
        else:
            theirs = pipeline(**options, num_frames=family.frames).frames[0]
        assert theirs.shape == ours.shape, (theirs.shape, ours.shape)
        return np.abs(ours / 255 - np.clip(theirs, 0, 1)).max().item()

    suite.row("pixels of a sample of four steps, with guidance", "diffusers", PIXELS, measure)


# Parts of a pipeline folder, and the class that opens each.
CLASSES = {"vae": None, "text_encoder": None, "image_encoder": transformers.CLIPVisionModel}


def exports(suite, family, folder):
    """Parts there and back under official names, and the whole pipeline in bf16, opened by the classes that they are of."""
    for part, cls in CLASSES.items():
        if not (folder / part).exists():
            continue

        def back():
            there, again = suite.work / "official.pth", suite.work / "again"
            shutil.rmtree(again, ignore_errors=True)
            official = ["--to", "official", "--force"]
            if family.kind != "wan":  # of Gemma and DC-AE other programs have no names of their own
                there, official = suite.work / "official", []
                shutil.rmtree(there, ignore_errors=True)
            suite.tessera("convert", folder / part, there, *official)
            suite.tessera("convert", there, again, *(["--to", "diffusers"] if official else []))
            if not (again / "config.json").exists():  # the fields that no tensor tells
                shutil.copy(folder / part / "config.json", again)
            kind = cls
            if part == "vae":
                kind = AutoencoderDC if family.kind == "sana" else AutoencoderKLWan
            elif part == "text_encoder":
                kind = transformers.UMT5EncoderModel if family.kind == "wan" else transformers.Gemma2Model
            model, info = kind.from_pretrained(again, output_loading_info=True)
            assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
            expected = kind.from_pretrained(folder / part).state_dict()
            return max((value.float() - expected[name].float()).abs().max().item() for name, value in model.state_dict().items())

        suite.row(f"{part} there and back, opened strictly", "diffusers, transformers", 0, back)

    def whole():
        out = suite.work / "pipeline"
        shutil.rmtree(out, ignore_errors=True)
        suite.tessera("convert", folder, out, "--dtype", "bf16")
        pipeline = pipeline_class(family).from_pretrained(out, torch_dtype=torch.bfloat16)
        original = pipeline_class(family).from_pretrained(folder, torch_dtype=torch.bfloat16)
        for name, part in original.components.items():
            if isinstance(part, torch.nn.Module):
                found = getattr(pipeline, name).state_dict()
                for key, value in part.state_dict().items():  # diffusers keeps some in fp32, where the file has them so
                    assert torch.equal(value.bfloat16(), found[key].bfloat16()), (name, key)
        assert pipeline.scheduler.config == original.scheduler.config, "the scheduler has other fields"

    suite.row("the pipeline's folder in bf16, opened whole", "diffusers", 0, whole)


def data_sets(suite, family, folder):
    """Files of data sets that other programs write, and the log that they read."""
    recipe, clip = suite.recipe(family, folder), suite.clips(family) / "a.avi"
    expected = cached(suite.work / f"cache-{family.name}")

    def shards():
        shards, cache = suite.work / "shards", suite.work / "cache-shards"
        shards.mkdir(exist_ok=True)
        with webdataset.TarWriter(str(shards / "00000.tar")) as writer:
            writer.write({"__key__": "00000", "avi": clip.read_bytes(), "txt": CAPTION})
        suite.tessera("prepare", recipe, "--data.path", shards, "--data.cache", cache)
        return max(relative(value, expected[name]) for name, value in cached(cache).items())

    def table():
        text = suite.work / "parquet/metadata.parquet"
        text.parent.mkdir(exist_ok=True)
        shutil.copy(clip, text.parent)
        datasets.Dataset.from_dict({"path": ["a.avi"], "text": [CAPTION]}).to_parquet(str(text))
        cache = suite.work / "cache-parquet"
        suite.tessera("prepare", recipe, "--data.path", text, "--data.cache", cache)
        return max(relative(value, expected[name]) for name, value in cached(cache).items())

    def log():
        run = suite.work / f"run-{family.name}"
        events = EventAccumulator(str(run))
        events.Reload()
        return max(abs(event.value / step["loss"] - 1) for event, step in zip(events.Scalars("train/loss"), steps_of(run)))

    suite.row("shards, prepared", "webdataset", 0, shards)
    if (Path(suite.binary).parent / "libtessera_parquet.so").exists():  # where the build has Arrow
        suite.row("a Parquet table, prepared", "datasets", 0, table)
    suite.row("losses in the event file", "TensorBoard", 1e-6, log)


def launchers(suite, family, folder):
    recipe = suite.recipe(family, folder)
    single = suite.work / f"run-{family.name}"
    if not single.exists():
        suite.tessera("train", recipe, "--run.out", single)
    scripts = Path(sys.executable).parent
    table = {"torchrun": [scripts / "torchrun", "--nproc-per-node", 2, "--master-port", 29611, "--no-python"],
             "accelerate": [scripts / "accelerate", "launch", "--multi_gpu", "--num_processes", 2, "--num_machines", 1, "--mixed_precision",
                            "no", "--dynamo_backend", "no", "--main_process_port", 29612, "--no_python"]}
    for name, command in table.items():
        def measure():
            run = suite.work / f"run-{name}"
            done = subprocess.run([*map(str, command), suite.binary, "train", str(recipe), "--run.out", str(run), "--mesh",
                                   "dp_shard=2"], capture_output=True, text=True, timeout=300, cwd=suite.work)
            assert done.returncode == 0, done.stdout[-700:] + done.stderr[-700:]
            return max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(steps_of(run), steps_of(single)))

        suite.row("five steps of two ranks", name, 1e-5, measure)
