#include "tessera/models/vae/pass_work.h"

#include "tessera/base/check.h"

namespace tessera::models {

PassWork::PassWork(const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) shapes_[parameter.name] = parameter.shape;
}

void PassWork::filter(const std::string& site, int64_t cells) {
  const auto it = shapes_.find(site + ".weight");
  check_internal(it != shapes_.end(), "models.vae", "no weight " + site + ".weight");
  const std::vector<int64_t>& shape = it->second;  // [out, in of a group, ...]
  if (shape[1] == 1) return change(shape[0] * cells);
  work_.products.push_back(2.0 * static_cast<double>(c10::multiply_integers(shape)) * static_cast<double>(cells));
}

void PassWork::stream(int64_t numbers, int operators) {
  work_.streamed += static_cast<double>(sizeof(float)) * static_cast<double>(numbers);
  work_.operators += operators;
}

void MapWork::conv(const std::string& site, int64_t channels) const {
  pass.change(cells() * channels);
  pass.filter(site, cells());
}

void MapWork::norm(int64_t channels) const {
  pass.stream(cells() * channels);
  pass.stream(4 * cells() * channels, 2);
}

void MapWork::residual(const std::string& conv1, const std::string& conv2, const std::string& shortcut, int64_t in,
                       int64_t out) const {
  norm(in);
  conv(conv1, in);
  norm(out);
  conv(conv2, out);
  if (in != out) pass.filter(shortcut, cells());
  pass.add(cells() * out);
}

void MapWork::attention(const std::vector<std::string>& projections, double pairs, int64_t channels) const {
  norm(channels);
  for (const std::string& site : projections) pass.filter(site, cells());
  pass.attention(4 * pairs * static_cast<double>(channels));
  pass.add(cells() * channels);
}

}  // namespace tessera::models
