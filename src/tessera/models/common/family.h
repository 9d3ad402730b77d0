#pragma once
// Rows of the registry: the functions of a folder of models/ that the rest of the program calls. models/known.cpp lists
// one row for each folder.
//
//   Family family() { return {.name = "wan", .presets = ..., .weights = {weight_form()}}; }
#include <memory>

#include "tessera/models/common/golden_case.h"
#include "tessera/models/common/weight_form.h"

namespace tessera::models {

/// A family of denoisers. Its names in recipes and model folders are in families/.
struct Family {
  std::string name;
  std::vector<std::string> (*presets)();
  std::unique_ptr<net::Denoiser> (*from_preset)(const std::string& preset);
  /// `json` is a config.json, or the recipe's fields (`file` names it in messages). `weights`: shapes by official name,
  /// for sizes that some config files lack; may be empty.
  std::unique_ptr<net::Denoiser> (*from_json)(const std::string& json, const std::string& file,
                                              const std::map<std::string, std::vector<int64_t>>& weights);
  /// How every _class_name of its config.json begins, also of members that are refused.
  std::vector<std::string> classes = {};
  std::vector<WeightForm> weights = {};
  /// The files of a diffusers pipeline beside its parts: path in the folder -> text. Null: diffusers has no pipeline.
  std::map<std::string, std::string> (*pipeline_files)(const PipelineParts& parts) = nullptr;
  std::vector<DenoiserCase> cases = {};
  std::vector<InputCase> input_cases = {};
  /// Kinds of golden cases of the schedulers that its pipelines are sampled with.
  std::vector<std::string> sampling_cases = {};
};

namespace wan {
Family family();
}
namespace sana {
Family family();
}
namespace opensora {
Family family();
}
namespace stdit {
Family family();
}
namespace hunyuan {
Family family();
}

struct TextEncoderMake {
  std::vector<std::string> (*presets)();
  std::unique_ptr<net::TextEncoder> (*from_preset)(const std::string& preset);
  std::unique_ptr<net::TextEncoder> (*from_json)(const std::string& json, const std::string& file);
  WeightForm weights;
  TextEncoderCase verify;
  std::vector<std::string> in_bf16 = {};  ///< presets whose released files are of bf16
};

struct AudioEncoderMake {
  std::string name;      ///< also what the names of its folders in a model's folder begin with
  std::string released;  ///< folder of the released one
  std::vector<std::pair<std::string, net::AudioSizes>> (*presets)();
  /// With random weights, the same for a seed.
  std::unique_ptr<net::AudioEncoder> (*from_preset)(const std::string& preset, uint64_t seed);
  net::AudioSizes (*sizes)(const std::string& json, const std::string& file);  ///< of a config.json
  /// `read` gives a tensor of the file `weights` by its stored name, undefined where there is none.
  std::unique_ptr<net::AudioEncoder> (*from_json)(const std::string& json, const std::string& file,
                                                  const std::function<at::Tensor(const std::string& name)>& read,
                                                  const std::string& weights);
  WeightForm weights;
  AudioEncoderCase verify;
};

/// An autoencoder without weights: data.vae = "NAME" or "NAME:CHANNELS".
struct BuiltInCodec {
  std::string name;
  int64_t channels;  ///< of NAME alone
  std::unique_ptr<net::VideoCodec> (*make)(int64_t channels);
};

}  // namespace tessera::models
