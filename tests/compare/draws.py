"""Small random runs that train: draw(seed, index, attempt) is always the same case.

Each property has a deck of cards, shuffled by the seed, of which the run with a number gets the next: forty runs see
every card of every deck. What the program refuses is drawn again, with cards at random.
"""
import random

from cases import Case
from courses import CARDS, follow
from layouts import LAYOUTS, latent_tokens, mesh_of

FAMILIES = {
    # name: (fields of the model, tables of the recipe, channels beside the latent's: y)
    "t2v": ({}, {}),
    "i2v": ({"model_type": "i2v", "image_dim": 24, "image_len": 5}, {}),
    "i2v-2.2": ({"model_type": "i2v"}, {}),
    "flf2v": ({"model_type": "flf2v", "image_dim": 24, "image_len": 5}, {}),
    "ti2v": ({"model_type": "ti2v"}, {}),
    "s2v": ({"model_type": "s2v", "audio_dim": 32}, {}),
    "vace": ({"model_type": "vace"}, {}),
    "fun": ({"model_type": "i2v", "image_dim": 24, "image_len": 5}, {}),
    "fun-2.2": ({"model_type": "i2v"}, {}),
    "camera": ({"model_type": "i2v", "in_dim_control_adapter": 24}, {}),
    "animate": ({"preset": "wan-animate-tiny", "image_dim": 24, "image_len": 5}, {}),
    "turns": ({}, {"train": "both"}),
    "turns-i2v": ({"model_type": "i2v"}, {"train": "both"}),
    "gate-hard": ({}, {"router": "gate", "hard": True}),
    "gate-soft": ({}, {"router": "gate", "hard": False}),
}
PICTURES = ("i2v", "i2v-2.2", "flf2v", "turns-i2v")
FOLLOWED = {"vace": "guides", "fun": "controls", "fun-2.2": "controls", "camera": "cameras", "animate": "drivers"}  # their data
FORMATS = [{}, {}, {"compute_dtype": "bf16"}, {"compute_dtype": "fp16"}, {"masters": "split"},
           {"compute_dtype": "bf16", "masters": "split", "moments": "int8"}, {"masters": "bf16"}, {"moments": "int8"},
           {"moments": "bf16", "grad_dtype": "bf16"}, {"grad_dtype": "bf16"}, {"reduce_dtype": "bf16"},
           {"reduce_dtype": "fp16"}, {"param_dtype": "bf16"}, {"param_dtype": "fp16"},
           {"compute_dtype": "bf16", "reduce_dtype": "bf16", "grad_dtype": "bf16"}]
ACTIVATIONS = [{}, {"activations": "keep"}, {"activations": "rebuild"}, {"activations": "recompute"},
               {"activations": "recompute_offload"}, {"activations": "offload"}, {"activations": "bf16"},
               {"activations": "fp16"}, {"activations": "int8"}, {"activations": "fp8"},
               {"activations": "offload_bf16"}, {"activations": "offload_fp16"}, {"activations": "offload_int8"},
               {"activations": "offload_fp8"}, {"recompute": "1"}, {"recompute": "every 2"}, {"recompute": "all"}]
TIERS = [{}, {}, {"parameters": "host"}, {"gradients": "host"}, {"states": "host"}, {"parameters": "nvme"},
         {"gradients": "nvme"}, {"states": "nvme"}, {"offload_to": "nvme"},
         {"parameters": "host", "gradients": "host", "states": "host"},
         {"parameters": "nvme", "gradients": "nvme", "states": "nvme", "nvme_checksum": True},
         {"parameters": "host", "states": "nvme", "offload_to": "nvme"}]
UPDATES = [{}, {}, {"update": "end"}, {"update": "just_in_time"}, {"update": "just_in_time"}, {"update": "in_backward"},
           {"update": "in_backward"}, {"update_on": "host"},
           {"update": "end", "update_on": "host"}, {"update": "just_in_time", "update_on": "host"},
           {"update": "in_backward", "update_on": "host"}]
ADAPTERS = [None, None, None, None, None, None, None, None,  # trained in full
            {}, {"dropout": 0.2}, {"dora": True}, {"base_dtype": "int8"},
            {"base_dtype": "fp8", "dropout": 0.1}, {"base_dtype": "bf16", "dora": True},
            {"rslora": True, "alpha": "8", "targets": ["blocks.*.self_attn.*", "ffn.0"]},
            {"base_dtype": "int8", "dora": True, "targets": ["q", "k", "v", "ffn.0"]}]
STRATEGIES = ["auto", "auto", "full_shard", "shard_grad_op", "shard_states", "no_shard", "two_level"]
DATA = ["frames", "table", "mixed"]
VAES = ["haar", "haar", "haar", "wan21", "wan21 tiled", "wan22"]
CACHES = ["cache", "cache", "online"]
SAMPLES = ["", "", "during", "after", "both"]

DECKS = {"family": list(FAMILIES) + ["t2v", "t2v", "s2v"], "layout": LAYOUTS, "formats": FORMATS,
         "activations": ACTIVATIONS, "tiers": TIERS, "updates": UPDATES, "adapters": ADAPTERS,
         "strategies": STRATEGIES, "data": DATA, "vaes": VAES, "caches": CACHES, "samples": SAMPLES,
         "courses": CARDS}
UNTOLD = ("nvme", "host_budget", "budget", "file", "prefetch", "update_threads")
KEPT = {"family": 8, "layout": 4, "courses": 3, "adapters": 2}  # attempts in which a card is not drawn anew


def card(deck: str, seed: int, index: int, attempt: int, rng: random.Random):
    cards = DECKS[deck]
    if attempt >= KEPT.get(deck, 1):
        return rng.choice(cards)
    order = list(range(len(cards)))
    random.Random(f"{seed} {deck} {index // len(cards)}").shuffle(order)
    return cards[order[index % len(cards)]]


class Draw:
    """The draws of one run; `recipe` grows table by table."""
    OF_DIFFUSERS = set(FAMILIES) - {"s2v", "fun", "fun-2.2", "camera", "animate"}  # those that it has classes of

    def __init__(self, seed: int, index: int, attempt: int):
        self.rng = random.Random(f"{seed} run {index} {attempt}")
        self.cards = {deck: card(deck, seed, index, attempt, self.rng) for deck in DECKS}
        self.family, self.mesh = self.cards["family"], mesh_of(self.cards["layout"])
        self.adapters, self.formats = self.cards["adapters"], self.cards["formats"]
        self.recipe, self.words, self.tags = {}, [], []
        self.spoken = self.family == "s2v"
        self.vae, *tiled = self.cards["vaes"].split()
        self.tiled = bool(tiled)
        self.experts = dict(FAMILIES[self.family][1])
        self.gated = self.experts.get("router") == "gate"

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def axis(self, name: str) -> int:
        return self.mesh.get(name, 1)

    def case(self, name: str) -> Case:
        for part in (self.model, self.data, self.training, self.diffusion, self.plan, self.more, self.samples):
            part()
        case = Case(name, "")
        if self.chance(0.1):
            case.threads = 2
            self.words.append("2 threads")
        follow(self, case)
        planned = [f"{key} {value}" for key, value in self.recipe["plan"].items() if key not in UNTOLD]
        case.words = ", ".join([self.family, self.cards["layout"] or "one rank", *self.words, *planned])
        case.tags = [self.family, *(self.mesh or ["one rank"]), *self.tags, *planned]
        return case

    def model(self) -> None:
        rng, cut = self.rng, self.axis("sp") * self.axis("tp")
        heads = cut * rng.choice([1, 1, 2, 3]) if cut > 2 else max(2, cut) * rng.choice([1, 1, 2, 3])
        if self.chance(0.03):
            heads += 1  # what sp and tp may not divide
        head = rng.choice([8, 12, 16, 32] if self.spoken else [6, 8, 10, 16, 22, 32])
        blocked = "int8" in self.formats.values() or (self.adapters or {}).get("base_dtype")
        if blocked:  # blocks of 256, of tensors that are large enough for them
            head = max(head, 64 // heads + 64 // heads % 2 + 2)
            head += -head % 4
        layers = max(rng.randint(1, 4), 2 * self.axis("pp") - 2 if self.axis("pp") > 1 else 1)
        channels = {"haar": rng.choice([4, 8, 12, 20]), "wan21": 16, "wan22": 48}[self.vae]
        fields = dict(FAMILIES[self.family][0])
        if self.family in PICTURES:
            fields["in_dim"] = 2 * channels + 4
        if self.family == "vace":
            fields |= {"vace_in_dim": 2 * channels + (256 if self.vae == "wan22" else 64),
                       "vace_layers": [0, *sorted(rng.sample(range(1, layers), rng.randint(0, layers - 1)))]}
        if self.family in ("fun", "fun-2.2"):
            fields |= {"in_dim": 3 * channels + (4 if self.family == "fun-2.2" else 0), "in_dim_ref_conv": channels}
        if self.family == "camera":
            fields |= {"in_dim": 2 * channels, "downscale_factor_control_adapter": 16 if self.vae == "wan22" else 8}
        if self.family == "animate":
            layers += -layers % 5  # an adapter behind each fifth
            fields["in_dim"] = 2 * channels + 4
        if self.spoken:
            after = sorted(rng.sample(range(layers), rng.randint(1, min(2, layers))))
            fields |= {"cond_dim": channels, "num_audio_token": rng.randint(2, 4), "audio_inject_layers": after}
        ffn = self.axis("tp") * rng.randint(12, 64 // self.axis("tp"))
        preset = fields.pop("preset", "")
        self.recipe["model"] = {**({"preset": preset} if preset else {"family": "wan"}), "config": {
            "dim": heads * head, "ffn_dim": ffn, "num_heads": heads, "num_layers": layers, "in_dim": channels,
            "out_dim": channels, "freq_dim": rng.choice([16, 32, 64]), "text_dim": 64, "text_len": rng.randint(5, 20),
            **fields}}
        self.config = self.recipe["model"]["config"]
        self.words.append(f"{layers} blocks of {heads} x {head} and {ffn}")

    def data(self) -> None:
        rng, ranks = self.rng, self.axis("cp") * self.axis("sp") * self.axis("tp")
        source = "spoken" if self.spoken else FOLLOWED.get(self.family, self.cards["data"])
        if source == "mixed" and (self.family in PICTURES or self.vae == "wan22"):
            source = "table"  # a single picture is no video of two latent frames, and 48 pixels are no three blocks
        table = {"path": f"data/{source}", "cache": self.cards["caches"], "fps": 8.0}
        sides = [32, 64] if self.vae == "wan22" else [16, 32, 48]
        size, frames = [rng.choice(sides), rng.choice(sides)], rng.choice([8, 8, 12] if self.spoken else [4, 8, 12])
        if self.spoken and self.chance(0.3):
            size = [64, 64]
        if self.vae != "haar":
            frames += 1 if frames < 12 else -3
            table["vae"] = f"data/{self.vae}"
            self.words.append(f"{self.vae}'s autoencoder{' in tiles' if self.tiled else ''}")
            self.tags.append(f"vae {self.vae}")
        if self.tiled:
            size = [48, 48]
            table["vae_tile"] = "32"
        while latent_tokens(size, frames, self.vae) < ranks:
            size = [size[0] + sides[0], size[1]]
        if source == "mixed":
            table["buckets"] = [f"{frames}x32x48", f"{frames}x48x32", "1x32x32"]
            if self.chance(0.3):  # the two pictures fit none
                table |= {"buckets": table["buckets"][:2], "allow_bad": 2}
        else:
            table |= {"size": size, "frames": frames}
        if source == "table" and self.chance(0.5):
            table |= rng.choice([{"clip_mode": "uniform", "clip_samples": 2}, {"clip_mode": "chunks"},
                                 {"clip_mode": "slide", "clip_stride": 2}])
        if self.chance(0.2):
            table["repeats"] = 2
        self.recipe["data"] = table
        self.size, self.frames, self.online = size, frames, table["cache"] == "online"
        self.one_shape = source != "mixed"
        self.tokens = latent_tokens(size if self.one_shape else [32, 32], frames if self.one_shape else 1, self.vae)
        self.words.append(f"{source}{' online' if self.online else ''}")
        self.tags += [f"data {source}", "online"] if self.online else [f"data {source}"]

    def training(self) -> None:
        rng = self.rng
        steps = rng.choice([4, 5, 6])
        batch = rng.randint(max(1, self.axis("dp_shard") * self.axis("dp_replicate") - 1), 6)
        table = {"global_batch": batch, "lr": rng.choice([5e-4, 1e-3, 3e-3, 1e-2])}
        if self.axis("pp") > 1 or self.chance(0.5):
            table["micro_batch"] = str(rng.choice([1, 1, 1, 1, 2] if self.axis("pp") > 1 else [1, 1, 2]))
        table |= rng.choice([{}, {"warmup_steps": 2}, {"schedule": "constant"}, {"schedule": "linear"},
                             {"schedule": "cosine", "warmup_steps": 1}, {"schedule": "cosine_min", "eta_min": 1e-5},
                             {"schedule": "cosine_with_restarts", "num_cycles": 2.0},
                             {"schedule": "polynomial", "power": 2.0},
                             {"schedule": "wsd", "stable_steps": 2, "decay_steps": 2},
                             {"schedule": "torch_linear_then_cosine", "warmup_steps": 2, "eta_min": 1e-5},
                             {"schedule": "opensora_linear_warmup", "warmup_steps": 3}])
        table |= rng.choice([{}, {}, {"lr_scale": "linear", "lr_base_batch": 4}, {"lr_scale": "sqrt"},
                             {"lr_scale": "0.5"}])
        table |= rng.choice([{}, {}, {"betas": [0.8, 0.95], "eps": 1e-6}, {"weight_decay": 0.0}, {"weight_decay": 0.1}])
        backward = self.cards["updates"].get("update") == "in_backward"
        table["clip_norm"] = 0.0 if backward and self.chance(0.9) else rng.choice([1.0, 1.0, 0.3, 0.0])
        if "fp16" in self.formats.values():
            table |= rng.choice([{}, {"loss_scale": "1024", "loss_scale_window": 2}, {"loss_scale": "1e12"}])
        if self.adapters is not None:
            table["mode"] = "lora"
            # names that have a place for what DoRA trains
            names = ["comfyui", "kohya", "peft"] + ([] if "dora" in self.adapters else ["diffsynth"])
            exports = ["diffusers"] + [name for name in names if self.chance(0.3)]
            self.recipe["lora"] = {"rank": rng.choice([2, 4, 5, 8]), "export": exports, **self.adapters}
            told = " ".join(key if value is True else str(value) for key, value in self.adapters.items()
                            if key != "targets")
            self.words.append(f"lora {told}".strip())
            self.tags += ["lora"] + [f"lora {key}" for key in self.adapters]
        else:
            self.tags.append("full")
        self.steps = steps
        self.recipe["run"] = {"out": "run", "seed": rng.randint(0, 99), "steps": steps}
        if self.chance(0.15) and not backward:
            self.recipe["run"]["on_nan"] = "skip"
        self.recipe["train"] = table

    def diffusion(self) -> None:
        rng = self.rng
        table = {"timesteps": rng.choice(["uniform", "shift", "logit_normal", "diffsynth"]),
                 "shift": rng.choice([1.0, 3.0, 5.0, 12.0])}
        if self.chance(0.25):
            table["weighting"] = "diffsynth"
        if self.family == "ti2v":
            table["image_share"] = rng.choice([0.0, 0.3, 0.5, 1.0])
        if not self.experts and self.chance(0.15):
            table |= {"min_t": 0.1, "max_t": 0.8}
        self.recipe["diffusion"] = table
        if self.gated:
            self.experts |= {"count": rng.randint(2, 3), "balance": rng.choice([0.0, 0.01, 0.1]),
                             "temperature": rng.choice([0.5, 1.0, 2.0])}
        elif self.experts:
            self.experts |= {"turn": rng.choice([1, 1, 2])} | rng.choice([{}, {"boundary": "0.6"}, {"shares": [1, 1]}])
        if self.experts:
            self.recipe["experts"] = self.experts

    def plan(self) -> None:
        rng, updates = self.rng, dict(self.cards["updates"])
        if self.gated and updates.get("update") in ("just_in_time", "in_backward") and self.chance(0.9):
            updates["update"] = "end"
        tiers = self.cards["tiers"]
        if "nvme" in tiers.values() and self.chance(0.9):
            updates.pop("update_on", None)  # nothing that rests on a disk is updated there
        if "update_on" in updates:
            updates["update_threads"] = str(rng.randint(1, 3))
            if self.chance(0.8):
                tiers = {key: "host" for key in ("parameters", "gradients", "states")}
        table = {"nvme": "nvme", "host_budget": "2GiB", "budget": "2GiB", **self.formats, **self.cards["activations"],
                 **tiers, **updates}
        if self.cards["strategies"] != "auto":
            table["strategy"] = self.cards["strategies"]
        if self.chance(0.5):
            table["prefetch"] = str(rng.randint(0, 3))
        if self.axis("pp") > 1:
            table |= rng.choice([{}, {"pipeline": "gpipe"}, {"pipeline": "1f1b"}, {"pipeline": "zero_bubble"},
                                 {"pipeline": "interleaved", "chunks": "2"}])
        if self.experts:
            table["idle"] = rng.choice(["auto", "device", "host", "nvme"])
        self.recipe["mesh"], self.recipe["plan"] = dict(self.mesh), table

    def more(self) -> None:
        every = self.rng.choice([0, 2, 2])
        self.recipe["checkpoint"] = {"every": every, "keep": self.rng.choice([0, 0, 1, 3])}

    def samples(self) -> None:
        """During training where the card says so; what a sample takes is said for samples behind it, too."""
        rng, when = self.rng, self.cards["samples"]
        table = {"steps": rng.randint(1, 3), "seed": rng.randint(0, 9),
                 "sampler": rng.choice(["euler", "euler_diffusers", "unipc", "unipc_diffusers", "dpmpp"])}
        if self.chance(0.4):
            table |= {"guidance": 3.0} | rng.choice([{}, {"negative_prompt": "noise"}])
        if self.chance(0.4) and not self.spoken and self.family not in FOLLOWED:  # whose prompts are those of rows
            table["prompts"] = ["a square that moves to the right"]
        if self.family == "ti2v" and self.chance(0.5):
            table["image"] = ["clip"]
        table["every"] = rng.choice([2, 3]) if when in ("during", "both") else 0
        self.recipe["sample"] = table
        self.sampled = when in ("after", "both")
        if when:
            self.words.append(f"samples {when if when != 'both' else 'during and after'}")
            self.tags.append("samples")


def draw(seed: int, index: int, attempt: int = 0) -> Case:
    return Draw(seed, index, attempt).case(f"run-{index + 1:02d}")
