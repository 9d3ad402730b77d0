"""What is measured, in one place: the model and the latents of a sample, for the peer and for ours."""

RANKS = 2

# The 36M Wan: official names; heads of 64, one text embedding of 64 tokens a sample.
MODEL = dict(dim=512, num_heads=8, num_layers=8, ffn_dim=2048, in_dim=16, out_dim=16, freq_dim=256,
             text_dim=512, text_len=64)

# tokens a rank -> latent [C, f, h, w] of its one sample; patches of 1x2x2
LATENTS = {256: (16, 4, 16, 16), 1024: (16, 4, 32, 32)}
