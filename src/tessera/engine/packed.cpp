#include "tessera/engine/packed.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/fp8.h"
#include "tessera/ops/int8.h"
#include "tessera/ops/ranges.h"

namespace tessera::engine {

namespace {

using at::Tensor;

constexpr int64_t kPieceValues = 1 << 14;  ///< values at once, in whole blocks of int8
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

void to_half(uint16_t* out, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = c10::Half(std::clamp(x[i], -kLargestHalf, kLargestHalf)).x;
}
void from_half(float* out, const uint16_t* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<float>(c10::Half(x[i], c10::Half::from_bits()));
}

/// Values [first, first + count) of a storage as fp32, and back.
void read_values(float* out, const SavedStorage& saved, int64_t first, int64_t count) {
  const void* data = saved.storage.data();
  if (saved.type == at::kFloat)
    std::copy_n(static_cast<const float*>(data) + first, count, out);
  else if (saved.type == at::kBFloat16)
    ops::from_bf16(out, static_cast<const uint16_t*>(data) + first, count);
  else
    from_half(out, static_cast<const uint16_t*>(data) + first, count);
}
void write_values(const SavedStorage& saved, int64_t first, int64_t count, const float* x) {
  void* data = saved.storage.mutable_data();
  if (saved.type == at::kFloat)
    std::copy_n(x, count, static_cast<float*>(data) + first);
  else if (saved.type == at::kBFloat16)
    ops::to_bf16(static_cast<uint16_t*>(data) + first, x, count);
  else
    to_half(static_cast<uint16_t*>(data) + first, x, count);
}

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

void encode(Codes to, const SavedStorage& saved, DType form, const float* x, int64_t count) {
  switch (form) {
    case DType::bf16:
      return ops::to_bf16(reinterpret_cast<uint16_t*>(to.codes), x, count);
    case DType::f16:
      return to_half(reinterpret_cast<uint16_t*>(to.codes), x, count);
    case DType::i8:
      return ops::quantise_int8(reinterpret_cast<int8_t*>(to.codes), to.scales, x, count);
    default:
      return ops::quantise_fp8(reinterpret_cast<uint8_t*>(to.codes), to.scales, x, rows_of(saved, count));
  }
}
void decode(float* out, Codes from, const SavedStorage& saved, DType form, int64_t count) {
  switch (form) {
    case DType::bf16:
      return ops::from_bf16(out, reinterpret_cast<const uint16_t*>(from.codes), count);
    case DType::f16:
      return from_half(out, reinterpret_cast<const uint16_t*>(from.codes), count);
    case DType::i8:
      return ops::dequantise_int8(out, reinterpret_cast<const int8_t*>(from.codes), from.scales, count);
    default:
      return ops::dequantise_fp8(out, reinterpret_cast<const uint8_t*>(from.codes), from.scales, rows_of(saved, count));
  }
}

/// Values of a piece: whole rows in forms with a scale for each row.
int64_t piece_values(const SavedStorage& saved, DType form) {
  return form == DType::f8_e4m3 ? saved.row * std::max<int64_t>(1, kPieceValues / saved.row) : kPieceValues;
}
int64_t pieces_of(const SavedStorage& saved, DType form) { return div_up(values_of(saved), piece_values(saved, form)); }

/// Calls `piece(index, first, count)` for all pieces, on all threads.
template <typename Piece>
void each_piece(const SavedStorage& saved, DType form, const Piece& piece) {
  const int64_t n = values_of(saved), step = piece_values(saved, form);
  at::parallel_for(0, pieces_of(saved, form), 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) piece(p, p * step, std::min(step, n - p * step));
  });
}

// On a device the same, in larger pieces.

constexpr int64_t kDevicePiece = 1 << 20;

int64_t device_piece(const SavedStorage& saved, DType form) {
  return form == DType::f8_e4m3 ? saved.row * std::max<int64_t>(1, kDevicePiece / saved.row) : kDevicePiece;
}

Tensor at_address(const void* data, int64_t count, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), {count}, at::TensorOptions(type).device(device::here()));
}

Tensor values_at(const SavedStorage& saved, int64_t first, int64_t count) {
  const auto* data = static_cast<const char*>(saved.storage.data());
  return at_address(data + first * static_cast<int64_t>(c10::elementSize(saved.type)), count, saved.type);
}

at::ScalarType half_type(DType form) { return form == DType::bf16 ? at::kBFloat16 : at::kHalf; }

/// `spare`: memory for as many values.
void encode_on_device(Codes to, const SavedStorage& saved, DType form, const Tensor& x, const Tensor& spare) {
  const device::Backend& table = *device::used();
  const auto* values = x.const_data_ptr<float>();
  switch (form) {
    case DType::bf16:
    case DType::f16: {
      Tensor within = spare;
      if (form == DType::f16) at::clamp_out(within, x, -kLargestHalf, kLargestHalf);
      return table.narrow(to.codes, (form == DType::f16 ? within : x).const_data_ptr<float>(), half_type(form),
                          x.numel());
    }
    case DType::i8:
      return table.quantise_int8(reinterpret_cast<int8_t*>(to.codes), to.scales, values, x.numel());
    default:
      return table.quantise_fp8(reinterpret_cast<uint8_t*>(to.codes), to.scales, values, rows_of(saved, x.numel()));
  }
}

void decode_on_device(const Tensor& out, Codes from, const SavedStorage& saved, DType form) {
  const device::Backend& table = *device::used();
  auto* values = out.mutable_data_ptr<float>();
  switch (form) {
    case DType::bf16:
    case DType::f16:
      return table.widen(values, from.codes, half_type(form), out.numel());
    case DType::i8:
      return table.dequantise_int8(values, reinterpret_cast<const int8_t*>(from.codes), from.scales, out.numel());
    default:
      return table.dequantise_fp8(values, reinterpret_cast<const uint8_t*>(from.codes), from.scales,
                                  rows_of(saved, out.numel()));
  }
}

/// Calls `piece(first, values, spare)` for all pieces: fp32 values of the storage where `read`, else memory for them.
template <typename Piece>
void each_device_piece(const SavedStorage& saved, DType form, bool read, const Piece& piece) {
  const int64_t n = values_of(saved), step = std::min(n, device_piece(saved, form));
  const bool whole = saved.type == at::kFloat;
  const Tensor wide = whole ? Tensor() : ops::device_scratch(0, step, at::kFloat),
               spare = ops::device_scratch(1, step, at::kFloat);
  for (int64_t first = 0; first < n; first += step) {
    const int64_t count = std::min(step, n - first);
    const Tensor stored = values_at(saved, first, count), x = whole ? stored : wide.narrow(0, 0, count);
    if (read && !whole) ops::widen(x, stored);
    piece(first, x, spare.narrow(0, 0, count));
    if (read || whole) continue;
    Tensor rounded = x;
    if (saved.type == at::kHalf) at::clamp_out(rounded, x, -kLargestHalf, kLargestHalf);
    ops::narrow(stored, rounded);
  }
}

double relative(double error, double whole) { return whole > 0 ? std::sqrt(error / whole) : 0; }

/// Adds the squares of the error and of the values to `squares`, fp64 [2] on the device.
void write_codes_on_device(char* packed, const SavedStorage& saved, DType form, const Tensor& squares) {
  squares.zero_();
  const Tensor of_piece = at::empty_like(squares);
  each_device_piece(saved, form, true, [&](int64_t first, const Tensor& x, const Tensor& spare) {
    const Codes codes = codes_of(packed, saved, form, first);
    encode_on_device(codes, saved, form, x, spare);
    decode_on_device(spare, codes, saved, form);
    ops::sum_of_squares(of_piece.narrow(0, 0, 1), Tensor(spare).sub_(x));
    ops::sum_of_squares(of_piece.narrow(0, 1, 1), x);
    Tensor(squares).add_(of_piece);
  });
}

/// The same; notes the relative error, or leaves it to `error.squares`.
void write_codes_on_device(char* packed, const SavedStorage& saved, DType form, CompressionError& error) {
  if (error.squares.defined() && error.unread < error.squares.size(0))
    return write_codes_on_device(packed, saved, form, error.squares[error.unread++]);
  const Tensor squares = at::empty({2}, at::TensorOptions(at::kDouble).device(saved.storage.device()));
  write_codes_on_device(packed, saved, form, squares);
  std::array<double, 2> read;
  ops::copy_bytes(read.data(), ops::read_address(squares), sizeof(read), true);
  error.add(relative(read[0], read[1]));
}

void read_codes_on_device(char* packed, const SavedStorage& saved, DType form) {
  each_device_piece(saved, form, false, [&](int64_t first, const Tensor& x, const Tensor&) {
    decode_on_device(x, codes_of(packed, saved, form, first), saved, form);
  });
}

/// Writes the codes of a storage and notes their relative error.
void write_codes(char* packed, const SavedStorage& saved, DType form, CompressionError& noted) {
  if (!saved.storage.device().is_cpu()) return write_codes_on_device(packed, saved, form, noted);
  std::vector<std::array<double, 2>> squares(static_cast<size_t>(pieces_of(saved, form)), {0, 0});
  each_piece(saved, form, [&](int64_t p, int64_t first, int64_t count) {
    std::vector<float> x(static_cast<size_t>(count)), rounded(x.size());
    read_values(x.data(), saved, first, count);
    const Codes codes = codes_of(packed, saved, form, first);
    encode(codes, saved, form, x.data(), count);
    decode(rounded.data(), codes, saved, form, count);
    double error = 0, whole = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double off = static_cast<double>(rounded[i]) - static_cast<double>(x[i]);
      error += off * off;
      whole += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    squares[p] = {error, whole};
  });
  double error = 0, whole = 0;  // in the order of the pieces, whichever thread did which
  for (const auto& piece : squares) error += piece[0], whole += piece[1];
  noted.add(relative(error, whole));
}

void read_codes(char* packed, const SavedStorage& saved, DType form) {
  if (!saved.storage.device().is_cpu()) return read_codes_on_device(packed, saved, form);
  each_piece(saved, form, [&](int64_t, int64_t first, int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    decode(x.data(), codes_of(packed, saved, form, first), saved, form, count);
    write_values(saved, first, count, x.data());
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
