#include "tessera/prepare/controls.h"

#include <algorithm>
#include <charconv>

#include "tessera/base/check.h"
#include "tessera/data/camera.h"
#include "tessera/job/codec.h"

namespace tessera::prepare {

namespace {

constexpr const char* kOwnRow = "clip";

/// One of sample.control, sample.reference, sample.camera.
struct Asked {
  const char* key;
  const std::vector<std::string>& files;
  bool taken;          ///< by the model
  const char* column;  ///< of the row
};

bool has_camera(const Controls& of) { return !of.camera.empty() || !of.direction.empty(); }

/// "LeftUp", "In:0.05" or a file.
void read_camera_choice(const std::string& text, Controls& controls) {
  const size_t colon = text.rfind(':');
  const std::string name = text.substr(0, colon);
  const auto known = data::camera_directions();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    controls.camera = text;
    return;
  }
  controls.direction = name;
  controls.speed = data::kCameraSpeed;
  if (colon == text.npos) return;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data() + colon + 1, end, controls.speed);
  if (read.ec != std::errc() || read.ptr != end)
    throw UserError(Exit::usage, "sample.camera", "'" + text + "': the speed is no number",
                    "write it as LeftUp:0.02, or leave it out");
}

}  // namespace

Controls controls_of(const data::Item& item) {
  return {item.control, item.reference(), item.camera, item.direction, item.camera_speed, {}};
}

std::vector<Controls> prompt_controls(const recipe::Recipe::Sample& sample, const std::vector<std::string>& prompts,
                                      const std::function<data::Items()>& clips, const net::Conditions& wanted) {
  const Asked all[] = {
      {"sample.control", sample.controls, wanted.control_dim > 0, "control_video"},
      {"sample.reference", sample.references, wanted.reference_dim > 0 || wanted.references > 0, "reference_image"},
      {"sample.camera", sample.cameras, wanted.camera_scale > 0, "camera_control_direction"}};
  for (const Asked& one : all)
    if (!one.files.empty() && !one.taken)
      throw UserError(Exit::usage, one.key, "the model has no such input", std::string("leave ") + one.key + " out");
  std::vector<Controls> result(prompts.size());
  data::Items items;
  const auto own = [&](const Asked& one, const std::string& prompt) {
    if (items.empty()) items = clips();
    for (const data::Item& item : items)
      if (item.caption() == prompt) return controls_of(item);
    throw UserError(Exit::usage, one.key, "\"clip\": no row of the data has the caption '" + prompt + "'",
                    std::string("give --") + one.key + " FILE");
  };
  for (size_t p = 0; p < prompts.size(); ++p)
    for (const Asked& one : all) {
      if (one.files.empty()) continue;
      const std::string& file = one.files[p % one.files.size()];
      const bool of_row = file == kOwnRow;
      const Controls row = of_row ? own(one, prompts[p]) : Controls();
      bool there = true;
      if (&one == &all[0])
        result[p].video = of_row ? row.video : data::Path(file), there = !result[p].video.empty();
      else if (&one == &all[1])
        result[p].reference = of_row ? row.reference : data::Path(file), there = !result[p].reference.empty();
      else if (of_row)
        result[p].camera = row.camera, result[p].direction = row.direction, result[p].speed = row.speed,
        there = has_camera(row);
      else
        read_camera_choice(file, result[p]);
      if (!there)
        throw UserError(Exit::usage, one.key, "\"clip\": the row of '" + prompts[p] + "' names none",
                        std::string("add a column ") + one.column + " to the table, or give --" + one.key + " FILE");
    }
  return result;
}

Extras control_extras(const net::VideoCodec& codec, const Controls& controls, const data::ClipSpec& spec,
                      const net::Conditions& wanted) {
  Extras extras;
  if (wanted.control_dim > 0 && !controls.video.empty())
    extras["control"] = job::encode_frames(codec, data::decode_clip(controls.video, spec));
  if (wanted.reference_dim > 0) {
    data::ClipSpec picture = spec;
    picture.frames = 1, picture.start = 0;
    const auto [channels, f, h, w] = codec.latent_shape(1, spec.height, spec.width);
    extras["reference"] = controls.picture.defined() ? codec.encode(controls.picture)
                          : controls.reference.empty()
                              ? at::zeros({channels, 1, h, w}, at::kFloat)
                              : job::encode_frames(codec, data::decode_clip(controls.reference, picture));
  }
  if (wanted.camera_scale > 0 && has_camera(controls)) {
    const auto rows = controls.camera.empty() ? data::named_camera(controls.direction, controls.speed, spec.frames)
                                              : data::resampled(data::read_camera(controls.camera), spec.frames);
    const std::vector<float> numbers = data::camera_numbers(rows, {spec.height, spec.width});
    extras["camera"] = at::tensor(numbers, at::kFloat).view({spec.frames, data::kCameraNumbers});
  }
  return extras;
}

std::vector<data::RowFile> control_files(const data::Item& item, const net::Conditions& wanted) {
  std::vector<data::RowFile> files;
  const auto add = [&](const char* role, bool taken, const data::Path& path) {
    if (taken && !path.empty()) files.emplace_back(role, path);
  };
  add("control", wanted.control_dim > 0, item.control);
  add("reference", wanted.reference_dim > 0 || (wanted.control_dim > 0 && wanted.clip_dim > 0), item.reference());
  add("camera", wanted.camera_scale > 0, item.camera);
  return files;
}

std::string control_text(const data::Item& item, const net::Conditions& wanted) {
  if (wanted.camera_scale == 0 || item.direction.empty() || !item.camera.empty()) return {};
  return "|camera " + item.direction + " " + std::to_string(item.camera_speed);
}

}  // namespace tessera::prepare
