#pragma once
// A run as the user wrote it, checked and typed. The rows of settings.h say which key lands in which field.
//
//   Recipe recipe = load_recipe("recipe.toml", {{"train.lr", "1e-4"}});   // load_recipe.h
//   recipe.train.lr; recipe.to_toml();               // the resolved recipe reproduces the run
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/mesh.h"
#include "tessera/base/options.h"
#include "tessera/data/clips.h"
#include "tessera/families/frames/pixel_masks.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/plan_keys.h"
#include "tessera/recipe/lr_schedule.h"

namespace tessera::recipe {

/// One [[stage]]: keys that have other values from step `from` on, until a later stage changes them again.
struct Stage {
  int64_t from = 0;
  Values changes;
};

/// A LoRA file over the weights, and how strongly it is added.
struct LoraStrength {
  std::string file;  ///< or a folder: of two experts the one that holds theirs, by their names
  double strength = 1;
};

/// Where and when clips and captions are encoded (data.encoders).
enum class Encoders {
  cached,   ///< before step 1, into the cache; or as data.cache = "online" says
  host,     ///< beside the steps, by whole encoders in each rank's host memory
  device,   ///< likewise on its device
  sharded,  ///< text encoders have their weights sharded over the ranks; the autoencoder is whole
};

struct Recipe {
  struct Run {
    std::string out, resume, on_nan, device, sums;
    int64_t seed = 0, steps = 0;
    bool deterministic = false;  ///< kernels of a GPU give the same bits each time
    double spike = 50;           ///< a loss or gradient norm above this many times its running median is told; 0: never
    std::string on_event;        ///< command that gets each line of metrics.jsonl on its standard input; empty: none
    bool library_sums() const { return sums == "library"; }
  } run;
  struct Model {
    std::string preset, path, family, init;
    std::string config;  ///< JSON of model.config, empty when none was given
  } model;
  struct Data {
    std::vector<std::string> paths;  ///< folders or clips, all of them; none: data.metadata says where
    std::string metadata, cache, vae, text_encoder, text_encoder_path, tokenizer;
    std::string instruction;                                 ///< in front of every prompt, or a file with it
    std::string instruction_image;                           ///< the same of pictures; empty: that of clips
    int64_t height = 0, width = 0, frames = 0, repeats = 1;  ///< the shape that is sampled: the first bucket
    double fps = 0;
    int64_t images_every = 0;  ///< the n-th step each trains on images, all others on clips; 0: by their number
    bool strict = false;       ///< stop at the first faulty row
    int64_t allow_bad = 0;     ///< faulty rows that training may leave out
    data::ClipRules clips;     ///< at least one bucket
    std::string caption;       ///< of clips without one; empty: they are faulty
    data::CaptionRules captions;
    bool latents = false;                ///< files of latents in place of pictures
    bool latent_column = false;          ///< of these, those that a column of the table names
    bool texts = false;                  ///< files of embeddings in place of captions
    std::vector<std::string> null_text;  ///< of the caption of no words: its embedding, its pooled vector
    std::string image_encoder, image_encoder_path;
    std::string pooled_encoder, pooled_encoder_path, pooled_tokenizer;  ///< of a second text encoder
    std::string glyph_encoder, glyph_encoder_path;                      ///< of one that reads what stands in quotes
    std::string audio_encoder;                                          ///< a preset, a path, or auto
    data::MaskFiles masks;                                              ///< of what counts in the loss
    bool invert_mask = false;                                           ///< black trains, not white
    double mask_min_value = 0;                                          ///< weight of what does not train
    std::string control_path;     ///< folder of what clips follow, by their names; empty: tables name it
    int64_t references = 1;       ///< most pictures of a row that a sample begins with, for models that take such
    int64_t vae_tile = 0;         ///< side of the autoencoder's tiles in pixels; 0: none, -1: auto
    int64_t vae_tile_frames = 0;  ///< and their frames
    Encoders encoders = Encoders::cached;
    /// Weights of the second text encoder, whichever of the two a model takes: none takes both.
    const std::string& second_encoder_path() const {
      return glyph_encoder_path.empty() ? pooled_encoder_path : glyph_encoder_path;
    }
    /// Samples are encoded when they come; nothing is written to a cache.
    bool online() const { return cache == "online" || beside(); }
    /// Captions too: text encoders stay in memory.
    bool beside() const { return encoders != Encoders::cached; }
  } data;
  /// What the samples of a data set are for.
  enum class Role {
    train,           ///< what is learnt
    regularisation,  ///< as many samples of these sets as of the others, in place of their repeats
    prior,           ///< the target of its samples is what the model says without its adapters
  };
  /// One [[data.set]]: data.* with keys of its own in their place.
  struct DataSet {
    std::string name;      ///< in messages and metrics: its path
    std::string key = {};  ///< "data.set.0.", with which its keys begin
    Data data = {};
    double repeats = 1;      ///< times each of its samples comes in an epoch
    double weight = 0;       ///< share of the samples in relation to the other sets; 0: repeats decide
    double loss_weight = 1;  ///< of the loss of its samples
    Role role = Role::train;
    int64_t from_step = 1, to_step = 0;  ///< between which it is drawn from; 0: to the end
    bool drawn_at(int64_t step) const { return from_step <= step && (to_step == 0 || step <= to_step); }
  };
  std::vector<DataSet> sets;               ///< none: data is the only one
  std::vector<DataSet> data_sets() const;  ///< with data as one, where there are none
  /// This recipe with the keys of its `set`-th set in place of data.*, without sets.
  Recipe of_set(size_t set) const;
  int64_t drawn_at = 0;  ///< only sets that are drawn from at this step are there; 0: all
  bool masked() const;   ///< samples have masks of what counts in their loss
  struct Train {
    int64_t global_batch = 1, micro_batch = 0;  ///< micro_batch 0: auto
    double lr = 0;                              ///< with lr_scale
    double eps = 0, weight_decay = 0, clip_norm = 0;
    double betas[3] = {0.9, 0.999, 0.9999};  ///< the third is CAME's, of its residual
    double factored_eps[2] = {};             ///< of Adafactor and CAME
    bool relative_step = false;              ///< Adafactor's own rate
    double d0 = 1e-6, d_coef = 1;            ///< Prodigy's first step size, and a factor of those that it finds
    double beta3 = 0;                        ///< of Prodigy's sums; 0: the root of its second beta
    bool bias_correction = false, safeguard_warmup = false;  ///< of Prodigy
    double growth_rate = 0;                                  ///< of Prodigy's step size in one step; 0: unbounded
    bool decoupled_decay = false;                            ///< Lion: the decay is divided by the first rate
    double factored_beta1 = 0;                               ///< Adafactor's first moment; 0: none
    bool warmup_init = false;                                ///< Adafactor's own rate rises by 1e-6 a step
    double momentum = 0.95;                                  ///< Muon's
    bool nesterov = true;                                    ///< Muon's
    double ns_coefficients[3] = {3.4445, -4.775, 2.0315};    ///< of Muon's iterations
    bool scale_original = false;  ///< Muon's steps have sqrt(max(1, rows / columns)), not 0.2 sqrt(max(rows, columns))
    double muon_adam_lr = 0;      ///< Muon: the rate of what AdamW updates, with lr_scale; 0: lr
    double ema = 0;               ///< decay of the average of the weights; 0: none
    int64_t ema_after = 0;        ///< steps before it begins
    double ema_power = 0;         ///< of its warm-up; 0: (1 + s) / (10 + s)
    double ema_inv_gamma = 1, ema_min_decay = 0;  ///< of its warm-up
    double loss_scale = 65536;                    ///< the first; where something is fp16
    int64_t loss_scale_window = 2000;
    /// Half of a batch are twins: the other half again, with the class word for the trigger or no caption, whose target
    /// is what the model says without its adapters.
    enum class Preserve { none, of_class, blank } preserve = Preserve::none;
    std::string preserve_class;
    double preserve_weight = 1;  ///< of the twins' mean loss beside that of the others
    bool twins() const { return preserve != Preserve::none; }
    /// Targets are moved away from what the model predicts without a caption, s times as far: for bases that were distilled
    /// of their guidance.
    struct Guidance {
      double low = 1, high = 1;  ///< of s, which is drawn for each sample between them; 1: targets stay
      bool by_sigma = false;     ///< s is 1 at the clean end
      bool zero = false;         ///< the prediction is first scaled to what it has of the target
      double weight = 1;         ///< of the loss
      bool on() const { return low != 1 || high != 1; }
    } guidance;
  } train;
  struct Lora {
    bool on = false;  ///< train.mode = lora
    int64_t rank = 32;
    double alpha = 32, dropout = 0;
    double rank_dropout = 0, module_dropout = 0;
    bool rslora = false, dora = false;
    double plus_ratio = 1;      ///< LoRA+: B's rate is so many times the rest's
    std::string kind = "lora";  ///< or loha, lokr
    int64_t factor = -1;        ///< of lokr, as models::AdapterRule has these
    bool decompose_both = false, full_matrix = false, unbalanced = false;
    std::vector<std::pair<std::string, double>> rank_pattern = {}, alpha_pattern = {};
    DType base = DType::f32;  ///< of the blocks' frozen linears
    std::string init;
    std::vector<std::string> targets, exports;
  } lora;
  struct Diffusion {
    std::string timesteps, weighting;
    double shift = 1;
    double logit_mean = 0, logit_std = 1;         ///< of the normal numbers that timesteps are made from
    double mode_scale = 1.29;                     ///< of timesteps = mode
    int64_t strata = 0;                           ///< equal shares of the draws that are taken in turn; 0: none
    std::vector<families::Weighted> bands;        ///< LOW:HIGH, ranges of timesteps by their share of the samples
    std::vector<families::Weighted> loss;         ///< kinds of errors by their weights
    double huber_c = 0.1, huber_scale = 1;        ///< where kinds of loss go over from squares to absolute values
    std::string huber_schedule = "constant";      ///< how that follows the timestep
    double image_share = 0;                       ///< of samples, for models that may begin with a clean frame
    std::vector<families::Weighted> conditions;   ///< kinds of given frames by weight, in place of image_share
    std::vector<families::Weighted> mask_ratios;  ///< kinds of masks of frames by ratio, likewise
    /// Kinds of frames that are given as in Open-Sora 1.3, and of what is left out of such samples, by weight.
    std::vector<families::Weighted> mask_types, drop_condition;
    families::ConditionDraws draws;                        ///< of masks and pictures that clips are given
    std::vector<families::Weighted> condition_dropout;     ///< shares of samples without some of their conditions
    double caption_dropout = 0;                            ///< share of samples that train with the empty caption
    double unmasked_probability = 0, unmasked_weight = 0;  ///< with masks: of samples that train whole; least weight
    bool normalize_masked_area = false;                    ///< and whether a loss is a mean over its mask's area
    std::vector<int64_t> chunks;          ///< latent frames at which chunks with timesteps of their own begin, 0 first
    std::string chunk_draws = "uniform";  ///< or incremental
    double chunk_same_share = 0;          ///< of the clips, whose chunks have one timestep
    double first_frame_noise = 0;         ///< most noise of a first frame that is given, as a share of the timesteps
    double pooled_dropout = 0;            ///< share of samples whose pooled caption is that of the empty one
    double min_t = 0, max_t = 1;          ///< sigmas after the shift, between which timesteps are drawn
  } diffusion;
  /// A frozen teacher trains the denoiser, its student.
  struct Distill {
    std::string method = "none";  ///< or scm, scm_ladd, dmd, ode
    std::string teacher;          ///< its weights
    std::string teacher_preset;   ///< its sizes; empty: those of its config.json, or the student's
    bool logvar = true;           ///< the student learns how much a sample weighs
    double sigma_data = 0.5;
    double logit_mean = 0.2, logit_std = 1.6;  ///< of the normal numbers that angles are made from
    std::vector<double> guidance = {4, 4.5,
                                    5};  ///< of the teacher, one of them for each sample; from 1 down: it has none
    int64_t tangent_warmup = 4000;       ///< steps
    std::string critic;                  ///< first weights; empty: the teacher's, or the student's of other sizes
    std::string critic_mode = "auto";    ///< full or lora; auto: as train.mode
    int64_t critic_steps = 5;            ///< of the critic after each of the student's
    double critic_lr = 0;                ///< 0: train.lr
    int64_t steps = 4;                   ///< in which the student makes a clip
    int64_t teacher_steps = 48;          ///< in which the teacher makes the clips that method ode learns
    int64_t chunk = 0;                   ///< latent frames of its chunks, which see no later ones; 0: clips are whole
    bool same_exit = true;               ///< all chunks of a step end behind one of its steps
    int64_t chunk_reach = 0;             ///< as sample.chunk_reach, while the student makes clips
    double cache_noise = 0;              ///< likewise
    /// Heads on the teacher's blocks that tell the student's pictures from those of the data: method scm_ladd.
    struct Judge {
      std::set<int64_t> blocks = {2, 8, 14, 19};
      double consistency = 1, weight = 0.5;  ///< of the losses in the student's
      bool hinge = true;                     ///< else cross entropy
      double r1_weight = 0;
      bool misaligned = true;                              ///< pictures under another's caption count as the student's
      bool own_angles = true;                              ///< of pictures of the data; else those of the student's
      double largest_angle = 1.5708, largest_share = 0.5;  ///< of the student's predictions that are judged
      double logit_mean = -0.6, logit_std = 1;             ///< of the angles at which they are
    } judge;
    bool judges() const { return method == "scm_ladd"; }
    bool on() const { return method != "none"; }
    bool consistent() const { return method == "scm" || judges(); }  ///< learns consistency, on angles
    bool matches() const { return method == "dmd"; }                 ///< matches distributions
    bool regresses() const { return method == "ode"; }               ///< learns the ends of the teacher's paths
    bool rolls_out() const { return matches() && chunk > 0; }        ///< makes clips a chunk at a time
    bool of_noise() const { return matches() || regresses(); }       ///< of the data it has captions and sizes alone
    bool guided() const { return !guidance.empty() && guidance.front() > 1; }
  } distill;
  struct ExpertKeys {
    std::string train;             ///< auto, both, high_noise or low_noise
    std::string boundary;          ///< auto, a sigma, diffsynth(INDEX FRACTION)
    int64_t turn = 1;              ///< optimiser steps
    std::vector<double> shares;    ///< of the steps, high noise first; empty: by the mass of the windows
    std::string router = "turns";  ///< or gate
    int64_t count = 2;             ///< experts of a gate
    double temperature = 1;        ///< at the start
    bool hard = true;
    double balance = 0;               ///< weight of the balance loss
    std::string deal = "auto";        ///< or off
    std::vector<double> frequencies;  ///< with which samples choose the experts; empty: alike, or
    std::string frequencies_of;       ///< as in the run of this folder
    /// Whether samples go to the ranks by their experts.
    bool deals() const { return router == "gate" && hard && deal == "auto"; }
    std::string share = "auto";  ///< or off
    /// Whether passes of two experts may run side by side.
    bool shares_passes() const { return deals() && share == "auto"; }
    std::string by_use = "off";  ///< or auto
    /// Whether an expert's passes run by a plan that suits how often it is chosen.
    bool plans_by_use() const { return router == "gate" && hard && by_use == "auto"; }
  } experts;
  Mesh mesh;
  struct Planning : plan::PlanKeys {
    std::string file, profile;
    int64_t budget = 0;        ///< 0: the default
    int64_t host_budget = -1;  ///< bytes of the node; -1: by the profile
    std::string nvme;          ///< folder for offload to disk; empty: none
    bool nvme_checksum = false;
    plan::DiskPlace disk() const { return {nvme, nvme_checksum}; }
  } plan;
  struct Checkpoint {
    int64_t every = 0, keep = 0, keep_exports = 0;
    int64_t keep_steps = 0;    ///< those of the last so many steps stay too; 0: none
    int64_t keep_best = 0;     ///< and so many with the least held-out loss
    double every_minutes = 0;  ///< between checkpoints; 0: steps alone decide
    std::string exported;      ///< lora, model or none
  } checkpoint;
  /// The loss of clips that are not trained on.
  struct Eval {
    std::vector<std::string> paths;  ///< as data.path
    double share = 0;                ///< of the data set's rows, which are held out; 0: none
    int64_t every = 0, seed = 0;
    static constexpr int kQuantiles = 9;
    std::vector<double> sigmas;  ///< at which it is measured, beside so many quantiles of the training's
    std::string weights;         ///< auto, trained or ema
    bool held_out = false;       ///< these data are read in place of those that are trained on
    int64_t items = 0;           ///< how many there are, once they were read
    bool on() const { return every > 0 && (!paths.empty() || share > 0); }
  } eval;
  struct Sample {
    int64_t every = 0, steps = 0, seed = 0;
    double guidance = 1, image_guidance = 1;
    bool alternate_guidance = false;       ///< from the eleventh step on every other one is without
    bool image_guidance_by_frame = false;  ///< it grows along the clip and goes to 1 over the steps
    std::string sampler, negative_prompt, weights;
    std::vector<LoraStrength> loras = {};  ///< added to the weights while samples are made
    std::vector<std::string> prompts;
    double motion_score = 0;                                 ///< with which prompts end; 0: none
    std::vector<std::string> images = {}, last_images = {};  ///< files, or "clip"
    std::vector<std::string> videos = {};                    ///< likewise, that a video goes on from or leads to
    std::string condition;                                   ///< a kind of given frames, or auto
    std::vector<std::string> sounds = {}, poses = {};        ///< likewise
    /// Likewise, for models that follow clips, or are shown pictures of what a clip has; cameras by name, too.
    std::vector<std::string> guides = {}, guide_masks = {}, controls = {}, references = {}, cameras = {}, faces = {};
    int64_t clips = 1;        ///< of a sample that goes on; 0: as its sound, or what it follows, lasts
    int64_t chunk = 0;        ///< latent frames that are denoised at a time, behind those before them; 0: all
    int64_t chunk_reach = 0;  ///< chunks before its own that a chunk reads; 0: all
    double cache_noise = 0;   ///< sigma of a finished chunk where later ones read it
    int64_t overlap = 1;      ///< frames of a clip that the next one begins with, of models that go on so
  } sample;
  struct Fault {
    double timeout = 60;
    int64_t max_restarts = 0;
    double slow_factor = 1.3;  ///< 0: slow ranks are not looked for
    int64_t slow_steps = 20;
    bool rebalance = false;
  } fault;
  recipe::LrSchedule lr_schedule;

  Values values;                          ///< every option as text
  std::vector<std::string> assumed = {};  ///< keys of weights that are not here: plans take their release's sizes

  std::vector<Stage> stages;  ///< in the order of their steps
  /// Whether each save writes a model or adapters for other programs.
  bool exports_saves() const { return checkpoint.exported == "model" || (checkpoint.exported == "lora" && lora.on); }

  /// Clips of a step are so many of train.global_batch: half of them where the others are their twins.
  int64_t clips_of(int64_t batch) const { return pairs() ? batch / 2 : batch; }
  /// Whether a batch has each clip twice.
  bool pairs() const { return train.twins() || distill.judges(); }
  /// Whether some samples have the prediction without adapters as their target.
  bool asks_base() const {
    const auto is_prior = [](const DataSet& set) { return set.role == Role::prior; };
    return train.twins() || std::ranges::any_of(sets, is_prior);
  }
  /// Whether passes without a gradient make targets before a step.
  bool asks() const { return asks_base() || train.guidance.on() || distill.on(); }
  /// Whether the caption of no words is needed beside those of the clips, whatever is kept of one that is dropped.
  bool asks_blank() const {
    return train.preserve == Train::Preserve::blank || train.guidance.on() || (distill.on() && distill.guided());
  }

  /// What holds in the `count`-th stage: this recipe with the changes of its first `count` stages, without stages.
  Recipe at_stage(size_t count) const;

  /// Reads `values` into the fields above. Throws UserError (usage) naming the key.
  void fill();
  std::string to_toml() const;
  /// Changes one option after loading (an automatic choice filled in).
  void set(const std::string& name, const std::string& value);
};

}  // namespace tessera::recipe
