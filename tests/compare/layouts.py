"""Meshes of one to four ranks: every axis alone and in pairs."""

LAYOUTS = ["", "", "dp_shard=2", "dp_replicate=2", "cp=2", "sp=2", "tp=2", "pp=2", "dp_shard=3", "cp=3", "pp=3", "sp=3",
           "dp_replicate=3", "dp_shard=4", "cp=4", "tp=4", "pp=4", "dp_replicate=2,dp_shard=2", "dp_shard=2,cp=2",
           "dp_shard=2,sp=2", "dp_shard=2,tp=2", "cp=2,sp=2", "sp=2,tp=2", "cp=2,tp=2", "pp=2,dp_shard=2",
           "pp=2,dp_replicate=2", "pp=2,tp=2", "pp=2,sp=2", "pp=2,cp=2", "dp_replicate=2,cp=2", "dp_replicate=2,tp=2",
           "dp_replicate=2,sp=2"]


def mesh_of(layout: str) -> dict:
    return {axis: int(ranks) for axis, ranks in (word.split("=") for word in layout.split(",") if word)}


def latent_tokens(size: list, frames: int, vae: str = "haar") -> int:
    """Of a sample: latents in pairs of rows and columns."""
    block = 32 if vae == "wan22" else 16
    latents = -(-frames // 4) if vae == "haar" else 1 + (frames - 1) // 4
    return latents * (size[0] // block) * (size[1] // block)


def other_layout(config: dict, tokens: int, mesh: dict, rng) -> dict:
    """A mesh other than `mesh` that the same model can have."""
    found = []
    for layout in LAYOUTS:
        other = mesh_of(layout)
        cp, sp, tp = (other.get(axis, 1) for axis in ("cp", "sp", "tp"))
        fits = config["num_heads"] % (sp * tp) == 0 and config["ffn_dim"] % tp == 0 and other.get("pp", 1) <= 2
        if fits and other != mesh and tokens >= cp * sp * tp:
            found.append(other)
    return rng.choice(found)
