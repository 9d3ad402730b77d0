#include "tessera/tools/import/sana_parts.h"

#include <regex>

#include "tessera/base/check.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

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

}  // namespace

void set_sana_model(Translator& t) {
  const std::string option = "model.model", name = t.value(option);
  static const std::regex form(R"(Sana(MS)?(Video)?_(\d+)M_P(\d+)_D(\d+))");
  std::smatch parts;
  const bool sprint = name.starts_with("SanaMSCM") || name.starts_with("SanaSprint") || name.starts_with("SanaSCM");
  if (sprint) {
    t.refuse(option, kSprint);
    return imply_all(t, "it belongs to model.model");
  }
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

void set_sana_optimiser(Translator& t, const std::string& option) {
  if (lower_case(t.value(option)) == "adamw8bitwrapper") {  // bitsandbytes' AdamW under this trainer's name
    t.set("train.optimizer", "adamw", {option});
    return t.set("plan.moments", "int8", {option}, "moments in blocks of 256 with a scale");
  }
  set_optimiser(t, option);
}

}  // namespace tessera::tools
