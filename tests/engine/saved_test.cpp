#include "tessera/engine/saved.h"

#include <gtest/gtest.h>

#include "tessera/engine/meter.h"
#include "tessera/torch_headers.h"

namespace tessera::engine {
namespace {

TEST(SavedStorages, ListEachStorageOnceUnderItsSiteAndLeaveOutWhatIsForeign) {
  const at::Tensor x = at::randn({8, 8}).requires_grad_(), given = at::randn({8, 8});
  at::Tensor a, y;
  std::vector<SavedStorage> found;
  {
    SavedStorages saved({x, given});
    SavedStorages::at_site("first");
    a = x.exp();  // saves its result
    SavedStorages::at_site("second");
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

}  // namespace
}  // namespace tessera::engine
