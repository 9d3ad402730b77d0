// Kinds of encoders: texts' hidden states through the engine on any mesh, with the token ids of tokens.json; the image
// tower ("clip_vision") likewise, with its preprocessing; speech models, which every rank repeats.
#include <algorithm>

#include "tessera/base/check.h"
#include "tessera/base/json.h"
#include "tessera/data/text/tokenizer.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/job/encoders.h"
#include "tessera/prepare/encoder_run.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

namespace fs = std::filesystem;

constexpr std::pair<const char*, const char*> kNamings[] = {{"model.safetensors", "config.json"},
                                                            {"diffusers.safetensors", "diffusers_config.json"},
                                                            {"original.safetensors", "config.json"}};

/// A whole parameter, wherever its shards lie; all ranks together. Throws UserError (input) where there is none.
at::Tensor whole_parameter(const net::TextEncoder& encoder, prepare::EncoderRun& run, comm::Comm& comm,
                           const std::string& name) {
  at::Tensor found;
  for (size_t u = 0; u < encoder.units().size() && !found.defined(); ++u) {
    if (std::ranges::find(encoder.units()[u]->spec().params, name, &plan::ParamSpec::name) ==
        encoder.units()[u]->spec().params.end())
      continue;
    engine::whole_unit(run.store(), comm, static_cast<int>(u), /*gradients=*/false,
                       [&](const plan::ParamSpec& param, const at::Tensor& value) {
                         if (param.name == name) found = value.clone();
                       });
  }
  check_input(found.defined(), "verify", "the encoder has no parameter " + name);
  return found;
}

/// out.hidden_states.N: what block N gets, and behind the last one what follows it, by a run of the units before.
void check_states(const CaseContext& context, const models::TextEncoderMake& make, const net::TextEncoder& encoder,
                  const fs::path& weights, const at::Tensor& hidden, CaseFile& file) {
  const std::string begin = "out.hidden_states.";
  const size_t blocks = encoder.units().size() - 2;  // between the embedding and the last norm
  for (const std::string& name : file.names(begin)) {
    const std::string digits = name.substr(begin.size());
    const bool number = !digits.empty() && digits.size() < 5 && digits.find_first_not_of("0123456789") == digits.npos;
    const size_t n = number ? std::stoul(digits) : blocks + 1;
    if (!make.verify.state || n > blocks) continue;
    at::Tensor rows = hidden;
    if (n < blocks || !make.verify.last_state_is_result) {
      prepare::EncoderRun part(encoder.units(), encoder.fingerprint(), context.mesh, *context.comm, context.rank, {},
                               1 + n);
      prepare::load_text(part, encoder, weights.string());
      rows = part.forward(make.verify.pack(encoder, file));
    }
    file.compare(name, make.verify.state(encoder, file, rows), context.bound("out"));
  }
}

void check_hidden(const CaseContext& context, const models::TextEncoderMake& make, const char* weights,
                  const char* config, CaseResults& results) {
  const fs::path config_file = context.folder / config;
  const auto open = make.verify.whole ? make.verify.whole : make.from_json;
  const auto encoder = open(checkpoint::read_text(config_file), config_file.string());
  prepare::EncoderRun run(encoder->units(), encoder->fingerprint(), context.mesh, *context.comm, context.rank);
  prepare::load_text(run, *encoder, (context.folder / weights).string());
  for (const auto& path : context.case_files()) {
    CaseFile file(context.name, path, weights);
    const at::Tensor hidden = run.forward(make.verify.pack(*encoder, file));
    const auto parameter = [&](const std::string& name) { return whole_parameter(*encoder, run, *context.comm, name); };
    file.compare_all(make.verify.results(*encoder, file, hidden, parameter), context.bound("out"));
    check_states(context, make, *encoder, context.folder / weights, hidden, file);
    results.push_back(std::move(file));
  }
}

/// One prompt of tokens.json.
struct Prompt {
  std::string text, clean, may_differ;  ///< why its ids need not match; empty: they must
  std::vector<int64_t> ids;             ///< padded
  int64_t count = 0;                    ///< of real tokens, the end token among them
};

std::vector<Prompt> read_prompts(const fs::path& path) {
  const Json rows = parse_ordered_json(checkpoint::read_text(path), path.string());
  check_input(rows.is_array() && !rows.empty(), "verify", path.string() + ": not a list of prompts");
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < rows.size(); ++i) {
    try {
      const Json& row = rows[i];
      Prompt prompt{row.at("text"), row.at("clean"), "", row.at("ids"), row.at("n")};
      if (row.value("special_in_text", false)) prompt.may_differ = "special_in_text";
      prompts.push_back(std::move(prompt));
    } catch (const Json::exception& error) {
      throw UserError(Exit::input, "verify", path.string() + ": row " + std::to_string(i) + ": " + error.what(),
                      "a row has text, clean, ids and n");
    }
  }
  return prompts;
}

/// Ids of a text, padded as the encoder gets them; the number of real ones beside them.
std::pair<at::Tensor, int64_t> padded(std::vector<int64_t> ids, size_t length, int64_t pad) {
  const auto count = static_cast<int64_t>(ids.size());
  ids.resize(length, pad);
  return {at::tensor(ids, at::kLong), count};
}

/// ids.<row>: the whole way from the text; n.<row>: how many are real; clean.<row>: the tokenizer alone, from the text
/// the reference had cleaned. What may differ is told, stored and counted, not compared.
CaseFile check_tokens(const CaseContext& context) {
  const fs::path path = context.folder / "tokens.json";
  const std::vector<Prompt> prompts = read_prompts(path);
  const data::Tokenizer tokenizer(context.folder / "spiece.model");
  std::map<std::string, at::Tensor> expected;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string row = std::to_string(i);
    expected["ids." + row] = expected["clean." + row] = at::tensor(prompts[i].ids, at::kLong);
    expected["n." + row] = at::tensor(prompts[i].count, at::kLong);
  }
  CaseFile file(context.name, path, expected);
  Json may_differ = Json::array();
  int64_t differing = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Prompt& prompt = prompts[i];
    const std::string row = std::to_string(i);
    const size_t length = prompt.ids.size();
    check_input(length > 0, "verify", path.string() + ": row " + row + " has no ids", "even an empty text has its end");
    const auto most = static_cast<int64_t>(length);
    const auto [ids, count] = padded(tokenizer.encode(prompt.text, most), length, tokenizer.pad_id());
    if (prompt.may_differ.empty()) {
      file.compare("ids." + row, ids, 0.0);
      file.compare("n." + row, at::tensor(count, at::kLong), 0.0);
    } else {
      file.keep("ids." + row, ids);
      const bool differs = !ids.equal(expected["ids." + row]);
      differing += differs;
      may_differ.push_back({{"name", "ids." + row}, {"why", prompt.may_differ}, {"differs", differs}});
    }
    if (prompt.may_differ == "special_in_text") continue;
    const auto from_clean = padded(tokenizer.encode_clean(prompt.clean, most), length, tokenizer.pad_id());
    file.compare("clean." + row, from_clean.first, 0.0);
  }
  file.note("prompts", prompts.size());
  file.note("prompts_that_may_differ", may_differ.size());
  file.note("prompts_that_differ", differing);
  file.note("may_differ", std::move(may_differ));
  return file;
}

}  // namespace

CaseResults verify_text_encoder(const CaseContext& context, const models::TextEncoderMake& make) {
  CaseResults results;
  for (const auto& [weights, config] : kNamings) {
    const bool other = std::string_view(weights) != kNamings[0].first;
    if (other && !fs::exists(context.folder / weights)) continue;
    check_hidden(context, make, weights, config, results);
  }
  const bool of_bytes = context.config.contains("_added_tokens");
  if (of_bytes)
    for (CaseFile& file : results) check_prompts(context, make, file);
  else if (fs::exists(context.folder / "prompts.json"))
    check_prompts(context, make, results.front());
  if (of_bytes)
    for (CaseFile& file : check_glyphs(context)) results.push_back(std::move(file));
  else if (context.description.json.contains("tokenizer") || fs::exists(context.folder / "tokens.json"))
    results.push_back(check_tokens(context));
  return results;
}

namespace {

namespace clip = models::clip;

constexpr std::pair<const char*, const char*> kTowerFiles[] = {{"model.safetensors", "config.json"},
                                                               {"diffusers.safetensors", "diffusers_config.json"}};

/// What the blocks leave of all pictures, [B, rows, dim].
at::Tensor run_tower(const CaseContext& context, const clip::Config& config, bool last_block, const fs::path& weights,
                     const std::vector<at::Tensor>& pixels) {
  const clip::ClipVision tower(config, last_block);
  prepare::EncoderRun run(tower.units(), tower.fingerprint(), context.mesh, *context.comm, context.rank);
  prepare::load_tower(run, checkpoint::open_weights(weights));
  return run.forward(tower.pack(pixels)).reshape({-1, tower.rows(), tower.dim()}).clone();
}

}  // namespace

CaseResults verify_clip_vision(const CaseContext& context) {
  CaseResults results;
  for (const auto& [weights, config_name] : kTowerFiles) {
    const bool other = std::string_view(weights) != kTowerFiles[0].first;
    if (other && !fs::exists(context.folder / weights)) continue;
    const fs::path config_file = context.folder / config_name;
    const clip::Config config = clip::parse_config(checkpoint::read_text(config_file), config_file.string());
    const clip::ClipVision tower(config);
    for (const auto& path : context.case_files()) {
      CaseFile file(context.name, path, weights);
      std::vector<at::Tensor> pixels;
      for (int64_t i = 0; file.has("in.image." + std::to_string(i)); ++i)
        pixels.push_back(tower.preprocess(file.tensor("in.image." + std::to_string(i))));
      if (pixels.empty()) pixels.push_back(tower.preprocess(file.tensor("in.image.0")));  // says that it is missing
      const auto run = [&](bool last) { return run_tower(context, config, last, context.folder / weights, pixels); };
      file.compare("out.pixels", at::stack(pixels), context.tolerance("out.pixels"));
      file.compare("out.features", run(false), context.tolerance("out"));
      if (file.has("out.last_block")) file.compare("out.last_block", run(true), context.tolerance("out"));
      results.push_back(std::move(file));
    }
  }
  return results;
}

namespace {

/// preprocessor_config.json of a case must say what ClipVision::squared does.
void check_preprocessor(const CaseContext& context, const clip::Config& config) {
  const fs::path path = context.folder / "preprocessor_config.json";
  if (!fs::exists(path)) return;
  const Settings said(parse_ordered_json(checkpoint::read_text(path), path.string()));
  const Json expected = {{"do_convert_rgb", true},
                         {"do_normalize", true},
                         {"do_rescale", true},
                         {"do_resize", true},
                         {"image_mean", {0.5, 0.5, 0.5}},
                         {"image_std", {0.5, 0.5, 0.5}},
                         {"resample", 3},
                         {"rescale_factor", 1.0 / 255},
                         {"size", {{"height", config.image_size}, {"width", config.image_size}}}};
  for (const char* words : {"image_processor_type", "feature_extractor_type", "processor_class"}) said.read(words);
  for (const auto& [key, value] : said.items()) {
    if (!expected.contains(key)) continue;
    const Json& found = value.json();
    check_input(nlohmann::json(found) == nlohmann::json(expected[key]) || (key == "do_convert_rgb" && found.is_null()),
                "verify",
                path.string() + ": " + key + " is " + found.dump() + ", this build has " + expected[key].dump());
  }
  const std::vector<std::string> unread = said.unread({});
  check_input(unread.empty(), "verify",
              path.string() + ": " + (unread.empty() ? "" : unread.front()) + " is not known to this build");
}

}  // namespace

CaseResults verify_siglip(const CaseContext& context) {
  const fs::path config_file = context.folder / "config.json";
  const clip::Config config = clip::parse_config(checkpoint::read_text(config_file), config_file.string());
  check_preprocessor(context, config);
  const clip::ClipVision tower(config);
  CaseResults results;
  for (const auto& path : context.case_files()) {
    CaseFile file(context.name, path, "model.safetensors");
    const auto check = [&](const std::vector<at::Tensor>& pictures, const std::string& out) {
      std::vector<at::Tensor> pixels;
      for (const at::Tensor& picture : pictures) pixels.push_back(tower.preprocess(picture));
      if (pixels.empty()) return;
      file.compare(out + "pixels", at::stack(pixels), context.bound("out"));
      file.compare(out + "features",
                   run_tower(context, config, /*last_block=*/true, context.folder / file.weights(), pixels),
                   context.bound("out"));
    };
    std::vector<at::Tensor> pictures, frames;
    for (int64_t i = 0; file.has("in.image." + std::to_string(i)); ++i) {
      pictures.push_back(file.tensor("in.image." + std::to_string(i)).permute({2, 0, 1}));
      file.compare("out.resized." + std::to_string(i), tower.squared(pictures.back()), 0.0);
    }
    check(pictures, "out.");
    if (file.has("in.frame")) {
      const at::Tensor clip = file.tensor("in.frame"), bytes = models::clip::cut_to_bytes(clip);
      file.compare("out.frame_u8", bytes.permute({0, 2, 3, 1}), 0.0);
      for (int64_t i = 0; i < clip.size(0); ++i) frames.push_back(clip[i]);
    }
    check(frames, "out.frame_");
    file.fail_the_rest();
    results.push_back(std::move(file));
  }
  return results;
}

CaseResults verify_audio_encoder(const CaseContext& context, const models::AudioEncoderMake& make) {
  const at::NoGradGuard no_grad;
  CaseResults results;
  for (const char* weights : {"model.safetensors", "diffusers.safetensors"}) {
    if (!std::filesystem::exists(context.folder / weights)) continue;
    const auto encoder = job::open_audio_weights(make, context.folder / weights, context.folder / "config.json");
    for (const auto& path : context.case_files()) {
      CaseFile file(context.name, path, weights);
      file.compare_all(make.verify.results(*encoder, file), context.tolerance("out"));
      results.push_back(std::move(file));
    }
  }
  check_input(!results.empty(), "verify", context.folder.string() + ": no model.safetensors");
  return results;
}

}  // namespace tessera::tools
