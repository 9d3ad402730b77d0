// The pickle is what Python's pickler makes of an OrderedDict of tensors in protocol 2, without the memo: a value that
// is used again is written again.
#include "tessera/checkpoint/torch_write.h"

#include <cstring>
#include <numeric>

#include "tessera/base/check.h"
#include "tessera/checkpoint/json.h"

namespace tessera::checkpoint {

namespace {

/// How torch spells a dtype: a storage class of its own, or an untyped storage and the dtype beside it.
struct TorchType {
  std::string_view storage, dtype;
};
TorchType torch_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {"DoubleStorage", {}};
    case DType::f32:
      return {"FloatStorage", {}};
    case DType::f16:
      return {"HalfStorage", {}};
    case DType::bf16:
      return {"BFloat16Storage", {}};
    case DType::f8_e4m3:
      return {{}, "float8_e4m3fn"};
    case DType::f8_e5m2:
      return {{}, "float8_e5m2"};
    case DType::i64:
      return {"LongStorage", {}};
    case DType::i32:
      return {"IntStorage", {}};
    case DType::i16:
      return {"ShortStorage", {}};
    case DType::i8:
      return {"CharStorage", {}};
    case DType::u8:
      return {"ByteStorage", {}};
    case DType::boolean:
      return {"BoolStorage", {}};
  }
  throw InternalError("torch.write", "a dtype without a name in torch");
}

/// Appends pickle instructions (their letters in Python's pickletools).
class PickleText {
 public:
  std::string bytes = "\x80\x02";  // PROTO 2

  void op(std::string_view code) { bytes += code; }
  void global(std::string_view module, std::string_view name) {
    op("c");
    op(module);
    op("\n");
    op(name);
    op("\n");
  }
  void text(std::string_view value) {  // BINUNICODE
    op("X");
    raw(static_cast<uint32_t>(value.size()));
    op(value);
  }
  void integer(int64_t value) {
    if (value == static_cast<int32_t>(value)) {  // BININT
      op("J");
      raw(static_cast<int32_t>(value));
    } else {  // LONG1 of eight bytes
      op("\x8a\x08");
      raw(value);
    }
  }
  void integers(const Shape& values) {
    op("(");
    for (const int64_t value : values) integer(value);
    op("t");
  }

 private:
  template <class T>
  void raw(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
};

Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * std::max<int64_t>(shape[i - 1], 1);
  return strides;
}

void pickle_tensor(PickleText& out, const TensorInfo& tensor, size_t key) {
  const TorchType type = torch_type(tensor.dtype);
  out.global("torch._utils", type.dtype.empty() ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  out.op("((");
  out.text("storage");
  if (type.dtype.empty())
    out.global("torch", type.storage);
  else
    out.global("torch.storage", "UntypedStorage");
  out.text(std::to_string(key));
  out.text("cpu");
  out.integer(type.dtype.empty() ? tensor.count() : tensor.bytes());
  out.op("tQ");  // the persistent id of the storage
  out.integer(0);
  out.integers(tensor.shape);
  out.integers(contiguous_strides(tensor.shape));
  out.op("\x89");  // no gradient
  out.global("collections", "OrderedDict");
  out.op(")R");  // no hooks
  if (!type.dtype.empty()) out.global("torch", type.dtype);
  out.op("tR");
}

std::string pickle_of(const std::vector<TensorInfo>& tensors) {
  PickleText out;
  out.global("collections", "OrderedDict");
  out.op(")R(");
  for (size_t i = 0; i < tensors.size(); ++i) {
    out.text(tensors[i].name);
    pickle_tensor(out, tensors[i], i);
  }
  out.op("u.");
  return out.bytes;
}

int64_t total_bytes(const std::vector<TensorInfo>& tensors) {
  constexpr int64_t kAround = 512;  // headers, padding and pickle of a tensor
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{4096},
                         [&](int64_t sum, const TensorInfo& tensor) { return sum + tensor.bytes() + kAround; });
}

}  // namespace

TorchWriter::TorchWriter(const Path& path, std::vector<TensorInfo> tensors)
    : tensors_(std::move(tensors)), zip_(path, total_bytes(tensors_)) {
  const std::string pickle = pickle_of(tensors_);
  zip_.add("archive/data.pkl", pickle.data(), static_cast<int64_t>(pickle.size()));
  zip_.add("archive/byteorder", "little", 6);
}

void TorchWriter::write(const void* data) {
  check_internal(next_ < tensors_.size(), "torch.write", "more tensors than announced");
  zip_.add("archive/data/" + std::to_string(next_), data, tensors_[next_].bytes());
  ++next_;
}

void TorchWriter::commit() {
  check_internal(next_ == tensors_.size(), "torch.write",
                 std::to_string(tensors_.size() - next_) + " tensors are missing");
  zip_.add("archive/version", "3\n", 2);
  zip_.commit();
}

}  // namespace tessera::checkpoint
