// Kind "fp8": 8-bit floats by tensor, row, tile and group, int8 blocks and stochastic rounding, against LibTorch's
// casts and torchao; and the same tensors stored in their own dtypes.
#include "tessera/ops/eight_bit.h"

#include <c10/util/Half.h>

#include "tessera/base/check.h"
#include "tessera/device/backend.h"
#include "tessera/ops/bf16.h"
#include "tessera/ops/blockwise.h"
#include "tessera/ops/kernels.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using at::Tensor;

constexpr double kFloatUlp = 1.2e-7;  // of an fp32 value, relative

Tensor one_ulp(const Tensor& expected) { return expected.abs() * kFloatUlp; }
Tensor exactly(const Tensor& expected) { return at::zeros_like(expected); }

struct Quantised {
  Tensor codes, scale;
};

Quantised quantise(const Tensor& x, const ops::Fp8Tiles& tiles) {
  Quantised q{at::empty(x.sizes(), at::kByte), at::empty({tiles.down(), tiles.across()}, at::kFloat)};
  ops::quantise_fp8(q.codes.mutable_data_ptr<uint8_t>(), q.scale.mutable_data_ptr<float>(), x.const_data_ptr<float>(),
                    tiles);
  return q;
}

Tensor cast(const Tensor& x, DType format) {
  Tensor codes = at::empty(x.sizes(), at::kByte);
  ops::to_fp8(codes.mutable_data_ptr<uint8_t>(), x.const_data_ptr<float>(), x.numel(), format);
  return codes;
}

Tensor values_of(const Tensor& codes, DType format) {
  Tensor values = at::empty(codes.sizes(), at::kFloat);
  ops::from_fp8(values.mutable_data_ptr<float>(), codes.const_data_ptr<uint8_t>(), codes.numel(), format);
  return values;
}

Tensor bf16_bits(const Tensor& x) {
  Tensor bits = at::empty(x.sizes(), at::kShort);
  ops::to_bf16(reinterpret_cast<uint16_t*>(bits.mutable_data_ptr<int16_t>()), x.const_data_ptr<float>(), x.numel());
  return bits;
}

void check_tables(CaseFile& file) {
  const Tensor all = at::arange(256, at::kLong).to(at::kByte);
  file.compare_each("out.table_e4m3", values_of(all, DType::f8_e4m3), exactly, /*nan=*/true);
  file.compare_each("out.table_e5m2", values_of(all, DType::f8_e5m2), exactly, /*nan=*/true);
}

void check_edges(CaseFile& file, const Tensor& edge) {
  file.compare("out.edge.e4m3_bits", cast(edge, DType::f8_e4m3), 0.0);
  file.compare("out.edge.e5m2_bits", cast(edge, DType::f8_e5m2), 0.0);
  file.compare("out.edge.bf16_bits", bf16_bits(edge), 0.0);
  file.compare("out.edge.fp16_bits", edge.to(at::kHalf).view(at::kShort), 0.0);
}

void check_tiles(CaseFile& file, const Tensor& x, int64_t block) {
  const int64_t rows = x.size(0), cols = x.size(1);
  const std::vector<std::pair<std::string, ops::Fp8Tiles>> all = {
      {"tensor", {rows, cols, rows, cols}},
      {"row", {rows, cols, 1, cols}},
      {"block", {rows, cols, block, block}},
      {"group", {rows, cols, 1, block}},
      {"tensor_e5m2", {rows, cols, rows, cols, DType::f8_e5m2}}};
  for (const auto& [name, tiles] : all) {
    Quantised q = quantise(x, tiles);
    const std::string out = "out." + name + ".";
    if (name.starts_with("tensor")) q.scale = q.scale.squeeze();
    file.compare_each(out + "scale", q.scale, one_ulp);
    file.compare(out + "bits", q.codes, 0.0);
    if (name != "tensor") continue;
    Tensor back = at::empty_like(x);
    ops::dequantise_fp8(back.mutable_data_ptr<float>(), q.codes.const_data_ptr<uint8_t>(),
                        q.scale.const_data_ptr<float>(), tiles);
    file.compare_each(out + "dequant", back, [](const Tensor& expected) { return expected.abs() * 2 * kFloatUlp; });
  }
}

/// torchao keeps the multiplier 448 / amax instead.
void check_torchao(CaseFile& file, const Tensor& x) {
  const float top = ops::largest(DType::f8_e4m3);
  const auto multiplier = [top](const Tensor& amax) {
    return (top / amax.to(at::kDouble).clamp_min(1e-12)).to(at::kFloat);
  };
  const Tensor whole = multiplier(x.abs().max());
  file.compare_each("out.torchao.scale_tensor", whole, one_ulp);
  file.compare("out.torchao.scale_tensor_pow2", at::exp2(at::floor(at::log2(whole))), 0.0);
  file.compare_each("out.torchao.scale_row", multiplier(x.abs().amax(1, true)), one_ulp);
  file.compare("out.torchao.bits_tensor", cast((x * whole).clamp(-top, top).contiguous(), DType::f8_e4m3), 0.0);
}

/// Rows of x times rows of w, in 8 bits, as linears have them: from lines of the device's table (ops/kernels.h).
void check_product(CaseFile& file, const Tensor& x, const Tensor& w) {
  const Tensor on_x = x.to(device::here()), on_w = w.to(device::here());
  const ops::Kernels& table = ops::kernels(on_x);
  const ops::Fp8Lines of_x = table.fp8_lines(on_x, at::kFloat8_e4m3fn, /*turned=*/false, /*gelu=*/false),
                      of_w = table.fp8_lines(on_w, at::kFloat8_e4m3fn, /*turned=*/false, /*gelu=*/false);
  const auto codes = [&](const ops::Fp8Lines& lines) {
    return lines.codes.view(at::kByte).cpu().narrow(1, 0, x.size(1));
  };
  file.compare("out.w.row.bits", codes(of_w), 0.0);
  file.compare_each("out.w.row.scale", of_w.scales.cpu().unsqueeze(1), one_ulp);
  const Tensor y = at::empty({x.size(0), w.size(0)}, on_x.options());
  table.fp8_product_into(y, of_x, of_w, /*add=*/false);
  file.compare("out.matmul", y.cpu(), [](double largest) { return 1e-5 * largest; });
}

Tensor check_int8(CaseFile& file, const Tensor& act) {
  const Tensor x = act.to(at::kFloat).contiguous();
  Tensor q = at::empty({x.numel()}, at::kChar), back = at::empty_like(x);
  Tensor scale = at::empty({div_up(x.numel(), ops::kQuantBlock)}, at::kFloat);
  ops::quantise_int8(q.mutable_data_ptr<int8_t>(), scale.mutable_data_ptr<float>(), x.const_data_ptr<float>(),
                     x.numel());
  ops::dequantise_int8(back.mutable_data_ptr<float>(), q.const_data_ptr<int8_t>(), scale.const_data_ptr<float>(),
                       x.numel());
  file.compare_each("out.int8.scale", scale, one_ulp);
  file.compare("out.int8.q", q, 0.0);
  file.compare("out.int8.dequant", back.to(at::kBFloat16), 0.0);
  return q;
}

void check_stochastic(CaseFile& file) {
  const Tensor x = file.tensor("in.sr.x"), random = file.tensor("in.sr.rand16").to(at::kInt).contiguous();
  check_input(x.numel() == random.numel(), "verify", file.case_name() + ": in.sr.x and in.sr.rand16 differ in size");
  std::vector<uint16_t> bits;
  for (int64_t i = 0; i < random.numel(); ++i) bits.push_back(static_cast<uint16_t>(random[i].item<int32_t>()));
  Tensor rounded = at::empty(x.sizes(), at::kBFloat16);
  ops::round_stochastic(static_cast<uint16_t*>(rounded.mutable_data_ptr()), x.const_data_ptr<float>(), bits.data(),
                        x.numel());
  file.compare("out.sr.bf16", rounded, 0.0);
}

}  // namespace

CaseResults verify_fp8(const CaseContext& context) {
  CaseFile file(context.name, context.case_files().front());
  const Tensor x = file.tensor("in.x"), w = file.tensor("in.w"), edge = file.tensor("in.edge"),
               act = file.tensor("in.act");
  check_input(x.dim() == 2 && w.dim() == 2 && x.size(1) == w.size(1), "verify",
              file.case_name() + "/" + file.file_name() + ": in.x and in.w do not fit", "expected [M, N] and [K, N]");
  for (const auto& [key, size] : {std::pair("M", x.size(0)), {"N", x.size(1)}})
    check_input(context.config.value(key, size) == size, "verify",
                context.folder.string() + "/config.json: " + key + " is not that of in.x");
  check_input(context.config.at("int8_block") == ops::kQuantBlock, "verify",
              context.folder.string() + "/config.json: int8_block",
              "this build has blocks of " + std::to_string(ops::kQuantBlock));
  check_tables(file);
  check_edges(file, edge);
  check_tiles(file, x, context.config.at("block"));
  check_torchao(file, x);
  check_product(file, x, w);
  const Tensor q = check_int8(file, act);
  check_stochastic(file);
  CaseResults results;
  results.push_back(std::move(file));

  const auto native = context.folder / "native.safetensors";
  if (!std::filesystem::exists(native)) return results;
  CaseFile stored(context.name, native);
  const ops::Fp8Tiles whole{x.size(0), x.size(1), x.size(0), x.size(1)};
  ops::Fp8Tiles wide = whole;
  wide.format = DType::f8_e5m2;
  stored.compare("tensor_e4m3", values_of(quantise(x, whole).codes, DType::f8_e4m3), 0.0);
  stored.compare("tensor_e5m2", values_of(quantise(x, wide).codes, DType::f8_e5m2), 0.0);
  stored.compare("act_bf16", act.to(at::kBFloat16), 0.0);
  stored.compare("act_int8", q, 0.0);
  stored.compare_each("edge_fp16", edge.to(at::kHalf), exactly, /*nan=*/true);
  results.push_back(std::move(stored));
  return results;
}

}  // namespace tessera::tools
