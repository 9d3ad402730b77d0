#include "tessera/ops/rebuild.h"

#include <algorithm>
#include <utility>

#include "tessera/base/check.h"

namespace tessera::ops {

namespace {
int64_t bytes_of(const at::Tensor& t) { return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0; }
}  // namespace

class Rebuilds::Value {
 public:
  Value(const at::Tensor& result, std::vector<Source> from, Make make, int64_t moved, std::string site)
      : type(result.scalar_type()),
        sizes(result.sizes().vec()),
        moved(moved),
        site(std::move(site)),
        from_(std::move(from)),
        make_(std::move(make)) {}

  const at::ScalarType type;
  const std::vector<int64_t> sizes;
  const int64_t moved;  // bytes read and written to recompute it
  const std::string site;
  int uses = 0;

  const std::vector<Source>& from() const { return from_; }

  /// `depth`: 0 for a reader, 1 for a value recomputed for a reader, and so on.
  at::Tensor take(int depth = 0) {
    at::Tensor taken = value_;
    if (!taken.defined()) {
      const at::NoGradGuard no_grad;
      // A value at depth 2 or more is read itself much later: recomputing it twice holds less memory than keeping it
      // until then.
      const bool twice = uses > 1 && depth > 1 && from_tensors();
      std::vector<at::Tensor> inputs;
      for (const Source& source : from_) inputs.push_back(source.value ? source.value->take(depth + 1) : source.tensor);
      if (!twice) from_.clear();  // frees sources that no further recompute needs
      taken = make_(inputs);
      if (!twice && uses > 1) value_ = taken, memory_ = taken.storage();
    }
    give_up();
    return taken;
  }

  void give_up() {
    if (--uses > 0) return;
    value_.reset();
    memory_ = {};
    for (const Source& source : std::exchange(from_, {}))  // never taken
      if (source.value) source.value->give_up();
  }

 private:
  bool from_tensors() const {
    return std::none_of(from_.begin(), from_.end(), [](const Source& source) { return source.value != nullptr; });
  }

  std::vector<Source> from_;
  Make make_;
  at::Tensor value_;
  // Held beside the value while there are other readers, so that no gradient overwrites it (is_sole_owner in node.h).
  c10::Storage memory_;
};

std::shared_ptr<Rebuilds::Value> Rebuilds::find(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto found = registered_.find(tensor.storage().unsafeGetStorageImpl());
  // A tensor of another dtype over the same storage was not registered.
  return found != registered_.end() && found->second.value->type == tensor.scalar_type() ? found->second.value
                                                                                         : nullptr;
}

void Rebuilds::register_value(const at::Tensor& result, std::vector<at::Tensor> from, Make make) {
  std::vector<Source> sources;
  int64_t moved = bytes_of(result);
  for (at::Tensor& tensor : from) {
    moved += bytes_of(tensor);
    std::shared_ptr<Value> value = find(tensor);
    // A part of the value is held as it is.
    const bool whole = value && tensor.is_contiguous() && tensor.sizes() == value->sizes;
    sources.push_back(whole ? Source{{}, std::move(value)}
                            : Source{tensor.defined() ? tensor.detach() : tensor, nullptr});
  }
  registered_.insert_or_assign(
      result.storage().unsafeGetStorageImpl(),
      Entry{result.storage().getWeakStorageImpl(),
            std::make_shared<Value>(result, std::move(sources), std::move(make), moved, session().site)});
}

/// A first use also uses the sources of the value.
void Rebuilds::claim(Value& value) {
  if (value.uses++ > 0) return;
  moved_ += value.moved;
  ++values_;
  for (const Source& source : value.from()) {
    if (source.value)
      claim(*source.value);
    else if (source.tensor.defined())
      keep_(source.tensor, value.site);
  }
}

std::unique_ptr<Rebuilds::Use> Rebuilds::use(const at::Tensor& tensor) {
  std::shared_ptr<Value> value = find(tensor);
  if (!value) return nullptr;
  claim(*value);
  return std::make_unique<Use>(std::move(value), tensor);
}

Rebuilds::Use::Use(std::shared_ptr<Value> value, const at::Tensor& tensor)
    : value_(std::move(value)),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()),
      offset_(tensor.storage_offset()) {}

Rebuilds::Use::~Use() {
  if (value_) value_->give_up();
}

at::Tensor Rebuilds::Use::take() {
  check_internal(value_ != nullptr, "ops.rebuild", "a value is taken twice for one use");
  at::Tensor taken = std::exchange(value_, nullptr)->take();
  if (taken.sizes() == sizes_ && taken.strides() == strides_ && taken.storage_offset() == offset_) return taken;
  return taken.as_strided(sizes_, strides_, offset_);
}

}  // namespace tessera::ops
