"""stage"""
lr = 5e-5  # rate
bucket_config = {
  "256px": {1: (1.0, 45), 33: (0.5, 12)},
  "_delete_": True,
}
model = dict(type="flux", axes_dim=[16, 56, 56], theta=10_000, mlp_ratio=4.0)
optim = dict(cls='HybridAdam', lr=lr)
pin_memory_cache_pre_alloc_numels = [(260 + 20) * 1024 * 1024] * 24 + [54 * 2**20] * 4
plugin = "hybrid"
plugin_config = dict(tp_size=2, sp_size=4, sequence_parallelism_mode="ring_attn", zero_stage=24 )
ema_decay = None
condition_config = dict(t2v=1, i2v_head=5)
lora_config = dict(r=16, target_modules=['q'])
