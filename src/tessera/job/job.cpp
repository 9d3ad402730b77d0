#include "tessera/job/job.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/target.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/device/backend.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/families/registry.h"
#include "tessera/job/codec.h"
#include "tessera/job/device.h"
#include "tessera/job/encoders.h"
#include "tessera/job/given_checks.h"
#include "tessera/job/lora_run.h"
#include "tessera/job/null_caption.h"
#include "tessera/models/common/trained_parts.h"
#include "tessera/models/named_weights.h"
#include "tessera/models/registry.h"
#include "tessera/plan/optimizers.h"
#include "tessera/recipe/parameter_keys.h"
#include "tessera/recipe/stages.h"

namespace tessera::job {

Shapes shapes_of(const recipe::Recipe& recipe, const net::Denoiser& model, const net::VideoCodec& codec) {
  Shapes shapes;
  shapes.latent = codec.latent_shape(recipe.data.frames, recipe.data.height, recipe.data.width);
  if (shapes.latent[0] != model.in_channels())
    throw UserError(Exit::usage, "model",
                    "the model takes latents of " + std::to_string(model.in_channels()) + " channels, autoencoder '" +
                        recipe.data.vae + "' makes " + std::to_string(shapes.latent[0]),
                    "does data.vae belong to this model? Else set model.config.in_dim and out_dim to that number");
  for (const data::Bucket& bucket : recipe.data.clips.buckets) {
    const auto latent = codec.latent_shape(bucket.frames, bucket.height, bucket.width);
    const int64_t batch = bucket.batch > 0 ? bucket.batch : recipe.train.global_batch;
    shapes.bucket_tokens.push_back(model.token_count(latent));
    if (shapes.bucket_tokens.back() * batch <= shapes.tokens * shapes.batch) continue;
    shapes.tokens = shapes.bucket_tokens.back();
    shapes.largest = latent;
    shapes.batch = batch;
  }
  const bool guided = recipe.sample.guidance != 1, by_images = recipe.sample.image_guidance != 1;
  const net::Conditions takes = model.conditions();
  const bool apart = by_images && (takes.clean_beside || takes.given_frames);
  shapes.guidance_branches = !guided ? 1 : apart ? 3 : 2;
  return shapes;
}

namespace {

/// Refuses a shape whose latent the model's patches do not divide, before anything is encoded. The model says it of a latent
/// that is small and leaves the same remainders: patches and windows are powers of two below 64.
void check_patches(const data::Bucket& bucket, const net::Denoiser& model, const net::VideoCodec& codec) {
  const auto latent = codec.latent_shape(bucket.frames, bucket.height, bucket.width);
  auto small = latent;
  if (small[1] > 8) small[1] = 4 + small[1] % 4;
  for (size_t side : {2, 3})
    if (small[side] > 128) small[side] = 64 + small[side] % 64;
  try {
    model.pack({model.blank(small)});
  } catch (const UserError& error) {
    const auto number = [](int64_t n) { return std::to_string(n); };
    throw UserError(Exit::usage, "data.size",
                    number(bucket.frames) + " frames of " + number(bucket.height) + " x " + number(bucket.width) +
                        ": the model's patches do not divide the latent, " + number(latent[1]) + " x " +
                        number(latent[2]) + " x " + number(latent[3]),
                    error.hint());
  }
}

void check_patches(const recipe::Recipe& recipe, const net::Denoiser& model, const net::VideoCodec& codec) {
  for (const recipe::RunPart& part : recipe::run_parts(recipe))
    recipe::in_part(part, [&] {
      for (const data::Bucket& bucket : part.recipe.data.clips.buckets) check_patches(bucket, model, codec);
    });
}

/// The most that encoding or decoding takes over all parts of the run.
int64_t most_bytes(const recipe::Recipe& recipe, const net::VideoCodec& codec) {
  int64_t most = 0;
  for (const recipe::RunPart& part : recipe::run_parts(recipe))
    recipe::in_part(part, [&] {
      for (const data::Bucket& b : part.recipe.data.clips.buckets) {
        const CodecBytes bytes = codec_bytes(codec, b.frames, b.height, b.width);
        most = std::max({most, bytes.encode, bytes.decode});
      }
    });
  return most;
}

/// Tiles change latents, and so which entries of a cache are used: they follow from the recipe alone, never from the
/// machine or the number of ranks.
void open_tiled(const recipe::Recipe& recipe, Job& job) {
  const auto choices = [](int64_t given, std::vector<int64_t> all) {
    return given < 0 ? std::move(all) : std::vector<int64_t>{given};
  };
  const std::vector<int64_t> tiles = choices(recipe.data.vae_tile, {0, 512, 384, 256, 192, 128});
  const std::vector<int64_t> lengths = choices(recipe.data.vae_tile_frames, {0, 64, 16});
  for (const int64_t tile : tiles) {
    for (const int64_t frames : lengths) {
      if (frames != lengths.front() && !tiles_in_time(*job.codec)) break;
      job.vae_tile = tile;
      job.vae_tile_frames = frames;
      job.codec = open_codec(recipe.data.vae, job.model->in_channels(), tile, frames);
      if (recipe.plan.budget <= 0 || models::is_built_in_codec(recipe.data.vae)) return;
      if (tiles.size() * lengths.size() == 1 || most_bytes(recipe, *job.codec) <= recipe.plan.budget / 4) return;
    }
  }
}

}  // namespace

namespace {

/// Shapes in the headers of the weights, for sizes that a config.json lacks. Empty for a folder with a config.json
/// alone, which is enough to plan. Damaged files are reported later, by check_sources or the loader.
std::map<std::string, std::vector<int64_t>> shapes_at(const std::string& path) {
  if (path.empty()) return {};
  try {
    return checkpoint::stored_shapes(checkpoint::open_weights(path));
  } catch (const UserError&) {
    return {};
  }
}

/// What the model is conditioned on, for the user to see what was detected.
std::string purpose(const net::Denoiser& model) {
  const net::Conditions c = model.conditions();
  std::string text = c.last_image ? "a first and a last image" : c.first_image ? "a first image" : "";
  if (c.takes_images()) text += c.clip_dim > 0 ? " (latent and CLIP features) and text" : " (latent) and text";
  if (c.clean_first) text = "text, or a first image and text";
  if (c.audio_dim > 0) text = "audio, an image and text";
  return text.empty() ? "text" : text;
}

/// The experts that train, for the log: the user sees what was detected.
std::string experts_text(const Experts& experts) {
  if (experts.list.front().name.empty()) return "";
  if (experts.critic())
    return "; trains a student, and a critic in " + std::to_string(experts.critic_steps) + " steps after each of its";
  if (experts.gated) return "; " + std::to_string(experts.size()) + " experts, a gate chooses one for each sample";
  char boundary[32];
  std::snprintf(boundary, sizeof boundary, "%g", experts.boundary);
  return (experts.several() ? "; trains two experts, one a step" : "; trains its " + experts.list[0].name + " expert") +
         std::string(", high noise from timestep ") + boundary;
}

std::unique_ptr<net::Denoiser> denoiser_at(const recipe::Recipe& recipe, const std::string& path) {
  return models::make_denoiser(
      {recipe.model.family, recipe.model.preset, "", path, recipe.model.config, shapes_at(path)});
}

/// Warns of encoders that a recipe names and the model has no input for.
void warn_of_unread(const Values& values, const net::Conditions& reads) {
  const bool second = reads.pooled_dim > 0 || reads.glyph_dim > 0;
  for (const auto& [key, read, what] :
       {std::tuple("data.image_encoder", reads.clip_dim > 0, "rows of an image encoder"),
        {"data.image_encoder_path", reads.clip_dim > 0, "rows of an image encoder"},
        {"data.pooled_encoder", reads.pooled_dim > 0, "pooled captions"},
        {"data.pooled_encoder_path", reads.pooled_dim > 0, "pooled captions"},
        {"data.pooled_tokenizer", second, "captions of a second encoder"},
        {"data.glyph_encoder", reads.glyph_dim > 0, "quoted text"},
        {"data.audio_encoder", reads.audio_dim > 0, "speech"},
        {"sample.chunk", reads.chunks_in_time, "chunks of a clip"}})
    if (const std::string& value = values.at(key); !read && !value.empty() && value != "auto" && value != "0")
      log::warn(std::string(key) + " = " + value + " has no effect: the model reads no " + what);
}

/// The config.json of a folder of weights, or beside their file; empty: there is none.
std::string config_beside(const std::filesystem::path& path) {
  for (const std::filesystem::path& folder : {path, path.parent_path()})
    if (std::filesystem::is_regular_file(folder / "config.json")) return (folder / "config.json").string();
  return {};
}

/// The teacher's form where its config.json, or distill.teacher_preset, has other sizes than the student; null: it is the
/// student's.
std::unique_ptr<net::Denoiser> teacher_of_other_sizes(const recipe::Recipe& recipe, const net::Denoiser& student) {
  const recipe::Recipe::Distill& distill = recipe.distill;
  if (!distill.matches()) return nullptr;
  const std::string file = distill.teacher_preset.empty() ? config_beside(distill.teacher) : "";
  if (file.empty() && distill.teacher_preset.empty()) return nullptr;
  std::unique_ptr<net::Denoiser> teacher = models::make_denoiser({.preset = distill.teacher_preset, .config = file});
  if (teacher->config_json() == student.config_json()) return nullptr;
  const std::string where = file.empty() ? "distill.teacher_preset = " + distill.teacher_preset : file;
  const auto refuse = [&](const std::string& what, const std::string& found, const std::string& expected) {
    throw UserError(Exit::usage, "distill.teacher",
                    where + " has " + what + " = " + found + ", the student has " + expected,
                    "sizes of a teacher may differ from its student's, its family and what it takes may not: give the "
                    "teacher of such models, or another model.path");
  };
  const auto kind = [](const net::Denoiser& model) {
    return checkpoint::Json::parse(model.config_json()).value("_class_name", std::string("another"));
  };
  if (models::form_of(*teacher) != models::form_of(student)) refuse("_class_name", kind(*teacher), kind(student));
  const auto number = [&](const char* what, int64_t found, int64_t expected) {
    if (found != expected) refuse(what, std::to_string(found), std::to_string(expected));
  };
  number("latent channels", teacher->in_channels(), student.in_channels());
  number("the width of texts", teacher->context_dim(), student.context_dim());
  number("the length of texts", teacher->context_length(), student.context_length());
  return teacher;
}

/// Experts share plan, slots and schedule.
void check_same_form(const recipe::Recipe& recipe, const net::Denoiser& model, const Expert& expert) {
  if (expert.name == "critic" && !std::filesystem::exists(expert.path)) return;  // a plan before weights are there
  if (expert.name.empty() || denoiser_at(recipe, expert.path)->config_json() == model.config_json()) return;
  if (expert.name == "critic")
    throw UserError(Exit::input, "distill.critic", expert.path + " has another config.json than the student",
                    "student, critic and teacher are of one size and type");
  throw UserError(
      Exit::input, "model.path", expert.path + " has another config.json than the other expert",
      "experts of one run are of one size and type; train each alone: experts.train = \"" + expert.name + "\"");
}

}  // namespace

namespace {

void check_texts(const recipe::Recipe& recipe, const Job& job) {
  const size_t files = recipe.data.null_text.size(), expected = job.model->conditions().pooled_dim > 0 ? 2 : 1;
  if (recipe.data.texts && files > 0 && files != expected)
    throw UserError(Exit::usage, "data.null_text",
                    std::to_string(files) + " files, expected " +
                        (expected == 2 ? "2: the embedding and the pooled vector of the empty caption"
                                       : "1: the embedding of the empty caption"),
                    "set data.null_text to these");
  if (recipe.data.texts && recipe.data.beside())
    throw UserError(Exit::usage, "data.texts",
                    "\"column\" with data.encoders = \"" + recipe.values.at("data.encoders") +
                        "\": no caption is encoded beside a step",
                    "leave data.encoders out; data.cache = \"online\" encodes clips when they come");
}

void check_beside(const recipe::Recipe& recipe, const Job& job) {
  if (!recipe.data.beside()) return;
  const std::string asked = "data.encoders = \"" + recipe.values.at("data.encoders") + "\"";
  if (job.model->conditions().audio_dim > 0)
    throw UserError(
        Exit::usage, "data.encoders",
        asked + " with a model with audio input: no plan counts the memory of its speech encoder during a step",
        "use data.encoders = \"cached\"");
}

/// Kernels of GPUs, in a plan for one too: LibTorch's deterministic ones take other memory.
void choose_kernels(const recipe::Recipe& recipe) {
  const bool same_bits = recipe.run.deterministic;
  at::Context& torch = at::globalContext();
  torch.setDeterministicAlgorithms(same_bits, /*warn_only=*/false);
  torch.setDeterministicFillUninitializedMemory(false);  // for those who read it; a step would be up to 15 % slower
  torch.setDeterministicCuDNN(same_bits);
  const std::string chip = plan_target(plan::find_profile(recipe.plan.profile));
  if (chip.empty()) return;
  setenv("CUBLAS_WORKSPACE_CONFIG", cublas_setting(target(chip, "plan.profile"), same_bits).c_str(), /*overwrite=*/1);
  setenv("CUDNN_CONV_WSCAP_DBG", cudnn_setting().c_str(), /*overwrite=*/1);
}

}  // namespace

namespace {

/// Marks what is trained. The log's words of it; empty where that is all.
std::string choose_trained(const recipe::Recipe& recipe, net::Denoiser& model) {
  const recipe::ParameterKeys keys = recipe::parameter_keys(recipe);
  std::string text;
  if (keys.choose()) {
    const models::TrainedCount count = models::choose_trained(model, keys.only, keys.freeze);
    text = "; trains " + std::to_string(count.trained) + " of " + std::to_string(count.all) + " parameters";
  }
  std::vector<std::string> patterns;
  std::vector<bool> frozen;
  for (const recipe::ParameterGroup& group : keys.groups)
    patterns.push_back(group.match), frozen.push_back(group.factor == 0);
  models::check_groups(model, patterns, frozen);
  if (plan::row(recipe.plan.states.optimizer).whole) {
    const models::TrainedCount count = models::choose_matrices(model, keys.matrices, keys.elementwise);
    text += "; Muon has " + std::to_string(count.trained) + " of " + std::to_string(count.all) + " trained parameters";
  }
  return text;
}

}  // namespace

Job make_job(const recipe::Recipe& recipe) {
  choose_kernels(recipe);
  Job job;
  job.experts = find_experts(recipe);
  job.model = denoiser_at(recipe, job.experts.list.front().path);
  job.teacher = teacher_of_other_sizes(recipe, *job.model);
  if (job.teacher) have_own_teacher(job.experts, !recipe.distill.critic.empty(), recipe.lora.on);
  for (const Expert& expert : job.experts.list) check_same_form(recipe, *job.model, expert);
  place_boundary(job.experts, recipe, *job.model);
  for (const Expert& expert : job.experts.list) timestep_options(recipe, expert);  // refused now, not at its first step
  check_exports(recipe, *job.model);
  if (const auto rule = adapter_rule(recipe)) job.adapted = models::adapt(*job.model, *rule);
  const std::string trained = choose_trained(recipe, *job.model);
  job.name = !recipe.model.path.empty()     ? recipe.model.path
             : !recipe.model.preset.empty() ? recipe.model.preset
                                            : families::of(recipe.model.family).name;
  job.image = open_image_encoder(recipe, job.model->conditions());
  log::info("model: " + job.name + ", conditioned on " + purpose(*job.model) + experts_text(job.experts) + trained +
            random_parts(recipe, job.image != nullptr));
  const int64_t before = engine::Meter::live();
  open_tiled(recipe, job);
  for (Expert& expert : job.experts.list) expert.piece = overlapping_piece(*job.codec);
  job.resident = engine::Meter::live() - before;
  job.text = models::make_text_encoder({.preset = recipe.data.text_encoder});
  static_cast<Shapes&>(job) = shapes_of(recipe, *job.model, *job.codec);
  check_patches(recipe, *job.model, *job.codec);
  if (job.text->dim() != job.model->context_dim())
    throw UserError(Exit::usage, "model",
                    "the model takes text embeddings of width " + std::to_string(job.model->context_dim()) +
                        ", text encoder '" + recipe.data.text_encoder + "' makes " + std::to_string(job.text->dim()),
                    "name the text encoder that the model was trained with (tessera list presets), or set the model's "
                    "width of texts in model.config to that number");
  job.context_length = job.model->context_length();
  job.second = open_second_encoder(recipe.data, job.model->conditions());
  warn_of_unread(recipe.values, job.model->conditions());
  check_beside(recipe, job);
  check_texts(recipe, job);
  check_given(recipe, *job.model, *job.codec);
  return job;
}

int sample_passes(const recipe::Recipe::Sample& sample, const net::Denoiser& model) {
  return static_cast<int>(sample.steps) + (model.conditions().audio_dim > 0 ? 1 : 0);
}

namespace {

std::string likely_cause(const std::string& name, const std::vector<int64_t>& shape) {
  const std::string preset = models::likely_preset(name, shape);
  return preset.empty() ? "does model.config belong to these weights?"
                        : "these weights are " + preset + ": try model.preset = \"" + preset + "\"";
}

models::NamedWeights open_weights_of(const std::string& path, const net::Denoiser& form) {
  const auto foreign = [&form](const std::string& name, const std::string& naming) {
    return form.foreign_name(name, naming);
  };
  return models::NamedWeights(path, form.units(), foreign, models::kDenoiserNamings);
}

std::set<std::string> parameters_of(const net::Denoiser& form) {
  std::set<std::string> names;
  for (const auto& unit : form.units())
    for (const plan::ParamSpec& param : unit->spec().params) names.insert(param.name);
  return names;
}

/// The form that a student's file has: its own, or its teacher's, of which it begins. Null: its own.
std::unique_ptr<net::Denoiser> form_of_file(const Job& job, const std::string& path) {
  const bool other = !job.experts.teacher.empty() && !job.experts.of_noise();
  std::unique_ptr<net::Denoiser> teacher = other ? job.model->teacher_form() : nullptr;
  if (!teacher) return nullptr;
  const std::set<std::string> lacks = parameters_of(*teacher), all = parameters_of(*job.model);
  if (lacks == all) return nullptr;
  const std::vector<std::string> stored = checkpoint::open_weights(path).names();
  for (const std::string& name : all)
    for (const std::string& naming : models::kDenoiserNamings)
      if (!lacks.contains(name) && std::ranges::count(stored, job.model->foreign_name(name, naming)) > 0)
        return nullptr;
  return teacher;
}

/// Of `path`, a file of that form; what the model has beside it is `absent`.
void load_form(const std::string& path, const net::Denoiser& form, engine::Store& store, const engine::Fill& absent,
               engine::Roundings* rounded) {
  const models::NamedWeights weights = open_weights_of(path, form);
  const std::set<std::string> known = parameters_of(form);
  const auto stored = weights.names();
  const auto name = [&](const std::string& param) { return known.contains(param) ? stored(param) : std::string(); };
  engine::load_weights(store, weights.set(), name, likely_cause, absent, rounded);
}

/// Values of the adapters; of a model without any never asked for.
engine::Fill initial_adapters(const recipe::Recipe& recipe, const Job& job) {
  const auto rule = adapter_rule(recipe);
  return rule ? adapter_values(*rule, job.adapted, recipe.lora.init, models::form_of(*job.model)) : engine::Fill();
}

}  // namespace

namespace {

/// What a student makes its clips from: noise, and a caption of one encoder.
void check_matched(const net::Denoiser& model, const std::string& name, bool critic) {
  const net::Conditions takes = model.conditions();
  const std::pair<bool, const char*> beside[] = {
      {takes.takes_images() || takes.always_clean || takes.always_reference, "given pictures"},
      {takes.audio_dim > 0, "audio"},
      {takes.control_dim > 0 || takes.pose_dim > 0 || !takes.guides.empty(), "clips to follow"},
      {takes.given_frames || takes.frame_masks, "given frames"},
      {takes.pooled_dim > 0 || takes.glyph_dim > 0, "captions of two encoders"},
      {model.numbers_beside() > 0, "numbers beside its prediction"}};
  for (const auto& [there, what] : beside)
    if (there)
      throw UserError(
          Exit::usage, "distill.method",
          name + " is a model with " + what + ", and \"" + (critic ? "dmd" : "ode") + "\" makes clips of text alone",
          "distil a model of text to clips or pictures, or leave distill.method out");
}

}  // namespace

void check_trainable(const Job& job) {
  if (job.experts.of_noise()) check_matched(*job.model, job.name, job.experts.critic());
  if (job.teacher) check_matched(*job.teacher, job.experts.teacher, job.experts.critic());
  if (!job.experts.teacher.empty() && !job.experts.of_noise()) {
    if (!job.model->moving_conditioning().empty() && job.model->teacher_form()) return;
    throw UserError(Exit::usage, "distill.method",
                    job.name + " has no forward mode, in which the consistency loss runs its student",
                    "distil a model of a family that has one, or leave distill.method out");
  }
  const std::string why = job.model->why_not_trained();
  if (why.empty()) return;
  throw UserError(Exit::usage, "model", job.name + " cannot be trained here, with or without LoRA: " + why,
                  "sample from it, convert it, or train the model that it was distilled from");
}

void check_text_encoders(const recipe::Recipe::Data& data, const Job& job, const std::string& weights) {
  if (!job.second) return;
  const bool text = data.text_encoder_path.empty(), second = data.second_encoder_path().empty(),
             pools = job.second->pooled_row({0}) >= 0;
  if ((!text && !second) || checkpoint::is_own(checkpoint::open_weights(weights))) return;
  const std::string second_key = pools ? "data.pooled_encoder_path" : "data.glyph_encoder_path";
  const std::string key = text ? "data.text_encoder_path" : second_key;
  throw UserError(
      Exit::usage, key,
      weights + " was trained with the captions of two text encoders, and " + key +
          " is empty: that encoder would have random weights, and its captions would mean nothing to the model",
      "give the weights and tokenizers of both: data.text_encoder_path, data.tokenizer, " + second_key +
          (pools ? ", data.pooled_tokenizer" : "; a run without quoted text needs none: model.config.glyph_len = 0") +
          "; model.init = \"random\" trains without weights");
}

namespace {

/// The student's sizes and timesteps are its teacher's, so far as its tensors and a config.json say them.
void check_teacher(const recipe::Recipe& recipe, const Job& job) {
  const std::unique_ptr<net::Denoiser> other = job.experts.of_noise() ? nullptr : job.model->teacher_form();
  const net::Denoiser* form = other ? other.get() : job.model.get();
  if (recipe.distill.consistent() && recipe.distill.logvar && job.model->numbers_beside() == 0)
    throw UserError(Exit::usage, "distill.logvar",
                    "true, and " + job.name + " has no output for the weight of a sample: its family learns none",
                    "set distill.logvar = false");
  if (job.teacher) return open_weights_of(job.experts.teacher, *job.teacher).check(job.teacher->units(), likely_cause);
  const char* of_one_plan =
      "student and teacher are of the same sizes, as one plan cuts both: set model.preset or model.config";
  try {
    const models::NamedWeights weights = open_weights_of(job.experts.teacher, *form);
    weights.check(form->units(), likely_cause);
    // More blocks than the student's would be left out without a word.
    if (recipe.values.at("model.extra_tensors") == "refuse") weights.check_unknown(form->units(), of_one_plan);
  } catch (const UserError& error) {
    throw UserError(error.code(), "distill.teacher", error.what(), of_one_plan);
  }
  const std::string file = config_beside(job.experts.teacher);
  if (file.empty()) return;
  const auto fields = [](const net::Denoiser& model) { return checkpoint::Json::parse(model.config_json()); };
  const checkpoint::Json ours = fields(*form), theirs = fields(*models::make_denoiser({.config = file}));
  for (const auto& [key, value] : ours.items())
    if (!theirs.contains(key) || theirs[key] != value)
      throw UserError(Exit::usage, "distill.teacher",
                      file + " has " + key + " = " + (theirs.contains(key) ? theirs[key].dump() : "nothing") +
                          ", the teacher of this student has " + value.dump(),
                      key == "timestep_scale"
                          ? "fine-tune the teacher with model.config.timestep_scale = " + value.dump() +
                                " first: consistency needs a network that is smooth in time"
                          : of_one_plan);
}

}  // namespace

void check_weights(const recipe::Recipe& recipe, const Job& job) {
  for (size_t e = 0; e < job.experts.size(); ++e)
    if (!recipe.model.path.empty() && recipe.model.init != "random") {
      const recipe::Recipe own = for_expert(recipe, job.experts, e);
      if (encodes_texts(recipe)) check_text_encoders(recipe.data, job, own.model.path);
      const std::unique_ptr<net::Denoiser> other = form_of_file(job, own.model.path);
      if (other && recipe.lora.on)
        throw UserError(
            Exit::usage, "train.mode",
            own.model.path +
                " lacks what a student has beside its teacher, and adapters do not train it: the embedding of "
                "guidance, and the weight of a sample where distill.logvar is true",
            "start from a student's weights, set distill.logvar = false where they lack the weight alone, or "
            "use train.mode = \"full\"");
      const net::Denoiser& form = other ? *other : *job.model;
      const models::NamedWeights weights = open_weights_of(own.model.path, form);
      weights.check(form.units(), likely_cause);
      if (recipe.values.at("model.extra_tensors") == "refuse")
        weights.check_unknown(form.units(),
                              "give the model that the file is of, or go on without: model.extra_tensors = \"ignore\"");
    }
  if (!job.experts.teacher.empty()) check_teacher(recipe, job);
  if (const auto rule = adapter_rule(recipe); rule && !recipe.lora.init.empty())
    for (size_t e = 0; e < job.experts.size(); ++e)
      if (const std::string from = for_expert(recipe, job.experts, e).lora.init; !from.empty())
        check_lora_init(*rule, job.adapted, *job.model, from);
  if (!recipe.data.text_encoder_path.empty())
    open_text_weights(*job.text, recipe.data.text_encoder_path).check(job.text->units(), likely_text_cause);
  if (job.second && !recipe.data.second_encoder_path().empty())
    open_text_weights(*job.second, recipe.data.second_encoder_path()).check(job.second->units(), likely_text_cause);
}

namespace {

/// Of the expert that the store is about; `base_is_there`: its frozen parameters are those of one that is loaded.
void load_expert(const recipe::Recipe& recipe, const Job& job, engine::Store& store, engine::Roundings& rounded,
                 bool base_is_there) {
  const engine::Fill adapters = initial_adapters(recipe, job);
  if (recipe.model.init == "load" && recipe.model.path.empty())
    throw UserError(Exit::usage, "model.init", "'load' has nothing to load: model.path is empty",
                    "set model.path, or model.init = \"random\"");
  if (recipe.model.path.empty() || recipe.model.init == "random") {
    const engine::Fill initial = [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
      if (models::is_adapter_parameter(param.name)) return adapters(param, first, count, out);
      job.model->initialise(param, static_cast<uint64_t>(recipe.run.seed), first, count, out);
    };
    engine::fill_shards(store, initial, &rounded);
    return;
  }
  if (const std::unique_ptr<net::Denoiser> teacher = form_of_file(job, recipe.model.path)) {
    const engine::Fill own = [&](const plan::ParamSpec& param, int64_t first, int64_t count, float* out) {
      job.model->initialise(param, static_cast<uint64_t>(recipe.run.seed), first, count, out);
    };
    return load_form(recipe.model.path, *teacher, store, own, &rounded);
  }
  const models::NamedWeights weights = open_weights_of(recipe.model.path, *job.model);
  engine::load_weights(store, weights.set(), weights.names(), likely_cause, adapters, &rounded, base_is_there);
}

}  // namespace

void load_teacher(const Job& job, engine::Store& store) {
  if (job.teacher) return load_form(job.experts.teacher, *job.teacher, store, {}, nullptr);
  if (job.experts.teachers() == 0) return;
  const engine::Store::ExpertScope active(store, static_cast<int>(job.experts.size()));
  const engine::Fill none = [](const plan::ParamSpec&, int64_t, int64_t count, float* out) {
    std::fill_n(out, count, 0.0F);  // what its student is told beside its own inputs adds nothing
  };
  const std::unique_ptr<net::Denoiser> other = job.experts.of_noise() ? nullptr : job.model->teacher_form();
  load_form(job.experts.teacher, other ? *other : *job.model, store, none, nullptr);
}

engine::Roundings load_initial_weights(const recipe::Recipe& recipe, const Job& job, engine::Store& store) {
  return load_weights_of(recipe, job, job.experts, store);
}

engine::Roundings load_weights_of(const recipe::Recipe& recipe, const Job& job, const Experts& experts,
                                  engine::Store& store) {
  engine::Roundings rounded;
  each_expert(store, experts, [&](size_t e, const std::string&) {
    load_expert(for_expert(recipe, experts, e), job, store, rounded, experts.shared_base && e > 0);
  });
  return rounded;
}

}  // namespace tessera::job
