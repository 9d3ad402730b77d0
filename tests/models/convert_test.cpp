// What convert and merge write, against formulas in fp64: every part of an adapter at the strength of its file, in every
// dtype of base and result; shards; what files say beside their tensors. Adapters of every form and naming:
// job/adapters_test.cpp.
#include "tessera/models/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "folder_test.h"
#include "tessera/base/check.h"
#include "tessera/checkpoint/dtype.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/model_folder.h"
#include "tessera/checkpoint/weights.h"
#include "tessera/models/convert_lora.h"
#include "tessera/models/registry.h"
#include "tessera/torch_headers.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

const std::string kQ = "blocks.0.attn1.to_q", kFfn = "blocks.0.ffn.net.0.proj";
const std::map<std::string, std::string> kOfficial = {{kQ, "blocks.0.self_attn.q"}, {kFfn, "blocks.0.ffn.0"}};

double most(const at::Tensor& x) { return x.abs().max().item<double>(); }

class ConvertedFiles : public FolderTest {
 protected:
  at::Tensor random(const std::vector<int64_t>& shape, double scale = 1) {
    return scale * at::randn(shape, generator_, at::kFloat);
  }
  fs::path save(const std::string& name, const Tensors& tensors,
                const checkpoint::Metadata& header = {{"format", "pt"}}) {
    std::vector<checkpoint::TensorData> data;
    std::vector<at::Tensor> alive;
    for (const auto& [key, value] : tensors) {
      alive.push_back(value.contiguous());
      const DType dtype = value.scalar_type() == at::kFloat      ? DType::f32
                          : value.scalar_type() == at::kBFloat16 ? DType::bf16
                                                                 : DType::f16;
      data.push_back({key, dtype, value.sizes().vec(), alive.back().const_data_ptr()});
    }
    fs::create_directories((folder_ / name).parent_path());
    checkpoint::write_safetensors(folder_ / name, data, header);
    return folder_ / name;
  }
  static at::Tensor value(const checkpoint::WeightSet& set, const std::string& name) {
    at::Tensor all = at::empty(set.at(name).shape, at::kFloat);
    set.read_f32(name, 0, all.numel(), all.mutable_data_ptr<float>());
    return all.to(at::kDouble);
  }
  /// A Wan under diffusers' names, whole enough to be known.
  Tensors base(at::ScalarType type = at::kFloat) {
    Tensors all;
    for (const auto& [name, shape] :
         std::vector<std::pair<std::string, std::vector<int64_t>>>{{kQ, {16, 16}},
                                                                   {kFfn, {24, 16}},
                                                                   {"blocks.0.ffn.net.2", {16, 24}},
                                                                   {"proj_out", {8, 16}},
                                                                   {"patch_embedding", {16, 4, 1, 2, 2}}}) {
      all[name + ".weight"] = random(shape).to(type);
      all[name + ".bias"] = random({shape[0]}).to(type);
    }
    return all;
  }
  /// A whole one under official names.
  Tensors whole() {
    Tensors all;
    const auto model = models::make_denoiser(
        {.preset = "wan-tiny", .config_text = R"({"dim": 128, "num_heads": 1, "ffn_dim": 64, "num_layers": 1})"});
    for (const auto& unit : model->units())
      for (const plan::ParamSpec& param : unit->spec().params) all[param.name] = random(param.shape);
    return all;
  }
  /// Every part that a module of an adapter may have, as ComfyUI's files name them.
  Tensors adapter(int64_t rank, double alpha) {
    Tensors all;
    for (const auto& [name, official] : kOfficial) {
      const int64_t out = name == kQ ? 16 : 24;
      const std::string module = "diffusion_model." + official;
      all[module + ".lora_A.weight"] = random({rank, 16}, 0.4);
      all[module + ".lora_B.weight"] = random({out, rank}, 0.4);
      all[module + ".lora_B.bias"] = random({out});
      all[module + ".alpha"] = at::scalar_tensor(alpha, at::kFloat);
      all[module + ".diff"] = random({out, 16});
      all[module + ".diff_b"] = random({out});
    }
    return all;
  }
  /// What one adapter adds at strength 1.
  static at::Tensor added(const Tensors& adapter, const std::string& module, bool bias, double scale) {
    const auto part = [&](const std::string& ending) {
      const auto found = adapter.find("diffusion_model." + kOfficial.at(module) + ending);
      return found == adapter.end() ? at::zeros({1}, at::kDouble) : found->second.to(at::kDouble);
    };
    if (bias) return scale * part(".lora_B.bias") + part(".diff_b");
    return scale * part(".lora_B.weight").matmul(part(".lora_A.weight")) + part(".diff");
  }

  at::Generator generator_ = at::detail::createCPUGenerator(7);
};

const std::pair<const char*, at::ScalarType> kTypes[] = {
    {"fp32", at::kFloat}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}};
double rounding(at::ScalarType type) { return type == at::kFloat ? 1e-6 : type == at::kBFloat16 ? 0x1p-8 : 0x1p-11; }

TEST_F(ConvertedFiles, HaveEveryPartOfEachAdapterAtItsStrengthRoundedOnceToTheirDtype) {
  const Tensors one = adapter(4, 2), two = adapter(2, 6);
  const fs::path first = save("one.safetensors", one), second = save("two.safetensors", two);
  for (const auto& [from, type] : kTypes) {
    const Tensors stored = base(type);
    const fs::path in = save("base.safetensors", stored), out = folder_ / "out.safetensors";
    for (const std::string to : {"", "fp32", "bf16", "fp16", "fp8_scaled"}) {
      const bool fp8 = to == "fp8_scaled";
      SCOPED_TRACE(std::string(from) + " to " + to);
      const std::vector<double> strengths = {fp8 ? 30 : 0.7, -0.4};  // beyond what the unmerged weights' scale can hold
      convert({.in = in,
               .out = out,
               .to = fp8 ? "official" : "",
               .dtype = to,
               .force = true,
               .merge = {first, second},
               .merge_scales = strengths});
      const checkpoint::WeightSet set = checkpoint::open_weights(out);
      const auto result =
          std::ranges::find(kTypes, to.empty() ? from : to, [](const auto& t) { return std::string(t.first); });
      const at::ScalarType written = fp8 ? type : result->second;
      for (const auto& [module, official] : kOfficial)
        for (const bool bias : {false, true}) {
          const std::string ending = bias ? ".bias" : ".weight";
          const at::Tensor expected = stored.at(module + ending).to(at::kDouble) +
                                      strengths[0] * added(one, module, bias, 0.5) +
                                      strengths[1] * added(two, module, bias, 3);
          const at::Tensor off = value(set, (fp8 ? official : module) + ending) - expected;
          const at::Tensor room = fp8 && !bias ? expected.abs() / 16 + 1e-5 * most(expected)
                                               : rounding(written) * expected.abs() + 1e-6 * most(expected);
          EXPECT_LE((off.abs() - room).max().item<double>(), 0) << module << ending;
        }
      const std::string untouched = fp8 ? "head.head.weight" : "proj_out.weight";
      const at::Tensor same = stored.at("proj_out.weight").to(at::kDouble);
      EXPECT_LE(most(value(set, untouched) - same), rounding(written) * most(same));
    }
  }
}

TEST_F(ConvertedFiles, WhoseNamesJoinQueriesKeysAndValuesHaveTheAdaptersOfEach) {
  Tensors stored;
  const std::string attention = "transformer_blocks.0.attn1.";
  for (const char* part : {"to_q", "to_k", "to_v"}) stored[attention + part + ".weight"] = random({16, 16});
  for (const auto& [name, shape] :
       std::vector<std::pair<std::string, std::vector<int64_t>>>{{"caption_projection.linear_1", {16, 12}},
                                                                 {"proj_out", {8, 16}},
                                                                 {"transformer_blocks.0.ff.conv_point", {16, 20, 1, 1}},
                                                                 {"patch_embed.proj", {16, 4, 1, 1}}})
    stored[name + ".weight"] = random(shape);
  Tensors pairs;
  std::map<std::string, at::Tensor> added;
  for (const char* part : {"to_q", "to_v"}) {
    const at::Tensor a = random({3, 16}), b = random({16, 3});
    pairs["transformer." + attention + part + ".lora_A.weight"] = a;
    pairs["transformer." + attention + part + ".lora_B.weight"] = b;
    added[part] = b.to(at::kDouble).matmul(a.to(at::kDouble));
  }
  const fs::path out = folder_ / "official.safetensors";
  convert({.in = save("sana.safetensors", stored),
           .out = out,
           .to = "official",
           .merge = {save("qv.safetensors", pairs)},
           .merge_scales = {0.5}});
  const at::Tensor found = value(checkpoint::open_weights(out), "blocks.0.attn.qkv.weight");
  ASSERT_EQ(found.size(0), 48);
  int64_t row = 0;
  for (const char* part : {"to_q", "to_k", "to_v"}) {
    at::Tensor expected = stored.at(attention + part + ".weight").to(at::kDouble);
    if (added.contains(part)) expected = expected + 0.5 * added.at(part);
    EXPECT_LT(most(found.narrow(0, row, 16) - expected), 1e-5) << part;
    row += 16;
  }
}

TEST_F(ConvertedFiles, AdaptersHaveTheDtypeThatIsAskedForAndAreTheSameToMerge) {
  Tensors pairs = adapter(4, 2);
  std::erase_if(pairs, [](const auto& item) {
    return item.first.ends_with(".diff") || item.first.ends_with("_b") || item.first.ends_with(".bias");
  });
  const fs::path in = save("pairs.safetensors", pairs), model = save("base.safetensors", base());
  for (const char* naming : {"comfyui", "kohya", "diffsynth", "diffusers", "peft"})
    for (const auto& [dtype, type] : kTypes) {
      SCOPED_TRACE(std::string(naming) + " in " + dtype);
      const fs::path out = folder_ / naming / dtype / "adapter_model.safetensors", merged = folder_ / "m.safetensors";
      fs::create_directories(out.parent_path());
      convert_lora({.in = in, .out = out, .to = naming, .dtype = dtype, .force = true});
      const checkpoint::WeightSet set = checkpoint::open_weights(out);
      for (const std::string& name : set.names())
        EXPECT_EQ(checkpoint::dtype_name(set.at(name).dtype), checkpoint::dtype_name(type == at::kFloat  ? DType::f32
                                                                                     : type == at::kHalf ? DType::f16
                                                                                                         : DType::bf16))
            << name;
      convert({.in = model, .out = merged, .force = true, .merge = {out}});
      const checkpoint::WeightSet sum = checkpoint::open_weights(merged), before = checkpoint::open_weights(model);
      for (const auto& [module, official] : kOfficial) {
        const at::Tensor change = added(pairs, module, false, 0.5);
        const at::Tensor found = value(sum, module + ".weight") - value(before, module + ".weight");
        EXPECT_LT(most(found - change), (3 * rounding(type) + 2e-6) * most(change)) << module;
      }
    }
}

// Such as DiffSynth's files that were written from a LoRA with another alpha: B holds it, and so does its bias.
TEST_F(ConvertedFiles, AFoldedAlphaIsTakenOutOfBAndOfItsBias) {
  const at::Tensor a = random({4, 16}), b = random({16, 4}), bias = random({16});
  const std::string module = "blocks.0.self_attn.q.";
  const fs::path in = save("folded.safetensors",
                           {{module + "lora_A.default.weight", a},
                            {module + "lora_B.default.weight", b},
                            {module + "lora_B.default.bias", bias}},
                           {{"format", "pt"}, {"tessera_folded_alpha", "2"}});
  const fs::path model = save("base.safetensors", base());
  const checkpoint::WeightSet before = checkpoint::open_weights(model);
  convert_lora({.in = in, .out = folder_ / "peft/adapter_model.safetensors", .to = "peft"});
  const checkpoint::WeightSet peft = checkpoint::open_weights(folder_ / "peft/adapter_model.safetensors");
  const std::string there = "base_model.model." + module;
  EXPECT_LT(most(value(peft, there + "lora_B.weight") - 2 * b.to(at::kDouble)), 1e-6)
      << "alpha / rank is beside it: 2 / 4";
  EXPECT_LT(most(value(peft, there + "lora_B.bias") - 2 * bias.to(at::kDouble)), 1e-6);
  for (const fs::path& file : {in, folder_ / "peft/adapter_model.safetensors"}) {
    convert({.in = model, .out = folder_ / "m.safetensors", .force = true, .merge = {file}, .merge_scales = {0.5}});
    const checkpoint::WeightSet sum = checkpoint::open_weights(folder_ / "m.safetensors");
    const at::Tensor change = b.to(at::kDouble).matmul(a.to(at::kDouble));
    EXPECT_LT(most(value(sum, kQ + ".weight") - value(before, kQ + ".weight") - 0.5 * change), 1e-5) << file;
    EXPECT_LT(most(value(sum, kQ + ".bias") - value(before, kQ + ".bias") - 0.5 * bias.to(at::kDouble)), 1e-5) << file;
  }
}

TEST_F(ConvertedFiles, OfRsLoraAreScaledByTheRootOfTheRankWhereverTheirAlphaStands) {
  const fs::path model = save("base.safetensors", base());
  const checkpoint::WeightSet before = checkpoint::open_weights(model);
  const at::Tensor a = random({4, 16}), b = random({16, 4});
  const std::string module = "transformer.blocks.0.attn1.to_q.";
  for (const bool rslora : {false, true})
    for (const bool tensor : {false, true}) {
      Tensors pair = {{module + "lora_A.weight", a}, {module + "lora_B.weight", b}};
      if (tensor) pair[module + "alpha"] = at::scalar_tensor(6, at::kFloat);
      const nlohmann::json config = {
          {"transformer.lora_alpha", 3}, {"transformer.r", 4}, {"transformer.use_rslora", rslora}};
      const fs::path file = save("rs.safetensors", pair, {{"format", "pt"}, {"lora_adapter_metadata", config.dump()}});
      convert({.in = model, .out = folder_ / "m.safetensors", .force = true, .merge = {file}});
      const double scale = (tensor ? 6.0 : 3.0) / (rslora ? 2 : 4);
      const at::Tensor found =
          value(checkpoint::open_weights(folder_ / "m.safetensors"), kQ + ".weight") - value(before, kQ + ".weight");
      EXPECT_LT(most(found - scale * b.to(at::kDouble).matmul(a.to(at::kDouble))), 1e-5) << rslora << tensor;
    }
}

TEST_F(ConvertedFiles, InShardsAreAsFullAsTheirSizeAllows) {
  const Tensors stored = whole();
  const fs::path in = save("base.safetensors", stored);
  for (const int64_t limit : {int64_t{70000}, int64_t{200000}, int64_t{1} << 30}) {
    const fs::path out = folder_ / ("shards-" + std::to_string(limit));
    convert({.in = in, .out = out, .shard_size = limit});
    std::vector<std::vector<int64_t>> files;  // bytes of each tensor, in the order of the files
    size_t tensors = 0;
    std::vector<fs::path> paths;
    for (const auto& item : fs::directory_iterator(out))
      if (item.path().extension() == ".safetensors") paths.push_back(item.path());
    std::ranges::sort(paths);
    for (const auto& path : paths) {
      auto& file = files.emplace_back();
      const checkpoint::WeightSet set = checkpoint::open_weights(path);
      for (const std::string& name : set.names()) file.push_back(set.at(name).bytes());
      tensors += file.size();
    }
    EXPECT_EQ(tensors, stored.size());
    const auto sum = [](const std::vector<int64_t>& all) {
      return std::accumulate(all.begin(), all.end(), int64_t{0});
    };
    for (size_t f = 0; f < files.size(); ++f) {
      EXPECT_TRUE(sum(files[f]) <= limit || files[f].size() == 1) << limit << ": file " << f;
      if (f > 0) EXPECT_GT(sum(files[f - 1]) + *std::ranges::max_element(files[f]), limit) << limit << ": file " << f;
    }
    EXPECT_EQ(fs::exists(out / "diffusion_pytorch_model.safetensors.index.json"), files.size() > 1);
  }
}

TEST_F(ConvertedFiles, OfTwoExpertsSayWhereTheyMeetAndTheirShiftInEveryLayout) {
  const fs::path in = save("base.safetensors", whole());
  for (const char* expert : {"high_noise_model", "low_noise_model"})
    convert({.in = in, .out = folder_ / "pair" / expert, .to = "official"});
  write("pair/experts.json", checkpoint::experts_text({.boundary = 0.8, .flow_shift = 7.5}));
  convert({.in = folder_ / "pair", .out = folder_ / "pipeline", .to = "diffusers"});
  const auto json = [&](const char* file) { return nlohmann::json::parse(read(folder_ / "pipeline" / file)); };
  EXPECT_EQ(json("model_index.json")["boundary_ratio"], 0.8);
  EXPECT_EQ(json("scheduler/scheduler_config.json")["flow_shift"], 7.5);
  convert({.in = folder_ / "pipeline", .out = folder_ / "back", .to = "official"});
  EXPECT_EQ(checkpoint::find_facts(folder_ / "back").boundary, 0.8);
  EXPECT_EQ(checkpoint::find_facts(folder_ / "back").flow_shift, 7.5);
}

/// Factors of LoHa and LoKr: what they add to a weight, in the forms that LyCORIS and others write.
class FactorFiles : public ConvertedFiles {
 protected:
  at::Tensor change(const Tensors& tensors, const checkpoint::Metadata& header = {{"format", "pt"}}) {
    const LoraFile file = LoraFile::open(save("factors.safetensors", tensors, header));
    EXPECT_EQ(file.modules().size(), 1u);
    return file.change(file.modules().front());
  }
  std::string refused(const Tensors& tensors) {
    try {
      LoraFile::open(save("wrong.safetensors", tensors));
    } catch (const UserError& error) {
      return error.what();
    }
    return {};
  }
  static std::string key(const std::string& part) { return "diffusion_model.blocks.0.self_attn.q." + part; }
};

TEST_F(FactorFiles, AddTheirKroneckerProductAtTheScaleThatComfyUIGivesThem) {
  const at::Tensor w1 = random({2, 4}), w2 = random({8, 4}), a = random({8, 3}), b = random({3, 4});
  const at::Tensor whole = at::kron(w1, w2), low = at::kron(w1, at::matmul(a, b));
  EXPECT_LT(most(change({{key("lokr_w1"), w1}, {key("lokr_w2"), w2}}) - whole), 1e-5);
  for (const float alpha : {7.0f, std::numeric_limits<float>::infinity()})  // ai-toolkit's is beyond fp16
    EXPECT_LT(
        most(change({{key("lokr_w1"), w1}, {key("lokr_w2"), w2}, {key("alpha"), at::scalar_tensor(alpha)}}) - whole),
        1e-5);
  const Tensors pair = {{key("lokr_w1"), w1}, {key("lokr_w2_a"), a}, {key("lokr_w2_b"), b}};
  Tensors scaled = pair;
  scaled[key("alpha")] = at::scalar_tensor(1.5f);
  EXPECT_LT(most(change(scaled) - 0.5 * low), 1e-5);
  EXPECT_LT(most(change(pair) - low), 1e-5) << "without an alpha the scale is 1";
  EXPECT_LT(most(change(pair, {{"ss_network_alpha", "9"}}) - low), 1e-5) << "whatever kohya's header says";
  const at::Tensor first = random({2, 5}), second = random({5, 4});  // a rank of its own, which does not count
  EXPECT_LT(most(change({{key("lokr_w1_a"), first},
                         {key("lokr_w1_b"), second},
                         {key("lokr_w2_a"), a},
                         {key("lokr_w2_b"), b},
                         {key("alpha"), at::scalar_tensor(6.0f)}}) -
                 2 * at::kron(at::matmul(first, second), at::matmul(a, b))),
            1e-4);
}

TEST_F(FactorFiles, AddTheProductOfPairsAndTuckersFormOfConvolutions) {
  const at::Tensor a1 = random({6, 2}), b1 = random({2, 5}), a2 = random({6, 2}), b2 = random({2, 5});
  EXPECT_LT(most(change({{key("hada_w1_a"), a1},
                         {key("hada_w1_b"), b1},
                         {key("hada_w2_a"), a2},
                         {key("hada_w2_b"), b2},
                         {key("alpha"), at::scalar_tensor(1.0f)}}) -
                 0.5 * at::matmul(a1, b1) * at::matmul(a2, b2)),
            1e-5);
  const at::Tensor t1 = random({2, 3, 3, 2}), p1 = random({2, 6}), r1 = random({3, 4}), t2 = random({2, 3, 3, 2}),
                   p2 = random({2, 6}), r2 = random({3, 4});
  const auto kernel = [](const at::Tensor& t, const at::Tensor& p, const at::Tensor& r) {
    return at::einsum("prkl,po,ri->oikl", {t, p, r}).flatten(1);
  };
  EXPECT_LT(most(change({{key("hada_t1"), t1},
                         {key("hada_w1_a"), p1},
                         {key("hada_w1_b"), r1},
                         {key("hada_t2"), t2},
                         {key("hada_w2_a"), p2},
                         {key("hada_w2_b"), r2}}) -
                 kernel(t1, p1, r1) * kernel(t2, p2, r2)),
            1e-4);
  const at::Tensor w1 = random({2, 3, 1, 1}), w2 = random({4, 5, 3, 3});
  EXPECT_LT(most(change({{key("lokr_w1"), w1}, {key("lokr_w2"), w2}}) - at::kron(w1.flatten(1), w2.flatten(1))), 1e-5);
}

TEST_F(FactorFiles, PeftsAlphaIsRead) {
  const at::Tensor w1 = random({2, 4}), a = random({8, 4}), b = random({4, 4});
  save("peft/adapter_model.safetensors", {{"base_model.model.blocks.0.self_attn.q.lokr_w1", w1},
                                          {"base_model.model.blocks.0.self_attn.q.lokr_w2_a", a},
                                          {"base_model.model.blocks.0.self_attn.q.lokr_w2_b", b}});
  checkpoint::write_text(folder_ / "peft/adapter_config.json", R"({"peft_type": "LOKR", "r": 4, "alpha": 2})");
  const LoraFile file = LoraFile::open(folder_ / "peft");
  file.check_usable();
  EXPECT_LT(most(file.change(file.modules().front()) - 0.5 * at::kron(w1, at::matmul(a, b))), 1e-5);
}

TEST_F(FactorFiles, ThatAreNotWholeAreNamed) {
  const at::Tensor w1 = random({2, 4}), a = random({8, 3}), b = random({3, 4});
  EXPECT_NE(refused({{key("lokr_w1"), w1}, {key("lokr_w2_a"), a}}).find("these make no LoKr"), std::string::npos);
  EXPECT_NE(refused({{key("lokr_w1"), w1}, {key("lokr_w2_a"), a}, {key("lokr_w2_b"), random({2, 4})}}).find("no LoKr"),
            std::string::npos);
  EXPECT_NE(
      refused({{key("hada_w1_a"), a}, {key("hada_w1_b"), b}, {key("hada_w2_a"), a}, {key("hada_w2_b"), random({3, 5})}})
          .find("no LoHa"),
      std::string::npos);
  EXPECT_NE(refused({{key("lokr_w1"), w1}, {key("lokr_w2"), a}, {key("hada_w1_a"), a}}).find("of a LoHa and of a LoKr"),
            std::string::npos);
  EXPECT_NE(refused({{key("lokr_w1"), w1}, {key("lokr_w2"), a}, {key("lora_A.weight"), b}, {key("lora_B.weight"), a}})
                .find("A and B beside"),
            std::string::npos);
}

TEST_F(FactorFiles, KeepTheirBitsUnderOtherNamesAndHaveNoneInPeftsAndDiffSynths) {
  const Tensors tensors = {{"lora_unet_blocks_0_self_attn_q.lokr_w1", random({2, 4}).to(at::kBFloat16)},
                           {"lora_unet_blocks_0_self_attn_q.lokr_w2_a", random({8, 2}).to(at::kBFloat16)},
                           {"lora_unet_blocks_0_self_attn_q.lokr_w2_b", random({2, 4}).to(at::kBFloat16)},
                           {"lora_unet_blocks_0_self_attn_q.alpha", at::scalar_tensor(0.5f).to(at::kBFloat16)}};
  const fs::path from = save("kohya.safetensors", tensors), to = folder_ / "comfyui.safetensors",
                 back = folder_ / "back.safetensors";
  convert_lora({.in = from, .out = to, .to = "comfyui"});
  convert_lora({.in = to, .out = back, .to = "kohya"});
  const checkpoint::WeightSet one = checkpoint::open_weights(from), two = checkpoint::open_weights(back);
  EXPECT_EQ(one.names(), two.names());
  for (const std::string& name : one.names()) EXPECT_EQ(most(value(one, name) - value(two, name)), 0) << name;
  EXPECT_TRUE(checkpoint::open_weights(to).contains(key("lokr_w2_b")));
  EXPECT_EQ(two.metadata().at("ss_network_module"), "networks.lokr");
  for (const char* none : {"peft", "diffsynth"})
    EXPECT_THROW(convert_lora({.in = from, .out = folder_ / "none.safetensors", .to = none}), UserError) << none;
}

}  // namespace
}  // namespace tessera::models
