"""One measurement of DeepSpeed ZeRO-3 with its optimiser offloaded to the CPU: the same step as fsdp2_peer.py.

    python bench/deepspeed_peer.py --tokens 256 --buckets auto|default --steps 8

2 Gloo ranks, fp32, DeepSpeed's own CPU AdamW, no recompute. `default` leaves every size at DeepSpeed's default; `auto` takes those
that transformers and accelerate fill in for "auto" (the width squared, 0.9 of it, and ten times the width), which suit a
small model better. Prints one JSON line: seconds of every step, peak_bytes (from the end of step 1 on) and
persistent_bytes (what lives between two steps), the largest of the ranks.
"""
import argparse
import os

import shapes
from peer import LEARNING_RATE, build_model, inputs, load_shim, on_ranks, timed


def config(buckets):
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True, "contiguous_gradients": True}
    if buckets == "auto":
        width = shapes.MODEL["dim"]
        zero |= {"reduce_bucket_size": width * width, "stage3_prefetch_bucket_size": int(0.9 * width * width),
                 "stage3_param_persistence_threshold": 10 * width}
    return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "zero_optimization": zero,
            "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": 0.01}},
            "steps_per_print": 10**9}


def run_rank(rank, args):
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.dup2(2, 1)  # its log goes to stderr: stdout is for our line
    shim = load_shim()
    import deepspeed
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    deepspeed.init_distributed("gloo")
    model = build_model()
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config(args.buckets))
    latent, target, context, timestep = inputs(rank, args.tokens)

    def one_step(_):
        prediction = engine(latent, timestep, context, return_dict=False)[0]
        loss = torch.nn.functional.mse_loss(prediction, target)
        del prediction
        engine.backward(loss)
        engine.step()

    seconds = timed(args, shim, one_step)
    peak, persistent = shim.shim_peak(), shim.shim_live()
    dist.barrier()
    dist.destroy_process_group()
    return dict(seconds=seconds, peak_bytes=peak, persistent_bytes=persistent)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, choices=sorted(shapes.LATENTS), required=True)
    parser.add_argument("--buckets", choices=["auto", "default"], default="auto")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    on_ranks(run_rank, parser.parse_args())


if __name__ == "__main__":
    main()
