#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/families/frames/given_frames.h"
#include "tessera/families/registry.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {

namespace {

template <auto member>
constexpr Read checkpoint = into<&Recipe::checkpoint, member>;
template <auto member>
constexpr Read sample = into<&Recipe::sample, member>;
template <auto member>
constexpr Read fault = into<&Recipe::fault, member>;

void read_clips(Recipe& recipe, const Given& given) {
  recipe.sample.clips = automatic(given).value_or(0);
  if (recipe.sample.clips < 1 && given.text != "auto")
    throw UserError(Exit::usage, "recipe", given.key + " = " + given.text + ": expected at least 1",
                    "or auto, as many as the audio or the video of poses lasts");
}

/// "auto|t2v|i2v_head|..."
std::string condition_choices() {
  std::string choices = "auto";
  for (const std::string& kind : families::given_kinds()) choices += "|" + kind;
  return choices;
}

bool is_guided(const Facts& f) { return f.recipe.sample.guidance != 1; }
bool guided_or_without_images(const Facts& f) { return is_guided(f) || f.recipe.sample.image_guidance == 1; }
bool is_guided_by_images(const Facts& f) { return is_guided(f) && f.recipe.sample.image_guidance != 1; }
bool looks_for_slow_ranks(const Facts& f) { return f.recipe.fault.slow_factor > 0; }
bool no_gate(const Facts& f) { return !f.gated(); }

bool exports_saves(const Facts& f) { return f.recipe.exports_saves(); }
const Needs kPruned = {[](const Facts& f) {
                         return f.recipe.checkpoint.keep > 0 ||
                                (exports_saves(f) && f.recipe.checkpoint.keep_exports > 0);
                       },
                       "checkpoint.keep and checkpoint.keep_exports keep all"};
const Needs kHeldOut = {[](const Facts& f) { return !f.recipe.eval.paths.empty() || f.recipe.eval.share > 0; },
                        "there are no held-out clips: set eval.path or eval.share"};
const Needs kEvaluated = {[](const Facts& f) { return f.recipe.eval.on(); },
                          "no held-out loss is measured: set eval.every, and eval.path or eval.share"};
template <auto member>
constexpr Read eval = into<&Recipe::eval, member>;

void read_eval_paths(Recipe& recipe, const Given& given) {
  std::error_code unseen;
  recipe.eval.paths = std::filesystem::exists(given.text, unseen) ? std::vector{given.text} : split_list(given.text);
}
void read_sigmas(Recipe& recipe, const Given& given) {
  recipe.eval.sigmas.clear();
  for (const std::string& item : split_list(given.text)) {
    recipe.eval.sigmas.push_back(checked_number(given, item, "sigmas above 0, for example 1,0.75,0.5"));
    if (recipe.eval.sigmas.back() <= 0) given.fail("sigmas above 0, for example 1,0.75,0.5");
  }
}

}  // namespace

std::vector<Setting> checkpoint_settings() {
  return {
      {"checkpoint.every",
       Kind::integer,
       "500",
       "steps between checkpoints; 0: only after the last step",
       checkpoint<&Recipe::Checkpoint::every>,
       {.range = at_least(0), .in_stages = true}},
      {"checkpoint.keep",
       Kind::integer,
       "3",
       "newest checkpoints kept; 0: all",
       checkpoint<&Recipe::Checkpoint::keep>,
       {.range = at_least(0), .in_stages = true}},
      {"checkpoint.export",
       Kind::choice,
       "lora",
       "what each save exports to RUN/exports; lora: the files of a LoRA run, named by lora.export; model: these, or the model of a full run; none: nothing",
       checkpoint<&Recipe::Checkpoint::exported>,
       {.choices = "lora|model|none"}},
      {"checkpoint.keep_exports",
       Kind::integer,
       "0",
       "newest exports of saves kept, beside that of the newest proved checkpoint; 0: all",
       checkpoint<&Recipe::Checkpoint::keep_exports>,
       {.range = at_least(0),
        .needs = {{exports_saves, "saves are not exported: checkpoint.export is none, or lora in a full run"}},
        .in_stages = true}},
      {"checkpoint.keep_steps",
       Kind::integer,
       "0",
       "checkpoints and exports of the last so many steps before the newest stay, beside those that checkpoint.keep and checkpoint.keep_exports count; 0: none",
       checkpoint<&Recipe::Checkpoint::keep_steps>,
       {.range = at_least(0), .needs = {kPruned}, .in_stages = true}},
      {"checkpoint.keep_best",
       Kind::integer,
       "0",
       "saves with the least held-out loss that stay beside the newest; 0: none",
       checkpoint<&Recipe::Checkpoint::keep_best>,
       {.range = at_least(0), .needs = {kPruned, kEvaluated}, .in_stages = true}},
      {"checkpoint.every_minutes",
       Kind::number,
       "0",
       "a checkpoint is saved behind the step in which so many minutes since the last one are over, beside checkpoint.every; 0: steps alone decide",
       checkpoint<&Recipe::Checkpoint::every_minutes>,
       {.range = at_least(0), .in_stages = true}},
  };
}

std::vector<Setting> eval_settings() {
  return {
      {"eval.path", Kind::paths, "",
       "clips whose loss is measured and that are not trained on, as data.path; empty: eval.share", read_eval_paths},
      {"eval.share",
       Kind::number,
       "0",
       "share of the data set's clips that are held out for it; 0: none",
       eval<&Recipe::Eval::share>,
       {.range = {.least = 0, .most = 1, .below = true},
        .needs = {{[](const Facts& f) { return f.recipe.eval.paths.empty(); }, "eval.path names the clips"}}}},
      {"eval.every",
       Kind::integer,
       "0",
       "steps between measurements; one more is made before the first step and one after the last; 0: never",
       eval<&Recipe::Eval::every>,
       {.range = at_least(0), .needs = {kHeldOut}}},
      {"eval.sigmas",
       Kind::list,
       "",
       "timesteps, 0 to 1, at which it is measured besides the quantiles 0.1 to 0.9 of the training's",
       read_sigmas,
       {.range = {.least = 0, .most = 1}, .needs = {kEvaluated}}},
      {"eval.seed",
       Kind::integer,
       "0",
       "seed of the noise of held-out clips",
       eval<&Recipe::Eval::seed>,
       {.needs = {kHeldOut}}},
      {"eval.weights",
       Kind::choice,
       "auto",
       "weights whose held-out loss is measured; ema: their moving average; auto: ema where train.ema keeps one",
       eval<&Recipe::Eval::weights>,
       {.choices = "auto|trained|ema", .needs = {kEvaluated}}},
  };
}

std::vector<Setting> sample_settings() {
  return {
      {"sample.every",
       Kind::integer,
       "0",
       "steps between samples; 0: none",
       sample<&Recipe::Sample::every>,
       {.range = at_least(0), .in_stages = true}},
      {"sample.prompts",
       Kind::list,
       "",
       "prompts of samples; empty: the first captions of the data set",
       sample<&Recipe::Sample::prompts>,
       {.in_stages = true, .prepared = true}},
      {"sample.image",
       Kind::list,
       "",
       "first frames of samples, one file per prompt, repeated if there are fewer; \"clip\": the first frame of the prompt's clip; empty: as \"clip\" if the model needs a first frame, else none",
       sample<&Recipe::Sample::images>,
       {.in_stages = true, .prepared = true}},
      {"sample.last_image",
       Kind::list,
       "",
       "last frames of samples, given as in sample.image, for models that take one",
       sample<&Recipe::Sample::last_images>,
       {.in_stages = true, .prepared = true}},
      {"sample.video",
       Kind::list,
       "",
       "videos that samples continue or lead to, given as in sample.image, for models that take given frames: the first or last 33 or 65 frames are used, by sample.condition",
       sample<&Recipe::Sample::videos>,
       {.in_stages = true, .prepared = true}},
      {"sample.condition",
       Kind::choice,
       "auto",
       "which frames samples are given; auto: the first, last or both of sample.image and sample.last_image, v2v_head with sample.video, else none",
       sample<&Recipe::Sample::condition>,
       {.choices = condition_choices(), .in_stages = true, .prepared = true}},
      {"sample.audio",
       Kind::list,
       "",
       "audio files for speech-to-video models, one per prompt, repeated if there are fewer; \"clip\" or empty: the audio of the prompt's clip",
       sample<&Recipe::Sample::sounds>,
       {.in_stages = true, .prepared = true}},
      {"sample.pose",
       Kind::list,
       "",
       "pose videos for models that follow poses, given as in sample.audio; \"clip\": the pose video of the prompt's row; empty: none, or that of the row for a model that needs one",
       sample<&Recipe::Sample::poses>,
       {.in_stages = true, .prepared = true}},
      {"sample.face",
       Kind::list,
       "",
       "videos of the face that samples follow, for models that take one, given as in sample.pose; empty: that of the prompt's row",
       sample<&Recipe::Sample::faces>,
       {.in_stages = true, .prepared = true}},
      {"sample.guide",
       Kind::list,
       "",
       "videos that samples are made from, or whose background they have, for models that follow one, given as in sample.pose",
       sample<&Recipe::Sample::guides>,
       {.in_stages = true, .prepared = true}},
      {"sample.guide_mask",
       Kind::list,
       "",
       "videos of what is to be changed of sample.guide, white, given as in sample.pose; empty: all of it",
       sample<&Recipe::Sample::guide_masks>,
       {.in_stages = true, .prepared = true}},
      {"sample.control",
       Kind::list,
       "",
       "control videos for models that follow one, one per prompt, repeated if there are fewer; \"clip\": the control video of the prompt's row; empty: none",
       sample<&Recipe::Sample::controls>,
       {.in_stages = true, .prepared = true}},
      {"sample.reference",
       Kind::list,
       "",
       "pictures of what samples show, for models that take such, one per prompt, repeated if there are fewer; \"clip\": the first data.references of the prompt's row; empty: none",
       sample<&Recipe::Sample::references>,
       {.in_stages = true, .prepared = true}},
      {"sample.camera",
       Kind::list,
       "",
       "how the camera moves in samples, given as in sample.control, for models that take it: a file of camera parameters, or a movement: Left, Right, Up, Down, LeftUp, LeftDown, RightUp, RightDown, In, Out, with a speed after a colon",
       sample<&Recipe::Sample::cameras>,
       {.in_stages = true, .prepared = true}},
      {"sample.clips",
       Kind::text,
       "1",
       "clips of a sample, each continues the one before, for models that are spoken to or follow a face (the former by tessera sample alone); auto: as many as the audio or the video of poses lasts, of samples during training one",
       read_clips,
       {.in_stages = true, .prepared = true}},
      {"sample.chunk",
       Kind::integer,
       "0",
       "latent frames of a clip that tessera sample denoises at a time, behind those before them, with models of videos whose attention is linear; the model's memory does not grow with the clip; the first chunk takes what is left over; 0: the whole clip at once, as samples during training",
       sample<&Recipe::Sample::chunk>,
       {.range = at_least(0)}},
      {"sample.chunk_reach",
       Kind::integer,
       "0",
       "chunks before its own that a chunk's attention reads; 0: all",
       sample<&Recipe::Sample::chunk_reach>,
       {.range = at_least(0),
        .needs = {{[](const Facts& f) { return f.recipe.sample.chunk > 0; }, "sample.chunk = 0 makes clips whole"}}}},
      {"sample.cache_noise",
       Kind::number,
       "0",
       "sigma of the noise that a finished chunk has in the pass whose states later chunks read; training on chunks may have the least sigma of its table there, s / (999 + s) with a shift of s",
       sample<&Recipe::Sample::cache_noise>,
       {.range = {.least = 0, .most = 1},
        .needs = {{[](const Facts& f) { return f.recipe.sample.chunk > 0; }, "sample.chunk = 0 makes clips whole"}}}},
      {"sample.overlap",
       Kind::integer,
       "1",
       "frames of a clip of a sample that the next one begins with, for models that follow a face: 1 or 5",
       sample<&Recipe::Sample::overlap>,
       {.range = at_least(1),
        .needs = {{[](const Facts& f) { return f.recipe.sample.clips != 1; }, "sample.clips = 1 makes one clip"}},
        .in_stages = true}},
      {"sample.motion_score",
       Kind::number,
       "0",
       "motion score appended to every prompt, for models trained with one: 30 appends \" motion score: 30.\"; 0: none",
       sample<&Recipe::Sample::motion_score>,
       {.range = {.least = 0, .most = 1e6}, .in_stages = true, .prepared = true}},
      {"sample.negative_prompt",
       Kind::text,
       "",
       "negative prompt of guidance",
       sample<&Recipe::Sample::negative_prompt>,
       {.needs = {{is_guided, "sample.guidance = 1 takes one pass, without it"}}, .in_stages = true, .prepared = true}},
      {"sample.sampler",
       Kind::choice,
       "euler",
       "sampling algorithm; lcm: for students of few steps (distill.method = \"dmd\"); euler_by_size and euler_by_area: euler with the shift of the video's resolution and frames, as in " +
           families::listed(families::names_in(&families::Family::shift_by_size), "and"),
       sample<&Recipe::Sample::sampler>,
       {.choices = "euler|euler_diffusers|euler_dynamic|unipc|unipc_diffusers|dpmpp|dpmpp_diffusers|dpmpp1_diffusers|"
                   "dpmpp3_diffusers|dpmpp_heun_diffusers|scm|euler_by_size|euler_by_area|lcm",
        .in_stages = true}},
      {"sample.steps",
       Kind::integer,
       "30",
       "steps of the sampler",
       sample<&Recipe::Sample::steps>,
       {.range = at_least(1), .in_stages = true}},
      {"sample.guidance",
       Kind::number,
       "1.0",
       "classifier-free guidance scale; 1: off",
       sample<&Recipe::Sample::guidance>,
       {.range = at_least(0), .in_stages = true}},
      {"sample.image_guidance",
       Kind::number,
       "1.0",
       "guidance scale for given frames, in addition to that for the text, for models that read them beside the noisy ones; 1: off",
       sample<&Recipe::Sample::image_guidance>,
       {.range = at_least(0),
        .needs = {{guided_or_without_images, "it goes with sample.guidance other than 1"}},
        .in_stages = true}},
      {"sample.alternate_guidance",
       Kind::choice,
       "false",
       "after the tenth sampling step every second step runs without guidance",
       sample<&Recipe::Sample::alternate_guidance>,
       {.choices = "true|false",
        .needs = {{is_guided, "sample.guidance = 1 has none to leave out"}},
        .in_stages = true}},
      {"sample.image_guidance_by_frame",
       Kind::choice,
       "false",
       "guidance for given frames rises over the frames from 1 to sample.image_guidance, and that end falls to 1 over the sampling steps",
       sample<&Recipe::Sample::image_guidance_by_frame>,
       {.choices = "true|false",
        .needs = {{is_guided_by_images, "sample.image_guidance = 1 is off"}},
        .in_stages = true}},
      {"sample.weights",
       Kind::choice,
       "auto",
       "weights that generate samples; ema: their moving average; auto: ema where train.ema keeps one",
       sample<&Recipe::Sample::weights>,
       {.choices = "auto|trained|ema", .in_stages = true}},
      {"sample.lora", Kind::list, "",
       "LoRA files, FILE:STRENGTH, that are added to the weights while samples are made and that training never sees: a LoRA for few steps, with sample.steps = 4 and sample.guidance = 1; of two experts one file each, or files for both; empty: none",
       sample<&Recipe::Sample::loras>},
      {"sample.seed",
       Kind::integer,
       "0",
       "seed of the starting noise",
       sample<&Recipe::Sample::seed>,
       {.in_stages = true}},
  };
}

std::vector<Setting> fault_settings() {
  return {
      {"fault.timeout",
       Kind::number,
       "60",
       "seconds without progress after which a rank counts as lost",
       fault<&Recipe::Fault::timeout>,
       {.range = {.least = 0, .most = 1e8, .open = true}}},
      {"fault.max_restarts",
       Kind::integer,
       "0",
       "times tessera launch restarts from the last checkpoint after a rank is lost",
       fault<&Recipe::Fault::max_restarts>,
       {.range = at_least(0)}},
      {"fault.slow_factor",
       Kind::number,
       "1.3",
       "report a rank that is this many times slower than the median; 0: off",
       fault<&Recipe::Fault::slow_factor>,
       {.range = at_least(0)}},
      {"fault.slow_steps",
       Kind::integer,
       "20",
       "steps over which slow ranks are measured",
       fault<&Recipe::Fault::slow_steps>,
       {.range = at_least(1)}},
      {"fault.rebalance",
       Kind::choice,
       "false",
       "give slow ranks fewer samples; does not change the loss curve",
       fault<&Recipe::Fault::rebalance>,
       {.choices = "true|false",
        .needs = {{looks_for_slow_ranks, "fault.slow_factor = 0 looks for no slow rank"},
                  {no_gate,
                   "with experts.router = \"gate\" each rank keeps the samples that it asks the gate about"}}}},
  };
}

}  // namespace tessera::recipe
