#include "tessera/tools/verify/case.h"

#include <algorithm>
#include <set>

#include "tessera/base/check.h"

namespace tessera::tools {

namespace fs = std::filesystem;

CaseFile::CaseFile(std::string case_name, const fs::path& path, std::string weights)
    : case_name_(std::move(case_name)),
      weights_(std::move(weights)),
      path_(path),
      file_(checkpoint::SafetensorsFile::open(path)) {}

CaseFile::CaseFile(std::string case_name, const fs::path& path, std::map<std::string, at::Tensor> expected)
    : case_name_(std::move(case_name)), path_(path), expected_(std::move(expected)) {}

std::vector<std::string> CaseFile::names(const std::string& prefix) const {
  std::vector<std::string> found;
  for (const auto& [name, value] : expected_)
    if (name.starts_with(prefix)) found.push_back(name);
  if (!file_) return found;
  for (const auto& entry : file_->entries())
    if (entry.name.starts_with(prefix)) found.push_back(entry.name);
  return found;
}

namespace {

const std::vector<std::pair<DType, at::ScalarType>> kDTypes = {
    {DType::f32, at::kFloat},     {DType::f64, at::kDouble}, {DType::f16, at::kHalf},
    {DType::bf16, at::kBFloat16}, {DType::i64, at::kLong},   {DType::i32, at::kInt},
    {DType::i16, at::kShort},     {DType::i8, at::kChar},    {DType::u8, at::kByte}};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double largest(const at::Tensor& t) { return t.numel() ? t.abs().max().item<double>() : 0; }

}  // namespace

at::Tensor whole_numbers(const std::vector<int64_t>& values) { return at::tensor(values, at::kLong); }

at::Tensor bytes_of(const std::string& text) {
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

DType file_dtype(at::ScalarType dtype) {
  for (const auto& [stored, ours] : kDTypes)
    if (ours == dtype) return stored;
  throw InternalError("verify", std::string("a computed tensor is of dtype ") + at::toString(dtype));
}

at::Tensor CaseFile::tensor(const std::string& name) const {
  if (!file_) return expected_.at(name);
  const auto& entry = file_->at(name);
  // inputs that a program had in 16 bits are computed with in fp32, which holds them
  const bool half = name.starts_with("in.") && (entry.dtype == DType::bf16 || entry.dtype == DType::f16);
  for (const auto& [stored, ours] : kDTypes) {
    if (stored != entry.dtype || half) continue;
    at::Tensor value = at::empty(entry.shape, ours);
    file_->read(name, 0, entry.count(), value.mutable_data_ptr());
    return value;
  }
  at::Tensor value = at::empty(entry.shape, at::kFloat);
  file_->read_f32(name, 0, entry.count(), value.mutable_data_ptr<float>());
  return value;
}

void CaseFile::judge(const std::string& name, const at::Tensor& computed,
                     const std::function<void(const at::Tensor&, const at::Tensor&, Comparison&)>& rule) {
  computed_.emplace_back(name, computed.detach().clone());
  if (!has(name)) return fail(name);
  const at::Tensor expected = tensor(name).to(at::kDouble), found = computed.detach().to(at::kDouble);
  Comparison c;
  c.name = name;
  if (expected.sizes() != found.sizes()) {
    c.max_abs = c.max_rel = kInfinity;
  } else {
    rule(expected, found, c);
    const double most = largest(expected);
    c.max_rel = most > 0 ? c.max_abs / most : c.max_abs;
  }
  comparisons_.push_back(c);
}

void CaseFile::compare(const std::string& name, const at::Tensor& computed,
                       const std::function<double(double)>& bound) {
  judge(name, computed, [&](const at::Tensor& expected, const at::Tensor& found, Comparison& c) {
    c.bound = bound(largest(expected));
    c.max_abs = largest(expected - found);
    c.ok = c.max_abs <= c.bound;  // a NaN on either side compares false
  });
}

void CaseFile::compare_all(const models::NamedTensors& computed, const std::function<double(double)>& bound) {
  for (const auto& [name, value] : computed)
    value.is_floating_point() ? compare(name, value, bound) : compare(name, value, 0.0);
}

void CaseFile::compare_each(const std::string& name, const at::Tensor& computed,
                            const std::function<at::Tensor(const at::Tensor&)>& bounds, bool nan) {
  judge(name, computed, [&](const at::Tensor& expected, const at::Tensor& found, Comparison& c) {
    // Where both are the same infinity, or both NaN where that is right, nothing differs.
    at::Tensor same = expected.eq(found);
    if (nan) same = same.logical_or(expected.isnan().logical_and(found.isnan()));
    const at::Tensor difference = at::where(same, 0.0, expected - found).abs();
    const at::Tensor bound = bounds(expected).expand_as(difference);
    c.ok = difference.le(bound).logical_or(same).all().item<bool>();
    if (difference.numel() == 0) return;
    // The element that is farthest beyond its bound, or nearest to it, speaks for the tensor.
    const int64_t worst = (difference - bound).nan_to_num(kInfinity).flatten().argmax().item<int64_t>();
    c.max_abs = difference.flatten()[worst].item<double>();
    c.bound = bound.flatten()[worst].item<double>();
  });
}

void CaseFile::fail(const std::string& name) { comparisons_.push_back({name, kInfinity, kInfinity, 0, false}); }

Json CaseFile::not_compared() const {
  std::set<std::string> seen;
  for (const auto& c : comparisons_) seen.insert(c.name);
  Json reasons = Json::object();
  for (const char* prefix : {"out.", "grad.", "grad_in.", "expect"})
    for (const std::string& name : names(prefix)) {
      if (seen.count(name)) continue;
      const auto why = std::ranges::find_if(left_out_, [&](const auto& rule) { return name.starts_with(rule.first); });
      reasons[why == left_out_.end() ? "" : why->second].push_back(name);
    }
  return reasons;
}

void CaseFile::fail_the_rest() {
  const Json rest = not_compared();
  for (const auto& [why, names] : rest.items())
    if (why.empty())
      for (const Json& name : names) fail(name.get<std::string>());
}

void CaseFile::refuse_run(const std::string& run, const std::string& why) {
  const std::string prefix = "out." + run + ".";
  std::erase_if(comparisons_, [&](const Comparison& c) { return c.name.starts_with(prefix); });
  std::erase_if(computed_, [&](const auto& value) { return value.first.starts_with(prefix); });
  leave_out(prefix, why);
  refused_.push_back(run + ": " + why);
}

bool CaseFile::passed() const {
  return std::all_of(comparisons_.begin(), comparisons_.end(), [](const Comparison& c) { return c.ok; });
}

Json CaseFile::to_json() const {
  Json tensors = Json::array();
  const auto number = [](double x) { return std::isfinite(x) ? Json(x) : Json(nullptr); };
  for (const auto& c : comparisons_)
    tensors.push_back({{"name", c.name},
                       {"max_abs", number(c.max_abs)},
                       {"max_rel", number(c.max_rel)},
                       {"bound", c.bound},
                       {"ok", c.ok}});
  Json json = {{"case", case_name_}, {"file", file_name()}, {"passed", passed()}, {"tensors", tensors}};
  if (!weights_.empty()) json["weights"] = weights_;
  if (!refused_.empty()) json["refused"] = refused_;
  json.update(notes_);
  return json;
}

std::vector<fs::path> CaseContext::case_files() const {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("case") && name.ends_with(".safetensors")) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  check_input(!files.empty(), "verify", folder.string() + ": no case*.safetensors", "give the folder of a golden case");
  return files;
}

}  // namespace tessera::tools
