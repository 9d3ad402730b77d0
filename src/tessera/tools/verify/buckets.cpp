// Which bucket a clip goes to where buckets take shares of the clips (data/bucket_draws.h), from recorded draws. A mesh
// means nothing here. Which batch a sample comes in is ours (data/order.h): recorded batches are reported as not compared.
#include <algorithm>
#include <cmath>

#include "tessera/base/foreign_file.h"
#include "tessera/base/json.h"
#include "tessera/data/bucket_draws.h"
#include "tessera/tools/verify/case.h"

namespace tessera::tools {

namespace {

using at::Tensor;
using data::Drawn;

/// A resolution of a configuration.
struct Size {
  int64_t index = 0;  ///< in the order of search
  data::DrawnSize draws;
  std::vector<int64_t> frames, batches;  ///< of its lengths
  std::vector<double> ratios;            ///< height by width
  std::vector<std::pair<int64_t, int64_t>> targets;
};

/// 2.0 names "16:9", width by height; 1.x height by width as a number.
double ratio_of(const std::string& name) {
  const size_t colon = name.find(':');
  const double first = std::stod(name);
  return colon == name.npos ? first : std::stod(name.substr(colon + 1)) / first;
}

std::vector<Size> sizes_of(const Json& about, const Settings& config, bool skips) {
  std::vector<Size> sizes;
  for (const Json& entry : about.at("order")) {
    const std::string name = entry.at(0).get<std::string>();
    Size size{static_cast<int64_t>(sizes.size()), {about.at("areas").at(name).get<int64_t>(), {}}, {}, {}, {}, {}};
    for (const Json& frames : entry.at(1)) {
      const Settings bucket = config.at(name).at(std::to_string(frames.get<int64_t>()));
      const Settings share = bucket.at(0);
      size.frames.push_back(frames.get<int64_t>());
      // a clip has as many frames as the interval takes of it
      data::DrawnLength length{frames == 1 ? 1 : frames.get<int64_t>() * about.value("frame_interval", int64_t{1}),
                               share.is_array() ? share.at(0).get<double>() : share.get<double>()};
      if (share.is_array()) length.keep = skips ? 1 - share.at(1).get<double>() : share.at(1).get<double>();
      size.draws.lengths.push_back(length);
      size.batches.push_back(bucket.at(1).get<int64_t>());
    }
    for (const auto& [ratio, target] : about.at("ratios").at(name).items()) {
      size.ratios.push_back(ratio_of(ratio));
      size.targets.emplace_back(target.at(0).get<int64_t>(), target.at(1).get<int64_t>());
    }
    sizes.push_back(std::move(size));
  }
  return sizes;
}

size_t nearest(const std::vector<double>& ratios, double ratio) {
  return static_cast<size_t>(std::ranges::min_element(ratios, {}, [&](double r) { return std::abs(r - ratio); }) -
                             ratios.begin());
}

/// 1.3's second way: the nearest ratio first, of two equally near the larger, then the sizes whose shape of that ratio
/// fits into the clip, tallest first. `ratio` becomes that ratio.
std::vector<Size> fitting(std::vector<Size> sizes, const data::ClipSize& clip, double& ratio) {
  std::vector<double> all;
  for (const Size& size : sizes) all.insert(all.end(), size.ratios.begin(), size.ratios.end());
  std::ranges::sort(all, std::ranges::greater());
  const double wanted = ratio = all[nearest(all, ratio)];
  std::erase_if(sizes, [&](Size& size) {
    const auto at = std::ranges::find(size.ratios, wanted);
    if (at == size.ratios.end()) return true;
    size.draws.area = 0;
    const auto [height, width] = size.targets[static_cast<size_t>(at - size.ratios.begin())];
    return height > clip.height || width > clip.width;
  });
  std::ranges::stable_sort(sizes, std::ranges::greater(),
                           [&](const Size& size) { return size.targets[nearest(size.ratios, wanted)].first; });
  return sizes;
}

int64_t interval_of(double rate, double most) {
  return rate > 0 && rate >= most ? static_cast<int64_t>(std::ceil(rate / most)) : 1;
}

void check_configuration(CaseFile& file, const std::string& name, const Json& about, const Settings& config) {
  const std::string style = about.at("style").get<std::string>();
  const bool second = style == "v2";
  const std::vector<Size> sizes = sizes_of(about, config, second);
  const Tensor clips = file.tensor("in.clips"), draws = file.tensor("in." + name + ".draws");
  const Tensor found = at::full({clips.size(0), 6}, -1, at::kLong), numbers = at::zeros({clips.size(0)}, at::kLong);
  for (int64_t i = 0; i < clips.size(0); ++i) {
    const auto number = [&](int64_t column) { return clips[i][column].item<double>(); };
    data::ClipSize clip{static_cast<int64_t>(number(1)), static_cast<int64_t>(number(2)),
                        static_cast<int64_t>(number(0))};
    if (second) clip.frames /= interval_of(number(3), about.at("fps_max").get<double>());
    clip.image = clip.frames == 1;
    if (style == "v13_ar" && clip.image) continue;  // which takes none
    double ratio = number(1) / number(2);
    const std::vector<Size> tried = style == "v13_ar" ? fitting(sizes, clip, ratio) : sizes;
    std::vector<data::DrawnSize> only;
    for (const Size& size : tried) only.push_back(size.draws);
    std::map<int64_t, int64_t> used;  // of a bucket, or of the clip
    const auto next = [&](Drawn at) {
      int64_t bucket = 0;
      for (int64_t s = 0; s < tried[at.size].index; ++s)
        bucket += static_cast<int64_t>(sizes[static_cast<size_t>(s)].draws.lengths.size());
      bucket += static_cast<int64_t>(at.length);
      return (second ? draws[i][used[0]++] : draws[i][bucket][used[bucket]++]).item<double>();
    };
    const auto drawn =
        data::draw_bucket(only, clip, second ? data::DrawStyle::shares : data::DrawStyle::more_frames, next);
    for (const auto& [bucket, count] : used) numbers[i] += count;
    if (!drawn) continue;
    const Size& size = tried[drawn->size];
    const size_t shape = nearest(size.ratios, ratio);
    const int64_t row[] = {size.index,
                           size.frames[drawn->length],
                           static_cast<int64_t>(shape),
                           size.targets[shape].first,
                           size.targets[shape].second,
                           size.batches[drawn->length]};
    std::copy(std::begin(row), std::end(row), found[i].mutable_data_ptr<int64_t>());
  }
  file.compare("out." + name + ".bucket", found, 0.0);
  if (second)
    file.compare("out." + name + ".drawn", numbers, 0.0);
  else
    file.leave_out("out." + name + ".drawn", "1.x also draws numbers that decide nothing");
}

}  // namespace

CaseResults verify_buckets(const CaseContext& context) {
  constexpr int64_t kMost = int64_t{64} << 20;
  CaseFile file(context.name, context.case_files().front());
  const auto path = context.folder / "buckets.json";
  const Json all =
      parse_ordered_json(read_foreign(path, kMost, "verify", "give the folder of a golden case"), path.string());
  for (const auto& [name, about] : all.items())
    check_configuration(file, name, about, context.config.at("configs").at(name));
  file.leave_out("out.run_", "batches come in an order of ours, where a step has one bucket");
  CaseResults results;
  results.push_back(std::move(file));
  return results;
}

}  // namespace tessera::tools
