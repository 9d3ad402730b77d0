"""What `tessera plan` says of every recipe in recipes/: numbers, the plan it writes, the instructions of a step."""
from pathlib import Path

from cases import Case, Command

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
H200 = ["--gpu", "h200"]
# Other machines, layouts and keys than those of the file, by the file's stem; a recipe without a line has USUAL.
VARIANTS = {
    "wan-tiny_demo_cpu": {
        "ranks": ["--mesh", "dp_shard=2"],
        "tight": ["--mesh", "dp_shard=2", "--plan.budget", "90MiB"],
        "pipeline": ["--mesh", "pp=2,tp=2", "--train.micro_batch", "1"],
        "tokens": ["--mesh", "cp=2,sp=2"],
        "gate": ["--experts.router", "gate", "--experts.count", "3", "--mesh", "dp_shard=2"],
        "turns": ["--experts.train", "both", "--plan.budget", "160MiB", "--plan.host_budget", "1GiB"],
        "largest": ["--plan.budget", "300MiB", "--largest", "frames"],
        "layouts": ["--mesh", "dp_shard=4", "--layouts"],
    },
    "wan2.1-t2v-1.3b_lora": {
        "preset": ["--model.path", "", "--model.preset", "wan2.1-t2v-1.3b", "--data.vae", "haar", "--data.frames", "32",
                   "--data.text_encoder_path", "", "--data.tokenizer", ""],
        "int8": ["--model.path", "", "--model.preset", "wan2.1-t2v-1.3b", "--data.vae", "haar", "--data.frames", "32",
                 "--data.text_encoder_path", "", "--data.tokenizer", "", "--gpu", "1xh200", "--lora.base_dtype", "int8",
                 "--plan.compute_dtype", "bf16"],
    },
    "wan2.1-t2v-14b_full_h200": {
        "node": [*H200, "--nodes", "1"],
        "nodes": [*H200, "--nodes", "2", "--mesh", "dp_replicate=2,dp_shard=8", "--plan.strategy", "two_level"],
        "axes": [*H200, "--mesh", "dp_shard=2,cp=2,tp=2", "--plan.compute_dtype", "bf16"],
        "pipeline": [*H200, "--mesh", "pp=4,dp_shard=2", "--plan.compute_dtype", "bf16"],
    },
    "wan2.2-s2v-14b_full_a100": {"less": ["--plan.budget", "43000000000"]},
    "wan2.2-t2v-a14b_full_h200": {
        "node": [*H200, "--nodes", "1"],
        "idle": [*H200, "--nodes", "1", "--plan.idle", "host"],
    },
}
USUAL = {"ranks": ["--mesh", "dp_shard=2"]}


def cases() -> list:
    found = []
    for path in sorted(RECIPES.glob("*.toml")):
        text = path.read_text()
        for variant, flags in ({"": []} | VARIANTS.get(path.stem, USUAL)).items():
            name = "-".join(word for word in ("plan", path.stem, variant) if word)
            words = ["plan", path.name, "--json", *flags]
            if "--largest" not in flags and "--layouts" not in flags:
                steps = "2" if "demo" in path.stem else "1"  # a large model's are long
                words += ["--run.steps", steps, "--write", "plan.toml", "--schedule", "planned.jsonl"]
            found.append(Case(name, " ".join(flags) or "as it is", ["recipes"], {path.name: text},
                              [Command("plan", words, "plan.json")], data=False))
    published = RECIPES.parent / "bench/published.toml"
    found.append(Case("simulate-published", "runs known by their sizes", ["recipes"],
                      {published.name: published.read_text()},
                      [Command("simulate", ["simulate", published.name, "--json"], "simulated.json")]))
    found.append(Case("plan-composes", "every pair of choices", ["recipes"], {},
                      [Command("composes", ["plan", "--composes"], "composes.md")]))
    return found
