#include "tessera/prepare/pictures.h"

#include <cmath>

#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/data/files/file_kinds.h"
#include "tessera/data/probes.h"
#include "tessera/diffusion/given_frames.h"
#include "tessera/diffusion/loss.h"
#include "tessera/families/frames/frame_masks.h"
#include "tessera/job/codec.h"
#include "tessera/models/common/picture_resize.h"
#include "tessera/prepare/encoded.h"

namespace tessera::prepare {

namespace {

constexpr const char* kOwnClip = "clip";

at::Tensor frame_of(const data::Frames& frames, int index) {
  data::Frames one{1, frames.height, frames.width, frames.fps, {}};
  one.rgb.assign(frames.frame(index), frames.frame(index) + frames.frame_bytes());
  return job::to_pixels(one).select(1, 0);
}

bool takes_guide(const net::Conditions& wanted, const char* name) {
  return std::ranges::find(wanted.guides, name) != wanted.guides.end();
}

at::Tensor read_picture(const data::Path& path, const data::ClipSpec& spec) {
  return frame_of(
      data::decode_clip(path, {.frames = 1, .height = spec.height, .width = spec.width, .showing = spec.showing}), 0);
}

/// Of a prompt, as programs of models with image_with_first cut it: the same bytes for the autoencoder and the image
/// encoder.
void read_covering(const data::Path& path, const data::ClipSpec& spec, Pictures& pictures) {
  const data::Frames whole = data::decode_clip(path, {.frames = 1, .showing = spec.showing});
  const at::Tensor bytes = at::empty({whole.height, whole.width, 3}, at::kByte);
  std::copy_n(whole.frame(0), whole.frame_bytes(), bytes.mutable_data_ptr<uint8_t>());
  const at::Tensor cut = models::covering(bytes, spec.height, spec.width);
  data::Frames frame{1, spec.height, spec.width, 0, {}};
  frame.rgb.assign(cut.const_data_ptr<uint8_t>(), cut.const_data_ptr<uint8_t>() + cut.numel());
  pictures.first = frame_of(frame, 0);
  pictures.shown = cut.permute({2, 0, 1});
}

/// The item whose caption the prompt is, else the first.
data::Item item_of(const data::Items& items, const std::string& prompt) {
  for (const data::Item& item : items)
    if (item.caption() == prompt) return item;
  return items.front();
}

/// The video of each prompt; its own clip where none is named.
std::vector<Pictures> prompt_videos(const recipe::Recipe& recipe, const std::vector<std::string>& prompts,
                                    const std::function<data::Items()>& clips) {
  const auto& videos = recipe.sample.videos;
  std::vector<Pictures> result(prompts.size());
  data::Items items;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const std::string video = videos.empty() ? kOwnClip : videos[p % videos.size()];
    if (video == kOwnClip) {
      if (items.empty()) items = clips();
      if (items.empty())
        throw UserError(Exit::usage, "sample.video", "the sample goes on from a video, and there is no clip to take",
                        "give --sample.video FILE");
    }
    result[p].video = video == kOwnClip ? item_of(items, prompts[p]).path : data::Path(video);
  }
  return result;
}

}  // namespace

Pictures clip_pictures(const data::Item& item, const data::ClipSpec& spec, const net::Conditions& wanted) {
  Pictures pictures;
  if (wanted.control_dim > 0) {  // such a model begins with a picture only where the row names one
    if (!item.first_image.empty()) pictures.first = read_picture(item.first_image, spec);
    if (!item.references.empty()) pictures.shown = read_picture(item.reference(), spec);
    return pictures;
  }
  const bool own_first = item.first_image.empty(), own_last = wanted.last_image && item.last_image.empty();
  if (!own_first) pictures.first = read_picture(item.first_image, spec);
  if (wanted.last_image && !own_last) pictures.last = read_picture(item.last_image, spec);
  if (!own_first && !own_last) return pictures;
  data::ClipSpec part = spec;
  if (!own_last) part.frames = 1;  // no more is decoded than is looked at
  const data::Frames frames = data::decode_clip(item.path, part);
  if (own_first) pictures.first = frame_of(frames, 0);
  if (own_last) pictures.last = frame_of(frames, frames.count - 1);
  return pictures;
}

std::vector<data::RowFile> picture_files(const data::Item& item, const net::Conditions& wanted) {
  std::vector<data::RowFile> files;
  const auto add = [&](const std::string& role, const data::Path& path) {
    if (!path.empty()) files.emplace_back(role, path);
  };
  if (wanted.first_image || wanted.always_clean) add("first", item.first_image);
  if (wanted.last_image) add("last", item.last_image);
  add("mask", item.mask);
  if (wanted.guides.empty()) return files;
  add("guide", item.guide);
  add("guide mask", item.guide_mask);
  if (takes_guide(wanted, "pose")) add("pose", item.driver());
  if (takes_guide(wanted, "face")) add("face", item.face);
  for (size_t i = 0; i < item.references.size(); ++i)  // each has a place of its own in an entry's header
    add(i == 0 ? "reference" : "reference " + std::to_string(i + 1), item.references[i]);
  return files;
}

bool has_mask(const data::MaskFiles& masks, const data::Item& item) {
  return masks.alpha ? !data::is_latent(item.path) : !item.mask.empty();
}

std::string mask_text(const data::MaskFiles& masks, const data::Item& item) {
  if (!has_mask(masks, item)) return {};
  return std::string("|mask ") + (masks.alpha ? "alpha " : "") + masks.resize;
}

namespace {

/// [F, H, W] of the first channel, 0 to 255.
at::Tensor red_of(const data::Frames& frames) {
  const at::Tensor all =
      at::from_blob(const_cast<uint8_t*>(frames.rgb.data()), {frames.count, frames.height, frames.width, 3}, at::kByte);
  return all.select(3, 0).to(at::kFloat);
}

/// What a clip shows on white and not on black is behind it.
at::Tensor alpha_of(const data::Path& path, data::ClipSpec spec) {
  spec.showing.background = {255, 255, 255};
  const at::Tensor on_white = red_of(data::decode_clip(path, spec));
  spec.showing.background = {0, 0, 0};
  return 255 - (on_white - red_of(data::decode_clip(path, spec)));
}

/// A mask is resized and cut as its clip is, so that one of other proportions would not lie on it.
void check_proportions(const data::Item& item) {
  if (data::is_latent(item.path)) return;
  const data::VideoInfo mask = data::probe(item.mask), clip = data::probe(item.path);
  const double of_mask = static_cast<double>(mask.width) / mask.height,
               of_clip = static_cast<double>(clip.width) / clip.height;
  check_input(std::abs(of_mask / of_clip - 1) < 0.02, "data.mask",
              item.mask.string() + ": is of " + std::to_string(mask.width) + " x " + std::to_string(mask.height) +
                  " pixels, and its clip of " + std::to_string(clip.width) + " x " + std::to_string(clip.height),
              "make it of the proportions of the clip, or remove it");
}

}  // namespace

at::Tensor loss_mask(const data::MaskFiles& masks, const data::Item& item, const data::ClipSpec& spec,
                     at::IntArrayRef latent) {
  at::Tensor pixels;
  if (masks.alpha) {
    pixels = alpha_of(item.path, spec);
  } else {
    check_proportions(item);
    data::ClipSpec own = spec;
    if (data::is_image(item.mask)) own.frames = 1, own.start = 0;
    pixels = red_of(data::decode_clip(item.mask, own));
  }
  return diffusion::latent_mask((pixels / 255).clamp_(0, 1), masks.resize,
                                {latent[0], latent[1], latent[2], latent[3]});
}

std::vector<data::RowFile> shown_files(const data::Item& item, const net::Conditions& wanted) {
  std::vector<data::RowFile> files = picture_files(item, wanted);
  if (wanted.control_dim > 0 && !item.control.empty()) files.emplace_back("control", item.control);
  if (wanted.control_dim > 0 && !item.references.empty()) files.emplace_back("reference", item.reference());
  if (wanted.pose_dim > 0 && !item.pose.empty()) files.emplace_back("pose", item.pose);
  return files;
}

data::ClipSpec sampled_clip(const recipe::Recipe::Data& data) {
  return {.frames = static_cast<int>(data.frames),
          .height = static_cast<int>(data.height),
          .width = static_cast<int>(data.width),
          .fps = data.fps,
          .showing = data.clips.showing};
}

families::Windows sample_windows(const recipe::Recipe::Sample& sample, const Pictures& files,
                                 const data::ClipSpec& spec, const net::Conditions& wanted) {
  if (!wanted.goes_on || sample.clips == 1) return {};
  const auto refuse = [](const std::string& key, const std::string& what, const std::string& hint) {
    throw UserError(Exit::usage, key, what, hint);
  };
  const std::string length = std::to_string(spec.frames);
  if (sample.overlap >= spec.frames)
    refuse("sample.overlap", std::to_string(sample.overlap) + " frames of a clip of " + length + " would be given",
           "give 1 or 5, or raise data.frames");
  families::Windows windows{spec.frames, sample.overlap, spec.frames};
  if (!files.pose.empty()) windows.frames = data::frames_at(data::probe(files.pose), spec.fps);
  if (windows.count() < sample.clips)
    refuse("sample.clips",
           std::to_string(sample.clips) + " clips of " + length + " frames last longer than the " +
               std::to_string(windows.frames) + " frames of " + files.pose.string(),
           "it is long enough for " + std::to_string(windows.count()) + "; auto takes as many as there are");
  if (sample.clips > 0) windows.frames = std::min(windows.frames, windows.end(sample.clips - 1));
  return windows;
}

namespace {

data::Frames frames_in(const families::Windows& windows, int64_t window, const data::Path& file, data::ClipSpec spec) {
  if (windows.length == 0) return data::decode_clip(file, spec);
  const data::VideoInfo info = data::probe(file);
  std::vector<int64_t> shown;
  for (int64_t i = windows.begin(window); i < windows.end(window); ++i)
    shown.push_back(families::to_and_fro(i, data::frames_at(info, spec.fps)));
  const auto [first, last] = std::ranges::minmax(shown);
  spec.start = static_cast<double>(first) / data::rate_of(info, spec.fps);
  spec.frames = static_cast<int>(last - first + 1);
  const data::Frames part = data::decode_clip(file, spec);
  data::Frames clip{static_cast<int>(std::ssize(shown)), part.height, part.width, part.fps, {}};
  for (const int64_t frame : shown)
    clip.rgb.insert(clip.rgb.end(), part.frame(static_cast<int>(frame - first)),
                    part.frame(static_cast<int>(frame - first)) + part.frame_bytes());
  return clip;
}

}  // namespace

net::Guides read_guides(const Pictures& files, const data::ClipSpec& spec, const net::Conditions& wanted, int64_t most,
                        const families::Windows& windows, int64_t window) {
  net::Guides guides{spec.frames, spec.height, spec.width, {}, {}, {}};
  data::ClipSpec of_face = spec;
  of_face.height = of_face.width = static_cast<int>(wanted.face_size);
  for (const auto& [column, file, size] : {std::tuple("guide", &files.guide, &spec),
                                           {"guide_mask", &files.guide_mask, &spec},
                                           {"pose", &files.pose, &spec},
                                           {"face", &files.face, &of_face}})
    if (!file->empty()) guides.clips[column] = job::to_pixels(frames_in(windows, window, *file, *size));
  for (size_t i = 0; i < std::min(static_cast<size_t>(most), files.references.size()); ++i)
    guides.references.push_back(
        frame_of(data::decode_clip(files.references[i], {.frames = 1, .showing = spec.showing}), 0));
  return guides;
}

net::Guides clip_guides(const data::Item& item, const data::ClipSpec& spec, const net::Conditions& wanted, int64_t most,
                        bool pictures_alone) {
  Pictures files;
  files.references = item.references;
  if (!pictures_alone) {
    files.guide = item.guide, files.guide_mask = item.guide_mask;
    if (takes_guide(wanted, "pose")) files.pose = item.driver();
    if (takes_guide(wanted, "face")) files.face = item.face;
  }
  for (const auto& [what, file] : {std::pair("poses", &files.pose), {"a face", &files.face}})
    check_input(file->empty() || *file != item.path, "data.dataset",
                item.path.string() + ": the video of " + what + " is the clip itself, which the model would copy",
                std::string("name the video of ") + what + " that was made of it");
  net::Guides guides = read_guides(files, spec, wanted, most);
  if (wanted.always_reference && guides.references.empty()) {
    data::ClipSpec first = spec;
    first.frames = 1;
    guides.references.push_back(frame_of(data::decode_clip(item.path, first), 0));
  }
  return guides;
}

std::string sampled_condition(const recipe::Recipe::Diffusion& diffusion, const recipe::Recipe::Sample& sample,
                              const net::Conditions& wanted) {
  const auto refuse = [](const std::string& key, const std::string& what, const std::string& hint) {
    throw UserError(Exit::usage, key, what, hint);
  };
  const bool beside = diffusion::reads_beside(wanted);
  const bool asked = sample.condition != "auto" || !sample.videos.empty() || !diffusion.mask_types.empty();
  if (!wanted.given_frames || (beside && !asked)) {  // 1.3's may begin with a first frame without noise as well
    const std::string key = !sample.videos.empty() ? "sample.video" : "sample.condition";
    if (!sample.videos.empty() || sample.condition != "auto")
      refuse(key, "the model reads no frames beside the noisy ones", "leave " + key + " out");
    return families::kind_giving(false, false, false);
  }
  std::string kind = sample.condition;
  if (kind == "auto")
    kind = families::kind_giving(!sample.images.empty(), !sample.last_images.empty(), !sample.videos.empty());
  const families::GivenPlaces places = families::places_of(kind);
  const bool video = !places.pictures && (places.head || places.tail);
  if (beside && places.any()) {
    const std::vector<std::string> known = families::beside_kinds();
    if (std::ranges::find(known, kind) == known.end())
      refuse("sample.condition", kind + ": the model is given half of a video", "choose v2v_head or v2v_tail");
    if (!sample.negative_prompt.empty())
      refuse("sample.negative_prompt",
             "guidance of samples with given frames uses the empty caption, as this model was trained", "leave it out");
  }
  for (const auto& [key, given, taken] :
       {std::tuple("sample.image", !sample.images.empty(), places.pictures && places.head),
        {"sample.last_image", !sample.last_images.empty(), places.pictures && places.tail},
        {"sample.video", !sample.videos.empty(), video}})
    if (given && !taken)
      refuse(key, "sample.condition = \"" + kind + "\" takes none", "leave it out, or choose another condition");
  return kind;
}

namespace {

/// What each prompt follows: files of the recipe, or of the prompt's own row.
std::vector<Pictures> prompt_guides(const recipe::Recipe& recipe, const std::vector<std::string>& prompts,
                                    const std::function<data::Items()>& clips, const net::Conditions& wanted) {
  std::vector<Pictures> result(prompts.size());
  data::Items items;
  for (size_t p = 0; p < prompts.size(); ++p) {
    // `needed`: of the prompt's own row, where the recipe does not say it
    const auto named = [&](const std::string& key, const std::vector<std::string>& files,
                           const std::function<std::vector<data::Path>(const data::Item&)>& of, bool needed = false) {
      const std::string file = !files.empty() ? files[p % files.size()] : needed ? kOwnClip : "";
      if (file != kOwnClip) return file.empty() ? std::vector<data::Path>() : std::vector<data::Path>{file};
      if (items.empty()) items = clips();
      std::vector<data::Path> own = items.empty() ? std::vector<data::Path>() : of(item_of(items, prompts[p]));
      std::erase(own, data::Path());
      if (own.empty())
        throw UserError(Exit::usage, key, "\"clip\": the row of '" + prompts[p] + "' names none",
                        "fill in its column, or give --" + key + " FILE");
      return own;
    };
    using Item = data::Item;
    const auto first = [](const std::vector<data::Path>& files) { return files.empty() ? data::Path() : files[0]; };
    result[p].guide =
        first(named("sample.guide", recipe.sample.guides, [](const Item& i) { return std::vector{i.guide}; }));
    result[p].guide_mask = first(
        named("sample.guide_mask", recipe.sample.guide_masks, [](const Item& i) { return std::vector{i.guide_mask}; }));
    const bool all = wanted.always_reference;
    result[p].references = named(
        "sample.reference", recipe.sample.references,
        [&](const Item& i) { return all && i.references.empty() ? std::vector{i.path} : i.references; }, all);
    if (takes_guide(wanted, "pose"))
      result[p].pose = first(named(
          "sample.pose", recipe.sample.poses, [](const Item& i) { return std::vector{i.driver()}; }, all));
    if (takes_guide(wanted, "face"))
      result[p].face = first(named(
          "sample.face", recipe.sample.faces, [](const Item& i) { return std::vector{i.face}; }, all));
  }
  return result;
}

}  // namespace

std::vector<Pictures> prompt_pictures(const recipe::Recipe& recipe, const std::vector<std::string>& prompts,
                                      const std::function<data::Items()>& clips, const net::Conditions& model) {
  if (!recipe.sample.faces.empty() && model.face_size == 0)
    throw UserError(Exit::usage, "sample.face", "the model follows no faces", "leave sample.face out");
  for (const auto& [key, files] : {std::pair("sample.guide", &recipe.sample.guides),
                                   {"sample.guide_mask", &recipe.sample.guide_masks},
                                   {"sample.reference", &recipe.sample.references}})
    if (!files->empty() && model.guides.empty() && !(key == std::string("sample.reference") && model.reference_dim > 0))
      throw UserError(Exit::usage, key, "the model follows no clips or pictures",
                      "leave " + std::string(key) + " out, or sample with a model that does");
  if (!model.guides.empty() && recipe.sample.images.empty() && recipe.sample.last_images.empty() &&
      recipe.sample.videos.empty())
    return prompt_guides(recipe, prompts, clips, model);
  const std::string kind = sampled_condition(recipe.diffusion, recipe.sample, model);
  const families::GivenPlaces given = families::places_of(kind);
  if (given.any() && !given.pictures) return prompt_videos(recipe, prompts, clips);
  net::Conditions wanted = model;
  if (given.pictures) wanted.first_image = given.head, wanted.last_image = given.tail;
  const auto& firsts = recipe.sample.images;
  const auto& lasts = recipe.sample.last_images;
  if (!firsts.empty() && !wanted.first_image && !wanted.clean_first)
    throw UserError(Exit::usage, "sample.image", "the model is text-to-video and takes no image",
                    "leave sample.image out, or sample with an image-to-video model");
  if (!lasts.empty() && !wanted.last_image)
    throw UserError(Exit::usage, "sample.last_image", "the model takes no last image",
                    "leave sample.last_image out, or sample with a first-last-frame model");
  std::vector<Pictures> result(prompts.size());
  if (firsts.empty() && !wanted.takes_images() && !wanted.always_clean) return result;
  const data::ClipSpec spec = sampled_clip(recipe.data);
  data::Items items;
  for (size_t p = 0; p < prompts.size(); ++p) {
    if (wanted.control_dim > 0 && firsts.empty()) continue;  // it begins with nothing
    const bool no_first = given.pictures && !given.head;
    const std::string first = no_first ? "" : firsts.empty() ? kOwnClip : firsts[p % firsts.size()];
    const std::string last = !wanted.last_image ? "" : lasts.empty() ? kOwnClip : lasts[p % lasts.size()];
    if (first == kOwnClip || last == kOwnClip) {
      if (items.empty()) items = clips();
      if (items.empty())
        throw UserError(Exit::usage, first == kOwnClip ? "sample.image" : "sample.last_image",
                        "the model needs a first image, and there is no clip to take one from",
                        "give --sample.image FILE" + std::string(wanted.last_image ? " --sample.last_image FILE" : ""));
      result[p] = clip_pictures(item_of(items, prompts[p]), spec, wanted);
    }
    if (!first.empty() && first != kOwnClip && wanted.image_with_first)
      read_covering(first, spec, result[p]);
    else if (!first.empty() && first != kOwnClip)
      result[p].first = read_picture(first, spec);
    if (!last.empty() && last != kOwnClip) result[p].last = read_picture(last, spec);
  }
  return result;
}

namespace {

/// [3, F, H, W] of the clip with noise whose share and numbers are those of its bytes: every rank and every run has the
/// same, cached or not.
at::Tensor noisy_pixels(const data::Frames& clip) {
  const auto bytes = std::string_view(reinterpret_cast<const char*>(clip.rgb.data()), clip.rgb.size());
  const RandomKey key(hash_text(bytes), Purpose::noise);
  const double share = families::kLeastNoise + (families::kMostNoise - families::kLeastNoise) * key.uniform(0);
  at::Tensor pixels = at::empty({3, clip.count, clip.height, clip.width}, at::kFloat);
  const int64_t places = static_cast<int64_t>(clip.height) * clip.width;
  constexpr uint64_t kFirst = 8;  // numbers of the share come before
  auto* out = pixels.mutable_data_ptr<float>();
  key.normal(out, kFirst, static_cast<size_t>(pixels.numel()));
  for (int64_t channel = 0; channel < 3; ++channel)
    for (int64_t f = 0; f < clip.count; ++f) {
      const uint8_t* from = clip.frame(static_cast<int>(f)) + channel;
      float* to = out + (channel * clip.count + f) * places;
      for (int64_t i = 0; i < places; ++i)
        to[i] = static_cast<float>(share * to[i] + (1 - share) * (from[3 * i] / 127.5 - 1));
    }
  return pixels;
}

}  // namespace

at::Tensor encode_given(const net::VideoCodec& codec, const data::Frames& clip, const families::GivenFrames& given) {
  if (given.noisy) return codec.encode(noisy_pixels(clip));
  data::Frames part{static_cast<int>(given.count), clip.height, clip.width, clip.fps, {}};
  part.rgb.assign(clip.frame(static_cast<int>(given.begin)), clip.frame(static_cast<int>(given.begin + given.count)));
  return job::encode_frames(codec, part);
}

at::Tensor image_input(const net::VideoCodec& codec, const Pictures& pictures, int64_t frames,
                       const net::Conditions& wanted) {
  if (pictures.made.defined()) return given_latent(codec, pictures.clip, pictures.made, pictures.nothing_is_zero);
  if (!pictures.first.defined()) return {};
  if (wanted.mask_channels > 0) return picture_latent(codec, pictures, frames, wanted.mask_channels);
  const auto latent = codec.latent_shape(frames, pictures.first.size(1), pictures.first.size(2));
  return in_front(codec.encode(pictures.first.unsqueeze(1)), latent[1]);
}

at::Tensor picture_latent(const net::VideoCodec& codec, const Pictures& pictures, int64_t frames,
                          int64_t mask_channels) {
  const int64_t height = pictures.first.size(1), width = pictures.first.size(2);
  const auto [channels, f, h, w] = codec.latent_shape(frames, height, width);
  const int64_t repeats = f * mask_channels - frames;  // of the first frame, until frames fill the latent ones
  check_internal(repeats >= 0, "train.pictures",
                 std::to_string(frames) + " frames are more than " + std::to_string(mask_channels) + " for each of " +
                     std::to_string(f) + " latent frames");
  at::Tensor pixels = at::zeros({3, frames, height, width}, at::kFloat);  // 0 is grey
  at::Tensor known = at::zeros({f * mask_channels}, at::kFloat);
  pixels.select(1, 0).copy_(pictures.first);
  known.slice(0, 0, 1 + repeats).fill_(1);
  if (pictures.last.defined() && frames > 1) {
    pixels.select(1, frames - 1).copy_(pictures.last);
    known[-1] = 1;
  }
  const at::Tensor mask = known.view({f, mask_channels}).t().reshape({mask_channels, f, 1, 1});
  return at::cat({mask.expand({mask_channels, f, h, w}), codec.encode(pixels)}).contiguous();
}

}  // namespace tessera::prepare
