// The YAML of NVlabs' Sana, SANA-Sprint and SANA-Video, its keys as flags of train.py (--train.optimizer.lr 1e-4), and train.py's own.
#include <algorithm>
#include <filesystem>
#include <regex>

#include "tessera/base/check.h"
#include "tessera/tools/import/config_file.h"
#include "tessera/tools/import/dialects.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

/// As they are written in YAML, "[a, 'b']" of a flag included.
std::vector<std::string> items_of(const std::string& value) {
  std::string text = value;
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string> items;
  for (std::string item : split_list(text)) {
    while (item.starts_with(' ')) item.erase(0, 1);
    while (item.ends_with(' ')) item.pop_back();
    const bool quoted = item.size() > 1 && (item[0] == '\'' || item[0] == '"') && item.back() == item[0];
    items.push_back(quoted ? item.substr(1, item.size() - 2) : item);
  }
  return items;
}
std::string list_of(const std::vector<std::string>& items) {
  std::string list;
  for (const std::string& item : items) list += item + kListSeparator;
  return list;
}

constexpr const char* kFetch = "it is fetched from a hub there: download it and give its path";
bool on_a_hub(const std::string& path) { return path.starts_with("hf://") || path.starts_with("http"); }

/// The student of SANA-Sprint, or a network that is distilled.
bool is_sprint(const Translator& t) {
  const std::string name = t.value("model.model");
  return name.starts_with("SanaMSCM") || name.starts_with("SanaSprint") || name.starts_with("SanaSCM");
}

// ---- what is trained --------------------------------------------------------------------------------------------

void load_from(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.imply(g.name, "nothing is loaded");
  const bool sprint = is_sprint(t);
  if (on_a_hub(g.value))
    return t.refuse(g.name, std::string(kFetch) + (sprint ? ": model.path and distill.teacher" : ": model.path"));
  t.set("model.path", g.value, {g.name});
  if (sprint) t.set("distill.teacher", g.value, {g.name}, "the student begins as its teacher");
}

void resume_from(Translator& t, const Given& g) {
  if (g.name.ends_with(".resume_optimizer") || g.name.ends_with(".resume_lr_scheduler"))
    return t.imply(g.name, "a run resumes all of its state");
  if (g.name.ends_with(".load_ema") && !is_false(g.value))
    return t.refuse(g.name, "take the averaged weights out first: tessera convert FILE.pth OUT --ema");
  if (is_false(g.value)) return t.imply(g.name, "the run begins at its start");
  if (g.value == "latest") return t.set("run.resume", "auto", {g.name});
  t.refuse(g.name, "a checkpoint of that trainer gives its weights, not its training state: set model.path to it");
}

// ---- the model, which model.model names with options that choose among its forms -------------------------------------

struct Size {
  const char *millions, *depth;
};
constexpr Size kSizes[] = {{"600", "28"}, {"1600", "20"}, {"2400", "30"}, {"3200", "40"}, {"4800", "60"}};

bool is_normed(Translator& t) { return t.flag("model.qk_norm"); }

/// Options that the preset or the weights answer.
void imply_all(Translator& t, const char* why) {
  for (const char* option :
       {"model.qk_norm", "model.cross_norm", "model.mlp_ratio", "model.use_pe", "model.pe_interpolation"})
    if (t.has(option)) t.imply(option, why);
}

void image_model(Translator& t, const Size& size) {
  std::vector<std::string> options = {"model.model"};
  for (const char* option : {"model.qk_norm", "model.cross_norm"})
    if (t.has(option)) options.push_back(option);
  const bool normed = is_normed(t);
  if (t.has("model.cross_norm") && t.flag("model.cross_norm") != normed)
    t.refuse("model.cross_norm", "norms of queries and keys are in both attentions or in neither");
  if (t.flag("model.use_pe")) {
    const int64_t side = t.integer("model.image_size", 1024);
    const bool known = std::string(size.millions) == "1600" && !normed && (side == 2048 || side == 4096);
    if (!known)
      return t.refuse("model.use_pe", "presets with a table of positions are those of 1.6B at 2048 and 4096 pixels");
    options.push_back("model.use_pe");
    t.set("model.preset", side == 2048 ? "sana-1.6b-2k" : "sana-1.6b-4k", options);
  } else {
    if (t.has("model.use_pe")) t.imply("model.use_pe", "no table of positions");
    const bool small = std::string(size.millions) == "600", large = std::string(size.millions) == "4800" && normed;
    t.set("model.preset",
          small    ? "sana-0.6b"
          : large  ? "sana1.5-4.8b"
          : normed ? "sana1.5-1.6b"
                   : "sana-1.6b",
          options);
    if (small && normed) t.set("model.config.qk_norm", "rms_norm_across_heads", {"model.qk_norm"});
    if (!small && !large && std::string(size.depth) != "20")
      t.set("model.config.num_layers", size.depth, {"model.model"});
  }
  if (t.has("model.pe_interpolation")) {
    if (t.flag("model.use_pe"))
      t.set("model.config.interpolation_scale", t.value("model.pe_interpolation"), {"model.pe_interpolation"});
    else
      t.imply("model.pe_interpolation", "no table of positions");
  }
  if (t.has("model.mlp_ratio")) t.set("model.config.mlp_ratio", t.value("model.mlp_ratio"), {"model.mlp_ratio"});
}

/// Blocks of a student of SANA-Sprint that is there, by its name; null: it is not.
const Size* size_of_sprint(const std::string& name) {
  static const std::regex form(R"(SanaMSCM_(\d+)M_P1_D(\d+))");
  std::smatch parts;
  if (!std::regex_match(name, parts, form)) return nullptr;
  const auto* known = std::ranges::find_if(
      kSizes, [&](const Size& size) { return parts[1] == size.millions && parts[2] == size.depth; });
  return known < kSizes + 2 ? known : nullptr;
}

/// A student is named even where weights are loaded: they are of its teacher's form.
void set_sprint_model(Translator& t) {
  const std::string option = "model.model", name = t.value(option);
  if (const Size* size = size_of_sprint(name)) {
    t.set("model.preset", size->depth == std::string("28") ? "sana-sprint-0.6b" : "sana-sprint-1.6b", {option});
    t.assume("model.config.linear_attention_eps", "1e-8", "this trainer's");
    t.assume("model.config.cross_attention_norm_eps", "1e-6", "this trainer's");
  } else {
    t.refuse(option,
             "students of SANA-Sprint are there in 600M and 1600M: SanaMSCM_600M_P1_D28, SanaMSCM_1600M_P1_D20");
  }
  for (const char* normed : {"model.qk_norm", "model.cross_norm"})
    if (t.has(normed) && !t.flag(normed))
      t.refuse(normed, "queries and keys of these models are normed: a derivative in time needs it");
  if (t.flag("model.use_pe")) t.refuse("model.use_pe", "these models have no table of positions");
  if (t.has("model.mlp_ratio") && t.number("model.mlp_ratio", 2.5) != 2.5)
    t.set("model.config.mlp_ratio", t.value("model.mlp_ratio"), {"model.mlp_ratio"});
  for (const char* left :
       {"model.qk_norm", "model.cross_norm", "model.use_pe", "model.mlp_ratio", "model.pe_interpolation"})
    if (t.has(left) && !t.is_answered(left)) t.imply(left, "the preset's");
}

/// The model that `model.model` names.
void set_sana_model(Translator& t) {
  const std::string option = "model.model", name = t.value(option);
  static const std::regex form(R"(Sana(MS)?(Video)?_(\d+)M_P(\d+)_D(\d+))");
  std::smatch parts;
  if (is_sprint(t)) return set_sprint_model(t);
  if (name.starts_with("SanaMSControlNet")) {
    t.refuse(option, "ControlNets are not trained");
    return imply_all(t, "it belongs to model.model");
  }
  if (t.result().find("model.path")) {
    if (t.has(option)) t.imply(option, "the weights say what they are of");
    return imply_all(t, "the weights say it");
  }
  if (!t.has(option)) return imply_all(t, "nothing names the model: set model.preset or model.path");
  const Size* known = nullptr;
  if (std::regex_match(name, parts, form) && !parts[2].matched && parts[4] == "1")
    for (const Size& size : kSizes)
      if (parts[3] == size.millions && parts[5] == size.depth) known = &size;
  if (known) {
    image_model(t, *known);
  } else if (name == "SanaMSVideo_2000M_P2_D20") {
    t.set("model.preset", "sana-video-2b-480p", {option});
    imply_all(t, "the preset's");
  } else {
    t.refuse(option,
             "models of 600M, 1600M, 2400M, 3200M and 4800M and SanaMSVideo_2000M_P2_D20 are there; "
             "set model.path for others");
    imply_all(t, "it belongs to model.model");
  }
  t.assume("model.config.linear_attention_eps", "1e-8", "this trainer's");
  t.assume("model.config.cross_attention_norm_eps", "1e-6", "this trainer's");
}

// ---- data ---------------------------------------------------------------------------------------------------------

/// Each so manieth step trains on images beside videos; 0: none does.
int64_t image_interval(const Translator& t) {
  return t.has("data.num_frames") ? t.integer("train.joint_training_interval", 0) : 0;
}

/// A folder, a list of them, or a table of folders by name (data.data_dir.NAME); with those of images.
void data_dirs(Translator& t) {
  std::vector<std::string> options, folders;
  for (const Given& g : t.given()) {
    const auto names = [&](const std::string& option) { return g.name == option || g.name.starts_with(option + "."); };
    if (!names("data.data_dir") && !(image_interval(t) > 1 && names("image_data.data_dir"))) continue;
    options.push_back(g.name);
    for (const std::string& folder : items_of(g.value)) folders.push_back(folder);
  }
  if (folders.empty())
    for (const std::string& option : options) t.refuse(option, "names no folder: set data.path");
  else if (!options.empty())
    t.set("data.path", folders.size() == 1 ? folders[0] : list_of(folders), options);
}

void suffixes(Translator& t, const Given& g, const std::string& key) {
  std::vector<std::string> items = items_of(g.value);
  const bool had_empty = std::erase(items, "") > 0;
  if (items.empty())
    t.imply(g.name, had_empty ? "the caption in NAME.json is read in any case" : "there are none");
  else
    t.set(key, list_of(items), {g.name});
}

/// Captions end in a score of those files that are named so, whatever the thresholds.
void motion(Translator& t) {
  const std::string prefix = "data.motion_score_file_thres.", of = "data.motion_score_cal_type";
  std::vector<std::string> options;
  bool known = false;
  for (const Given& g : t.given()) {
    if (!g.name.starts_with(prefix)) continue;
    options.push_back(g.name), known = known || g.name == prefix + "_unimatch";
  }
  if (known)
    t.set("data.motion_files", list_of({"_unimatch"}), options);
  else
    for (const std::string& option : options)
      t.imply(option, "scores of _unimatch alone are written into captions there");
  if (!t.has(of)) return;
  const std::string which = t.value(of);
  if (!known)
    t.imply(of, "captions have no motion scores");
  else if (which == "average" || which == "max")
    t.set("data.motion_of", which == "max" ? "largest" : "mean", {of});
  else
    t.refuse(of, "average and max are there");
}

/// Which of several captions are drawn, and by what. Shares act with "proportion" and on videos, scores otherwise.
void captions(Translator& t) {
  const std::string selection = "data.caption_selection_type", scores = "data.external_clipscore_suffixes";
  const bool shares = t.value(selection) == "proportion" || t.value("data.type") == "SanaZipDataset";
  if (t.has(selection)) t.imply(selection, shares ? "data.captions has the shares" : "data.score_files decide");
  const bool scored = !shares && t.has(scores) && !items_of(t.value(scores)).empty();
  if (t.has(scores)) {
    if (shares)
      t.imply(scores, "captions are drawn by their shares there");
    else
      suffixes(t, *t.find(scores), "data.score_files");
  }
  for (const auto& [option, key] :
       {std::pair("data.clip_thr", "data.score_min"), {"data.clip_thr_temperature", "data.score_temperature"}}) {
    if (!t.has(option)) continue;
    if (scored)
      t.set(key, t.value(option), {option});
    else
      t.imply(option, "captions are not drawn by scores");
  }
  const std::string prefix = "data.caption_proportion";
  std::vector<std::string> options, list;
  for (const Given& g : t.given())
    if (g.name.starts_with(prefix + "."))
      options.push_back(g.name), list.push_back(g.name.substr(prefix.size() + 1) + "=" + g.value);
  if (options.empty()) return;
  if (shares)
    t.set("data.captions", list_of(list), options);
  else
    for (const std::string& option : options)
      t.imply(option, "captions are drawn by their scores there, and else are the prompt");
}

void latents(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.imply(g.name, "pictures are encoded, and cached");
  if (t.value("data.type") == "SanaZipDataset")
    t.refuse(g.name, "latents of videos lie in a cache folder of that trainer: they are encoded again here");
  else
    t.set("data.latents", "npy", {g.name});
}

/// Samples of a step of all ranks, of a batch size of one.
std::string global_batch(const Translator& t, const char* option) {
  const int64_t steps = t.integer("train.gradient_accumulation_steps", 1);
  return std::to_string(
      checked_product({t.integer(option, 32), steps, t.dp_size().value_or(1)}, "import: a global batch"));
}

/// Sizes of pictures: those of a table of aspect ratios, or squares.
void shapes(Translator& t) {
  const std::string table = "model.aspect_ratio_type", own = "data.aspect_ratio_type";
  const bool video = t.has("data.num_frames");
  const std::string frames = video ? t.value("data.num_frames") : "1";
  const bool sprint = is_sprint(t);  // whose heads see pictures of one size
  if (sprint && t.flag("model.multi_scale"))
    t.refuse("model.multi_scale",
             "heads normalise over pictures of one size: set it to false, and data.size is trained");
  const bool several = !sprint && (t.has("model.multi_scale") ? t.flag("model.multi_scale") : true);
  std::vector<std::string> options;
  for (const std::string& option : {std::string("data.num_frames"), std::string("model.multi_scale"), own, table})
    if (t.has(option)) options.push_back(option);
  std::vector<std::string> sizes;
  for (const char* option : {"data.image_size", "model.image_size"})
    if (t.has(option)) sizes.push_back(option);
  const std::string name = t.has(table) ? t.value(table) : t.value(own, "ASPECT_RATIO_1024");
  if (video && image_interval(t) > 1) {
    const bool sized = !several && !sizes.empty();
    const std::string square = sized ? t.value(sizes.back()) + "x" + t.value(sizes.back()) : "",
                      images = sized ? square : t.value("image_data.aspect_ratio_type", name);
    options.insert(options.end(), sizes.begin(), sizes.end());
    for (const char* option : {"train.train_batch_size", "train.train_batch_size_image"})
      if (t.has(option)) options.push_back(option);
    t.set("data.buckets",
          frames + "x" + (sized ? square : name) + "=" + global_batch(t, "train.train_batch_size") + ",1x" + images +
              "=" + global_batch(t, "train.train_batch_size_image"),
          options, "clips and images, each with their batches of all ranks");
    return;
  }
  if (several && !options.empty()) {
    t.set("data.buckets", (video ? frames + "x" : "") + name, options);
    for (const std::string& option : sizes) t.imply(option, "the sizes are those of " + name);
    return;
  }
  for (const std::string& option : {own, table})
    if (t.has(option)) t.imply(option, "model.multi_scale is off");
  if (t.has("model.multi_scale") && !t.is_answered("model.multi_scale"))
    t.imply("model.multi_scale", "data.size is the size of all");
  if (!sizes.empty()) t.set("data.size", t.value(sizes.back()) + "," + t.value(sizes.back()), {sizes.back()});
  for (const std::string& option : sizes)
    if (option != sizes.back()) t.imply(option, sizes.back() + " is what is trained");
  if (video) t.set("data.frames", frames, {"data.num_frames"});
  t.assume("data.frames", frames, "pictures");
}

/// A second data set of images beside videos, which have each so manieth step to themselves.
void image_data(Translator& t) {
  const std::string interval = "train.joint_training_interval", off = interval + " is 0: images are not trained on";
  const int64_t every = image_interval(t);
  if (every > 1) {
    t.set("data.images_every", t.value(interval), {interval});
    if (!t.has("image_data.data_dir") &&
        std::ranges::none_of(t.given(), [](const Given& g) { return g.name.starts_with("image_data.data_dir."); }))
      t.warn(interval, "image_data.data_dir names no folder of images");
  } else if (t.has(interval)) {
    if (every == 1)
      t.refuse(interval, "1 trains on images alone, from the second step on");
    else if (t.integer(interval, 0) > 0)
      t.refuse(interval, "data.num_frames names no videos that would take turns with images");
    else
      t.imply(interval, "images are not trained on");
  }
  const auto plain = [](const Given& g) {
    return is_false(g.value) ||
           std::ranges::all_of(items_of(g.value), [](const std::string& item) { return item.empty(); });
  };
  for (const Given& g : t.given()) {
    if ((!g.name.starts_with("image_data.") && g.name != "train.train_batch_size_image") || t.is_answered(g.name))
      continue;
    const std::string name = g.name.substr(g.name.find('.') + 1);
    if (every <= 1)
      t.imply(g.name, off);
    else if (name == "load_vae_feat" || name == "load_text_feat" || name == "external_caption_suffixes" ||
             name == "external_clipscore_suffixes")
      plain(g) ? t.imply(g.name, "there are none")
               : t.refuse(g.name, "images are read as clips are: put this into data." + name + " for both");
    else
      t.imply(g.name, "images lie in data.path beside the clips, and are read as those are");
  }
}

// ---- autoencoder and text encoder -------------------------------------------------------------------------------

/// Autoencoders of these models by what their repositories and files are called there, and the name that plans them here.
struct Released {
  const char *part, *preset;
};
constexpr Released kReleased[] = {{"dc-ae-f32c32", "dc-ae-f32c32"}, {"wan2.1", "wan2.1-vae"}};
constexpr const char* kOwners[] = {"mit-han-lab/", "Efficient-Large-Model/", "Wan-AI/"};  // of repositories on a hub

void autoencoder(Translator& t, const Given& g) {
  const std::string type = lower_case(t.value("vae.vae_type"));
  if (type.find("ltx") != std::string::npos || type.find("dcaev") != std::string::npos)
    return t.refuse(g.name, "the autoencoders that are there for these models are DC-AE f32c32 and Wan 2.1's");
  const bool repository = std::ranges::any_of(kOwners, [&](const char* owner) { return g.value.starts_with(owner); }) &&
                          !std::filesystem::exists(g.value);
  if (!on_a_hub(g.value) && !repository) return t.set("data.vae", g.value, {g.name}, "its folder or file on disk");
  const std::string name = lower_case(g.value);
  for (const auto& [part, preset] : kReleased)
    if (name.find(part) != std::string::npos)
      return t.set("data.vae", preset, {g.name},
                   "its name, which is enough to plan: to train, download " + g.value + " and give its path");
  t.refuse(g.name, std::string(kFetch) + ": data.vae");
}

void text_encoder(Translator& t, const Given& g) {
  const std::string name = lower_case(g.value);
  if (name.find("gemma-2-2b") == std::string::npos)
    return t.refuse(g.name, "the text encoder that is there for these models is gemma-2-2b-it");
  t.set("data.text_encoder", "gemma-2-2b", {g.name});
  t.assume("data.text_encoder_path", g.value, "its folder on disk");
  t.assume("data.tokenizer", g.value, "its folder on disk");
}

void instruction(Translator& t, const Given& g) {
  std::string text = g.value;  // blanks at the ends of its lines are the instruction's
  if (text.ends_with(kListSeparator)) text.pop_back();
  std::replace(text.begin(), text.end(), kListSeparator, '\n');
  if (text.empty()) return t.imply(g.name, "captions stand alone");
  t.set("data.instruction", text, {g.name}, "its lines");
}

// ---- objective ----------------------------------------------------------------------------------------------------

// ---- training -----------------------------------------------------------------------------------------------------

void fsdp(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.set("plan.strategy", "no_shard", {g.name}, "each rank has the whole model there");
  t.set("plan.strategy", "full_shard", {g.name}, "units come from the model: no class is named to wrap");
}

void optimiser(Translator& t) {
  const std::string prefix = "train.optimizer.";
  if (t.has(prefix + "type")) set_optimiser(t, prefix + "type");
  const bool factored = lower_case(t.value(prefix + "type")).find("came") != std::string::npos;
  for (const auto& [option, key, usual] : {std::tuple("betas", "train.betas", std::vector<double>{0.9, 0.999, 0.9999}),
                                           {"eps", "train.eps", std::vector<double>{1e-30, 1e-16}}}) {
    const std::string name = prefix + option;
    if (!t.has(name)) continue;
    const std::vector<std::string> given = items_of(t.value(name));
    std::vector<double> numbers;
    for (const std::string& number : given) numbers.push_back(std::strtod(number.c_str(), nullptr));
    if (factored && numbers == usual)
      t.imply(name, "CAME's own");
    else
      t.set(key, list_of(given).substr(0, list_of(given).size() - 1), {name});
  }
  if (t.has(prefix + "lr")) t.set("train.lr", t.value(prefix + "lr"), {prefix + "lr"});
  if (t.has(prefix + "weight_decay"))
    t.set("train.weight_decay", t.value(prefix + "weight_decay"), {prefix + "weight_decay"});
  for (const char* option : {"block_size", "min_8bit_size"})
    if (t.has(prefix + option) && lower_case(t.value(prefix + "type")).find("8bit") != std::string::npos)
      t.imply(prefix + option, "a scale for every 256 values of a moment, in tensors of any size");
  for (const Given& g : t.given())
    if (g.name.starts_with(prefix) && !t.is_answered(g.name))
      t.refuse(g.name, "type, lr, betas, eps and weight_decay of an optimiser are known");
  if (t.has("train.auto_lr.rule")) t.set("train.lr_scale", t.value("train.auto_lr.rule"), {"train.auto_lr.rule"});
}

void amount(Translator& t) {
  std::vector<std::string> options;
  for (const char* option : {"train.train_batch_size", "train.gradient_accumulation_steps"})
    if (t.has(option)) options.push_back(option);
  const int64_t batch = t.integer("train.train_batch_size", 32),
                steps = t.integer("train.gradient_accumulation_steps", 1);
  const int64_t times = is_sprint(t) ? 2 : 1;  // one place for each of the student's losses
  if (!options.empty())
    t.set_batch(
        batch * steps * times, options,
        std::to_string(batch) + " x " + std::to_string(steps) + (times > 1 ? " clips, each in two places" : ""));
  if (times > 1) t.assume("train.lr_base_batch", "512", "this trainer's rate is for 256 clips");
  if (t.has("train.num_epochs") && times > 1) {
    t.refuse("train.num_epochs", "steps of the student and of the heads are counted together: set run.steps");
  } else if (t.has("train.num_epochs") && image_interval(t) > 1) {
    t.refuse("train.num_epochs", "an epoch has there as many steps as there are batches of videos: set run.steps");
  } else if (t.has("train.num_epochs")) {
    // this reader of lists goes through the list 2000 times an epoch
    const bool list = t.value("data.type") == "SanaImgDataset";
    t.result().implied.push_back({"train.num_epochs", "all batches of an epoch count, there the last 30 do not"});
    set_epochs(t, "train.num_epochs", t.integer("train.num_epochs", 1) * (list ? 2000 : 1));
  }
  const bool shows = t.has("train.visualize") ? t.flag("train.visualize") : false;
  if (t.has("train.eval_sampling_steps")) {
    if (shows)
      t.set("sample.every", t.value("train.eval_sampling_steps"), {"train.eval_sampling_steps"});
    else
      t.imply("train.eval_sampling_steps", "train.visualize is off");
  }
  if (t.has("train.visualize")) t.imply("train.visualize", "sample.every says when");
}

void averages(Translator& t) {
  const std::string update = "train.ema_update", rate = "train.ema_rate";
  const bool on = t.flag(update);
  if (t.has(update) && on)
    t.set("train.ema", t.value(rate, "0.9999"),
          t.has(rate) ? std::vector<std::string>{update, rate} : std::vector<std::string>{update});
  else if (t.has(update))
    t.imply(update, "it is off");
  if (t.has(rate) && !on) t.imply(rate, "no average is kept");
}

/// A number is the start of the second of two chunks.
void chunks(Translator& t, const Given& g) {
  std::vector<std::string> starts = items_of(g.value);
  if (starts.empty() || is_false(g.value)) return t.imply(g.name, "a clip has one timestep");
  if (starts.size() == 1 && starts[0] != "0") starts.insert(starts.begin(), "0");
  if (starts.size() == 1) return t.imply(g.name, "a clip of one chunk has one timestep");
  t.set("diffusion.chunks", list_of(starts), {g.name});
}

void first_frame_noise(Translator& t, const Given& g) {
  t.set("diffusion.first_frame_noise", is_false(g.value) ? "0" : g.value, {g.name});
}

// ---- SANA-Sprint -----------------------------------------------------------------------------------------------------

/// The value of a number, or a list, that a student's recipe has under another name; `otherwise` is the trainer's own, which
/// the recipe's is not.
void set_of_sprint(Translator& t, const std::string& option, const std::string& key, const std::string& otherwise) {
  if (!t.has(option)) return t.assume(key, otherwise, "this trainer's");
  const std::vector<std::string> items = items_of(t.value(option));
  t.set(key, items.size() == 1 ? items[0] : list_of(items), {option});
}

void only_of_sprint(Translator& t, const std::string& option, const std::vector<std::string>& values,
                    const std::string& why, const std::string& otherwise) {
  if (!t.has(option)) return;
  if (std::ranges::count(values, lower_case(t.value(option))) > 0)
    t.imply(option, why);
  else
    t.refuse(option, otherwise);
}

/// Heads read the blocks that are named, as a set; by themselves, those of a list that the model has.
void head_blocks(Translator& t) {
  const std::string ids = "model.head_block_ids", several = "model.ladd_multi_scale";
  const Size* size = size_of_sprint(t.value("model.model"));
  const int64_t depth = size ? to_integer(size->depth) : 28;
  const bool named = t.has(ids) && !is_false(t.value(ids)) && !items_of(t.value(ids)).empty();
  if (named) t.set("distill.head_blocks", list_of(items_of(t.value(ids))), {ids});
  if (t.has(ids) && !named) t.imply(ids, "this trainer's own blocks");
  const bool last = !named && t.has(several) && !t.flag(several);
  std::vector<std::string> own;
  for (const int64_t block : {2, 8, 14, 20, 27})
    if (block < depth) own.push_back(std::to_string(block));
  if (last)
    t.set("distill.head_blocks", std::to_string(depth - 1), {several}, "the last block");
  else if (t.has(several))
    t.imply(several, named ? "model.head_block_ids names the blocks" : "distill.head_blocks has them");
  if (!named && !last) t.assume("distill.head_blocks", list_of(own), "this trainer's");
}

/// The heads' loss, and what they see of the student and the data.
void heads(Translator& t) {
  head_blocks(t);
  set_of_sprint(t, "scheduler.logit_mean_discriminator", "distill.judged_mean", "0");
  set_of_sprint(t, "scheduler.logit_std_discriminator", "distill.judged_std", "1");
  set_of_sprint(t, "train.adv_lambda", "distill.adversarial_weight", "1");
  set_of_sprint(t, "train.misaligned_pairs_D", "distill.misaligned", "false");
  set_of_sprint(t, "train.diff_timesteps_D", "distill.own_angles", "true");
  const std::string loss = "train.discriminator_loss", which = lower_case(t.value(loss, "cross entropy"));
  if (which != "hinge" && which != "cross entropy")
    t.refuse(loss, "hinge and cross entropy are there");
  else if (t.has(loss))
    t.set("distill.discriminator_loss", which == "hinge" ? "hinge" : "cross_entropy", {loss});
  else
    t.assume("distill.discriminator_loss", "cross_entropy", "this trainer's");
  const std::string penalty = "train.r1_penalty", weight = penalty + "_weight";
  if (t.flag(penalty))
    t.set("distill.r1_weight", t.value(weight, "1e-5"),
          t.has(weight) ? std::vector<std::string>{penalty, weight} : std::vector<std::string>{penalty});
  for (const std::string& option : {penalty, weight})
    if (t.has(option) && !t.is_answered(option)) t.imply(option, "it is off");
  const std::string largest = "train.largest_timestep", share = largest + "_prob",
                    on = "train.train_" + largest.substr(6);
  if (t.flag(on)) {
    t.imply(on, "distill.largest_share is above 0");
    set_of_sprint(t, largest, "distill.largest_angle", "1.5708");
    set_of_sprint(t, share, "distill.largest_share", "0.5");
  } else {
    t.assume("distill.largest_share", "0", "train.train_largest_timestep is off");
    for (const std::string& option : {on, largest, share})
      if (t.has(option)) t.imply(option, "it is off");
  }
  for (const Given& g : t.given())
    if (g.name.starts_with("train.optimizer_D."))
      t.imply(g.name, "the heads have train.optimizer at a constant rate, there too");
}

/// What that trainer reads of a run that distils.
void sprint(Translator& t) {
  t.assume("distill.method", "scm_ladd", "what train_scm_ladd.py does");
  const std::string teacher = "model.teacher_model";
  if (t.has(teacher) && t.value(teacher) == t.value("model.model"))
    t.imply(teacher, "student and teacher are of one size");
  else if (t.has(teacher))
    t.refuse(teacher, "a teacher of another size than its student is not there");
  only_of_sprint(t, "model.cfg_embed", {"true"}, "the student is told its guidance", "a student is told its guidance");
  only_of_sprint(t, "model.cfg_embed_scale", {"0.1"}, "the model's", "the student is told its guidance times 0.1");
  set_of_sprint(t, "model.logvar", "distill.logvar", "false");
  for (const char* scheme : {"scheduler.weighting_scheme", "scheduler.weighting_scheme_discriminator"})
    only_of_sprint(t, scheme, {"logit_normal_trigflow"}, "angles are drawn so",
                   "angles are drawn as logit_normal_trigflow does");
  set_of_sprint(t, "scheduler.logit_mean", "distill.logit_mean", "0");
  set_of_sprint(t, "scheduler.logit_std", "distill.logit_std", "1");
  set_of_sprint(t, "scheduler.sigma_data", "distill.sigma_data", "1");
  only_of_sprint(t, "scheduler.timestep_norm_scale_factor", {"1000", "1000.0"}, "the network sees timesteps of 0 to 1",
                 "a derivative in time needs a network of timesteps of 0 to 1: 1000");
  if (t.has("scheduler.add_noise_timesteps"))
    t.imply("scheduler.add_noise_timesteps", "logit_normal_trigflow does not read it");
  set_of_sprint(t, "train.scm_cfg_scale", "distill.guidance", "1");
  set_of_sprint(t, "train.tangent_warmup_steps", "distill.tangent_warmup", "10000");
  set_of_sprint(t, "train.scm_lambda", "distill.consistency_weight", "1");
  only_of_sprint(t, "train.scm_loss", {"true"}, "the student learns by consistency",
                 "that trainer fails without it: set train.scm_lambda to 0");
  heads(t);
  t.assume("sample.sampler", "scm", "a student's");
  t.assume("sample.steps", "2", "this trainer's");
}

/// Of a run that distils nothing.
void flow(Translator& t) {
  const std::string scheme = "scheduler.weighting_scheme", factor = "scheduler.timestep_norm_scale_factor";
  if (t.value(scheme) == "logit_normal")
    t.set("diffusion.timesteps", "sana", {scheme}, "of 1000, as this trainer draws them");
  else if (t.has(scheme))
    t.refuse(scheme, "timesteps are logit-normal: logit_normal");
  for (const auto& [option, usual] : {std::pair("scheduler.logit_mean", 0.0), {"scheduler.logit_std", 1.0}}) {
    if (!t.has(option)) continue;
    if (t.number(option, usual) == usual)
      t.imply(option, "the draws have it");
    else
      t.refuse(option, "the draws have mean 0 and deviation 1");
  }
  if (t.has(factor)) {
    const double parts = t.number(factor, 1);
    if (!(parts > 0))
      t.refuse(factor, "expected a number above 0");
    else if (parts == 1)
      t.imply(factor, "timesteps are as they are");
    else
      t.set("model.config.timestep_scale", number_text(1 / parts), {factor}, "its inverse");
  }
  constexpr const char* kSprints[] = {"model.teacher_model",
                                      "model.logvar",
                                      "model.cfg_embed",
                                      "model.cfg_embed_scale",
                                      "model.ladd_multi_scale",
                                      "model.head_block_ids",
                                      "scheduler.weighting_scheme_discriminator",
                                      "scheduler.logit_mean_discriminator",
                                      "scheduler.logit_std_discriminator",
                                      "scheduler.sigma_data",
                                      "scheduler.add_noise_timesteps",
                                      "train.tangent_warmup_steps",
                                      "train.scm_cfg_scale",
                                      "train.scm_loss",
                                      "train.scm_lambda",
                                      "train.adv_lambda",
                                      "train.discriminator_loss",
                                      "train.misaligned_pairs_D",
                                      "train.diff_timesteps_D",
                                      "train.r1_penalty",
                                      "train.r1_penalty_weight",
                                      "train.train_largest_timestep",
                                      "train.largest_timestep",
                                      "train.largest_timestep_prob"};
  for (const Given& g : t.given())
    if (std::ranges::count(kSprints, g.name) > 0 || g.name.starts_with("train.optimizer_D."))
      t.refuse(g.name, "it belongs to SANA-Sprint's students: model.model = SanaMSCM_1600M_P1_D20");
}

void resample(Translator& t, const Given& g) {
  t.set("data.fps", is_false(g.value) ? "0" : t.value("data.target_fps", "16"), {g.name});
}

void prompts(Translator& t, const Given& g) { t.set("sample.prompts", list_of(split_list(g.value)), {g.name}); }

void work_dir(Translator& t, const Given& g) {
  if (t.has("work_dir"))
    t.imply(g.name, "work_dir is given and counts");
  else
    t.set("run.out", g.value, {g.name});
}

void sana_together(Translator& t) {
  set_sana_model(t);
  shapes(t);
  data_dirs(t);
  captions(t);
  motion(t);
  image_data(t);
  optimiser(t);
  averages(t);
  amount(t);
  is_sprint(t) ? sprint(t) : flow(t);
}

}  // namespace

const Dialect& sana_config() {
  static const Dialect dialect = dialect_of("sana", "config", sana_together,
                                            {{"autoencoder", plain(autoencoder)},
                                             {"chunks", plain(chunks)},
                                             {"first_frame_noise", plain(first_frame_noise)},
                                             {"fsdp", plain(fsdp)},
                                             {"instruction", plain(instruction)},
                                             {"latents", plain(latents)},
                                             {"load_from", plain(load_from)},
                                             {"prompts", plain(prompts)},
                                             {"resample", plain(resample)},
                                             {"resume_from", plain(resume_from)},
                                             {"suffixes", suffixes},
                                             {"text_encoder", plain(text_encoder)},
                                             {"work_dir", plain(work_dir)}});
  return dialect;
}

const Dialect& sana_command() {
  static const Dialect dialect = [] {
    Dialect d{"Sana's train.py", "a command of Sana's train.py", {}, {}};
    for (Rule rule : sana_config().rules) {
      rule.option = "--" + rule.option;
      d.rules.push_back(std::move(rule));
    }
    d.rules.push_back({"--config_path", "its keys; flags win", Takes::value, [](Translator&, const Given&) {}});
    return d;
  }();
  return dialect;
}

Translation translate_sana(const CommandLine& line, std::vector<Given> flags, const ImportContext& context) {
  std::vector<Given> given;
  Translation result;
  for (const Given& flag : flags)
    if (flag.name == "--config_path") {
      for (Given& g : read_config(file_beside(context, flag.value))) given.push_back(std::move(g));
      result.implied.push_back({flag.shown(), "its keys; flags win"});
    }
  for (Given& flag : flags) {
    if (flag.name == "--config_path") continue;
    flag.typed = flag.name;
    strip_prefix(flag.name, "--");
    given.push_back(std::move(flag));
  }
  const std::string script = line.script.substr(line.script.rfind('/') + 1);
  const bool student = std::ranges::any_of(
      given, [](const Given& g) { return g.name == "model.model" && g.value.starts_with("SanaMSCM"); });
  if (script.starts_with("train_scm_ladd") && !student)
    result.refused.push_back({script, "it trains SANA-Sprint's students: model.model = SanaMSCM_1600M_P1_D20"});
  result.merge(translate(sana_config(), std::move(given), context));
  result.from = sana_command().from;
  return result;
}

}  // namespace tessera::tools
