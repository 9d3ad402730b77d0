#include "tessera/ops/tensor.h"

#include <c10/core/TensorImpl.h>
#include <gtest/gtest.h>

#include "tessera/ops/half.h"
#include "tessera/ops/kernels.h"

namespace tessera::testing {

namespace {

/// A tensor that says it is in the memory of a GPU. There is none: whoever reads it would read nothing.
at::Tensor on_gpu(at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
  const at::Device device(at::kCUDA, 0);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), 4096, at::DataPtr(nullptr, device));
  at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), at::scalarTypeToTypeMeta(type));
  t.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return t;
}

template <class Call>
void expect_refused(const Call& call) {
  try {
    call();
    FAIL() << "memory of a GPU was read through a pointer of the host";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("Float tensor [3, 4] in the memory of cuda:0"), std::string::npos)
        << error.what();
  }
}

}  // namespace

TEST(HostPointer, IsTheAddressOfATensorInHostMemoryAndNullOfOneWithoutValues) {
  const at::Tensor t = at::zeros({3, 4});
  EXPECT_EQ(ops::host_pointer<const float>(t), t.const_data_ptr<float>());
  EXPECT_EQ(ops::host_pointer<void>(t), t.mutable_data_ptr());
  EXPECT_EQ(ops::host_pointer<const void>(at::empty({3}, at::kMeta)), nullptr);
}

TEST(HostPointer, OfATensorOnAGpuIsAnErrorThatNamesTheTensor) {
  const at::Tensor t = on_gpu({3, 4});
  expect_refused([&] { ops::host_pointer<const float>(t); });
  expect_refused([&] { ops::host_pointer<void>(t); });
  expect_refused([&] { ops::Values values(t); });
  expect_refused([&] { ops::Results results(t); });
}

// A kernel of CPUs that is given such a tensor by mistake says so, whichever it is.
TEST(HostPointer, IsAskedForByTheKernelsOfCpus) {
  const at::Tensor t = on_gpu({3, 4});
  const ops::Kernels& k = ops::cpu_kernels();
  const at::Tensor here = at::ones({3, 4}), rows = at::zeros({3}, at::kInt);
  const ops::RowIndex index(rows);
  expect_refused([&] { k.gated_residual_backward(t, here, here, index, {}, here, true, nullptr); });
  expect_refused([&] { k.gelu_tanh_gradient(t, here); });
  expect_refused([&] { k.sum(here, t); });
  expect_refused([&] { k.rms_norm_dots(t, here, at::ones({4}), {}, here); });
  EXPECT_EQ(&ops::kernels(t), &ops::aten_kernels()) << "without a device of the process";
}

}  // namespace tessera::testing
