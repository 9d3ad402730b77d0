#include <algorithm>
#include <filesystem>

#include "tessera/families/registry.h"
#include "tessera/recipe/setting.h"

namespace tessera::recipe {

namespace {

template <auto member>
constexpr Read data_key = into<&Recipe::data, member>;
template <auto member>
constexpr Read weights = weights_path<&Recipe::data, member>;
template <auto member>
constexpr Read clip_rule = into<&Recipe::data, &Recipe::Data::clips, member>;

void read_fps(Recipe& recipe, const Given& given) {
  read_value(recipe.data.fps, given);
  recipe.data.clips.fps = recipe.data.fps;
}
void read_clip_mode(Recipe& recipe, const Given& given) { recipe.data.clips.mode = data::clip_mode_of(given.text); }
void read_clip_lengths(Recipe& recipe, const Given& given) { recipe.data.clips.every_length = given.text == "every"; }
void read_hdr(Recipe& recipe, const Given& given) { recipe.data.clips.showing.tone_map = given.text == "tonemap"; }
void read_deinterlace(Recipe& recipe, const Given& given) {
  recipe.data.clips.showing.deinterlace = given.text == "auto";
}
void read_background(Recipe& recipe, const Given& given) {
  recipe.data.clips.showing.background = data::parse_colour(given.text);
}
void read_cuts(Recipe& recipe, const Given& given) {
  recipe.data.clips.cuts = given.text == "split"  ? data::Cuts::split
                           : given.text == "drop" ? data::Cuts::drop
                                                  : data::Cuts::keep;
}
void read_bars(Recipe& recipe, const Given& given) { recipe.data.clips.crop_bars = given.text == "crop"; }
void read_mask_path(Recipe& recipe, const Given& given) {
  recipe.data.masks.column = given.text == "column";
  recipe.data.masks.folder = recipe.data.masks.column ? "" : given.text;
}
template <auto member>
constexpr Read mask_files = into<&Recipe::data, &Recipe::Data::masks, member>;

void read_vae(Recipe& recipe, const Given& given) {
  if (given.text.empty()) recipe.values.at(given.key) = "auto";
  read_weights_path(recipe.data.vae, given);
  if (recipe.values.at(given.key) == "auto") recipe.data.vae = families::standard().codec;
}

void read_text_encoder(Recipe& recipe, const Given& given) {
  read_named(recipe.data.text_encoder, given);
  if (given.text == "auto") recipe.data.text_encoder = families::standard().text_encoder;
}

void read_encoders(Recipe& recipe, const Given& given) {
  constexpr std::pair<const char*, Encoders> kPlaces[] = {{"cached", Encoders::cached},
                                                          {"host", Encoders::host},
                                                          {"device", Encoders::device},
                                                          {"sharded", Encoders::sharded}};
  for (const auto& [name, place] : kPlaces)
    if (given.text == name) recipe.data.encoders = place;
}
void read_vae_tile(Recipe& recipe, const Given& given) { recipe.data.vae_tile = automatic(given).value_or(-1); }

void read_vae_tile_frames(Recipe& recipe, const Given& given) {
  recipe.data.vae_tile_frames = automatic(given).value_or(-1);
}

/// One path, even with commas, where there is such a one.
void read_paths(Recipe& recipe, const Given& given) {
  std::error_code unseen;
  recipe.data.paths = std::filesystem::exists(given.text, unseen) ? std::vector{given.text} : split_list(given.text);
}

/// "a, b or c" of what the families list in a field.
std::string known(std::vector<std::string> families::Family::*field) {
  return families::listed(families::names_in(field), "or");
}

template <auto member>
constexpr Read caption_rule = into<&Recipe::data, &Recipe::Data::captions, member>;
void read_latents(Recipe& recipe, const Given& given) {
  recipe.data.latents = given.text != "no";
  recipe.data.latent_column = given.text == "column";
}
void read_texts(Recipe& recipe, const Given& given) { recipe.data.texts = given.text == "column"; }

/// "latents_path", the column of a table that holds files of this kind.
std::string file_column(const char* kind) { return families::listed(families::column_names({}, kind), "or"); }

/// "prompt=5,_long=95"; a name alone has the share 1.
void read_shares_of_captions(Recipe& recipe, const Given& given) {
  auto& shares = recipe.data.captions.shares;
  shares.clear();
  for (const std::string& item : split_list(given.text)) {
    const size_t equal = item.rfind('=');
    const double share = equal == std::string::npos ? 1 : checked_number(given, item.substr(equal + 1), "NAME=SHARE");
    if (item.substr(0, equal).empty() || share < 0)
      given.fail("NAME=SHARE", "for example [\"prompt=5\", \"_long=95\"]");
    shares.emplace_back(item.substr(0, equal), share);
  }
}

bool draws_by_scores(const Facts& f) { return !f.recipe.data.captions.score_files.empty(); }
const Needs kNoScores = {[](const Facts& f) { return !draws_by_scores(f); }, "data.score_files decide what is drawn"};
const Needs kScores = {draws_by_scores, "it belongs to data.score_files"};

const Needs kTexts = {[](const Facts& f) { return !f.recipe.data.texts; }, "data.texts are embeddings, not captions"};
const Needs kOwnCaptions = {[](const Facts& f) { return !f.recipe.data.captions.any(); },
                            "captions of data.captions, caption_files, score_files and motion_files are whole texts"};
const Needs kShuffled = {[](const Facts& f) { return f.recipe.data.captions.shuffles > 0; },
                         "it belongs to data.caption_shuffle"};

void read_caption_endings(Recipe& recipe, const Given& given) {
  std::vector<std::string>& endings = recipe.data.captions.endings;
  endings.clear();
  for (const std::string& item : split_list(given.text)) endings.push_back(item.starts_with('.') ? item : "." + item);
  for (const std::string& ending : endings)
    if (ending.size() < 2 || ending.find('/') != ending.npos) given.fail("endings of files, such as .txt");
}

bool slides(const Facts& f) { return f.recipe.data.clips.mode == data::ClipMode::slide; }
bool uniform(const Facts& f) { return f.recipe.data.clips.mode == data::ClipMode::uniform; }
bool takes_some_length(const Facts& f) { return f.recipe.data.clips.mode != data::ClipMode::full; }
bool has_images_and_clips(const Facts& f) {
  const auto of_one = [](const data::Bucket& bucket) { return bucket.frames == 1; };
  const std::vector<data::Bucket>& buckets = f.recipe.data.clips.buckets;
  return std::ranges::any_of(buckets, of_one) && !std::ranges::all_of(buckets, of_one);
}
const Needs kPictures = {[](const Facts& f) { return !f.recipe.data.latents; },
                         "data.latents are trained, not pictures"};
const Needs kNoBuckets = {[](const Facts& f) { return f.recipe.values.at("data.buckets").empty(); },
                          "data.buckets lists the shapes"};

}  // namespace

std::vector<Setting> data_settings() {
  return {
      {"data.path",
       Kind::paths,
       "",
       "folder of clips with a .txt beside each; or a folder with a metadata file, that file, one clip, or a list of these",
       read_paths,
       {.in_stages = true}},
      {"data.metadata",
       Kind::text,
       "",
       "metadata file that is not in data.path: .csv, .json, .jsonl or videos.txt",
       data_key<&Recipe::Data::metadata>,
       {.in_stages = true}},
      {"data.caption",
       Kind::text,
       "",
       "caption of clips that have none; empty: clips without a caption are faulty",
       data_key<&Recipe::Data::caption>,
       {.in_stages = true}},
      {"data.captions",
       Kind::list,
       "",
       "shares in which a clip's captions are drawn, NAME=SHARE: prompt=5,_long=95; empty: always its prompt",
       read_shares_of_captions,
       {.needs = {kNoScores}, .in_stages = true}},
      {"data.caption_files",
       Kind::list,
       "",
       "suffixes of JSON files with more captions, beside clips or archives: _long reads a_long.json for a.png or a.tar",
       caption_rule<&data::CaptionRules::files>,
       {.in_stages = true}},
      {"data.score_files",
       Kind::list,
       "",
       "suffixes of JSON files with the scores by which captions are drawn, as in data.caption_files",
       caption_rule<&data::CaptionRules::score_files>,
       {.in_stages = true}},
      {"data.motion_files",
       Kind::list,
       "",
       "suffixes of JSON files with motion scores, as in data.caption_files, for models trained with them: captions end in \" motion score: 12.\"",
       caption_rule<&data::CaptionRules::motion_files>,
       {.in_stages = true}},
      {"data.caption_ext",
       Kind::list,
       "",
       "endings of the files beside clips that hold their captions, of which the first that is there counts: .tags,.txt; .json: an object with captions by name, of which prompt or caption is the default; empty: .txt, .caption",
       read_caption_endings,
       {.in_stages = true}},
      {"data.caption_lines",
       Kind::choice,
       "false",
       "each line of a caption file is a caption of its own, of which one is drawn each epoch",
       caption_rule<&data::CaptionRules::lines>,
       {.choices = "true|false", .needs = {kTexts, kOwnCaptions}, .in_stages = true}},
      {"data.caption_prefix",
       Kind::text,
       "",
       "text in front of every caption as it is written, kept where the caption is dropped",
       caption_rule<&data::CaptionRules::prefix>,
       {.needs = {kTexts}, .in_stages = true}},
      {"data.trigger",
       Kind::text,
       "",
       "word that stands for [trigger] in captions, and in front of those without it; kept where the caption is dropped",
       caption_rule<&data::CaptionRules::trigger>,
       {.needs = {kTexts}, .in_stages = true}},
      {"data.caption_shuffle",
       Kind::integer,
       "0",
       "variants of each caption with its tags in other orders, of which one is drawn each epoch; 0: the caption as it is",
       caption_rule<&data::CaptionRules::shuffles>,
       {.range = {.least = 0, .most = 1000}, .needs = {kTexts}, .in_stages = true}},
      {"data.keep_tokens",
       Kind::integer,
       "0",
       "tags at the front of captions that keep their places when the others are shuffled",
       caption_rule<&data::CaptionRules::keep_tokens>,
       {.range = at_least(0), .needs = {kShuffled}, .in_stages = true}},
      {"data.caption_delimiter",
       Kind::text,
       ", ",
       "what stands between the tags of captions that are shuffled",
       caption_rule<&data::CaptionRules::delimiter>,
       {.needs = {kShuffled}, .in_stages = true}},
      {"data.motion_of",
       Kind::choice,
       "mean",
       "which motion score is used if a clip has several",
       [](Recipe& recipe, const Given& given) { recipe.data.captions.largest_motion = given.text == "largest"; },
       {.choices = "mean|largest",
        .needs = {{[](const Facts& f) { return !f.recipe.data.captions.motion_files.empty(); },
                   "it belongs to data.motion_files"}},
        .in_stages = true}},
      {"data.caption_columns",
       Kind::list,
       "",
       "table columns whose numbers are appended to captions, for models trained with them: fps,motion_score appends \" 24 FPS, 5 motion score.\", with data.fps for resampled clips; prompts get data.fps and sample.motion_score",
       caption_rule<&data::CaptionRules::columns>,
       {.in_stages = true}},
      {"data.score_min",
       Kind::number,
       "0",
       "lowest score of captions that are drawn; if all captions of a clip score less, the best is used",
       caption_rule<&data::CaptionRules::score_min>,
       {.needs = {kScores}, .in_stages = true}},
      {"data.score_drop",
       Kind::number,
       "0",
       "clips whose prompt has a smaller score in NAME_prompt_clip_score.json are left out; 0: none",
       caption_rule<&data::CaptionRules::drop_below>,
       {.range = at_least(0), .in_stages = true}},
      {"data.score_temperature",
       Kind::number,
       "1",
       "captions are drawn in proportion to score^(1 / temperature); below 0.01 it counts as 0.01",
       caption_rule<&data::CaptionRules::score_temperature>,
       {.range = above(0), .needs = {kScores}, .in_stages = true}},
      {"data.latents",
       Kind::choice,
       "no",
       "train on latents that another program encoded, in the model's form; npy: the .npy of each clip; column: the .pt or .npy in column " +
           file_column("latents") + " of the table; no: train on pictures and videos",
       read_latents,
       {.choices = "no|npy|column", .in_stages = true}},
      {"data.texts",
       Kind::choice,
       "no",
       "column: train on caption embeddings that another program made, the .pt or .npy in columns " +
           file_column("context") + " and, of models with a pooled caption, " + file_column("pooled") +
           " of the table; text encoders then only encode prompts of samples; no: captions are encoded",
       read_texts,
       {.choices = "no|column", .in_stages = true}},
      {"data.null_text",
       Kind::list,
       "",
       "files with the embedding and the pooled vector of the empty caption, for dropped captions with data.texts; empty: text encoders make them",
       data_key<&Recipe::Data::null_text>,
       {.needs = {{[](const Facts& f) { return f.recipe.data.texts; }, "it belongs to data.texts"}},
        .in_stages = true}},
      {"data.size",
       Kind::list,
       "64,96",
       "height, width in pixels; clips are resized to cover and cropped",
       nullptr,
       {.needs = {kNoBuckets}, .in_stages = true}},
      {"data.frames",
       Kind::integer,
       "16",
       "frames of a sample",
       nullptr,
       {.range = {.least = 1, .most = 1 << 20}, .needs = {kNoBuckets}, .in_stages = true}},
      {"data.fps",
       Kind::number,
       "16",
       "frame rate that clips are resampled to; 0: the file's own",
       read_fps,
       {.range = {.least = 0, .most = 1e4}, .in_stages = true}},
      {"data.cache",
       Kind::text,
       "cache",
       "folder of the cache of encoded samples; online: no cache, each step encodes its clips",
       named<&Recipe::data, &Recipe::Data::cache>,
       {.needs = {{[](const Facts& f) { return !f.recipe.data.beside(); }, "data.encoders caches nothing"}}}},
      {"data.encoders",
       Kind::choice,
       "cached",
       "cached: clips and captions are encoded before step 1, then the encoders are freed; host, device: each rank encodes beside its steps, with encoders in host or device memory; sharded: on devices, text encoders' weights sharded over the ranks",
       read_encoders,
       {.choices = "cached|host|device|sharded"}},
      {"data.repeats",
       Kind::integer,
       "1",
       "times each clip is used in an epoch",
       data_key<&Recipe::Data::repeats>,
       {.range = {.least = 1, .most = 1e6}, .in_stages = true}},
      {"data.references",
       Kind::integer,
       "1",
       "most pictures of a row that a sample begins with, for models that take references: plans count their frames, further pictures are not used",
       data_key<&Recipe::Data::references>,
       {.range = {.least = 0, .most = 4}}},
      {"data.vae", Kind::text, "auto",
       "autoencoder: " + families::standard().codec +
           " (built in, without weights, for trials; auto is the same, but with trained weights it must be named), or a released one: its file, a diffusers vae folder or a model "
           "folder, a model of the hub in its cache, or with random weights, to plan, its name: " +
           known(&families::Family::autoencoders),
       read_vae},
      {"data.vae_tile", Kind::text, "auto",
       "side of the VAE's tiles in pixels, neighbours overlap by a quarter or an eighth; 0: no tiles; auto: the largest tile that needs at most a quarter of plan.budget, no tiles without a budget",
       read_vae_tile},
      {"data.vae_tile_frames", Kind::text, "auto",
       "frames of the VAE's tiles in time, which overlap by a quarter, for a VAE that codes all frames of a clip at once (" +
           known(&families::Family::whole_clip_autoencoders) +
           "); 0: no such tiles; auto: none, or 64 or 16 where whole clips need more than a quarter of plan.budget",
       read_vae_tile_frames},
      {"data.text_encoder", Kind::text, "auto",
       "text encoder preset; auto: " + families::standard().text_encoder + ", which must be named with trained weights",
       read_text_encoder},
      {"data.text_encoder_path", Kind::text, "", "weights of data.text_encoder; empty: random ones from a fixed seed",
       weights<&Recipe::Data::text_encoder_path>},
      {"data.image_encoder", Kind::text, "auto",
       "image encoder, for image-to-video models: " + known(&families::Family::image_encoders) +
           "; auto: by the model's width",
       data_key<&Recipe::Data::image_encoder>},
      {"data.image_encoder_path", Kind::text, "",
       "weights of data.image_encoder: models_clip_*.pth, image_encoder/ of diffusers or of SigLIP or a model folder; empty: random ones from a fixed seed",
       weights<&Recipe::Data::image_encoder_path>},
      {"data.pooled_encoder", Kind::text, "auto",
       "second text encoder, for models that also take one pooled vector of each caption: " +
           known(&families::Family::pooled_encoders) + "; auto: by the model's width",
       data_key<&Recipe::Data::pooled_encoder>},
      {"data.pooled_encoder_path", Kind::text, "",
       "weights of data.pooled_encoder; empty: random ones from a fixed seed",
       weights<&Recipe::Data::pooled_encoder_path>},
      {"data.pooled_tokenizer", Kind::text, "",
       "tokenizer of data.pooled_encoder: a folder with vocab.json and merges.txt, or any that data.tokenizer takes; empty: data.tokenizer's",
       weights<&Recipe::Data::pooled_tokenizer>},
      {"data.glyph_encoder", Kind::text, "auto",
       "second text encoder, for models that also take the rows of what a caption has in quotes; it reads bytes and has no tokenizer: " +
           known(&families::Family::glyph_encoders) + "; auto: by the model's width",
       data_key<&Recipe::Data::glyph_encoder>},
      {"data.glyph_encoder_path", Kind::text, "", "weights of data.glyph_encoder; empty: random ones from a fixed seed",
       weights<&Recipe::Data::glyph_encoder_path>},
      {"data.audio_encoder", Kind::text, "auto",
       "speech encoder, for models with audio input: its folder, a model folder that holds it, or a preset with random weights (" +
           families::standard().audio_encoder + "); auto: the preset of the model's width",
       weights<&Recipe::Data::audio_encoder>},
      {"data.tokenizer", Kind::text, "",
       "tokenizer of the text encoder: a SentencePiece model, a tokenizer.json, or a folder with either; empty: a small one is made from the captions",
       weights<&Recipe::Data::tokenizer>},
      {"data.instruction", Kind::text, "",
       "instruction put before every caption and prompt, but no negative prompt, for models trained with one: the text, or a text file",
       data_key<&Recipe::Data::instruction>},
      {"data.instruction_image",
       Kind::text,
       "",
       "the same for captions of pictures, of models trained with two; prompts of samples have data.instruction; empty: pictures have it too",
       data_key<&Recipe::Data::instruction_image>,
       {.needs = {{[](const Facts& f) {
                     return std::ranges::any_of(f.recipe.data.clips.buckets,
                                                [](const auto& b) { return b.frames == 1; });
                   },
                   "no shape of data.buckets has one frame"}}}},
      {"data.buckets",
       Kind::list,
       "",
       "training shapes, FRAMESxHEIGHTxWIDTH: 33x480x832,1x768x768; or a table of aspect ratios: ASPECT_RATIO_1024, 81xASPECT_RATIO_VIDEO_480_MS, 129x256px, 33xAREA_832x480; each may end in =BATCH, its global batch, or =BATCH:TAKE:KEEP, with shares of the clips; samples have the first shape; empty: data.frames and data.size",
       nullptr,
       {.in_stages = true}},
      {"data.images_every",
       Kind::integer,
       "0",
       "each n-th step trains on samples of one frame, and all others on clips; 0: both come as often as there are samples of them",
       data_key<&Recipe::Data::images_every>,
       {.range = at_least(0),
        .needs = {{has_images_and_clips, "data.buckets list no shapes of one frame beside others of more"}},
        .in_stages = true}},
      {"data.max_crop",
       Kind::text,
       "auto",
       "largest share of a frame that cropping to its bucket may cut off, 0 to 1; auto: 0.5 with data.buckets, else 1",
       nullptr,
       {.in_stages = true}},
      {"data.clip_mode",
       Kind::choice,
       "head",
       "which parts of a longer video are used",
       read_clip_mode,
       {.choices = "head|uniform|chunks|slide|full", .in_stages = true}},
      {"data.clip_lengths",
       Kind::choice,
       "longest",
       "which buckets a video is used in where data.buckets have several frame counts; longest: the longest that it fills; every: each that it fills",
       read_clip_lengths,
       {.choices = "longest|every",
        .needs = {{takes_some_length, "data.clip_mode = \"full\" takes all frames of a video"}},
        .in_stages = true}},
      {"data.clip_stride",
       Kind::integer,
       "0",
       "frames between the starts of clips, with clip_mode slide; 0: half a clip",
       clip_rule<&data::ClipRules::stride>,
       {.range = at_least(0), .needs = {{slides, "it belongs to data.clip_mode = \"slide\""}}, .in_stages = true}},
      {"data.clip_samples",
       Kind::integer,
       "2",
       "clips taken from a video, with clip_mode uniform",
       clip_rule<&data::ClipRules::samples>,
       {.range = at_least(1), .needs = {{uniform, "it belongs to data.clip_mode = \"uniform\""}}, .in_stages = true}},
      {"data.hdr",
       Kind::choice,
       "tonemap",
       "videos of HDR (PQ, HLG); tonemap: shown in SDR, by the curve of BT.2390 with white at 203 nits; refuse: they are faulty",
       read_hdr,
       {.choices = "tonemap|refuse", .needs = {kPictures}, .in_stages = true}},
      {"data.deinterlace",
       Kind::choice,
       "auto",
       "interlaced videos; auto: each frame shows one moment; off: both fields as they are",
       read_deinterlace,
       {.choices = "auto|off", .needs = {kPictures}, .in_stages = true}},
      {"data.background",
       Kind::text,
       "white",
       "colour behind transparent pictures and videos: white, black, grey or #rrggbb",
       read_background,
       {.in_stages = true}},
      {"data.mask_path",
       Kind::text,
       "",
       "masks of what trains, white where a clip does: a folder with a picture or video of the name of each clip; column: those that the table's column mask names; a clip without one trains whole",
       read_mask_path,
       {}},
      {"data.mask_suffix",
       Kind::text,
       "",
       "the same beside each clip, by what stands in place of its ending: -masklabel.png is a-masklabel.png of a.mp4; such files are no clips",
       mask_files<&data::MaskFiles::suffix>,
       {}},
      {"data.alpha_mask",
       Kind::choice,
       "false",
       "the same by what shows of transparent pictures and videos",
       mask_files<&data::MaskFiles::alpha>,
       {.choices = "true|false", .needs = {kPictures}}},
      {"data.mask_resize",
       Kind::choice,
       "area",
       "how masks come onto the grid of latents; their frames are averaged as the autoencoder groups them",
       mask_files<&data::MaskFiles::resize>,
       {.choices = "area|nearest|nearest_exact|bilinear", .needs = {kMasked}}},
      {"data.invert_mask",
       Kind::choice,
       "false",
       "what is black in masks trains, not what is white",
       data_key<&Recipe::Data::invert_mask>,
       {.choices = "true|false", .needs = {kMasked}}},
      {"data.mask_min_value",
       Kind::number,
       "0",
       "weight of what does not train, to which masks are lifted: v + (1 - v) mask",
       data_key<&Recipe::Data::mask_min_value>,
       {.range = {.least = 0, .most = 1}, .needs = {kMasked}}},
      {"data.control_path",
       Kind::text,
       "",
       "folder of the clips or pictures that clips follow, each of the name of its clip, for models that follow one; empty: columns of the table name them",
       data_key<&Recipe::Data::control_path>,
       {.needs = {kPictures}, .in_stages = true}},
      {"data.cuts",
       Kind::choice,
       "keep",
       "videos in which another scene begins; keep: as they are; split: each scene counts as a video of its own; drop: clips across a cut are left out; all but keep look through whole videos once",
       read_cuts,
       {.choices = "keep|split|drop", .needs = {kPictures}, .in_stages = true}},
      {"data.bars",
       Kind::choice,
       "keep",
       "black bars of more than 2 % of a side; crop: cut off before a clip's bucket is chosen, which looks through whole videos once",
       read_bars,
       {.choices = "keep|crop", .needs = {kPictures}, .in_stages = true}},
      {"data.strict",
       Kind::choice,
       "false",
       "stop at the first faulty row instead of listing all of them",
       data_key<&Recipe::Data::strict>,
       {.choices = "true|false", .in_stages = true}},
      {"data.allow_bad",
       Kind::integer,
       "0",
       "number of faulty rows that training may skip",
       data_key<&Recipe::Data::allow_bad>,
       {.range = at_least(0),
        .needs = {{[](const Facts& f) { return !f.recipe.data.strict; }, "data.strict stops at the first faulty row"}},
        .in_stages = true}},
  };
}

const std::vector<Setting>& set_settings() {
  static const std::vector<Setting> rows = [] {
    std::vector<Setting> all = {
        {"data.set.N.repeats",
         Kind::number,
         "1",
         "times each sample of the set comes in an epoch; 0.5: every other one",
         nullptr,
         {.range = {.least = 0, .most = 1e6, .open = true}, .in_stages = true}},
        {"data.set.N.weight",
         Kind::number,
         "",
         "share of the samples that come from the set, in relation to the other sets' weights, in place of repeats",
         nullptr,
         {.range = above(0), .in_stages = true}},
        {"data.set.N.loss_weight",
         Kind::number,
         "1",
         "factor of the loss of the set's samples",
         nullptr,
         {.range = at_least(0), .in_stages = true}},
        {"data.set.N.role",
         Kind::choice,
         "train",
         "train: what is learnt; regularisation: as many samples of such sets as of the others, whatever their repeats; prior: their target is what the model says without its adapters",
         nullptr,
         {.choices = "train|regularisation|prior"}},
        {"data.set.N.from_step",
         Kind::integer,
         "1",
         "first step that draws from the set",
         nullptr,
         {.range = at_least(1), .in_stages = true}},
        {"data.set.N.to_step",
         Kind::integer,
         "0",
         "last step that draws from the set; 0: the run's last",
         nullptr,
         {.range = at_least(0), .in_stages = true}},
    };
    // What is decided clip by clip. The other keys describe what a run has once: its cache, its encoders.
    for (const char* key : {"path",          "metadata",          "caption",      "captions",
                            "caption_files", "score_files",       "motion_files", "caption_ext",
                            "caption_lines", "caption_prefix",    "trigger",      "caption_shuffle",
                            "keep_tokens",   "caption_delimiter", "motion_of",    "score_min",
                            "score_drop",    "score_temperature", "size",         "frames",
                            "fps",           "buckets",           "max_crop",     "clip_mode",
                            "clip_lengths",  "clip_stride",       "clip_samples", "hdr",
                            "deinterlace",   "background",        "cuts",         "bars",
                            "mask_path",     "mask_suffix",       "alpha_mask",   "mask_resize",
                            "invert_mask",   "mask_min_value",    "control_path"}) {
      const std::vector<Setting> data = data_settings();
      const auto row = std::ranges::find(data, std::string("data.") + key, &Setting::key);
      all.push_back({"data.set.N." + std::string(key),
                     row->kind,
                     row->fallback,
                     row->key + " of the set alone",
                     nullptr,
                     {.choices = row->more.choices, .in_stages = row->more.in_stages}});
    }
    return all;
  }();
  return rows;
}

}  // namespace tessera::recipe
