// The CUDA library as the program meets it: opened at run time, or absent for a reason.
#include "tessera/comm/device_backend.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tessera::comm {
namespace {

TEST(DeviceBackend, IsThereOrSaysWhyNot) {
  if (device_backend())
    EXPECT_GT(device_backend()->count(), 0);
  else
    EXPECT_STRNE(device_backend_absence(), "");
}

TEST(DeviceBackend, RanksTakeDevicesInTurn) {
  const DeviceBackend* device = device_backend();
  if (!device) GTEST_SKIP() << device_backend_absence();
  for (int rank = 0; rank < 2 * device->count(); ++rank) EXPECT_EQ(device->place(rank), rank % device->count());
  device->place(0);
}

TEST(DeviceBackend, ALaneKeepsItsStream) {
  const DeviceBackend* device = device_backend();
  if (!device) GTEST_SKIP() << device_backend_absence();
  EXPECT_EQ(device->lane_stream(1), device->lane_stream(1));
  EXPECT_NE(device->lane_stream(1), device->lane_stream(2));
}

TEST(DeviceBackend, SumsInOrderGiveTheHostsBits) {
  const DeviceBackend* device = device_backend();
  if (!device) GTEST_SKIP() << device_backend_absence();
  device->place(0);
  const int64_t n = 100'003;
  std::vector<at::Tensor> host, parts;
  std::vector<const float*> pointers;
  for (int p = 0; p < 5; ++p) {
    host.push_back(at::arange(n, at::kFloat).mul_(0.1f + 0.37f * p).sin_());
    parts.push_back(host.back().to(at::kCUDA));
    pointers.push_back(parts.back().const_data_ptr<float>());
  }
  at::Tensor expected = at::ones({n}), out = expected.to(at::kCUDA);
  at::Tensor total = host[0].clone();
  for (int p = 1; p < 5; ++p) total.add_(host[p]);
  expected.add_(total);
  device->sum_in_order(out.mutable_data_ptr<float>(), pointers.data(), 5, n, /*accumulate=*/true, nullptr);
  const at::Tensor back = out.cpu();  // waits for the default stream
  EXPECT_EQ(std::memcmp(back.const_data_ptr(), expected.const_data_ptr(), static_cast<size_t>(n) * sizeof(float)), 0);
}

}  // namespace
}  // namespace tessera::comm
