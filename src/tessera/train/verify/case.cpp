#include "tessera/train/verify/case.h"

#include <algorithm>

#include "tessera/base/check.h"

namespace tessera::train {

namespace fs = std::filesystem;

CaseFile::CaseFile(std::string case_name, const fs::path& path, std::string weights)
    : case_name_(std::move(case_name)),
      weights_(std::move(weights)),
      path_(path),
      file_(checkpoint::SafetensorsFile::open(path)) {}

std::vector<std::string> CaseFile::names(const std::string& prefix) const {
  std::vector<std::string> found;
  for (const auto& entry : file_.entries())
    if (entry.name.starts_with(prefix)) found.push_back(entry.name);
  return found;
}

at::Tensor CaseFile::tensor(const std::string& name) const {
  const auto& entry = file_.at(name);
  const auto dtype = entry.dtype == checkpoint::DType::i64   ? at::kLong
                     : entry.dtype == checkpoint::DType::f64 ? at::kDouble
                                                             : at::kFloat;
  at::Tensor value = at::empty(entry.shape, dtype);
  if (dtype == at::kFloat)
    file_.read_f32(name, 0, entry.count(), value.mutable_data_ptr<float>());
  else
    file_.read(name, 0, entry.count(), value.mutable_data_ptr());
  return value;
}

void CaseFile::compare(const std::string& name, const at::Tensor& computed,
                       const std::function<double(double)>& bound) {
  computed_.emplace_back(name, computed.detach().clone());
  Comparison c;
  c.name = name;
  if (!has(name)) return fail(name);
  const at::Tensor expected = tensor(name).to(at::kDouble), found = computed.detach().to(at::kDouble);
  const double largest = expected.numel() ? expected.abs().max().item<double>() : 0;
  c.bound = bound(largest);
  if (expected.sizes() != found.sizes()) {
    c.max_abs = c.max_rel = std::numeric_limits<double>::infinity();
  } else if (expected.numel() > 0) {
    c.max_abs = (expected - found).abs().max().item<double>();
    c.max_rel = largest > 0 ? c.max_abs / largest : c.max_abs;
  }
  c.ok = c.max_abs <= c.bound;  // a NaN on either side compares false
  comparisons_.push_back(c);
}

void CaseFile::fail(const std::string& name) {
  const double infinity = std::numeric_limits<double>::infinity();
  comparisons_.push_back({name, infinity, infinity, 0, false});
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
  return json;
}

double CaseContext::tolerance(const std::string& key) const {
  const auto it = description.find("tolerance");
  if (it == description.end() || !it->is_object() || !it->contains(key) || !(*it)[key].is_number())
    throw UserError(Exit::input, "verify",
                    (folder / "case.json").string() + ": tolerance." + key + " is missing or not a number");
  return (*it)[key].get<double>();
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

}  // namespace tessera::train
