#include "tessera/models/opensora/weight_form.h"

#include <charconv>
#include <map>
#include <memory>
#include <mutex>

#include "tessera/base/check.h"
#include "tessera/models/opensora/config.h"
#include "tessera/models/opensora/parameters.h"

namespace tessera::models::opensora {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHeadNorm = "double_blocks.0.img_attn.norm.query_norm.weight";

/// The names of files with heads of that width and such feed-forwards; they live as long as the program.
const ForeignNames& names_for(int64_t head_dim, int64_t mlp_ratio) {
  static std::mutex one_at_a_time;
  static std::map<std::pair<int64_t, int64_t>, std::unique_ptr<const ForeignNames>> known;
  const std::lock_guard lock(one_at_a_time);
  auto& names = known[{head_dim, mlp_ratio}];
  if (!names)
    names = std::make_unique<const ForeignNames>(ForeignNames{.diffusers = {diffusers_names(head_dim, mlp_ratio)},
                                                              .official = {program_names({false, 0, mlp_ratio})},
                                                              .fused = {program_names({true, head_dim, mlp_ratio})}});
  return *names;
}

/// One more than the highest N of "LIST.N.".
int64_t count_of(const Shapes& ours, const std::string& list) {
  int64_t most = 0;
  for (const auto& [name, shape] : ours) {
    int64_t index = 0;
    if (!name.starts_with(list + ".")) continue;
    const char *at = name.data() + list.size() + 1, *end = name.data() + name.size();
    if (std::from_chars(at, end, index).ec == std::errc() && index < kMostBlocks) most = std::max(most, index + 1);
  }
  return most;
}

/// The sizes that tensors tell. The patch they do not: it follows from the channels of `cond_in`.
Config sizes_of(const Shapes& ours) {
  Config c;
  c.hidden_size = size_of(ours, "img_in.weight", 0);
  const int64_t head = size_of(ours, kHeadNorm, 0);
  c.num_heads = head > 0 ? c.hidden_size / head : 0;
  if (head != Config().head_dim()) c.axes = {};
  if (c.hidden_size > 0) c.mlp_ratio = size_of(ours, "double_blocks.0.img_mlp.0.weight", 0) / c.hidden_size;
  c.depth = count_of(ours, "double_blocks");
  c.depth_single = count_of(ours, "single_blocks");
  c.in_channels = size_of(ours, "img_in.weight", 1);
  c.context_dim = size_of(ours, "txt_in.weight", 1);
  c.pooled_dim = size_of(ours, "vector_in.in_layer.weight", 1);
  c.guidance = ours.count("guidance_in.in_layer.weight") > 0;
  c.cond = ours.count("cond_in.weight") > 0;
  const int64_t places = c.cond ? size_of(ours, "cond_in.weight", 1) - c.in_channels : 0;  // of the mask
  c.patch = places == 1 ? 1 : 2;
  return c;
}

std::string preset_of(const Shapes& ours) {
  const Config c = sizes_of(ours);
  for (const auto& [preset, known] : presets()) {
    Config same = c;
    same.axes = known.axes, same.context_len = known.context_len;
    if (same == known) return preset;
  }
  return {};
}

/// Open-Sora's form, or diffusers'.
Json config_json(const ConfigSource& source) {
  source.size("img_in.weight", 0), source.size("txt_in.weight", 1), source.size(kHeadNorm, 0);
  Config c = sizes_of(source.size.shapes);
  if (c.num_heads < 1 || c.mlp_ratio < 1)
    throw UserError(Exit::input, "models.config",
                    "heads of " + std::to_string(source.size(kHeadNorm, 0)) + " channels and feed-forwards of " +
                        std::to_string(size_of(source.size.shapes, "double_blocks.0.img_mlp.0.weight", 0)) +
                        " do not belong to a model of " + std::to_string(c.hidden_size),
                    "the file is not whole: fetch it again");
  if (!source.given.json.empty()) {
    const Json& said = source.given.json;
    Json whole = said;
    if (!said.contains("depth_single_blocks") && !said.contains("num_single_layers")) {  // some fields, of a recipe
      whole = Json::parse(to_json(c));
      whole.merge_patch(said);
    }
    const Config given = parse_config(whole.dump(), source.file);
    c.axes = given.axes, c.context_len = given.context_len;
    if (c.cond || given.patch == 1) c.patch = given.patch;
  }
  if (c.axes[0] == 0)
    throw UserError(Exit::input, "models.config",
                    "how heads of " + std::to_string(c.head_dim()) +
                        " channels are rotated by frames, rows and columns does not follow from the weights",
                    "put the model's config.json beside them");
  return Json::parse(source.diffusers ? to_diffusers_json(c) : to_json(c));
}

/// How heads of another width than the released ones are rotated.
std::vector<std::string> untold(const Shapes& ours, const Identity&) {
  return sizes_of(ours).axes[0] == 0 ? std::vector<std::string>{"axes_dim", "context_length"}
                                     : std::vector<std::string>();
}

}  // namespace

WeightForm weight_form() {
  return {.kind = ModelKind::denoiser,
          .title = "Open-Sora 2.0 and Flux transformers",
          .model = "opensora2",
          .variant = "mmdit",
          .marks = {"img_in.weight", "txt_in.weight", "double_blocks.0.img_attn.q_proj.weight",
                    "double_blocks.0.txt_attn.q_proj.weight", "single_blocks.0.linear2.attn.weight"},
          .names = names_for(Config().head_dim(), Config().mlp_ratio),
          .refine =
              [](const Shapes& ours, Identity& identity) {
                const int64_t head = size_of(ours, kHeadNorm, 0), ratio = sizes_of(ours).mlp_ratio;
                if (head > 0 && ratio > 0) identity.names = &names_for(head, ratio);
                const std::string preset = preset_of(ours);
                if (!preset.empty()) identity.model = preset;
              },
          .config = config_json,
          .untold = untold,
          .config_marks = {"depth_single_blocks", "num_single_layers"}};
}

}  // namespace tessera::models::opensora
