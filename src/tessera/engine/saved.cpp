#include "tessera/engine/saved.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/engine/store/meter.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/eight_bit.h"
#include "tessera/ops/ranges.h"

namespace tessera::engine {

namespace {
thread_local SavedStorages* listing = nullptr;
}

/// Holds one saved tensor, as the node itself would, and lists it; or holds a use of a recomputed one.
struct SavedHook final : torch::autograd::SavedVariableHooks {
  void call_pack_hook(const at::Tensor& tensor) override {
    if (listing->rebuilds_) use_ = listing->rebuilds_->use(tensor);
    if (use_) return;
    // A tensor of its own: one that several nodes save is then seen to be held by each (is_sole_owner in
    // ops/node.h), and a node that saves its result does not hold itself.
    tensor_ = tensor.detach();
    listing->note(tensor, ops::session().site);
  }
  at::Tensor call_unpack_hook() override { return use_ ? use_->take() : tensor_; }

 private:
  at::Tensor tensor_;
  std::unique_ptr<ops::Rebuilds::Use> use_;
};

namespace {

/// Autograd asks its engine for the hooks of saved tensors; LibTorch's own engine returns none.
class ListingEngine final : public torch::autograd::Engine {
 public:
  static Engine& instance() {
    static auto* engine = new ListingEngine;  // its threads end with the process
    return *engine;
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return listing ? std::make_unique<SavedHook>() : nullptr;
  }
};

}  // namespace

SavedStorage::SavedStorage(std::string site, const at::Tensor& tensor)
    : site(std::move(site)),
      storage(tensor.storage()),
      type(tensor.scalar_type()),
      row(tensor.dim() > 1 ? tensor.size(-1) : 1) {}

int64_t SavedStorage::bytes() const { return round_up(static_cast<int64_t>(storage.nbytes()), 64); }

void free_memory(SavedStorage& saved) {
  saved.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(at::DataPtr(nullptr, saved.storage.device()));
}

void take_memory(SavedStorage& saved) {
  c10::Allocator* allocator = Meter::allocator(saved.storage.device_type());
  saved.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(allocator->allocate(saved.storage.nbytes()));
}

SavedStorages::SavedStorages(const std::vector<at::Tensor>& foreign, bool selective) {
  check_internal(!listing, "engine.saved", "two listings at once on one thread");
  static const bool installed = (torch::autograd::set_default_engine_stub(&ListingEngine::instance), true);
  (void)installed;
  for (const at::Tensor& t : foreign)
    if (t.defined()) seen_.insert(t.storage().unsafeGetStorageImpl());
  if (selective) rebuilds_.emplace([this](const at::Tensor& tensor, const std::string& site) { note(tensor, site); });
  listing = this;
}

SavedStorages::~SavedStorages() { listing = nullptr; }

std::vector<SavedStorage> SavedStorages::take(const std::vector<at::Tensor>& stream,
                                              const std::vector<at::Tensor>& cond) {
  for (const auto* outputs : {&stream, &cond})
    for (const at::Tensor& t : *outputs)
      std::erase_if(found_, [&](const SavedStorage& s) {
        return s.storage.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl();
      });
  return std::move(found_);
}

void SavedStorages::note(const at::Tensor& tensor, const std::string& site) {
  if (tensor.defined() && tensor.has_storage() && seen_.insert(tensor.storage().unsafeGetStorageImpl()).second)
    found_.push_back({site, tensor});
}

namespace {

using at::Tensor;

constexpr int64_t kPieceValues = 1 << 14;  ///< values that a CPU's thread does at once, in whole blocks of int8
constexpr int64_t kDevicePiece = 1 << 20;  ///< and a device
constexpr float kLargestHalf = 65504;      ///< the largest finite fp16, to which larger values are clamped

int64_t values_of(const SavedStorage& saved) {
  return static_cast<int64_t>(saved.storage.nbytes() / c10::elementSize(saved.type));
}
int64_t code_bytes(DType form) { return form == DType::bf16 || form == DType::f16 ? 2 : 1; }
int64_t scales_of(const SavedStorage& saved, DType form) {
  if (form == DType::i8) return div_up(values_of(saved), ops::kQuantBlock);
  return form == DType::f8_e4m3 ? values_of(saved) / saved.row : 0;
}
/// Where the scales begin behind the codes.
int64_t scales_at(const SavedStorage& saved, DType form) { return round_up(values_of(saved) * code_bytes(form), 64); }

/// The codes and scales of one piece.
struct Codes {
  char* codes;
  float* scales;
};
Codes codes_of(char* packed, const SavedStorage& saved, DType form, int64_t first) {
  auto* scales = reinterpret_cast<float*>(packed + scales_at(saved, form));
  const int64_t scale = form == DType::i8 ? first / ops::kQuantBlock : form == DType::f8_e4m3 ? first / saved.row : 0;
  return {packed + first * code_bytes(form), scales + scale};
}
ops::Fp8Tiles rows_of(const SavedStorage& saved, int64_t count) {
  return {.rows = count / saved.row, .cols = saved.row, .tile_rows = 1, .tile_cols = saved.row};
}

Tensor floats_at(const float* data, int64_t n, at::Device device) {
  return at::from_blob(const_cast<float*>(data), {n}, at::TensorOptions(at::kFloat).device(device));
}

/// `x` within what fp16 has, in `out`, which may be `x`.
const float* within_half(float* out, const float* x, int64_t n, at::Device device) {
  Tensor to = floats_at(out, n, device);
  at::clamp_out(to, floats_at(x, n, device), -kLargestHalf, kLargestHalf);
  return out;
}

/// `spare`: memory for as many values.
void encode(Codes to, const SavedStorage& saved, DType form, const float* x, int64_t n, float* spare) {
  const at::Device device = saved.storage.device();
  const device::Backend& table = ops::backend(ops::on_device(device));
  switch (form) {
    case DType::f16:
      return table.narrow(to.codes, within_half(spare, x, n, device), at::kHalf, n);
    case DType::bf16:
      return table.narrow(to.codes, x, at::kBFloat16, n);
    case DType::i8:
      return table.quantise_int8(reinterpret_cast<int8_t*>(to.codes), to.scales, x, n);
    default:
      return table.quantise_fp8(reinterpret_cast<uint8_t*>(to.codes), to.scales, x, rows_of(saved, n));
  }
}

void decode(float* out, Codes from, const SavedStorage& saved, DType form, int64_t n) {
  const device::Backend& table = ops::backend(ops::on_device(saved.storage.device()));
  switch (form) {
    case DType::bf16:
    case DType::f16:
      return table.widen(out, from.codes, form == DType::bf16 ? at::kBFloat16 : at::kHalf, n);
    case DType::i8:
      return table.dequantise_int8(out, reinterpret_cast<const int8_t*>(from.codes), from.scales, n);
    default:
      return table.dequantise_fp8(out, reinterpret_cast<const uint8_t*>(from.codes), from.scales, rows_of(saved, n));
  }
}

/// Part of a storage, and fp32 values of it: its own where it is fp32, else memory for them. `spare`: memory for as many.
struct Piece {
  int64_t number, first, count;
  void* stored;
  float *x, *spare;
};

/// Values of a piece: whole rows in forms with a scale for each row.
int64_t piece_values(const SavedStorage& saved, DType form) {
  const int64_t most = ops::on_device(saved.storage.device()) ? kDevicePiece : kPieceValues,
                rows = saved.row * std::max<int64_t>(1, most / saved.row);
  return std::min(values_of(saved), form == DType::f8_e4m3 ? rows : most);
}

/// Calls act(piece) for all pieces. A CPU does several at once.
template <typename Act>
void each_piece(const SavedStorage& saved, DType form, const Act& act) {
  const bool far = ops::on_device(saved.storage.device()), whole = saved.type == at::kFloat;
  const int64_t n = values_of(saved), step = piece_values(saved, form), pieces = div_up(n, step);
  auto* stored = static_cast<char*>(saved.storage.mutable_data());
  const auto run = [&](int64_t begin, int64_t end, float* x, float* spare) {
    for (int64_t p = begin, first = p * step; p < end; ++p, first += step) {
      char* at = stored + first * static_cast<int64_t>(c10::elementSize(saved.type));
      act(Piece{p, first, std::min(step, n - first), at, whole ? reinterpret_cast<float*>(at) : x, spare});
    }
  };
  const auto scratch = [&](int which) {
    return ops::device_scratch(which, step, at::kFloat).mutable_data_ptr<float>();
  };
  if (far) return run(0, pieces, whole ? nullptr : scratch(0), scratch(1));
  at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> x(static_cast<size_t>(whole ? 0 : step)), spare(static_cast<size_t>(step));
    run(begin, end, x.data(), spare.data());
  });
}

double relative(double error, double whole) { return whole > 0 ? std::sqrt(error / whole) : 0; }

/// The squares of the error of a piece whose rounded values are in `spare`, and of its values.
std::array<double, 2> squares_of(const Piece& piece) {
  double error = 0, whole = 0;
  for (int64_t i = 0; i < piece.count; ++i) {
    const double off = static_cast<double>(piece.spare[i]) - static_cast<double>(piece.x[i]);
    error += off * off;
    whole += static_cast<double>(piece.x[i]) * static_cast<double>(piece.x[i]);
  }
  return {error, whole};
}

/// Writes the codes of a storage, and the squares of their error and of its values to `squares`, fp64 [2] where it lies.
void write_codes(char* packed, const SavedStorage& saved, DType form, Tensor squares) {
  squares.zero_();
  std::vector<std::array<double, 2>> of_pieces(
      static_cast<size_t>(div_up(values_of(saved), piece_values(saved, form))));
  const bool far = ops::on_device(squares);
  const Tensor of_piece = far ? at::empty_like(squares) : Tensor();
  each_piece(saved, form, [&](const Piece& piece) {
    if (saved.type != at::kFloat) ops::backend(far).widen(piece.x, piece.stored, saved.type, piece.count);
    const Codes codes = codes_of(packed, saved, form, piece.first);
    encode(codes, saved, form, piece.x, piece.count, piece.spare);
    decode(piece.spare, codes, saved, form, piece.count);
    if (!far) {
      of_pieces[static_cast<size_t>(piece.number)] = squares_of(piece);
      return;
    }
    const Tensor x = floats_at(piece.x, piece.count, squares.device());
    ops::sum_of_squares(of_piece.narrow(0, 0, 1), floats_at(piece.spare, piece.count, squares.device()).sub_(x));
    ops::sum_of_squares(of_piece.narrow(0, 1, 1), x);
    squares.add_(of_piece);
  });
  for (size_t p = 0; !far && p < of_pieces.size(); ++p)  // in their order, whichever thread did which
    for (int i = 0; i < 2; ++i) squares.mutable_data_ptr<double>()[i] += of_pieces[p][static_cast<size_t>(i)];
}

/// The same; notes the relative error, or leaves it to `noted.squares`.
void write_codes(char* packed, const SavedStorage& saved, DType form, CompressionError& noted) {
  if (noted.squares.defined() && noted.unread < noted.squares.size(0))
    return write_codes(packed, saved, form, noted.squares[noted.unread++]);
  const Tensor squares = at::empty({2}, at::TensorOptions(at::kDouble).device(saved.storage.device()));
  write_codes(packed, saved, form, squares);
  const Tensor read = squares.cpu();
  noted.add(relative(read.const_data_ptr<double>()[0], read.const_data_ptr<double>()[1]));
}

void read_codes(char* packed, const SavedStorage& saved, DType form) {
  const at::Device device = saved.storage.device();
  each_piece(saved, form, [&](const Piece& piece) {
    decode(piece.x, codes_of(packed, saved, form, piece.first), saved, form, piece.count);
    if (saved.type == at::kFloat) return;
    if (saved.type == at::kHalf) within_half(piece.x, piece.x, piece.count, device);
    ops::backend(ops::on_device(device)).narrow(piece.stored, piece.x, saved.type, piece.count);
  });
}

}  // namespace

void CompressionError::add(double relative) {
  sum += relative;
  most = std::max(most, relative);
  ++count;
}

void CompressionError::settle(const std::vector<double>& read) {
  for (size_t i = 0; i + 1 < read.size(); i += 2) add(relative(read[i], read[i + 1]));
  unread = 0;
}

bool can_pack(const SavedStorage& saved, DType form) {
  const bool whole = saved.type == at::kFloat, half = saved.type == at::kBFloat16 || saved.type == at::kHalf;
  if (!(whole || (half && code_bytes(form) == 1))) return false;
  return saved.row >= kShortRow && values_of(saved) > 0 && values_of(saved) % saved.row == 0;
}

int64_t packed_bytes(const SavedStorage& saved, DType form) {
  return scales_at(saved, form) + round_up(scales_of(saved, form) * static_cast<int64_t>(sizeof(float)), 64);
}

void Packed::add(SavedStorage saved, DType form) {
  const int64_t bytes = packed_bytes(saved, form);
  members_.push_back({std::move(saved), form, bytes_});
  bytes_ += bytes;
}

void Packed::compress(CompressionError& error) {
  if (empty()) return;
  buffer_.emplace("compressed",
                  at::empty({bytes_}, at::TensorOptions(at::kByte).device(members_[0].saved.storage.device())));
  auto* data = static_cast<char*>(buffer_->storage.mutable_data());
  for (Member& member : members_) {
    write_codes(data + member.at, member.saved, member.form, error);
    free_memory(member.saved);
  }
}

void Packed::expand() {
  if (empty()) return;
  auto* data = static_cast<char*>(buffer_->storage.mutable_data());
  for (Member& member : members_) {
    take_memory(member.saved);
    read_codes(data + member.at, member.saved, member.form);
  }
  *this = {};
}

}  // namespace tessera::engine
