"""What happens in a drawn run: trained through, resumed, planned by hand ... A course adds recipes and commands.

    follow(draw, case)
"""
import json
import random
import re
import tomllib
from pathlib import Path

from cases import Case, Command, launched, toml, train, with_values
from layouts import other_layout

BASE_STEPS = 2
LORA = "run/model/pytorch_lora_weights.safetensors"


def straight(d, case: Case) -> None:
    """From the first step to the last."""


def resumed(d, case: Case) -> None:
    """Stops after two steps and goes on."""
    case.recipes["begin.toml"] = with_values(d.recipe, run={"steps": 2})
    case.commands.append(Command("begin", train(d.recipe, "begin.toml")))


def elsewhere(d, case: Case) -> None:
    """Stops after two steps and goes on on another layout."""
    mesh = other_layout(d.config, d.tokens, d.mesh, d.rng)
    d.words.append("from " + (",".join(f"{axis}={ranks}" for axis, ranks in mesh.items()) or "one rank"))
    begin = with_values(d.recipe, run={"steps": 2}, plan={"pipeline": None, "chunks": None})
    begin["mesh"] = mesh
    case.recipes["begin.toml"] = begin
    case.commands.append(Command("begin", train(begin, "begin.toml")))


def staged(d, case: Case) -> None:
    """Values that change while the run goes on."""
    rng = d.rng
    pool = [{"train.global_batch": rng.randint(1, 5)}, {"train.lr": 2e-3, "train.schedule": "constant"},
            {"diffusion.timesteps": "logit_normal", "diffusion.shift": 2.0}, {"train.weight_decay": 0.05},
            {"plan.recompute": "all", "plan.activations": "auto"}, {"plan.prefetch": "0"},
            {"train.clip_norm": d.recipe["train"]["clip_norm"] * 0.5}, {"sample.every": 2, "sample.steps": 1}]
    if d.one_shape:
        frames, size = d.recipe["data"]["frames"], d.recipe["data"]["size"]
        pool += [{"data.frames": frames - 4 if frames > 8 else frames + 4}, {"data.size": [size[1], size[0] + 32]}]
    stages, last = [], 1
    for step in sorted(rng.sample(range(2, d.steps + 1), rng.randint(1, 2))):
        stage = {"from": step}
        for changes in rng.sample(pool, rng.randint(1, 3)):
            stage |= changes
        stages.append(stage)
        last = step
    d.recipe["stage"] = stages
    if rng.random() < 0.4 and last > 1:
        case.recipes["begin.toml"] = with_values(d.recipe, run={"steps": last - 1})
        case.commands.append(Command("begin", train(d.recipe, "begin.toml")))
        d.words.append("resumed")


POLICIES = ["keep", "rebuild", "recompute", "offload"]
STRATEGIES = ["full_shard", "full_shard", "shard_grad_op", "shard_states", "no_shard", "two_level"]
LOSSY = ["bf16", "fp16", "int8", "fp8", "offload_bf16", "offload_fp16", "offload_int8", "offload_fp8"]


def unit_tables(units: list, rng) -> str:
    """A [[units]] table for each unit, each with choices of its own."""
    policies = POLICIES + (LOSSY if rng.random() < 0.3 else [])
    text = ""
    for unit in units:
        lines = [f'name = "{unit}"', f'activations = "{rng.choice(policies)}"',
                 f'strategy = "{rng.choice(STRATEGIES)}"',
                 f'reduce = "{rng.choice(["each", "each", "once"])}"',
                 f'offload_to = "{rng.choice(["host", "host", "nvme"])}"']
        on_host = rng.random() < 0.2
        for key in ("parameters", "gradients", "states"):
            tier = "host" if on_host else rng.choice(["device", "device", "host", "nvme"])
            lines.append(f'{key} = "{tier}"')
        lines.append(f'update_on = "{"host" if on_host else "device"}"')
        sites = {}
        if unit.startswith("blocks"):
            for site in ("boundary", "self_attn", "cross_attn", "ffn.2"):
                if rng.random() < 0.3:
                    sites[site] = rng.choice(["keep", "offload"])
        lines.append("sites = { " + ", ".join(f'"{site}" = "{policy}"' for site, policy in sites.items()) + " }")
        text += "\n[[units]]\n" + "\n".join(lines) + "\n"
    return text


def unit_names(plan: dict) -> list:
    names = []
    for unit in plan["units"]:
        several = re.fullmatch(r"(.*\.)(\d+)-(\d+)", unit["name"])
        if several:
            names += [f"{several[1]}{i}" for i in range(int(several[2]), int(several[3]) + 1)]
        else:
            names.append(unit["name"])
    return names


def by_hand(d, case: Case) -> None:
    """The plan that is written is changed unit by unit and used."""
    seed = d.rng.random()

    def mend(folder: Path) -> None:
        rng = random.Random(seed)
        text = (folder / "written.toml").read_text()
        text = re.sub(r"(?m)^prefetch = .*$", f"prefetch = {rng.randint(0, 3)}", text)
        text = re.sub(r"(?m)^micro_batch = .*$", f"micro_batch = {rng.randint(1, 3)}", text)
        (folder / "by-hand.toml").write_text(text + unit_tables(unit_names(tomllib.loads(text)), rng))

    update = d.recipe["plan"].get("update")
    kept = ("compute_dtype", "param_dtype", "reduce_dtype", "grad_dtype", "masters", "moments")
    plan = {key: value for key, value in d.recipe["plan"].items() if key in kept}
    d.recipe["plan"] = {"file": "by-hand.toml", "nvme": "nvme", "host_budget": "2GiB", **plan}
    case.recipes["ask.toml"] = {**d.recipe, "plan": {**plan, "nvme": "nvme", "host_budget": "2GiB"}}
    if update:
        case.recipes["ask.toml"]["plan"]["update"] = update
        d.words.append(f"update {update}")
        d.tags.append(f"update {update}")
    case.commands.append(Command("plan", ["plan", "ask.toml", "--json", "--write", "written.toml"],
                                 "written-plan.json"))
    d.mend = mend


def tight(d, case: Case) -> None:
    """Less memory than the plan would take: the planner has to look for another."""
    share, recipe = d.rng.choice([0.6, 0.75, 0.85, 0.95]), d.recipe
    for key in ("activations", "recompute", "parameters", "gradients", "states", "offload_to"):
        recipe["plan"].pop(key, None)
    case.recipes["roomy.toml"] = with_values(recipe, plan={"budget": "2GiB"})
    case.commands.append(Command("plan", ["plan", "roomy.toml", "--json"], "roomy-plan.json"))
    d.words.append(f"{share:.0%} of the memory")

    def mend(folder: Path) -> None:
        peak = json.loads((folder / "roomy-plan.json").read_text())["device"]["peak_bytes"]
        (folder / "recipe.toml").write_text(toml(with_values(recipe, plan={"budget": str(int(share * peak))})))

    d.mend = mend


def goes_on(d, case: Case) -> None:
    """A second run begins with the exported weights of the first."""
    if d.adapters is None:
        d.last = with_values(d.recipe, run={"out": "second"}, model={"path": "run/model"})
    elif not d.experts:
        d.last = with_values(d.recipe, run={"out": "second"}, lora={"init": LORA})
    if d.last:
        case.recipes["second.toml"] = d.last


COURSES = {"straight": straight, "resumed": resumed, "resumed elsewhere": elsewhere, "staged": staged,
           "planned by hand": by_hand, "tight": tight, "goes on": goes_on}
CARDS = ["straight", "straight", "resumed", "resumed elsewhere", "resumed elsewhere", "staged", "staged",
         "planned by hand", "planned by hand", "planned by hand", "tight", "goes on"]


def base(d, case: Case) -> None:
    """Adapters need weights to stand on: the head of a model without is zero, and nothing would be learned."""
    model = {key: d.recipe[key] for key in ("model", "data", "experts") if key in d.recipe}
    case.recipes["base.toml"] = {**model, "run": {"out": "base", "seed": 3, "steps": BASE_STEPS},
                                 "train": {"lr": 2e-2, "global_batch": 2}, "checkpoint": {"every": 0}}
    case.commands.append(Command("base", ["train", "base.toml"]))
    d.recipe["model"] = {"path": "base/model"}


def follow(d, case: Case) -> None:
    if d.adapters is not None:
        base(d, case)
    if d.chance(0.2) and not d.online:
        case.recipes["prepare.toml"] = d.recipe
        case.commands.append(Command("prepare", ["prepare", "prepare.toml"]))
    course, d.mend, d.last = d.cards["courses"], None, None
    if course != "straight":
        d.words.append(course)
        d.tags.append(course)
    COURSES[course](d, case)
    case.recipes["recipe.toml"] = d.recipe
    if d.chance(0.4):
        case.commands.append(Command("planned", ["plan", "recipe.toml", "--json", "--schedule", "planned.jsonl"],
                                     "planned-plan.json", d.mend))
    traced = d.chance(0.5)
    trace = ["--trace-schedule", "executed.jsonl"] if traced else []
    case.commands.append(Command("train", train(d.recipe, "recipe.toml", *trace), before=d.mend))
    afterwards(d, case, traced)
    if d.last:
        case.commands.append(Command("second", train(d.last, "second.toml")))


def afterwards(d, case: Case, traced: bool) -> None:
    def add(name: str, words: list, output: str = "") -> None:
        case.commands.append(Command(name, words, output))

    lora = d.adapters is not None
    if d.sampled:
        prompts = ["--prompt", "a disc", "--prompt", "stripes"] if d.chance(0.3) and not d.spoken else []
        seeds = ["--seed", "5", "--seed", "6"] if d.chance(0.3) else []
        named = d.chance(0.9 if "masters" in d.formats else 0.5) and not (lora and d.experts)
        weights = ["--weights", LORA if lora else "run/model"] if named else []
        if d.spoken and d.size == [64, 64] and d.vae != "wan22":
            weights += ["--sample.clips", "2"]
        words = ["sample", "recipe.toml", *weights, *prompts, *seeds]
        if d.chance(0.7):
            add("sample", launched(d.recipe, [*words, "--format", "frames", "--out", "pictures"]))
        else:
            add("sample", ["sample", "alone.toml", *words[2:], "--format", "gif", "--out", "gifs"])
            case.recipes["alone.toml"] = {**with_values(d.recipe, plan={"file": None}), "mesh": {}}
    if traced and d.chance(0.3):
        add("check", ["plan", "--check", "executed.jsonl"])
    if d.chance(0.3):
        what = "run/model" if not lora else "base/model" if d.experts else LORA
        add("inspect", ["inspect", "--json", "--tensors", what], "inspected.json")
    if d.experts or not d.chance(0.35):
        return
    d.tags.append("convert")
    if lora:
        names = ["diffusers", "comfyui", "kohya", "peft"] + ([] if "dora" in d.adapters else ["diffsynth"])
        naming = d.rng.choice(names)
        add("convert", ["convert", LORA, f"converted-{naming}.safetensors", "--to", naming])
        add("merge", ["convert", "base/model", "merged/model", "--merge", LORA, "--scale", "0.8"])
    else:
        naming = d.rng.choice(["comfyui", "official"] + (["diffusers"] if d.family in d.OF_DIFFUSERS else []))
        dtype = d.rng.choice(["fp32", "bf16", "fp16"])
        form = d.rng.choice(["safetensors", "safetensors", "pth"])
        add("convert", ["convert", "run/model", "converted", "--to", naming, "--dtype", dtype, "--format", form])
