#pragma once
// What recipes, data sets, files and folders need to know of a family of denoisers, as data. Its networks are in
// models/.
//
//   Family wan() { return {.name = "wan", .config_keys = {{"dim", ConfigKey::Kind::integer, "width"}}, ...}; }
#include <string>
#include <vector>

namespace tessera::families {

/// A field of the family's config.json that a recipe may set: model.config.NAME.
struct ConfigKey {
  enum class Kind { text, integer, number, integers };
  std::string name;
  Kind kind;
  std::string help;
};

/// One of two denoisers that each own a range of noise.
struct Expert {
  std::string name;    ///< in recipes, metrics and checkpoints
  std::string folder;  ///< of its weights in the official release and in exported models
};

/// A part of the official release that is a file, or a folder, by itself, and what ComfyUI calls it.
struct ReleasedFile {
  std::string role;      ///< a part of checkpoint/model_folder.h
  std::string variant;   ///< of weights of several generations; empty: there is one
  std::string mark;      ///< what the names of such files hold, those of folders begin with
  std::string official;  ///< the name that the official code looks for, without its ending
  std::string comfyui_folder, comfyui;
  bool folder = false;  ///< `official` is a folder of the release
};

/// Names of a column of metadata files beside those that every trainer knows; `column` is ours.
struct Column {
  std::string column, name;
};

struct Family {
  std::string name;                    ///< in recipes
  std::vector<std::string> types;      ///< model_type of its config.json; "NAME-TYPE" overrides what a file says
  std::string preset;                  ///< one of its sizes, as an example
  std::vector<ConfigKey> config_keys;  ///< in the order of help and of resolved recipes
  std::string codec, text_encoder;     ///< of runs without weights: what data.vae and data.text_encoder are by default
  std::vector<std::string> autoencoders;  ///< released ones that data.vae knows by name, to plan without their files
  std::vector<std::string> whole_clip_autoencoders;  ///< of these the ones that code all frames of a clip at once
  std::vector<std::string> text_encoders;            ///< released ones of its sizes
  std::vector<std::string> image_encoders;           ///< of first frames: the released one, then a small one to try out
  std::vector<std::string> pooled_encoders;          ///< of one vector a caption, likewise
  std::vector<std::string> glyph_encoders;           ///< of what captions have in quotes, likewise
  std::string audio_encoder;                         ///< likewise of models with an audio input; else empty
  std::vector<Expert> experts;      ///< two, high noise first; none where the family has single models alone
  std::vector<ReleasedFile> files;  ///< of several variants the usual one first
  std::string tokenizer;            ///< folder in the official release
  std::string lora_network;         ///< network module of LoRA files in kohya's form
  std::vector<Column> columns;
  std::vector<std::string> shift_by_size;  ///< its programs that shift timesteps by the size of a sample
};

// The rows of the registry, one a family, each in a source of its own: config.json, and what runs without weights use.
// Wan's is in wan.h, with what else its programs need.
//
//   const std::vector<Family> table = {wan(), sana(), opensora(), stdit(), hunyuan()};

Family sana();
Family opensora();  ///< 2.0
Family stdit();     ///< Open-Sora 1.2 and 1.3
Family hunyuan();   ///< HunyuanVideo-1.5

}  // namespace tessera::families
