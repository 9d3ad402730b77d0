#include "tessera/engine/saved.h"

#include <gtest/gtest.h>

#include "tessera/base/check.h"
#include "tessera/engine/store/meter.h"
#include "tessera/ops/ops.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {
namespace {

TEST(SavedStorages, ListEachStorageOnceUnderItsSiteAndLeaveOutWhatIsForeign) {
  const at::Tensor x = at::randn({8, 8}).requires_grad_(), given = at::randn({8, 8});
  at::Tensor a, y;
  std::vector<SavedStorage> found;
  {
    SavedStorages saved({x, given});
    ops::session().site = "first";
    a = x.exp();  // saves its result
    ops::session().site = "second";
    y = (a * given).sin() + a.sin();  // saves a again, and a * given
    found = saved.take({y}, {});
  }
  std::map<std::string, int> sites;
  for (const auto& s : found) ++sites[s.site];
  EXPECT_EQ(sites, (std::map<std::string, int>{{"first", 1}, {"second", 1}}));
}

TEST(SavedStorages, AGraphGivesTheSameGradientsAfterItsMemoryWasGoneAndCameBack) {
  Meter::install();
  const at::Tensor x = at::randn({64, 64}).requires_grad_();
  const auto build = [&] { return (x.exp().sin() * x).sum(); };
  const auto expected = torch::autograd::grad({build()}, {x})[0];
  at::Tensor y;
  std::vector<SavedStorage> found;
  {
    SavedStorages saved({x});
    y = build();
    found = saved.take({y}, {});
  }
  ASSERT_GT(found.size(), 0u);
  const int64_t before = Meter::live();
  int64_t bytes = 0;
  std::vector<std::vector<char>> host;
  for (auto& s : found) {
    const auto* data = static_cast<const char*>(s.storage.data());
    host.emplace_back(data, data + s.storage.nbytes());
    bytes += s.bytes();
    free_memory(s);
  }
  EXPECT_EQ(Meter::live(), before - bytes) << "the memory is free while the graph stands";
  for (size_t i = 0; i < found.size(); ++i) {
    take_memory(found[i]);
    std::memcpy(found[i].storage.mutable_data(), host[i].data(), host[i].size());
  }
  found.clear();
  EXPECT_TRUE(at::equal(torch::autograd::grad({y}, {x})[0], expected));
}

/// A chain of what can be made again: a norm, a sum of it, a norm of the sum; each is read by products.
struct Chain {
  at::Tensor x = at::randn({64, 32}).requires_grad_(), addend = at::randn({64, 32}).requires_grad_();
  at::Tensor shift = at::randn({1, 32}), scale = at::randn({1, 32}), rows = at::zeros({64}, at::kInt);

  at::Tensor build(int readers = 3) const {
    const auto norm = [&](const at::Tensor& t) {
      return ops::modulated_norm(t, shift, scale, ops::RowIndex(rows), 1e-6);
    };
    const at::Tensor y = norm(x);
    at::Tensor branch = y * y;
    for (int i = 1; i < readers; ++i) branch = branch + (y * branch).sum() * addend;
    const at::Tensor sum = ops::sum(y, addend), z = norm(sum);
    return (z * branch).sum() + sum.sin().sum() + z.exp().mean();
  }
  std::vector<at::Tensor> gradients(const at::Tensor& of) const { return torch::autograd::grad({of}, {x, addend}); }
};

TEST(LeanGraph, GivesTheBitsOfTheGraphThatHoldsEverything) {
  const Chain chain;
  for (const int readers : {1, 3, 5}) {
    const auto expected = chain.gradients(chain.build(readers));
    at::Tensor y;
    {
      SavedStorages saved({chain.x, chain.shift, chain.scale, chain.rows}, /*selective=*/true);
      y = chain.build(readers);
    }
    const auto found = chain.gradients(y);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << readers << ", " << i;
  }
}

TEST(LeanGraph, HoldsWhatValuesAreMadeFromUnderTheirSiteAndNotTheValues) {
  const at::Tensor x = at::randn({64, 32}).requires_grad_(), shift = at::randn({1, 32}), scale = at::randn({1, 32});
  const at::Tensor rows = at::zeros({64}, at::kInt);
  at::Tensor out;
  std::vector<SavedStorage> found;
  SavedStorages saved({x, shift, scale, rows}, /*selective=*/true);
  ops::session().site = "product";
  const at::Tensor addend = at::randn({64, 32}) * 2;  // of nobody else
  ops::session().site = "sum";
  at::Tensor sum = ops::sum(x, addend);
  ops::session().site = "norm";
  at::Tensor y = ops::modulated_norm(sum, shift, scale, ops::RowIndex(rows), 1e-6);
  ops::session().site = "reader";
  out = (y * y).sum();
  std::map<std::string, int64_t> bytes;
  for (const SavedStorage& s : saved.take({out}, {})) bytes[s.site] += s.bytes();
  EXPECT_EQ(bytes, (std::map<std::string, int64_t>{{"norm", 64 * 2 * 4}, {"sum", 64 * 32 * 4}}))
      << "the norm's statistics and the sum's addend";
  EXPECT_EQ(saved.rebuilds()->values(), 2);
}

TEST(LeanGraph, AValueIsMadeOnceAndGoesWithItsLastReader) {
  Meter::install();
  int made = 0;
  const at::Tensor from = at::randn({256}), result = from * 2;
  std::vector<at::Tensor> stays;
  std::vector<std::unique_ptr<ops::Rebuilds::Use>> uses;
  {
    ops::Rebuilds rebuilds([&](const at::Tensor& t, const std::string&) { stays.push_back(t); });
    rebuilds.register_value(result, {from}, [&](const std::vector<at::Tensor>& x) { return ++made, x[0] * 2; });
    EXPECT_TRUE(stays.empty()) << "nobody reads it yet";
    EXPECT_EQ(rebuilds.use(from), nullptr);
    for (int i = 0; i < 3; ++i) uses.push_back(rebuilds.use(i == 1 ? result.view({16, 16}) : result));
    EXPECT_EQ(stays.size(), 1u);
    EXPECT_EQ(rebuilds.moved(), 2 * 256 * 4);
  }
  const int64_t before = Meter::live();
  EXPECT_TRUE(at::equal(uses[0]->take(), result));
  EXPECT_EQ(Meter::live(), before + 1024) << "held for the others";
  EXPECT_TRUE(at::equal(uses[1]->take(), result.view({16, 16})));
  uses[2].reset();  // a node that never ran
  EXPECT_EQ(Meter::live(), before);
  EXPECT_EQ(made, 1);
  EXPECT_THROW(uses[0]->take(), InternalError);
}

TEST(LeanGraph, WhatIsTwoStepsFromAReaderIsMadeTwiceInsteadOfHeld) {
  int made = 0;
  const at::Tensor from = at::randn({256}), first = from * 2, second = first * 2, third = second * 2;
  std::unique_ptr<ops::Rebuilds::Use> late, next, reader;
  {
    ops::Rebuilds rebuilds([](const at::Tensor&, const std::string&) {});
    const auto doubled = [&](const std::vector<at::Tensor>& x) { return ++made, x[0] * 2; };
    rebuilds.register_value(first, {from}, doubled);
    rebuilds.register_value(second, {first}, doubled);
    rebuilds.register_value(third, {second}, doubled);
    late = rebuilds.use(first), next = rebuilds.use(second), reader = rebuilds.use(third);
  }
  EXPECT_TRUE(at::equal(reader->take(), third));
  EXPECT_EQ(made, 3);
  EXPECT_TRUE(at::equal(next->take(), second));
  EXPECT_EQ(made, 3) << "held: its reader comes right after";
  EXPECT_TRUE(at::equal(late->take(), first));
  EXPECT_EQ(made, 4);
}

TEST(LeanGraph, WhatNobodyReadsIsNotMadeAndHoldsNothing) {
  Meter::install();
  const at::Tensor x = at::randn({64, 32}).requires_grad_(), shift = at::zeros({1, 32}),
                   rows = at::zeros({64}, at::kInt);
  const int64_t before = Meter::live();
  {
    SavedStorages saved({x, shift, rows}, /*selective=*/true);
    const at::NoGradGuard no_grad;
    ops::modulated_norm(ops::sum(x, at::ones({64, 32})), shift, shift, ops::RowIndex(rows), 1e-6);
    EXPECT_EQ(saved.rebuilds()->values(), 0);
  }
  EXPECT_EQ(Meter::live(), before);
}

}  // namespace
}  // namespace tessera::engine
