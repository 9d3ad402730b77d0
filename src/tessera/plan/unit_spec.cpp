#include "tessera/plan/unit_spec.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::plan {

int64_t stored_bytes(DType stored, int64_t elements) {
  switch (stored) {
    case DType::f32:
      return elements * 4;
    case DType::bf16:
      return elements * 2;
    default:
      return div_up(elements, kFlatAlign) * (kFlatAlign + 4);
  }
}

int64_t ParamSpec::numel() const {
  int64_t product = 1;
  for (int64_t n : shape) product *= n;
  return product;
}

const ModelSpec& ModelSpec::on(int64_t count) const {
  const auto found = std::ranges::lower_bound(smaller, count, {}, &ModelSpec::samples);
  return found == smaller.end() ? *this : *found;
}

AttentionUse ModelSpec::attention() const {
  AttentionUse all;
  for (const UnitSpec& unit : units) all.add(unit.cost.attention);
  return all;
}

int64_t ModelSpec::numel() const {
  int64_t sum = 0;
  for (const auto& unit : units)
    for (const auto& param : unit.params) sum += param.numel();
  return sum;
}

namespace {

int64_t count(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (int64_t n : shape) product *= n;
  return product;
}

/// The dimension that tensor parallelism shards.
size_t sharded_dim(const ParamSpec& param) { return param.split == Split::column_parallel ? 0 : 1; }

}  // namespace

std::vector<std::pair<int64_t, int64_t>> tp_box(const ParamSpec& param, int tp, int tp_rank) {
  std::vector<std::pair<int64_t, int64_t>> box;
  for (int64_t n : param.shape) box.push_back({0, n});
  if (tp == 1 || param.split == Split::none) return box;
  auto& cut = box[sharded_dim(param)];
  check_input(
      cut.second % tp == 0, "plan.mesh",
      param.name + ": " + std::to_string(cut.second) + " features are not divisible by tp=" + std::to_string(tp),
      "choose a tp that divides the heads and the feed-forward width");
  const int64_t part = cut.second / tp;
  cut = {part * tp_rank, part * (tp_rank + 1)};
  return box;
}

std::vector<CodePiece> code_pieces(const UnitLayout& layout, const Buffer& buffer, int shard, bool columns) {
  std::vector<CodePiece> pieces;
  const int64_t from = shard * buffer.shard, to = from + buffer.shard;
  int64_t first = 0, at = 0;
  for (const int p : buffer.params) {
    const UnitLayout::Place& place = layout.params[static_cast<size_t>(p)];
    const int64_t height = place.shape[0], width = place.numel / height;
    const int64_t begin = std::max(from, place.start) - place.start,
                  end = std::min(to, place.start + place.numel) - place.start;
    if (begin < end) {
      const int64_t skipped = columns ? 0 : begin / width, lines = columns ? width : div_up(end, width) - skipped;
      pieces.push_back({p, begin, end, place.start + begin - from, width, first + skipped, lines, at});
      at += lines;
    }
    first += columns ? width : height;
  }
  return pieces;
}

namespace {

/// The numbers of lines of a buffer that is gathered as codes.
void count_lines(const UnitLayout& layout, Buffer& buffer) {
  for (const int columns : {0, 1}) {
    Buffer::Lines& lines = buffer.lines[static_cast<size_t>(columns)];
    for (const int p : buffer.params) {
      const UnitLayout::Place& place = layout.params[static_cast<size_t>(p)];
      lines.all += columns ? place.numel / place.shape[0] : place.shape[0];
    }
    for (int shard = 0; shard < buffer.shards; ++shard) {
      const std::vector<CodePiece> pieces = code_pieces(layout, buffer, shard, columns);
      if (!pieces.empty()) lines.most = std::max(lines.most, pieces.back().at + pieces.back().count);
    }
  }
}

}  // namespace

UnitLayout unit_layout(const UnitSpec& unit, int shards, int tp, bool whole, int64_t element, int copies, bool codes) {
  UnitLayout layout;
  layout.slot_element = element;
  layout.params.resize(unit.params.size());
  bool cut = false;
  for (const auto& param : unit.params) cut |= param.split != Split::none;
  layout.sharded = !whole && (shards > 1 || (tp > 1 && !cut));
  struct Kind {
    bool trainable;
    DType stored;
    bool in_codes = false;
  };
  // fp32 buffers first: each then begins at a multiple of 1 KiB.
  for (const Kind kind :
       {Kind{true, DType::f32}, Kind{true, DType::f32, true}, Kind{false, DType::f32}, Kind{false, DType::f32, true},
        Kind{false, DType::bf16}, Kind{false, DType::bf16, true}, Kind{false, DType::i8}, Kind{false, DType::f8_e4m3}})
    for (const bool over_tp : {false, true}) {
      const auto [trainable, stored, in_codes] = kind;
      if (in_codes && !codes) continue;
      Buffer buffer{.trainable = trainable, .over_tp = over_tp, .stored = stored, .params = {}, .in_codes = in_codes};
      int64_t at = 0;
      for (size_t p = 0; p < unit.params.size(); ++p) {
        const ParamSpec& param = unit.params[p];
        const bool same = param.trainable == trainable && (trainable || param.stored == stored);
        const bool may = codes && param.in_8_bits && (stored == DType::f32 || stored == DType::bf16);
        if (!same || may != in_codes || (tp > 1 && param.split == Split::none) != over_tp) continue;
        UnitLayout::Place& place = layout.params[p];
        place.buffer = static_cast<int>(layout.buffers.size());
        place.start = at;
        for (const auto& [begin, end] : tp_box(param, tp, 0)) place.shape.push_back(end - begin);
        place.numel = count(place.shape);
        buffer.params.push_back(static_cast<int>(p));
        at = round_up(at + place.numel, kFlatAlign);
      }
      if (buffer.params.empty()) continue;
      buffer.shards = layout.sharded ? shards * (over_tp ? tp : 1) : 1;
      if (trainable && copies > 1) buffer.partitions = copies * (over_tp && !layout.sharded ? tp : 1);
      buffer.shard = round_up(div_up(at, buffer.shards), kFlatAlign * buffer.partitions);
      buffer.total = buffer.shard * buffer.shards;
      if (in_codes) count_lines(layout, buffer);
      buffer.grad_at = layout.grad_total, buffer.held = layout.shard;
      layout.total += layout.slot_bytes(buffer, Codes::none) / 4, layout.shard += buffer.shard;
      if (trainable) {
        layout.grad_total += buffer.total, layout.grad_shard = layout.shard;
        layout.grad_partition += buffer.partition();
      }
      layout.buffers.push_back(std::move(buffer));
    }
  return layout;
}

}  // namespace tessera::plan
