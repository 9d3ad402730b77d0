#include "tessera/families/registry.h"
#include "tessera/recipe/settings.h"

namespace tessera::recipe {

namespace {

template <auto member>
constexpr Read data_key = into<&Recipe::data, member>;
template <auto member>
constexpr Read clip_rule = into<&Recipe::data, &Recipe::Data::clips, member>;

void read_fps(Recipe& recipe, const Given& given) {
  read_value(recipe.data.fps, given);
  recipe.data.clips.fps = recipe.data.fps;
}
void read_clip_mode(Recipe& recipe, const Given& given) { recipe.data.clips.mode = data::clip_mode_of(given.text); }
void read_vae_tile(Recipe& recipe, const Given& given) { recipe.data.vae_tile = automatic(given).value_or(-1); }

bool slides(const Facts& f) { return f.recipe.data.clips.mode == data::ClipMode::slide; }
bool uniform(const Facts& f) { return f.recipe.data.clips.mode == data::ClipMode::uniform; }
const Needs kNoBuckets = {[](const Facts& f) { return f.recipe.values.at("data.buckets").empty(); },
                          "data.buckets lists the shapes"};

}  // namespace

std::vector<Setting> data_settings() {
  return {
      {"data.path",
       Kind::text,
       "",
       "folder of a metadata file, or of clips with a .txt beside each; or one clip",
       data_key<&Recipe::Data::path>,
       {.in_stages = true}},
      {"data.metadata",
       Kind::text,
       "",
       "table of clips and captions elsewhere: .csv, .json, .jsonl or videos.txt",
       data_key<&Recipe::Data::metadata>,
       {.in_stages = true}},
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
       {.range = at_least(1), .needs = {kNoBuckets}, .in_stages = true}},
      {"data.fps",
       Kind::number,
       "16",
       "frame rate clips are resampled to; 0: as they are",
       read_fps,
       {.range = at_least(0), .in_stages = true}},
      {"data.cache", Kind::text, "cache", "folder of encoded samples; online: none, clips are encoded when they come",
       data_key<&Recipe::Data::cache>},
      {"data.repeats",
       Kind::integer,
       "1",
       "times each clip comes in an epoch",
       data_key<&Recipe::Data::repeats>,
       {.range = at_least(1), .in_stages = true}},
      {"data.vae", Kind::text, families::standard().codec,
       "autoencoder: " + families::standard().codec +
           " is built in and has no weights; or a released one: its file, a diffusers vae folder, a model folder",
       data_key<&Recipe::Data::vae>},
      {"data.vae_tile", Kind::text, "auto",
       "side in pixels of the tiles a VAE works in, a quarter of it shared with neighbours; 0: the whole picture; auto: the largest that takes no more than a quarter of plan.budget, the whole picture without one",
       read_vae_tile},
      {"data.text_encoder", Kind::text, families::standard().text_encoder, "text encoder",
       data_key<&Recipe::Data::text_encoder>},
      {"data.text_encoder_path", Kind::text, "", "its weights; empty: random ones, always the same",
       data_key<&Recipe::Data::text_encoder_path>},
      {"data.image_encoder", Kind::text, "auto",
       "CLIP's image tower, for models that take its features: clip-vit-h, clip-demo; auto: by the model's width",
       data_key<&Recipe::Data::image_encoder>},
      {"data.image_encoder_path", Kind::text, "",
       "its weights: models_clip_*.pth, image_encoder/ of diffusers, a model folder; empty: random ones, always the same",
       data_key<&Recipe::Data::image_encoder_path>},
      {"data.audio_encoder", Kind::text, "auto",
       "speech model, for models with an audio input: its folder, the folder of a model that has it, or a preset with random weights (" +
           families::standard().audio_encoder + "); auto: the preset of the model's width",
       data_key<&Recipe::Data::audio_encoder>},
      {"data.tokenizer", Kind::text, "", "SentencePiece model; empty: a small one is made from the captions",
       data_key<&Recipe::Data::tokenizer>},
      {"data.buckets",
       Kind::list,
       "",
       "shapes trained in, frames x height x width: 33x480x832,1x768x768; samples have the first; empty: data.frames and data.size",
       nullptr,
       {.in_stages = true}},
      {"data.max_crop",
       Kind::text,
       "auto",
       "share of a picture that cropping to its bucket may cut off, 0 to 1; auto: 0.5 with data.buckets, else 1",
       nullptr,
       {.in_stages = true}},
      {"data.clip_mode",
       Kind::choice,
       "head",
       "parts of a longer video that are used",
       read_clip_mode,
       {.choices = "head|uniform|chunks|slide", .in_stages = true}},
      {"data.clip_stride",
       Kind::integer,
       "0",
       "frames from start to start of slide; 0: half a clip",
       clip_rule<&data::ClipRules::stride>,
       {.range = at_least(0), .needs = {{slides, "it belongs to data.clip_mode = \"slide\""}}, .in_stages = true}},
      {"data.clip_samples",
       Kind::integer,
       "2",
       "clips of a video of uniform",
       clip_rule<&data::ClipRules::samples>,
       {.range = at_least(1), .needs = {{uniform, "it belongs to data.clip_mode = \"uniform\""}}, .in_stages = true}},
      {"data.strict",
       Kind::choice,
       "false",
       "stop at the first faulty row instead of telling all",
       data_key<&Recipe::Data::strict>,
       {.choices = "true|false", .in_stages = true}},
      {"data.allow_bad",
       Kind::integer,
       "0",
       "faulty rows that training may leave out",
       data_key<&Recipe::Data::allow_bad>,
       {.range = at_least(0),
        .needs = {{[](const Facts& f) { return !f.recipe.data.strict; }, "data.strict stops at the first faulty row"}},
        .in_stages = true}},
  };
}

}  // namespace tessera::recipe
