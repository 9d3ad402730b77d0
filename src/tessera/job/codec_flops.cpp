// FLOPs of an autoencoder, by observing the operators that it calls on meta tensors.
#include <ATen/record_function.h>

#include <cstring>

#include "tessera/base/check.h"
#include "tessera/job/codec_bytes.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::job {

namespace {

/// What this thread's operators did since it began; one at a time on a thread.
class OperatorCount {
 public:
  OperatorCount() {
    check_internal(current_ == nullptr, "job.codec", "operators are counted already");
    current_ = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(began, ended)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~OperatorCount() {
    at::removeCallback(handle_);
    current_ = nullptr;
  }
  OperatorCount(const OperatorCount&) = delete;

  double flops = 0;
  double read = 0;  ///< bytes of pixels that became numbers

 private:
  /// A convolution that has begun. Inputs are there at the beginning alone, results at the end.
  struct Convolution final : at::ObserverContext {
    double of_result = 0;  ///< FLOPs of each number of the result: a sum over a filter
  };
  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction& function) {
    return current_ ? current_->begin(function) : nullptr;
  }
  static void ended(const at::RecordFunction& function, at::ObserverContext* context) {
    const auto* convolution = dynamic_cast<const Convolution*>(context);
    if (!current_ || !convolution) return;
    const auto& outputs = function.outputs();
    check_internal(!outputs.empty() && outputs[0].isTensor(), "job.codec", "a convolution without a result");
    current_->flops += convolution->of_result * static_cast<double>(outputs[0].toTensor().numel());
  }
  std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const auto inputs = function.inputs();
    const auto tensor = [&](size_t i) {
      return i < inputs.size() && inputs[i].isTensor() ? inputs[i].toTensor() : at::Tensor();
    };
    const auto is = [&](const char* other) { return std::strcmp(function.name(), other) == 0; };
    if (is("aten::convolution")) {
      auto convolution = std::make_unique<Convolution>();
      const at::Tensor weight = tensor(1);
      convolution->of_result = 2.0 * static_cast<double>(weight.numel() / weight.size(0));
      return convolution;
    }
    if (is("aten::mm") || is("aten::bmm"))
      flops += 2.0 * static_cast<double>(tensor(0).numel() * tensor(1).size(-1));
    else if (is("aten::addmm") || is("aten::baddbmm"))
      flops += 2.0 * static_cast<double>(tensor(1).numel() * tensor(2).size(-1));
    else if (const at::Tensor from = is("aten::_to_copy") ? tensor(0) : at::Tensor();
             from.defined() && from.scalar_type() == at::kByte)
      read += static_cast<double>(from.numel());
    return nullptr;
  }

  static thread_local OperatorCount* current_;
  at::CallbackHandle handle_;
};

thread_local OperatorCount* OperatorCount::current_ = nullptr;

}  // namespace

double encode_flops(const net::VideoCodec& codec, int64_t frames, int64_t height, int64_t width) {
  const auto* vae = dynamic_cast<const models::VideoVae*>(&codec);
  if (!vae) return 0;  // the wavelet: sums of eight numbers
  double flops = 0, read = 0;
  vae->encode_bytes(frames, height, width, [&](const std::function<void()>& run) {
    const OperatorCount count;
    run();
    flops += count.flops, read += count.read;
    return int64_t{0};
  });
  check_internal(read > 0, "job.codec", "an autoencoder that reads no pixels");
  return flops / read * static_cast<double>(3 * frames * height * width);
}

}  // namespace tessera::job
