#include "tessera/engine/signatures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "tessera/engine/measure.h"
#include "tessera/engine/slice.h"
#include "tessera/models/common/adapted.h"
#include "tessera/models/registry.h"

namespace tessera::engine {
namespace {

constexpr const char* kConfig =
    R"({"dim": 64, "num_heads": 2, "num_layers": 3, "ffn_dim": 192, "in_dim": 16, "out_dim": 16, "freq_dim": 32,
        "text_dim": 48, "text_len": 8})";

/// Products and attention of a kind of unit.
double forward_flops(const net::Denoiser& model, const net::Batch& batch, const std::string& kind) {
  return count_work(model.units(), batch).at(kind).forward_flops();
}

TEST(Work, ProductsAndAttentionAreThoseOfTheFormulas) {
  const auto model = models::make_denoiser({.config_text = kConfig});
  std::vector<net::Sample> samples;
  for (const int64_t frames : {2, 3}) samples.push_back(model->blank({16, frames, 8, 6}));
  const net::Batch batch = model->pack(samples);
  constexpr double kFirst = 2 * 4 * 3, kSecond = 3 * 4 * 3, kTokens = kFirst + kSecond;
  constexpr double d = 64, ffn = 192, text = 8, clips = 2;
  const double words = 2 * text * (48 * d + d * d), time = 2 * (32 * d + 7 * d * d);
  EXPECT_NEAR(forward_flops(*model, batch, "stem"), 2 * kTokens * 16 * 4 * d + clips * (words + time), 1);
  const double linears = kTokens * (12 * d * d + 4 * d * ffn) + clips * 4 * text * d * d;
  const double attention = 4 * d * (kFirst * kFirst + kSecond * kSecond + kTokens * text);
  EXPECT_NEAR(forward_flops(*model, batch, "block"), linears + attention, 1);
  EXPECT_NEAR(forward_flops(*model, batch, "head"), 2 * kTokens * 16 * 4 * d, 1);
}

TEST(Work, FlopsOfReleasedModelsAreThePublishedOnes) {
  struct Published {
    const char* preset;
    std::array<int64_t, 4> latent;
    double pflop;
  };
  for (const auto& [preset, latent, pflop] : {Published{"wan2.1-t2v-1.3b", {16, 21, 60, 104}, 0.283},
                                              {"wan2.1-i2v-14b-480p", {16, 21, 60, 104}, 1.686},
                                              {"wan2.2-ti2v-5b", {48, 31, 44, 80}, 0.517}}) {
    const auto model = models::make_denoiser({.preset = preset});
    const plan::WorkTable work = count_work(model->units(), model->pack({model->blank(latent)}));
    double flops = 0;
    for (const auto& unit : model->units()) flops += work.at(unit->spec().kind).forward_flops();
    EXPECT_NEAR(flops / 1e15, pflop, 0.001) << preset;
  }
}

/// A plan's FLOP rate is made of these.
TEST(Work, MeasuredFlopsAreARanksShareAndCountAdapters) {
  const auto model = models::make_denoiser({.config_text = kConfig});
  const net::Batch batch = model->pack({model->blank({16, 2, 8, 6})});
  const auto of_block = [&](const char* mesh, int rank) {
    const plan::ModelSpec spec = measure(model->units(), batch, "wan", {.mesh = Mesh::parse(mesh), .rank = rank});
    return std::ranges::find(spec.units, "block", &plan::UnitSpec::kind)->cost.forward_flops;
  };
  const double text = 4.0 * 8 * 64 * 64;  // keys and values of the caption, on each rank
  const double whole = of_block("", 0);
  EXPECT_NEAR(whole, forward_flops(*model, batch, "block"), 1);
  for (const char* mesh : {"cp=2", "sp=2", "tp=2"})
    EXPECT_NEAR(of_block(mesh, 0) + of_block(mesh, 1), whole + text, 1e-9 * whole) << mesh;
  models::adapt(*model, {.rank = 4, .alpha = 4, .targets = {"self_attn.q"}});
  EXPECT_NEAR(of_block("", 0), whole + 2.0 * 24 * 4 * (64 + 64), 1) << "of 24 tokens, a pair of rank 4";
}

TEST(Work, ABlockHasItsProductsAndHalvesAreStreamedInHalfTheBytes) {
  const auto model = models::make_denoiser({.config_text = kConfig});
  const net::Batch batch = model->pack({model->blank({16, 2, 8, 6}), model->blank({16, 2, 8, 6})});
  const plan::WorkTable work = count_work(model->units(), batch);
  ASSERT_EQ(work.size(), 3u);  // kinds, not units
  const plan::UnitWork& block = work.at("block");
  EXPECT_EQ(block.products.size(), 10u);
  EXPECT_EQ(block.attention.size(), 2u);
  EXPECT_GT(block.streamed, 0);
  const plan::WorkTable halves = count_work(model->units(), batch, DType::bf16);
  EXPECT_EQ(halves.at("block").products, block.products);
  EXPECT_LT(halves.at("block").streamed, 0.75 * block.streamed) << "but for what is added up over blocks";
  EXPECT_GT(halves.at("block").streamed, 0.5 * block.streamed);
  EXPECT_EQ(halves.at("head").streamed, work.at("head").streamed) << "it is fp32 in any case";
}

/// q, k, v, the text's k and v, which are fp32, o, the cross attention's q and o, and two of the feed-forward.
TEST(Work, ProductsIn8BitsOfOneInputMakeItsCodesOnce) {
  const auto model = models::make_denoiser({.config_text = kConfig});
  const net::Batch batch = model->pack({model->blank({16, 2, 8, 6})});
  const auto marks = [&](DType compute, bool plan::Product::*mark) {
    std::vector<bool> all;
    for (const plan::Product& product :
         count_signatures(model->units(), batch, compute).signatures.at("block").products)
      all.push_back(product.*mark);
    return all;
  };
  EXPECT_EQ(marks(DType::bf16, &plan::Product::streams),
            (std::vector<bool>{true, true, true, false, false, true, true, true, true, true}));
  EXPECT_EQ(marks(DType::bf16, &plan::Product::again),
            (std::vector<bool>{false, true, true, false, false, false, false, false, false, false}));
  EXPECT_EQ(marks(DType::f32, &plan::Product::again), std::vector<bool>(10, false));
}

TEST(Work, FrozenWeightsHaveNoGradientAndUnitsBeforeTheFirstTrainedOneNoBackward) {
  const auto model = models::make_denoiser({.config_text = kConfig});
  models::adapt(*model, {.rank = 4, .alpha = 4, .targets = {"q", "v"}});
  const plan::WorkTable work = count_work(model->units(), model->pack({model->blank({16, 2, 8, 6})}));
  EXPECT_FALSE(work.at("stem").backward);
  EXPECT_EQ(work.at("stem").backward_flops(), 0);
  const plan::UnitWork& block = work.at("block");
  EXPECT_EQ(block.products.size(), 10u + 2 * 4) << "q and v of both attentions have a pair beside them";
  EXPECT_EQ(block.input_grads.size(), block.products.size());
  EXPECT_EQ(block.weight_grads.size(), 2u * 4) << "of the pairs alone";
  EXPECT_LT(block.backward_flops(), 1.5 * block.forward_flops()) << "a full backward takes twice the forward";
  EXPECT_TRUE(work.at("head").backward) << "gradients pass through it";
  EXPECT_TRUE(work.at("head").weight_grads.empty());
}

/// [Note: what hides an exchange] in engine/sequence_attention.h, of a block of 24 tokens on each of two ranks and 16 rows of
/// text: q, k, v and o are products of 24 rows each, the text's k and v of 16.
TEST(Exchanges, OfUlyssesTravelBesideProductsThatTheUnitRunsMeanwhile) {
  const auto model = models::make_denoiser({.config_text = kConfig});
  const net::Batch batch = model->pack({model->blank({16, 2, 8, 6}), model->blank({16, 2, 8, 6})});
  const plan::ModelSpec spec = measure(model->units(), batch, "wan", {.mesh = Mesh::parse("sp=2")});
  const auto block = std::ranges::find(spec.units, "block", &plan::UnitSpec::kind);
  ASSERT_NE(block, spec.units.end());
  using Rows = std::vector<std::array<double, 2>>;  // of results and input gradients, and of weight gradients
  const auto beside = [](const std::vector<plan::Traffic>& traffic) {
    constexpr double kRow = 2.0 * 64 * 64;  // FLOPs
    Rows rows;
    for (const plan::Traffic& t : traffic) {
      EXPECT_EQ(t.kind, "all_to_all");
      rows.push_back(
          {(t.awaited.products - t.begun.products) / kRow, (t.awaited.weight_grads - t.begun.weight_grads) / kRow});
    }
    return rows;
  };
  const double text = 16 + 16;
  EXPECT_EQ(beside(block->cost.traffic), (Rows{{24 + 24 + text, 0}, {24 + text, 0}, {text, 0}, {0, 0}}))
      << "q, k, v, and the output, which is waited for";
  EXPECT_EQ(beside(block->cost.backward_traffic),
            (Rows{{0, 24}, {0, 24}, {text, text}, {24 + text, 24 + text}, {48 + text, 48 + text}}))
      << "delta and the output's gradient, then those of v, k and q";
}

using Sizes = std::vector<int64_t>;

/// All that measuring reads of a batch: sizes of tensors, and what the host keeps of rows.
std::vector<Sizes> read_of(const net::Batch& batch) {
  std::vector<Sizes> all;
  const auto tensor = [&](const at::Tensor& t) {
    all.push_back(t.defined() ? t.sizes().vec() : Sizes{-1});
    if (t.defined()) all.push_back({static_cast<int64_t>(t.scalar_type()), static_cast<int64_t>(t.nbytes())});
  };
  const auto rows = [&](const auto& list) {
    for (const auto& entry : list) all.emplace_back(entry.begin(), entry.end());
  };
  const auto space = [&](const net::Space& s) {
    all.push_back(s.offsets), rows(s.shapes), rows(s.ranges), rows(s.chunks);
    for (const ops::RowRun& run : s.rows.runs) all.push_back({run.row, run.begin, run.end});
    tensor(s.rows.of_token), tensor(s.cos), tensor(s.sin);
    all.push_back({s.begin, s.end});
  };
  for (const at::Tensor& t : batch.inputs) tensor(t);
  rows(batch.shapes), rows(batch.predicted);
  all.emplace_back(batch.token_inputs.begin(), batch.token_inputs.end());
  space(batch.tokens);
  for (const net::Space& s : batch.tokens.spaces) space(s);
  for (const net::Segments& s : batch.tokens.segments) {
    all.push_back({s.q, s.k}), rows(s.ranges), tensor(s.order);
  }
  return all;
}

/// Hundreds of clips are measured without packing them.
TEST(BatchOfAlike, IsThatOfThePackedSamplesAndHoldsNoneOfThem) {
  for (const auto& [preset, frames] :
       {std::pair("wan-tiny", 3), {"wan-s2v-demo", 3}, {"sana-tiny", 1}, {"sana-tiny-video", 3}}) {
    const auto model = models::make_denoiser({.preset = preset});
    net::Sample blank = model->blank({model->in_channels(), frames, 8, 12});
    if (model->conditions().chunks_in_time) blank.extra["chunks"] = at::tensor(std::vector<int64_t>{0, 2}, at::kLong);
    for (const int64_t count : {1, 2, 3, 7}) {
      const net::Batch batch = batch_of_alike(*model, blank, count);
      EXPECT_EQ(read_of(batch), read_of(model->pack(std::vector<net::Sample>(static_cast<size_t>(count), blank))))
          << preset << ", " << count;
      EXPECT_EQ(batch.inputs[0].is_meta(), count > 2) << preset << ", " << count;
    }
  }
}

/// So a mesh measures the same of it, too.
TEST(BatchOfAlike, IsMeasuredAsThePackedSamplesAre) {
  for (const char* preset : {"wan-tiny", "wan-s2v-demo"}) {
    const auto model = models::make_denoiser({.preset = preset});
    const net::Sample blank = model->blank({model->in_channels(), 3, 8, 12});
    for (const char* mesh : {"", "cp=2", "sp=2"}) {
      const MeasureOptions options = {.mesh = Mesh::parse(mesh)};
      const auto of = [&](const net::Batch& batch) { return measure(model->units(), batch, preset, options); };
      const plan::ModelSpec packed = of(model->pack(std::vector<net::Sample>(5, blank))),
                            alike = of(batch_of_alike(*model, blank, 5));
      EXPECT_EQ(alike.inputs, packed.inputs) << preset << " " << mesh;
      EXPECT_EQ(alike.tables, packed.tables) << preset << " " << mesh;
      EXPECT_EQ(alike.targets, packed.targets) << preset << " " << mesh;
      for (size_t u = 0; u < packed.units.size(); ++u) {
        const plan::Footprint &a = alike.units[u].cost, &b = packed.units[u].cost;
        EXPECT_EQ(std::tie(a.out, a.saved, a.forward_peak, a.backward_peak, a.recompute_peak, a.forward_flops),
                  std::tie(b.out, b.saved, b.forward_peak, b.backward_peak, b.recompute_peak, b.forward_flops))
            << preset << " " << mesh << " " << packed.units[u].name;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::engine
