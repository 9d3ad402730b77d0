// LibTorch's operators on the simulated device: each that has a kernel of CPUs runs it, over the same bytes. So it takes
// the way through LibTorch that a CPU takes; a fallback alone would be used only by operators that no composite form
// covers, and some composite forms (of norms) have other bits.
#include "operators.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include "attention.h"
#include "host_forms.h"
#include "memory.h"
#include "timeline.h"

namespace tessera::testing {

namespace {

using at::Tensor;
using c10::IValue;
using Stack = torch::jit::Stack;

/// A value of the stack with all tensors replaced, and what goes with tensors.
IValue host_form(const IValue& value, HostForms& host) {
  if (value.isTensor()) return host.of(value.toTensor());
  if (value.isStorage() && value.toStorage().device_type() == at::kPrivateUse1) return host.of(value.toStorage());
  if (value.isDevice() && value.toDevice().is_privateuseone()) return host_device();
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(host.of(t));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& t : value.toOptionalTensorVector()) list.push_back(t ? std::optional(host.of(*t)) : std::nullopt);
    return list;
  }
  return value;
}

IValue device_form(const IValue& value, HostForms& host) {
  if (value.isTensor()) return host.back(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& t : value.toTensorVector()) list.push_back(host.back(t));
    return list;
  }
  return value;
}

/// Refuses what CUDA refuses: operands of several devices. A number on the CPU without dimensions may be an operand, but no
/// result.
class Devices {
 public:
  explicit Devices(const c10::OperatorName& name) : name_(name) {}

  void add(const IValue& value, const c10::Argument& argument) {
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    if (value.isTensor()) add(value.toTensor(), argument.name(), /*numbers=*/!written);
    if (value.isTensorList())
      for (const Tensor& t : value.toTensorVector()) add(t, argument.name());
    // lists of operands that may be absent are indices, which CUDA fetches from the CPU too
    if (value.isGenerator())
      TORCH_CHECK(value.toGenerator().device().is_privateuseone(),
                  "Expected a 'simulated' device type for generator of ", name_, " but found '",
                  value.toGenerator().device(), "'");
  }
  void add(const Tensor& t, const std::string& argument, bool numbers = false) {
    if (!t.defined() || (numbers && t.is_cpu() && t.dim() == 0)) return;
    if (!first_) first_ = t.device();
    TORCH_CHECK(t.device() == *first_ && t.is_privateuseone(),
                "Expected all tensors to be on the same device, but found at least two devices, ",
                *first_ == t.device() ? "simulated" : first_->str(), " and ", t.device(), "! (when checking argument ",
                argument, " in method ", name_, ")");
  }

 private:
  c10::OperatorName name_;
  std::optional<c10::Device> first_;
};

/// What an operator reads and writes, by its schema: an operand that a result is a view of is not touched.
class Touched {
 public:
  Touched(const std::string& name, const std::string& work) : name_(name), work_(work) {}

  void add(const IValue& value, const c10::Argument& argument) {
    const c10::AliasInfo* alias = argument.alias_info();
    if (alias && (!alias->isWrite() || of_shape_alone())) return;
    if (value.isTensor()) add(value.toTensor(), alias != nullptr);
    if (value.isTensorList())
      for (const Tensor& t : value.toTensorVector()) add(t, alias != nullptr);
    if (value.isOptionalTensorList())
      for (const auto& t : value.toOptionalTensorVector()) add(t.value_or(Tensor()), alias != nullptr);
  }
  /// Before the operator, of what it is given.
  void begin() const { timeline().begin(work_, reads_); }
  /// After it, when results have their memory.
  void end() const {
    std::vector<Use> writes;
    for (const Tensor& t : written_) writes.push_back(use_of(t, true));
    timeline().also(writes);
  }
  /// Writes the sizes and strides of its operand, not its bytes.
  bool of_shape_alone() const {
    static const std::set<std::string> names = {"aten::resize_",    "aten::set_",     "aten::as_strided_",
                                                "aten::t_",         "aten::squeeze_", "aten::unsqueeze_",
                                                "aten::transpose_", "aten::detach_"};
    return names.contains(name_);
  }

 private:
  void add(const Tensor& t, bool writes) {
    if (!t.defined() || !t.is_privateuseone()) return;
    if (writes)
      written_.push_back(t);
    else
      reads_.push_back(use_of(t, false));
  }

  const std::string &name_, &work_;
  std::vector<Use> reads_;
  std::vector<Tensor> written_;
};

/// Numbers and sizes that follow from values: CUDA's operator waits for them.
bool host_must_wait(const c10::FunctionSchema& schema) {
  static const std::set<std::string> names = {"aten::nonzero", "aten::masked_select", "aten::_unique2",
                                              "aten::unique_dim"};
  if (names.contains(schema.name())) return true;
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    const c10::TypeKind kind = result.type()->kind();
    return kind == c10::TypeKind::NumberType || kind == c10::TypeKind::BoolType;
  });
}

/// What the timeline calls an operator, and the operations of a product.
struct Work {
  std::string name;
  double flops = 0;
};
/// Products of fp32 have a name of their own: a GPU has another rate for them.
Work work_of(const std::string& name, const Stack& stack, size_t first) {
  static const std::map<std::string, size_t> left_operand = {
      {"aten::mm", 0}, {"aten::bmm", 0}, {"aten::addmm", 1}, {"aten::baddbmm", 1}};
  const auto found = left_operand.find(name);
  if (found == left_operand.end()) return {name};
  const Tensor &a = stack[first + found->second].toTensor(), &b = stack[first + found->second + 1].toTensor();
  return {a.scalar_type() == at::kFloat ? name + " of fp32" : name,
          2 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1))};
}

/// With sizes alone: whether LibTorch cannot say the sizes of the result without computing it. It then is what it was made as
/// (abs), or in the table below.
bool lacks_meta_form(const c10::OperatorHandle& op) {
  return sizes_alone() && !op.hasKernelForDispatchKey(c10::DispatchKey::Meta) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
}
void shape_result(const c10::OperatorHandle& op, Stack* stack, size_t first) {
  const auto& arguments = op.schema().arguments();
  IValue result;
  if (op.operator_name() == c10::OperatorName("aten::index_select", "")) {
    const Tensor& from = (*stack)[first].toTensor();
    std::vector<int64_t> sizes = from.sizes().vec();
    sizes[static_cast<size_t>((*stack)[first + 1].toInt())] = (*stack)[first + 2].toTensor().numel();
    result = at::empty(sizes, from.options());
  } else {
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].alias_info() && arguments[i].alias_info()->isWrite()) result = (*stack)[first + i];
    TORCH_CHECK(!result.isNone(), op.operator_name(), " has no form for sizes alone on the simulated device");
  }
  stack->resize(first);
  stack->push_back(result);
}

/// How a graph repeats an operator: over the bytes that its operands and results have now, which it does not hold.
std::function<void()> repetition(const c10::OperatorHandle& op, const Stack& operands, const Stack& results) {
  HostForms host;
  Stack from, to;
  for (const IValue& value : operands) from.push_back(host_form(value, host));
  for (const IValue& value : results) to.push_back(host_form(value, host));
  const auto put = [](const Tensor& to, const Tensor& made) {
    if (to.defined() && to.data_ptr() != made.data_ptr()) to.copy_(made);
  };
  return [op, from, to, put] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    Stack stack = from;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i].isTensor()) put(to[i].toTensor(), stack[i].toTensor());
      if (!to[i].isTensorList()) continue;
      const auto kept = to[i].toTensorVector(), made = stack[i].toTensorVector();
      for (size_t t = 0; t < kept.size(); ++t) put(kept[t], made[t]);
    }
  };
}

/// Any operator, boxed.
void run_on_host(const c10::OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const size_t first = stack->size() - arguments.size();
  const bool repeated = timeline().captures() && !sizes_alone();
  const Stack operands = repeated ? Stack(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end()) : Stack();
  HostForms host;
  Devices devices(op.operator_name());
  const Work work = work_of(op.operator_name().name, *stack, first);
  Touched touched(op.operator_name().name, work.name);
  for (size_t i = 0; i < arguments.size(); ++i) {
    IValue& value = (*stack)[first + i];
    devices.add(value, arguments[i]);
    touched.add(value, arguments[i]);
    value = host_form(value, host);
  }
  touched.begin();
  if (work.flops > 0) timeline().computes(work.flops);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (sizes_alone() && op.operator_name().name == "aten::_local_scalar_dense") {
    (*stack)[first] = 0.0;  // whatever the host reads
    return;
  }
  if (lacks_meta_form(op))
    shape_result(op, stack, first);
  else
    op.redispatchBoxed(c10::DispatchKeySet(sizes_alone() ? c10::DispatchKey::Meta : c10::DispatchKey::CPU), stack);
  host.settle();
  touched.end();
  if (host_must_wait(op.schema())) timeline().host_waited();
  for (size_t i = first; i < stack->size(); ++i) (*stack)[i] = device_form((*stack)[i], host);
  if (repeated && !touched.of_shape_alone())
    timeline().repeated_by(
        repetition(op, operands, Stack(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end())));
  if (repeated && touched.of_shape_alone()) timeline().repeated_by([] {});
}

Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> type,
                     std::optional<at::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided, "the simulated device has strided tensors alone");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin), "Only dense CPU tensors can be pinned");
  const c10::OptionalDeviceGuard guard(device && device->has_index() ? device : std::nullopt);
  return empty_on_device(sizes, strides, c10::dtype_or_default(type), HostForms().device());
}

Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout> layout,
             std::optional<c10::Device> device, std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  const Tensor shape = at::empty(sizes, at::TensorOptions().device(at::kMeta).dtype(type), format);
  return empty_strided(sizes, shape.strides(), type, layout, device, pin);
}

/// Between any two devices, with conversion.
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  HostForms host;
  timeline().begin("aten::copy_", {use_of(from, false), use_of(to, true)});
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!sizes_alone()) {
    host.of(to).copy_(host.of(from));
    timeline().repeated_by([to = host.of(to), from = host.of(from)] {
      const at::AutoDispatchBelowADInplaceOrView below;
      to.copy_(from);
    });
  }
  if (from.is_cpu() || to.is_cpu()) timeline().host_waited();
  if (to.is_cpu()) timeline().copied_back(static_cast<int64_t>(to.nbytes()));
  return to;
}

// Products of 16-bit operands to fp32, which CUDA alone has: with the bits of a CPU, which widens the operands.

Tensor& add_product(const Tensor& from, const Tensor& a, const Tensor& b, at::ScalarType type, const at::Scalar& beta,
                    const at::Scalar& alpha, Tensor& out) {
  TORCH_CHECK(type == at::kFloat && out.is_same(from), "addmm of another form than the program's");
  HostForms host;
  timeline().begin("aten::addmm", {use_of(a, false), use_of(b, false), use_of(out, true)});
  timeline().computes(2 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1)));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (sizes_alone()) return out;
  auto work = [to = host.of(out), a = host.of(a), b = host.of(b), beta, alpha]() mutable {
    const at::AutoDispatchBelowADInplaceOrView below;
    at::addmm_out(to, to, a.to(at::kFloat), b.to(at::kFloat), beta, alpha);
  };
  timeline().repeated_by(work);
  work();
  return out;
}
Tensor product_of_halves(const Tensor& a, const Tensor& b, at::ScalarType type) {
  Tensor out = at::empty({a.size(0), b.size(1)}, a.options().dtype(type));
  HostForms host;
  timeline().begin("aten::addmm", {use_of(a, false), use_of(b, false), use_of(out, true)});
  timeline().computes(2 * static_cast<double>(a.numel()) * static_cast<double>(b.size(1)));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (sizes_alone()) return out;
  auto work = [to = host.of(out), a = host.of(a), b = host.of(b)]() mutable {
    const at::AutoDispatchBelowADInplaceOrView below;
    at::mm_out(to, a.to(at::kFloat), b.to(at::kFloat));
  };
  timeline().repeated_by(work);
  work();
  return out;
}

// Convolutions choose their kernels by the device; what a device that LibTorch does not know gets is these two.

/// As cuDNN, which offers several ways of one, each with a workspace: TESSERA_SIMULATED_WORKSPACES="8388608,65536". LibTorch
/// takes the first that there is memory for.
Tensor workspace(const Tensor& x) {
  const char* wanted = std::getenv("TESSERA_SIMULATED_WORKSPACES");
  if (!wanted) return {};
  std::istringstream in(wanted);
  for (std::string bytes; std::getline(in, bytes, ',');) try {
      return at::empty({std::stoll(bytes)}, x.options().dtype(at::kByte));
    } catch (const c10::OutOfMemoryError&) {  // the next one
    }
  TORCH_CHECK(false, "unable to find an engine for this convolution");
}

/// Each value of y is a sum of the products that a channel's weights have.
double flops_of(const Tensor& y, const Tensor& w) {
  return 2 * static_cast<double>(y.numel()) * static_cast<double>(w.numel() / w.size(0));
}

Tensor convolution(const Tensor& x, const Tensor& w, const std::optional<Tensor>& bias, c10::IntArrayRef stride,
                   c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                   c10::IntArrayRef output_padding, int64_t groups) {
  Devices devices({"aten::convolution", ""});
  devices.add(x, "input"), devices.add(w, "weight"), devices.add(bias.value_or(Tensor()), "bias");
  HostForms host;
  const Tensor work = workspace(x);
  timeline().begin("aten::convolution", {use_of(x, false), use_of(w, false), use_of(bias.value_or(Tensor()), false)});
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Tensor y = host.back(at::convolution(host.of(x), host.of(w), bias ? std::optional(host.of(*bias)) : bias,
                                             stride, padding, dilation, transposed, output_padding, groups));
  timeline().computes(flops_of(transposed ? x : y, w));
  return y;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& dy, const Tensor& x, const Tensor& w,
                                                        c10::IntArrayRef stride, c10::IntArrayRef padding,
                                                        c10::IntArrayRef dilation, bool transposed,
                                                        c10::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> wanted) {
  Devices devices({"aten::convolution_backward", ""});
  devices.add(dy, "grad_output"), devices.add(x, "input"), devices.add(w, "weight");
  HostForms host;
  timeline().begin("aten::convolution_backward", {use_of(dy, false), use_of(x, false), use_of(w, false)});
  timeline().computes((wanted[0] + wanted[1]) * flops_of(dy, w));
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto [dx, dw, db] =
      at::convolution_backward(host.of(dy), host.of(x), host.of(w), c10::IntArrayRef({dy.size(1)}), stride, padding,
                               dilation, transposed, output_padding, groups, wanted);
  return {host.back(dx), host.back(dw), host.back(db)};
}

/// Attention, too, asks what kind of device it is on. The answer of a CPU leads to kernels of CPUs.
int64_t attention_choice(const Tensor& q, const Tensor& k, const Tensor& v, const std::optional<Tensor>& mask, double p,
                         bool causal, std::optional<double> scale, bool grouped) {
  HostForms host;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::_fused_sdp_choice(host.of(q), host.of(k), host.of(v), mask ? std::optional(host.of(*mask)) : mask, p,
                               causal, scale, grouped);
}

}  // namespace

void register_operators() {
  // Never destroyed: threads may compute until the process ends.
  auto* aten = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten->impl("empty.memory_format", &empty);
  aten->impl("empty_strided", &empty_strided);
  aten->impl("_copy_from", &copy_from);
  aten->impl("addmm.dtype_out", &add_product);
  aten->impl("mm.dtype", &product_of_halves);
  aten->impl("convolution_overrideable", &convolution);
  aten->impl("convolution_backward_overrideable", &convolution_backward);
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&attention_choice);
  if (const char* wanted = std::getenv("TESSERA_SIMULATED_ATTENTION"); wanted && *wanted) register_attention();
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findOp(name);
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    aten->impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

}  // namespace tessera::testing
