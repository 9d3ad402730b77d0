#pragma once
// What a clip follows beside its text: a control video, a reference picture, a moving camera; of rows and of prompts.
//
//   extras.merge(control_extras(*job.codec, controls_of(item), spec, wanted));      // control, reference, camera
//
// A control video that is absent, or whose latent training leaves out, is zeros; a reference that is absent is a latent of
// zeros whose tokens stay; a camera that is not known is rays of zeros.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/data/cache.h"
#include "tessera/data/item.h"
#include "tessera/data/video.h"
#include "tessera/net/model.h"
#include "tessera/recipe/recipe.h"

namespace tessera::prepare {

using Extras = std::map<std::string, at::Tensor>;

struct Controls {
  data::Path video = {}, reference = {}, camera = {};
  std::string direction = {};  ///< of a camera without a file
  double speed = 0;
  at::Tensor picture = {};  ///< [3, 1, H, W], the reference in place of a file
};
Controls controls_of(const data::Item& item);

/// Of each prompt: the files of sample.control, sample.reference and sample.camera, repeated if there are fewer ("clip":
/// of the row of the prompt). Throws UserError (usage) for a model without such an input and a row without such a file.
std::vector<Controls> prompt_controls(const recipe::Recipe::Sample& sample, const std::vector<std::string>& prompts,
                                      const std::function<data::Items()>& clips, const net::Conditions& wanted);

/// "control" [C, f, h, w] where there is one; "reference" [C, 1, h, w], zeros where there is none; "camera" [frames, 16]
/// where one is known. Only what the model takes. Throws UserError (input) naming the file.
Extras control_extras(const net::VideoCodec& codec, const Controls& controls, const data::ClipSpec& spec,
                      const net::Conditions& wanted);

/// The row's files that the model is shown, by their role in the key of the clip's entry, and those that are no pictures.
std::vector<data::RowFile> control_files(const data::Item& item, const net::Conditions& wanted);
/// What of the row is no file, as text for the same key.
std::string control_text(const data::Item& item, const net::Conditions& wanted);

}  // namespace tessera::prepare
