// Every recipe key, one line each; the contract's keys of later versions are known here and say so.
#include "tessera/recipe/recipe_table.h"

namespace tessera::recipe {

const OptionTable& recipe_table() {
  static const OptionTable table({
      {"run.out", Kind::text, "runs/run", "folder of the run"},
      {"run.seed", Kind::integer, "0", "seed of initial weights, data order, noise and timesteps"},
      {"run.steps", Kind::integer, "1000", "optimiser steps of the whole run"},
      {"run.resume", Kind::text, "auto",
       "auto: from the newest whole checkpoint of run.out; no; or a checkpoint folder"},
      {"run.on_nan", Kind::choice, "stop", "what a NaN or infinite loss does", "stop|skip"},

      {"model.preset", Kind::text, "", "a known size, e.g. wan2.1-t2v-1.3b"},
      {"model.path", Kind::text, "", "folder or file of weights (safetensors, official or diffusers names)"},
      {"model.family", Kind::text, "wan",
       "family of model.config; wan-t2v, wan-i2v, wan-flf2v, wan-ti2v or wan-s2v where the type that config.json and "
       "weights tell "
       "is not what is meant"},
      {"model.init", Kind::choice, "auto", "initial weights: auto loads model.path when it is given",
       "auto|load|random"},
      {"model.config.model_type", Kind::text, "", "t2v, i2v, flf2v, ti2v or s2v; empty: by the channels"},
      {"model.config.dim", Kind::integer, "", "width"},
      {"model.config.ffn_dim", Kind::integer, "", "width of the feed-forward"},
      {"model.config.num_heads", Kind::integer, "", "attention heads"},
      {"model.config.num_layers", Kind::integer, "", "blocks"},
      {"model.config.in_dim", Kind::integer, "", "latent channels in"},
      {"model.config.out_dim", Kind::integer, "", "latent channels out"},
      {"model.config.freq_dim", Kind::integer, "", "width of the timestep sinusoid"},
      {"model.config.text_dim", Kind::integer, "", "width of text embeddings"},
      {"model.config.text_len", Kind::integer, "", "text tokens"},
      {"model.config.image_dim", Kind::integer, "", "width of CLIP features, for a model with an image branch"},
      {"model.config.image_len", Kind::integer, "", "rows of CLIP features of one picture"},
      {"model.config.cond_dim", Kind::integer, "", "s2v: channels of the pose latent, those of the autoencoder"},
      {"model.config.audio_dim", Kind::integer, "", "s2v: width of the speech model's states"},
      {"model.config.num_audio_token", Kind::integer, "", "s2v: sound tokens of a latent frame"},
      {"model.config.audio_inject_layers", Kind::list, "", "s2v: blocks after which the picture listens"},
      {"model.config.eps", Kind::number, "", "epsilon of the norms"},

      {"data.path", Kind::text, "", "folder of a metadata file, or of clips with a .txt beside each; or one clip"},
      {"data.metadata", Kind::text, "", "table of clips and captions elsewhere: .csv, .json, .jsonl or videos.txt"},
      {"data.size", Kind::list, "64,96", "height, width in pixels; clips are resized to cover and cropped"},
      {"data.frames", Kind::integer, "16", "frames of a sample"},
      {"data.fps", Kind::number, "16", "frame rate clips are resampled to; 0: as they are"},
      {"data.cache", Kind::text, "cache", "folder of encoded samples; online: none, clips are encoded when they come"},
      {"data.repeats", Kind::integer, "1", "times each clip comes in an epoch"},
      {"data.vae", Kind::text, "haar",
       "autoencoder: haar is built in and has no weights; or one of Wan's: its file, a diffusers vae folder, a model "
       "folder"},
      {"data.vae_tile", Kind::text, "auto",
       "side in pixels of the tiles a VAE works in, a quarter of it shared with neighbours; 0: the whole picture; "
       "auto: "
       "the largest that takes no more than a quarter of plan.budget, the whole picture without one"},
      {"data.text_encoder", Kind::text, "umt5-demo", "text encoder"},
      {"data.text_encoder_path", Kind::text, "", "its weights; empty: random ones, always the same"},
      {"data.image_encoder", Kind::text, "auto",
       "CLIP's image tower, for models that take its features: clip-vit-h, clip-demo; auto: by the model's width"},
      {"data.image_encoder_path", Kind::text, "",
       "its weights: models_clip_*.pth, image_encoder/ of diffusers, a model folder; empty: random ones, always the "
       "same"},
      {"data.audio_encoder", Kind::text, "auto",
       "wav2vec 2.0, for models that hear: its folder, the folder of a model that has it, or a preset with random "
       "weights "
       "(wav2vec-demo); auto: the preset of the model's width"},
      {"data.tokenizer", Kind::text, "", "SentencePiece model; empty: a small one is made from the captions"},
      {"data.buckets", Kind::list, "",
       "shapes trained in, frames x height x width: 33x480x832,1x768x768; samples have the first; empty: data.frames "
       "and data.size"},
      {"data.max_crop", Kind::text, "auto",
       "share of a picture that cropping to its bucket may cut off, 0 to 1; auto: 0.5 with data.buckets, else 1"},
      {"data.clip_mode", Kind::choice, "head", "parts of a longer video that are used", "head|uniform|chunks|slide"},
      {"data.clip_stride", Kind::integer, "0", "frames from start to start of slide; 0: half a clip"},
      {"data.clip_samples", Kind::integer, "2", "clips of a video of uniform"},
      {"data.strict", Kind::choice, "false", "stop at the first faulty row instead of telling all", "true|false"},
      {"data.allow_bad", Kind::integer, "0", "faulty rows that training may leave out"},

      {"train.mode", Kind::choice, "full",
       "what is trained: all of the model, or low-rank adapters of some of its linears", "full|lora"},
      {"train.global_batch", Kind::integer, "1", "samples of an optimiser step, over all ranks"},
      {"train.micro_batch", Kind::text, "auto",
       "samples a rank runs at once; auto: what fits and is fastest; it changes nothing in the curve"},
      {"train.lr", Kind::number, "1e-4", "learning rate"},
      {"train.lr_scale", Kind::text, "none",
       "what the rate is multiplied by: none; linear, global_batch / lr_base_batch; sqrt, its root; or a number"},
      {"train.lr_base_batch", Kind::integer, "256", "global batch that train.lr is meant for, of lr_scale"},
      {"train.schedule", Kind::choice, "constant_with_warmup", "learning rate over steps",
       "constant|constant_with_warmup|linear|cosine|cosine_min|cosine_with_restarts|polynomial|wsd|torch_linear_then_"
       "cosine|opensora_linear_warmup"},
      {"train.warmup_steps", Kind::integer, "0", "steps of warm-up"},
      {"train.eta_min", Kind::number, "0", "lowest rate of cosine_min and torch_linear_then_cosine"},
      {"train.num_cycles", Kind::number, "1", "cycles of cosine_with_restarts"},
      {"train.power", Kind::number, "1", "power of polynomial"},
      {"train.stable_steps", Kind::integer, "0", "steps at full rate of wsd"},
      {"train.decay_steps", Kind::integer, "0", "steps of decay of wsd"},
      {"train.betas", Kind::list, "0.9,0.999", "AdamW betas"},
      {"train.eps", Kind::number, "1e-8", "AdamW epsilon"},
      {"train.weight_decay", Kind::number, "0.01", "AdamW decoupled weight decay"},
      {"train.clip_norm", Kind::number, "1.0", "global gradient norm to clip to; 0: no clipping"},
      {"train.loss_scale", Kind::text, "auto",
       "first scale of dynamic loss scaling, where something is fp16: halved by a step whose gradients overflow, which "
       "is skipped; auto: 65536"},
      {"train.loss_scale_window", Kind::integer, "2000", "whole steps in a row after which the scale doubles"},
      {"train.optimizer", Kind::choice, "adamw", "optimiser", "adamw"},

      {"lora.rank", Kind::integer, "32", "rank of the adapters"},
      {"lora.alpha", Kind::text, "auto", "their scale times the rank (its root with lora.rslora); auto: the rank"},
      {"lora.targets", Kind::list, "",
       "linears with adapters: names or their ends (q, ffn.0, attn1.to_q), patterns with * or regular expressions over "
       "official or diffusers names, or all; empty: q,k,v,o,ffn.0,ffn.2"},
      {"lora.dropout", Kind::number, "0", "share of an adapter's inputs that is dropped in training"},
      {"lora.rslora", Kind::choice, "false", "scale alpha / sqrt(rank) instead of alpha / rank", "true|false"},
      {"lora.dora", Kind::choice, "false", "DoRA: a trained length for each row of the weight", "true|false"},
      {"lora.base_dtype", Kind::choice, "auto",
       "how the frozen linears of blocks rest, travel and wait on tiers: fp32, bf16, int8 or fp8 in blocks of 256 with "
       "a "
       "scale each, whose error is told at the start; auto: bf16 where plan.compute_dtype is, else fp32",
       "auto|fp32|bf16|int8|fp8"},
      {"lora.init", Kind::text, "", "a LoRA of any program to go on from; empty: A random, B zero"},
      {"lora.export", Kind::list, "diffusers",
       "names of the files in run.out/model: diffusers always, and any of comfyui, kohya, diffsynth, peft"},

      {"diffusion.timesteps", Kind::choice, "uniform", "distribution of timesteps before the shift",
       "uniform|shift|logit_normal|diffsynth"},
      {"diffusion.shift", Kind::number, "5", "flow shift of training timesteps and of the sampler"},
      {"diffusion.weighting", Kind::choice, "none", "loss weight over timesteps", "none|diffsynth"},
      {"diffusion.image_share", Kind::number, "0.5",
       "ti2v: share of samples that are learned as continuations of their first frame, the others from text alone"},
      {"diffusion.min_t", Kind::number, "0", "least timestep that is drawn, 0 to 1 after the shift"},
      {"diffusion.max_t", Kind::number, "1", "largest timestep that is drawn, 0 to 1 after the shift"},

      {"experts.router", Kind::choice, "turns",
       "how experts share the work: turns, two that each own a range of timesteps and have steps of their own; gate, "
       "several that begin as one model, among which a learned gate chooses for each sample",
       "turns|gate"},
      {"experts.count", Kind::integer, "2", "experts that a gate chooses among"},
      {"experts.temperature", Kind::number, "1", "of the gate's softmax at the start; it is learned"},
      {"experts.hard", Kind::choice, "true",
       "true: the chosen expert answers alone; false: all answer, and their predictions are summed by the gate's "
       "weights",
       "true|false"},
      {"experts.balance", Kind::number, "0.01",
       "weight of the gate's balance loss: experts x sum of share x mean probability, 1 where all are chosen alike"},
      {"experts.train", Kind::choice, "auto",
       "which of two experts learn; auto: both where model.path holds high_noise_model and low_noise_model; where it "
       "holds one model, both begin as that",
       "auto|both|high_noise|low_noise"},
      {"experts.boundary", Kind::text, "auto",
       "timestep from which on the high-noise expert is asked, 0 to 1 after the shift, or diffsynth(0.417), "
       "DiffSynth's "
       "index fraction; auto: 0.9 for models that begin with a picture, else 0.875"},
      {"experts.turn", Kind::integer, "1", "optimiser steps of a turn"},
      {"experts.shares", Kind::list, "",
       "shares of the turns, high noise first; empty: as often as timesteps fall on each side of the boundary"},

      {"mesh.pp", Kind::integer, "1", "ranks that have a part of the units each, in a pipeline"},
      {"mesh.dp_replicate", Kind::integer, "1", "replicas of the sharded model"},
      {"mesh.dp_shard", Kind::integer, "1",
       "ranks that share parameters, gradients and states; train fills it with what is left"},
      {"mesh.cp", Kind::integer, "1", "ranks that share a sample's tokens, ring attention"},
      {"mesh.sp", Kind::integer, "1", "ranks that share a sample's tokens, Ulysses: divides the heads"},
      {"mesh.tp", Kind::integer, "1",
       "ranks that share a sample's tokens and the features of linears: divides heads and the feed-forward width"},

      {"plan.file", Kind::text, "auto", "a plan.toml written by hand, or auto"},
      {"plan.profile", Kind::text, "cpu",
       "rates of the machine: cpu, a shipped node (h200, 1xh200, a100-80 ...) or a file of tessera probe"},
      {"plan.budget", Kind::bytes, "",
       "device memory a rank may take; empty: the profile's device but for 3 GiB and 3 % (of small ones a tenth), or "
       "nine tenths of this machine shared by its ranks"},
      {"plan.host_budget", Kind::bytes, "",
       "host memory that the ranks of a node may take together for what leaves the devices; empty: nine tenths of the "
       "profile's node, and nothing where the profile is cpu"},
      {"plan.nvme", Kind::text, "", "a folder on the disk that may hold what leaves the devices; empty: none"},
      {"plan.nvme_checksum", Kind::choice, "false",
       "compare a CRC-32C of what is read from there with that of what was written", "true|false"},
      {"plan.recompute", Kind::text, "auto",
       "blocks that recompute: auto, none, all, a number, or \"every 4\", one block in four"},
      {"plan.strategy", Kind::text, "auto",
       "auto, full_shard (ZeRO-3), shard_grad_op (ZeRO-2), shard_states (ZeRO-1), no_shard or two_level (full_shard "
       "within a copy of the model, states over all copies: hpZ)"},
      {"plan.activations", Kind::choice, "auto",
       "what blocks do with what their forward saves; rebuild: keep it, but make results of norms and sums again (as "
       "all "
       "that follow do); recompute_offload: recompute, from inputs that wait on the host; "
       "bf16, fp16, int8, fp8: keep in fewer bits (lossy: its error is in metrics.jsonl), offload_*: on the host",
       "auto|keep|rebuild|recompute|recompute_offload|offload|bf16|fp16|int8|fp8|offload_bf16|offload_fp16|offload_"
       "int8|"
       "offload_fp8"},
      {"plan.parameters", Kind::choice, "auto", "where parameter shards rest", "auto|device|host|nvme"},
      {"plan.gradients", Kind::choice, "auto", "where reduced gradients rest", "auto|device|host|nvme"},
      {"plan.states", Kind::choice, "auto", "where the optimiser's states rest", "auto|device|host|nvme"},
      {"plan.offload_to", Kind::choice, "auto",
       "where activations rest that leave the device; auto: on the host, and on disk (plan.nvme) what it has no room "
       "for",
       "auto|host|nvme"},
      {"plan.idle", Kind::choice, "auto",
       "where an expert that has no turn rests what the active one has on the device; auto: there while it fits",
       "auto|device|host|nvme"},
      {"plan.compute_dtype", Kind::choice, "fp32",
       "what the products and attention of blocks run in, and what their parameters are gathered as; sums, norms, the "
       "residual, time path, head and loss are fp32",
       "fp32|bf16|fp16"},
      {"plan.param_dtype", Kind::choice, "auto",
       "what parameters are rounded to when they are gathered; auto: plan.compute_dtype, with other masters than fp32 "
       "bf16",
       "auto|fp32|bf16|fp16"},
      {"plan.reduce_dtype", Kind::choice, "fp32",
       "what gradients are rounded to when ranks exchange them; they are written and added up in fp32",
       "fp32|bf16|fp16"},
      {"plan.grad_dtype", Kind::choice, "fp32",
       "what reduced gradients are rounded to where they rest until their update; bf16 halves them, and norm, clipping "
       "and updates are of the rounded values",
       "fp32|bf16"},
      {"plan.masters", Kind::choice, "fp32",
       "the optimiser's parameters: fp32; split, a bf16 part and the exact rest in 16 bits; bf16, rounded "
       "stochastically",
       "fp32|split|bf16"},
      {"plan.moments", Kind::choice, "fp32",
       "the optimiser's moments; int8: blocks of 256 with a scale, tensors of under 4096 elements keep fp32",
       "fp32|bf16|int8"},
      {"plan.update", Kind::choice, "auto",
       "when the optimiser runs: behind the last backward; unit by unit ahead of the next step's gather (same "
       "numbers); or unit by unit in the backward, with less memory for gradients, where nothing clips",
       "auto|end|just_in_time|in_backward"},
      {"plan.update_on", Kind::choice, "auto",
       "who computes updates: the device, or the host's processors where parameters, gradients and states rest there",
       "auto|device|host"},
      {"plan.update_threads", Kind::text, "auto",
       "threads of a rank's updates on the host; auto: its share of the machine's"},
      {"plan.prefetch", Kind::text, "auto", "gathers issued ahead: auto or a number"},
      {"plan.pipeline", Kind::choice, "auto",
       "how pipeline stages take turns (mesh.pp): gpipe, 1f1b, interleaved, zero_bubble; auto: what is fastest",
       "auto|gpipe|1f1b|interleaved|zero_bubble"},
      {"plan.chunks", Kind::text, "auto", "stages a rank has when interleaved: auto or a number"},

      {"checkpoint.every", Kind::integer, "500", "steps between checkpoints; 0: only after the last step"},
      {"checkpoint.keep", Kind::integer, "3", "newest checkpoints kept; 0: all"},

      {"sample.every", Kind::integer, "0", "steps between samples; 0: none"},
      {"sample.prompts", Kind::list, "", "what to sample; empty: the first captions of the data"},
      {"sample.image", Kind::list, "",
       "pictures that samples begin with, one a prompt in turn; \"clip\": the first frame of the prompt's clip; empty: "
       "that where the model needs a picture, else none"},
      {"sample.last_image", Kind::list, "", "pictures that samples of flf2v end with, likewise"},
      {"sample.audio", Kind::list, "",
       "sounds that samples of s2v follow, one a prompt in turn; \"clip\" or empty: that of the prompt's clip"},
      {"sample.pose", Kind::list, "",
       "videos of poses that samples of s2v follow, likewise; \"clip\": that of the prompt's row; empty: none"},
      {"sample.clips", Kind::text, "1",
       "tessera sample, s2v: clips that a sample is made of, each goes on where the one before ended; auto: as many as "
       "its sound lasts"},
      {"sample.negative_prompt", Kind::text, "", "what to guide away from"},
      {"sample.sampler", Kind::choice, "euler", "sampler", "euler|euler_diffusers|unipc|unipc_diffusers|dpmpp"},
      {"sample.steps", Kind::integer, "30", "steps of the sampler"},
      {"sample.guidance", Kind::number, "1.0", "guidance scale; 1: none, one pass a step"},
      {"sample.seed", Kind::integer, "0", "seed of the starting noise"},

      {"fault.timeout", Kind::number, "60", "seconds after which a silent rank counts as lost"},
      {"fault.max_restarts", Kind::integer, "0",
       "times tessera launch goes on from the last checkpoint after a rank is lost"},
      {"fault.slow_factor", Kind::number, "1.3",
       "a rank that needs this many times the median's time for a sample is named as slow; 0: none is"},
      {"fault.slow_steps", Kind::integer, "20", "steps over which that is measured"},
      {"fault.rebalance", Kind::choice, "false",
       "give slow ranks fewer samples of a step; it changes nothing in the curve", "true|false"},
  });
  return table;
}

}  // namespace tessera::recipe
