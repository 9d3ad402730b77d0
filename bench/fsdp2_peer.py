"""One measurement of PyTorch: a training step of the 36M Wan of diffusers.

    python bench/fsdp2_peer.py --tokens 256 --mode none|recompute|floor --steps 8

`none` and `recompute` train on 2 Gloo ranks with FSDP2: fully_shard of every block and of the root, fused AdamW, fp32,
with `recompute` torch.utils.checkpoint (non-reentrant) on every block. `floor` is two plain copies that compute at
once and exchange nothing: forward, backward, and AdamW on the half of the parameters that a rank would own.
Prints one JSON line: seconds of every step, peak_bytes (from the end of step 1 on) and persistent_bytes (shards of
parameters, gradients and moments), the largest of the ranks.
"""
import argparse

import shapes
from peer import LEARNING_RATE, build_model, inputs, load_shim, on_ranks, timed


def shard(model, recompute):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (shapes.RANKS,))
    for i, block in enumerate(model.blocks):
        if recompute:
            block = checkpoint_wrapper(block, CheckpointImpl.NO_REENTRANT, preserve_rng_state=False)
            model.blocks[i] = block
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def bytes_of(tensors):
    """Bytes of the local shards, each rounded to 64 like every block."""
    total = 0
    for t in tensors:
        local = t.to_local() if hasattr(t, "to_local") else t
        total += (local.numel() * local.element_size() + 63) // 64 * 64
    return total


def run_rank(rank, args):
    shim = load_shim()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = build_model()
    if args.mode == "floor":
        parameters, half, seen = list(model.parameters()), [], 0
        for p in parameters:
            if seen * 2 < sum(q.numel() for q in parameters):
                half.append(p)
            seen += p.numel()
        optimizer = torch.optim.AdamW(half, lr=LEARNING_RATE, fused=True)
    else:
        model = shard(model, recompute=args.mode == "recompute")
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    latent, target, context, timestep = inputs(rank, args.tokens)

    gradients = 0  # bytes

    def one_step(step):
        nonlocal gradients
        prediction = model(latent, timestep, context, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(prediction, target)
        del prediction
        loss.backward()
        optimizer.step()
        if step + 1 == args.warmup + args.steps:
            gradients = bytes_of(p.grad for p in model.parameters() if p.grad is not None)
        if args.mode == "floor":
            model.zero_grad(set_to_none=True)
        else:
            optimizer.zero_grad(set_to_none=True)

    seconds = timed(args, shim, one_step)
    states = bytes_of(t for s in optimizer.state.values() for t in s.values() if t.dim() > 0)
    persistent = bytes_of(model.parameters()) + gradients + states
    peak = shim.shim_peak()
    dist.barrier()
    dist.destroy_process_group()
    return dict(seconds=seconds, peak_bytes=peak, persistent_bytes=persistent)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, choices=sorted(shapes.LATENTS), required=True)
    parser.add_argument("--mode", choices=["none", "recompute", "floor"], required=True)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    on_ranks(run_rank, parser.parse_args())


if __name__ == "__main__":
    main()
