#include "tessera/cuda/nccl.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace tessera::cuda {

namespace {

/// All sends and receives of an exchange are one NCCL group: they start together and cannot wait for each other.
class NcclTransport final : public comm::Transport {
 public:
  NcclTransport(c10d::Store& store, int index, int size, double timeout_seconds) {
    auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
    options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000));
    group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store), index,
                                                         size, options);
    group_->setBoundDeviceId(at::Device(at::kCUDA, c10::cuda::current_device()));
  }

  void exchange(const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) override {
    group_->startCoalescing();
    for (size_t peer = 0; peer < in.size(); ++peer) {
      if (!in[peer].defined()) continue;
      std::vector<at::Tensor> one = {in[peer]};
      group_->recv(one, static_cast<int>(peer), 0);
    }
    for (size_t peer = 0; peer < out.size(); ++peer) {
      if (!out[peer].defined()) continue;
      std::vector<at::Tensor> one = {out[peer]};
      group_->send(one, static_cast<int>(peer), 0);
    }
    if (const auto work = group_->endCoalescing()) work->wait();
    c10::cuda::getCurrentCUDAStream().synchronize();  // the Transport's contract: done on return
  }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

std::unique_ptr<comm::Transport> make_nccl_transport(c10d::Store& store, int index, int size, double timeout_seconds) {
  return std::make_unique<NcclTransport>(store, index, size, timeout_seconds);
}

}  // namespace tessera::cuda
