// Adapters of every form under every naming, against formulas in fp64 that are written out here: merged, given other
// names, and started from. Files are made by this test, under names that it has itself.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "folder_test.h"
#include "matrix.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/families/lora_namings.h"
#include "tessera/job/lora_run.h"
#include "tessera/models/convert.h"
#include "tessera/models/convert_lora.h"
#include "tessera/models/known.h"
#include "tessera/net/adapters.h"
#include "tessera/recipe/run_recipe.h"

namespace tessera::job::adapter_forms {
namespace {

namespace fs = std::filesystem;
using Shape = std::vector<int64_t>;

/// A module under both names, and the shape of its weight. Sana's official name is ours.
struct Module {
  const char *official, *diffusers;
  Shape weight;
};
const std::vector<Module> kWan = {{"blocks.0.self_attn.q", "blocks.0.attn1.to_q", {16, 16}},
                                  {"blocks.0.ffn.0", "blocks.0.ffn.net.0.proj", {24, 16}},
                                  {"blocks.0.ffn.2", "blocks.0.ffn.net.2", {16, 24}},
                                  {"head.head", "proj_out", {8, 16}},
                                  {"patch_embedding", "patch_embedding", {16, 4, 1, 2, 2}}};
const std::vector<Module> kSana = {
    {"blocks.0.attn.q", "transformer_blocks.0.attn1.to_q", {16, 16}},
    {"y_embedder.y_proj.fc1", "caption_projection.linear_1", {16, 12}},
    {"final_layer.linear", "proj_out", {8, 16}},
    {"blocks.0.mlp.point_conv.conv", "transformer_blocks.0.ff.conv_point", {16, 20, 1, 1}},
    {"x_embedder.proj", "patch_embed.proj", {16, 4, 1, 1}}};

enum class Kind { plain, rslora, dora_rows, dora_columns };

struct Pair {
  const Module* module;
  at::Tensor a, b, m;  // as stored; m: undefined without DoRA
  int64_t rank;
  double alpha;
};
struct Adapter {
  bool sana;
  std::string naming;
  Kind kind;
  std::vector<Pair> pairs;
  double scale(const Pair& p) const {
    const auto r = static_cast<double>(p.rank);
    return p.alpha / (kind == Kind::rslora ? std::sqrt(r) : r);
  }
};

at::Tensor rows_of(const at::Tensor& w) { return w.flatten(1).norm(2, 1); }
at::Tensor columns_of(const at::Tensor& w) { return w.transpose(0, 1).flatten(1).norm(2, 1); }
at::Tensor along(const at::Tensor& values, const at::Tensor& w, int64_t dim) {
  Shape shape(static_cast<size_t>(w.dim()), 1);
  shape[static_cast<size_t>(dim)] = values.numel();
  return values.view(shape);
}

/// What the program that trained it computes with: all in fp64.
at::Tensor trained(const at::Tensor& w, const at::Tensor& a, const at::Tensor& b, const at::Tensor& m, double scale,
                   bool columns) {
  const at::Tensor sum = w + scale * b.to(at::kDouble).flatten(1).matmul(a.to(at::kDouble).flatten(1)).view_as(w);
  if (!m.defined()) return sum;
  const at::Tensor to = m.to(at::kDouble).flatten();
  return columns ? sum * along(to / columns_of(sum), w, 1) : sum * along(to / rows_of(sum), w, 0);
}
/// ComfyUI's: rows are divided by the length that they have in the base.
at::Tensor in_comfyui(const at::Tensor& w, const at::Tensor& a, const at::Tensor& b, const at::Tensor& m,
                      double scale) {
  if (!m.defined() || m.size(0) != w.size(0)) return trained(w, a, b, m, scale, true);
  const at::Tensor sum = w + scale * b.to(at::kDouble).flatten(1).matmul(a.to(at::kDouble).flatten(1)).view_as(w);
  return sum * along(m.to(at::kDouble).flatten() / rows_of(w), w, 0);
}

double error(const at::Tensor& found, const at::Tensor& expected) {
  return (found.to(at::kDouble) - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

class Adapters : public FolderTest {
 protected:
  void save(const fs::path& file, const std::map<std::string, at::Tensor>& tensors,
            const checkpoint::Metadata& header = {}) {
    std::vector<checkpoint::TensorData> data;
    std::vector<at::Tensor> alive;
    for (const auto& [name, value] : tensors) {
      alive.push_back(value.contiguous());
      const DType dtype = value.scalar_type() == at::kFloat      ? DType::f32
                          : value.scalar_type() == at::kBFloat16 ? DType::bf16
                                                                 : DType::f16;
      data.push_back({name, dtype, value.sizes().vec(), alive.back().const_data_ptr()});
    }
    fs::create_directories(file.parent_path());
    checkpoint::write_safetensors(file, data, header);
  }
  static std::map<std::string, at::Tensor> load(const fs::path& file) {
    const checkpoint::WeightSet set = checkpoint::open_weights(file);
    std::map<std::string, at::Tensor> all;
    for (const std::string& name : set.names()) {
      all[name] = at::empty(set.at(name).shape, at::kFloat);
      set.read_f32(name, 0, all[name].numel(), all[name].mutable_data_ptr<float>());
    }
    return all;
  }
  at::Tensor random(const Shape& shape, double scale = 0.3) { return scale * at::randn(shape, generator_, at::kFloat); }
  int64_t draw(int64_t below) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(below)); }
  void seed(int64_t value) {
    engine_.seed(static_cast<uint64_t>(value));
    generator_.set_current_seed(static_cast<uint64_t>(value));
  }

  /// The base under diffusers' names, whole enough to be known.
  void make_base() {
    std::map<std::string, at::Tensor> tensors;
    for (const bool sana : {false, true}) {
      tensors.clear();
      for (const Module& module : sana ? kSana : kWan)
        tensors[std::string(module.diffusers) + ".weight"] = base_[module.official] = random(module.weight, 1);
      save(base_file(sana), tensors);
    }
  }
  fs::path base_file(bool sana) const { return folder_ / (sana ? "sana.safetensors" : "wan.safetensors"); }

  std::string module_name(const Adapter& adapter, const Module& module, bool diffusers) const {
    std::string name = diffusers ? module.diffusers : module.official;
    if (adapter.naming == "kohya" || adapter.naming == "lycoris") std::ranges::replace(name, '.', '_');
    return name;
  }

  Adapter draw_adapter(bool linears_alone) {
    Adapter adapter{draw(2) == 1, "", static_cast<Kind>(draw(4)), {}};
    const bool headed = adapter.kind == Kind::rslora;  // others have no word for it
    const std::vector<std::string> all = {"diffusers", "peft", "kohya", "lycoris", "comfyui", "diffsynth"};
    const bool dora = adapter.kind >= Kind::dora_rows;
    do adapter.naming = all[static_cast<size_t>(draw(static_cast<int64_t>(headed ? 2 : all.size())))];
    while ((dora && adapter.naming == "diffsynth") ||
           (adapter.kind == Kind::dora_columns && (adapter.naming == "peft" || adapter.naming == "diffusers")));
    const int64_t rank = 1 + draw(6), ranks = draw(2), alphas = draw(3);
    for (const Module& module : adapter.sana ? kSana : kWan) {
      const bool conv = module.weight.size() > 2;
      if ((linears_alone && conv) || (!adapter.pairs.empty() && draw(4) == 0)) continue;
      Pair pair{&module, {}, {}, {}, ranks ? 1 + draw(6) : rank, 0};
      pair.alpha = alphas == 0 ? static_cast<double>(pair.rank) : alphas == 1 ? 3 : 0.5 + static_cast<double>(draw(8));
      Shape a = module.weight, b(module.weight.size(), 1), m = b;
      a[0] = pair.rank, b[0] = module.weight[0], b[1] = pair.rank;
      const at::ScalarType dtype = std::array{at::kFloat, at::kBFloat16, at::kHalf}[static_cast<size_t>(draw(3))];
      pair.a = random(a).to(dtype), pair.b = random(b).to(dtype);
      const bool columns = adapter.kind == Kind::dora_columns;
      if (dora) {
        m[columns ? 1 : 0] = module.weight[columns ? 1 : 0];
        const at::Tensor& w = base_[module.official];
        pair.m = ((columns ? columns_of(w) : rows_of(w)) * (1 + random({m[columns ? 1 : 0]}, 0.1))).to(dtype).view(m);
        if (adapter.naming == "peft" || adapter.naming == "diffusers")
          pair.m = conv ? pair.m.transpose(0, 1).contiguous() : pair.m.flatten();
      }
      adapter.pairs.push_back(pair);
    }
    return adapter;
  }

  /// As its program writes it.
  fs::path save_adapter(const Adapter& adapter) {
    struct Written {
      const char *naming, *prefix, *down, *up, *magnitude;
    };
    static constexpr Written kWritten[] = {{"diffusers", "transformer.", "lora_A", "lora_B", "lora_magnitude_vector"},
                                           {"peft", "base_model.model.", "lora_A", "lora_B", "lora_magnitude_vector"},
                                           {"kohya", "lora_unet_", "lora_down", "lora_up", "dora_scale"},
                                           {"lycoris", "lycoris_", "lora_down", "lora_up", "dora_scale"},
                                           {"comfyui", "diffusion_model.", "lora_A", "lora_B", "dora_scale"},
                                           {"diffsynth", "", "lora_A.default", "lora_B.default", ""}};
    const Written& form =
        *std::ranges::find(kWritten, adapter.naming, [](const Written& w) { return std::string(w.naming); });
    const bool headed = adapter.naming == "diffusers" || adapter.naming == "peft";
    // peft's and LyCORIS' files have the names of the model that was wrapped, which may be diffusers' or the official one
    const bool either = adapter.naming == "peft" || adapter.naming == "lycoris";
    const bool diffusers = adapter.naming == "diffusers" || (either && draw(2) == 0);
    std::map<std::string, at::Tensor> tensors;
    nlohmann::json config = {{"peft_type", "LORA"},
                             {"r", 8},
                             {"lora_alpha", 3.5},
                             {"use_rslora", adapter.kind == Kind::rslora},
                             {"use_dora", adapter.kind == Kind::dora_rows},
                             {"init_lora_weights", true}};
    for (const Pair& pair : adapter.pairs) {
      const std::string name = module_name(adapter, *pair.module, diffusers), module = form.prefix + name;
      tensors[module + "." + form.down + ".weight"] = pair.a;
      tensors[module + "." + form.up + ".weight"] = pair.b;
      if (pair.m.defined()) tensors[module + "." + form.magnitude] = pair.m;
      config["rank_pattern"][name] = pair.rank;
      config["alpha_pattern"][name] = pair.alpha;
      if (!headed && (adapter.naming == "kohya" || pair.alpha != static_cast<double>(pair.rank)))
        tensors[module + ".alpha"] = at::scalar_tensor(pair.alpha, at::kFloat);
    }
    const fs::path folder = folder_ / "adapter";
    fs::remove_all(folder);
    checkpoint::Metadata header = {{"format", "pt"}};
    if (adapter.naming == "diffusers") {
      nlohmann::json prefixed;
      for (const auto& [key, value] : config.items()) prefixed["transformer." + key] = value;
      header["lora_adapter_metadata"] = prefixed.dump();
    }
    save(folder / "adapter_model.safetensors", tensors, header);
    if (adapter.naming == "peft") write("adapter/adapter_config.json", config.dump());
    return folder / "adapter_model.safetensors";
  }

  at::Tensor expected(const Adapter& adapter, const Pair& pair) {
    return trained(base_[pair.module->official].to(at::kDouble), pair.a, pair.b, pair.m, adapter.scale(pair),
                   adapter.kind == Kind::dora_columns);
  }

  /// As the program of the naming reads it: every module's weight, from the names that it looks for.
  void expect_in_program(const Adapter& adapter, const std::string& to, const fs::path& file) {
    const auto found = load(file);
    const bool headed = to == "diffusers" || to == "peft";
    const bool diffusers = to == "diffusers" || (to == "peft" && adapter.sana);
    nlohmann::json config;
    if (to == "peft") config = nlohmann::json::parse(read(file.parent_path() / "adapter_config.json"));
    if (to == "diffusers") {
      const nlohmann::json prefixed =
          nlohmann::json::parse(checkpoint::open_weights(file).metadata().at("lora_adapter_metadata"));
      for (const auto& [key, value] : prefixed.items()) config[key.substr(std::string("transformer.").size())] = value;
    }
    size_t used = 0;
    for (const Pair& pair : adapter.pairs) {
      std::string name = diffusers ? pair.module->diffusers : pair.module->official;
      if (to == "kohya") std::ranges::replace(name, '.', '_');
      const std::string module = (to == "diffusers" ? "transformer."
                                  : to == "peft"    ? "base_model.model."
                                  : to == "comfyui" ? "diffusion_model."
                                  : to == "kohya"   ? "lora_unet_"
                                                    : "") +
                                 name;
      const auto part = [&](const std::string& ending) {
        const auto at = found.find(module + "." + ending);
        used += at != found.end();
        return at == found.end() ? at::Tensor() : at->second;
      };
      const at::Tensor a = part(to == "kohya"       ? "lora_down.weight"
                                : to == "diffsynth" ? "lora_A.default.weight"
                                                    : "lora_A.weight"),
                       b = part(to == "kohya"       ? "lora_up.weight"
                                : to == "diffsynth" ? "lora_B.default.weight"
                                                    : "lora_B.weight"),
                       m = part(headed ? "lora_magnitude_vector" : "dora_scale"), alpha = part("alpha");
      ASSERT_TRUE(a.defined() && b.defined()) << to << ": " << module;
      ASSERT_EQ(m.defined(), pair.m.defined()) << to << ": " << module;
      const auto rank = static_cast<double>(a.size(0));
      double scale = alpha.defined() ? alpha.item<double>() / rank : 1;
      if (headed) {
        double value = config.at("lora_alpha").get<double>();
        if (config.at("alpha_pattern").contains(name)) value = config.at("alpha_pattern").at(name).get<double>();
        scale = value / (config.at("use_rslora").get<bool>() ? std::sqrt(rank) : rank);
        int64_t r = config.at("r").get<int64_t>();
        if (config.at("rank_pattern").contains(name)) r = config.at("rank_pattern").at(name).get<int64_t>();
        EXPECT_EQ(r, a.size(0)) << name;
        EXPECT_EQ(config.at("use_dora").get<bool>(), m.defined());
      }
      const at::Tensor w = base_[pair.module->official].to(at::kDouble);
      const at::Tensor result = headed ? trained(w, a, b, m, scale, false) : in_comfyui(w, a, b, m, scale);
      EXPECT_LT(error(result, expected(adapter, pair)), 1e-6) << to << ": " << module;
    }
    EXPECT_EQ(used, found.size()) << "the file has tensors that the program does not look for";
  }

  std::map<std::string, at::Tensor> base_;  // by official name of the module
  std::mt19937_64 engine_;
  at::Generator generator_ = at::detail::createCPUGenerator();
};

TEST_F(Adapters, OfEveryFormAreMergedAsTheirProgramsComputeThem) {
  testing::MatrixPart part("merged adapters", 400);
  for (const int i : part) {
    seed(i);
    make_base();
    const Adapter adapter = draw_adapter(false);
    const fs::path file = save_adapter(adapter), out = folder_ / "out.safetensors";
    const double strength = std::array{1.0, 0.7, -0.3, 0.0}[static_cast<size_t>(draw(4))];
    models::convert(
        {.in = base_file(adapter.sana), .out = out, .force = true, .merge = {file}, .merge_scales = {strength}});
    const auto merged = load(out);
    size_t changed = 0;
    for (const Module& module : adapter.sana ? kSana : kWan) {
      const at::Tensor w = base_[module.official].to(at::kDouble),
                       &found = merged.at(std::string(module.diffusers) + ".weight");
      const auto pair = std::ranges::find(adapter.pairs, &module, &Pair::module);
      changed += pair != adapter.pairs.end();
      const at::Tensor wanted = pair == adapter.pairs.end() ? w : w + strength * (expected(adapter, *pair) - w);
      EXPECT_LT(error(found, wanted), 1e-6) << "case " << i << ": " << module.official << " from " << adapter.naming;
    }
    EXPECT_EQ(changed, adapter.pairs.size());
  }
}

TEST_F(Adapters, GiveTheTrainedWeightsInEveryProgramThatTheirNamesAreFor) {
  testing::MatrixPart part("adapters under other names", 400);
  for (const int i : part) {
    seed(i);
    make_base();
    const Adapter adapter = draw_adapter(false);
    const fs::path file = save_adapter(adapter);
    for (const std::string& to : families::kLoraNamings) {
      SCOPED_TRACE("case " + std::to_string(i) + " from " + adapter.naming + " to " + to);
      const fs::path out = folder_ / "converted" / "adapter_model.safetensors",
                     back = folder_ / "back" / "x.safetensors";
      const models::ConvertOptions options = {
          .in = file, .out = out, .to = to, .force = true, .base = base_file(adapter.sana)};
      fs::remove_all(out.parent_path());  // an adapter_config.json of another naming speaks of every file beside it
      const bool headed = to == "diffusers" || to == "peft";
      const bool refused = (adapter.sana && !headed) || (adapter.kind == Kind::dora_columns && headed) ||
                           (adapter.kind >= Kind::dora_rows && to == "diffsynth");
      if (refused) {
        EXPECT_THROW(models::convert_lora(options), UserError);
        continue;
      }
      models::convert_lora(options);
      expect_in_program(adapter, to, out);
      // and what was written is read as what it is
      models::convert({.in = base_file(adapter.sana), .out = back, .force = true, .merge = {out}});
      const auto merged = load(back);
      for (const Pair& pair : adapter.pairs)
        EXPECT_LT(error(merged.at(std::string(pair.module->diffusers) + ".weight"), expected(adapter, pair)), 1e-6)
            << pair.module->official;
    }
  }
}

TEST_F(Adapters, ARunStartsFromThemAsTheyAre) {
  testing::MatrixPart part("adapters to start from", 400);
  for (const int i : part) {
    seed(i);
    make_base();
    const Adapter adapter = draw_adapter(true);
    SCOPED_TRACE("case " + std::to_string(i) + " from " + adapter.naming);
    const fs::path file = save_adapter(adapter);
    models::AdapterRule rule{.rank = 0,
                             .alpha = 1 + static_cast<double>(draw(5)),
                             .rslora = draw(2) == 1,
                             .dora = adapter.kind == Kind::dora_rows,
                             .seed = 5};
    std::vector<std::string> modules;
    for (const Pair& pair : adapter.pairs) {
      rule.rank = std::max(rule.rank, pair.rank);
      modules.emplace_back(pair.module->official);
    }
    const models::WeightForm* form = nullptr;
    for (const models::WeightForm* one : models::weight_forms())
      if (one->model == (adapter.sana ? "sana" : "wan") && one->variant == (adapter.sana ? "image" : "")) form = one;
    if (adapter.kind == Kind::dora_columns) {
      EXPECT_THROW(adapter_values(rule, modules, file, form), UserError);
      continue;
    }
    const engine::Fill fill = adapter_values(rule, modules, file, form);
    const auto value = [&](const std::string& name, const Shape& shape) {
      const at::Tensor result = at::empty(shape, at::kFloat);
      const int64_t half = result.numel() / 2;  // in two pieces, as shards ask for them
      auto* to = result.mutable_data_ptr<float>();
      fill({.name = name, .shape = shape}, 0, half, to);
      fill({.name = name, .shape = shape}, half, result.numel() - half, to + half);
      return result;
    };
    for (const Pair& pair : adapter.pairs) {
      const std::string name = pair.module->official;
      const int64_t out = pair.module->weight[0], in = pair.module->weight[1];
      const at::Tensor a = value(name + net::kLoraA, {rule.rank, in}), b = value(name + net::kLoraB, {out, rule.rank});
      const at::Tensor m = rule.dora ? value(name + net::kLoraMagnitude, {out}) : at::Tensor();
      EXPECT_LT(error(trained(base_[name].to(at::kDouble), a, b, m, rule.scale(), false), expected(adapter, pair)),
                1e-6)
          << name;
    }
    rule.rank += 1;
    try {
      adapter_values(rule, modules, file, form);
      ADD_FAILURE() << "a rank that the file has not was taken";
    } catch (const UserError& refusal) {  // the advice is the one that worked above, whatever ranks there are
      EXPECT_NE(std::string(refusal.what()).find("lora.rank = " + std::to_string(rule.rank - 1)), std::string::npos)
          << refusal.what();
    }
  }
}

TEST(AdaptersOfARecipe, HaveEveryNumberOfIt) {
  EXPECT_FALSE(adapter_rule(recipe::load_recipe("", {}))) << "train.mode = full";
  const auto rule = adapter_rule(recipe::load_recipe("", {{"train.mode", "lora"},
                                                          {"lora.rank", "6"},
                                                          {"lora.alpha", "9"},
                                                          {"lora.rslora", "true"},
                                                          {"lora.dropout", "0.25"},
                                                          {"lora.base_dtype", "int8"},
                                                          {"lora.targets", "ffn.0,self_attn.q"},
                                                          {"run.seed", "77"}}));
  ASSERT_TRUE(rule);
  EXPECT_EQ(rule->rank, 6);
  EXPECT_EQ(rule->alpha, 9);
  EXPECT_TRUE(rule->rslora);
  EXPECT_FALSE(rule->dora);
  EXPECT_EQ(rule->dropout, 0.25);
  EXPECT_EQ(rule->base, DType::i8);
  EXPECT_EQ(rule->seed, 77u);
  EXPECT_EQ(rule->targets, (std::vector<std::string>{"ffn.0", "self_attn.q"}));
  const auto dora = adapter_rule(recipe::load_recipe("", {{"train.mode", "lora"}, {"lora.dora", "true"}}));
  EXPECT_TRUE(dora && dora->dora && !dora->rslora);
  const auto lokr = adapter_rule(recipe::load_recipe("", {{"train.mode", "lora"},
                                                          {"lora.kind", "lokr"},
                                                          {"lora.factor", "8"},
                                                          {"lora.decompose_both", "true"},
                                                          {"lora.unbalanced", "true"},
                                                          {"lora.rank_pattern", "ffn.0=3,blocks.*=5"},
                                                          {"lora.alpha_pattern", "ffn.2=0.5"}}));
  ASSERT_TRUE(lokr);
  EXPECT_EQ(lokr->kind, "lokr");
  EXPECT_EQ(lokr->factor, 8);
  EXPECT_TRUE(lokr->decompose_both && lokr->unbalanced && !lokr->full_matrix);
  EXPECT_EQ(lokr->rank_of("blocks.1.ffn.0"), 3);
  EXPECT_EQ(lokr->rank_of("blocks.1.ffn.2"), 5);
  EXPECT_EQ(lokr->scale("blocks.1.ffn.2"), 0.1);
  EXPECT_EQ(lokr->scale("blocks.1.ffn.0"), 1) << "alpha is auto";
  EXPECT_TRUE(
      adapter_rule(recipe::load_recipe("", {{"train.mode", "lora"}, {"lora.full_matrix", "true"}}))->full_matrix);
  // A begins at random by the seed
  const auto begun = [](const char* seed) {
    const auto of =
        adapter_rule(recipe::load_recipe("", {{"train.mode", "lora"}, {"lora.rank", "2"}, {"run.seed", seed}}));
    std::vector<float> a(32);
    adapter_values(*of, {"x"}, {}, nullptr)({.name = std::string("x") + net::kLoraA, .shape = {2, 16}}, 0, 32,
                                            a.data());
    return a;
  };
  EXPECT_EQ(begun("1"), begun("1"));
  EXPECT_NE(begun("1"), begun("2"));
}

TEST_F(Adapters, ThatBelongToAnotherBaseAreRefusedByName) {
  seed(1);
  make_base();
  Adapter adapter{false, "peft", Kind::plain, {{&kWan[0], random({4, 16}), random({16, 4}), {}, 4, 4.0}}};
  const fs::path file = save_adapter(adapter), config = folder_ / "adapter/adapter_config.json";
  const nlohmann::json plain = nlohmann::json::parse(read(config));
  const auto merge = [&] {
    models::convert({.in = base_file(false), .out = folder_ / "m.safetensors", .force = true, .merge = {file}});
  };
  const auto refusal = [&](const nlohmann::json& changes) {
    nlohmann::json changed = plain;
    changed.update(changes);
    write("adapter/adapter_config.json", changed.dump());
    std::string texts[3];
    const std::function<void()> uses[] = {
        merge, [&] { models::convert_lora({.in = file, .out = folder_ / "c.safetensors", .to = "kohya"}); },
        [&] { adapter_values({.rank = 4, .alpha = 4}, {kWan[0].official}, file, nullptr); }};
    for (size_t i = 0; i < 3; ++i) try {
        uses[i]();
      } catch (const UserError& error) {
        texts[i] = error.what();
      }
    EXPECT_EQ(texts[0].substr(texts[0].find(": ")), texts[1].substr(texts[1].find(": ")));
    EXPECT_FALSE(texts[2].empty());
    return texts[0];
  };
  for (const auto& [start, name] : {std::pair{"pissa", "PiSSA"},
                                    {"pissa_niter_16", "PiSSA"},
                                    {"olora", "OLoRA"},
                                    {"OLoRA", "OLoRA"},
                                    {"corda", "CorDA"},
                                    {"loftq", "LoftQ"},
                                    {"lora_ga", "LoRA-GA"}})
    EXPECT_NE(refusal({{"init_lora_weights", start}}).find(name), std::string::npos) << start;
  EXPECT_NE(refusal({{"peft_type", "VERA"}}).find("VERA"), std::string::npos);
  EXPECT_NE(refusal({{"use_qalora", true}}).find("QA-LoRA"), std::string::npos);
  EXPECT_NE(refusal({{"kasa_config", {{"beta", 0.1}}}}).find("KaSA"), std::string::npos);
  for (const char* start : {"gaussian", "eva", "orthogonal"}) {  // these leave the base as it is
    nlohmann::json changed = plain;
    changed["init_lora_weights"] = start;
    write("adapter/adapter_config.json", changed.dump());
    EXPECT_NO_THROW(merge()) << start;
  }
}

TEST_F(Adapters, OfDoraForComfyuiWantTheBaseAndFindTheOneThatPeftNoted) {
  seed(2);
  make_base();
  Adapter adapter{false,
                  "peft",
                  Kind::dora_rows,
                  {{&kWan[1], random({4, 16}), random({24, 4}), rows_of(base_[kWan[1].official]) * 1.1, 4, 8.0}}};
  const fs::path file = save_adapter(adapter), out = folder_ / "c/x.safetensors";
  const models::ConvertOptions options = {.in = file, .out = out, .to = "comfyui", .force = true};
  try {
    models::convert_lora(options);
    ADD_FAILURE() << "written without the base's lengths";
  } catch (const UserError& refusal) {
    EXPECT_EQ(refusal.code(), Exit::usage);
    EXPECT_NE(std::string(refusal.what()).find("--base"), std::string::npos) << refusal.what();
  }
  EXPECT_FALSE(fs::exists(out));
  nlohmann::json config = nlohmann::json::parse(read(folder_ / "adapter/adapter_config.json"));
  config["base_model_name_or_path"] = base_file(false);
  write("adapter/adapter_config.json", config.dump());
  models::convert_lora(options);
  expect_in_program(adapter, "comfyui", out);
  EXPECT_THROW(adapter_values({.rank = 4, .alpha = 4, .dora = true}, {kWan[1].official}, out, nullptr), UserError)
      << "its magnitudes are ComfyUI's";
}

}  // namespace
}  // namespace tessera::job::adapter_forms
