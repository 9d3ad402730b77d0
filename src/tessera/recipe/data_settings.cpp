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
       "folder of clips with a .txt beside each; or of a metadata file; or one clip",
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
       {.range = {.least = 1, .most = 1 << 20}, .needs = {kNoBuckets}, .in_stages = true}},
      {"data.fps",
       Kind::number,
       "16",
       "frame rate that clips are resampled to; 0: the file's own",
       read_fps,
       {.range = at_least(0), .in_stages = true}},
      {"data.cache", Kind::text, "cache",
       "folder of the cache of encoded samples; online: no cache, each step encodes its clips",
       data_key<&Recipe::Data::cache>},
      {"data.repeats",
       Kind::integer,
       "1",
       "times each clip is used in an epoch",
       data_key<&Recipe::Data::repeats>,
       {.range = {.least = 1, .most = 1e6}, .in_stages = true}},
      {"data.vae", Kind::text, families::standard().codec,
       "autoencoder: " + families::standard().codec +
           " (built in, no weights, for trying out), or a released one: its file, a diffusers vae folder or a model folder",
       data_key<&Recipe::Data::vae>},
      {"data.vae_tile", Kind::text, "auto",
       "side of the VAE's tiles in pixels, neighbours overlap by a quarter or an eighth; 0: no tiles; auto: the largest tile that needs at most a quarter of plan.budget, no tiles without a budget",
       read_vae_tile},
      {"data.text_encoder", Kind::text, families::standard().text_encoder, "text encoder preset",
       data_key<&Recipe::Data::text_encoder>},
      {"data.text_encoder_path", Kind::text, "", "weights of data.text_encoder; empty: random ones from a fixed seed",
       data_key<&Recipe::Data::text_encoder_path>},
      {"data.image_encoder", Kind::text, "auto",
       "CLIP image encoder, for image-to-video models: clip-vit-h, clip-demo; auto: by the model's width",
       data_key<&Recipe::Data::image_encoder>},
      {"data.image_encoder_path", Kind::text, "",
       "weights of data.image_encoder: models_clip_*.pth, image_encoder/ of diffusers or a model folder; empty: random ones from a fixed seed",
       data_key<&Recipe::Data::image_encoder_path>},
      {"data.audio_encoder", Kind::text, "auto",
       "speech encoder, for models with audio input: its folder, a model folder that holds it, or a preset with random weights (" +
           families::standard().audio_encoder + "); auto: the preset of the model's width",
       data_key<&Recipe::Data::audio_encoder>},
      {"data.tokenizer", Kind::text, "",
       "tokenizer of the text encoder: a SentencePiece model, a tokenizer.json, or a folder with either; empty: a small one is made from the captions",
       data_key<&Recipe::Data::tokenizer>},
      {"data.instruction", Kind::text, "",
       "instruction in front of every caption and prompt but negative ones, for models that were trained with one; or a text file with it",
       data_key<&Recipe::Data::instruction>},
      {"data.buckets",
       Kind::list,
       "",
       "training shapes, FRAMESxHEIGHTxWIDTH: 33x480x832,1x768x768; samples have the first; empty: data.frames and data.size",
       nullptr,
       {.in_stages = true}},
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
       {.choices = "head|uniform|chunks|slide", .in_stages = true}},
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

}  // namespace tessera::recipe
