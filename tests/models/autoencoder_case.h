#pragma once
// What tests of autoencoders share: weights that are tensors of a golden case, and errors by their text.
//
//   auto vae = make_vae(config, "config.json", source_of(Golden("dc_ae").tensors("model.safetensors"), "model.safetensors"));
//   expect_error("did you mean", [&] { ... });
#include <gtest/gtest.h>

#include <functional>

#include "golden.h"
#include "tessera/base/check.h"
#include "tessera/models/vae/video_vae.h"

namespace tessera::models {

/// `file` is what errors name.
inline WeightSource source_of(TensorMap tensors, const std::string& file) {
  WeightSource weights;
  weights.file = file;
  for (const auto& [name, tensor] : tensors) weights.names.push_back(name);
  const auto kept = std::make_shared<const TensorMap>(std::move(tensors));
  weights.shape = [kept](const std::string& name) { return kept->at(name).sizes().vec(); };
  weights.read = [kept](const std::string& name) { return kept->at(name); };
  return weights;
}

/// `act` throws a UserError of that code whose message or hint contains `text`.
inline void expect_error(const std::string& text, const std::function<void()>& act, Exit code = Exit::input) {
  try {
    act();
    ADD_FAILURE() << "no error; expected one with '" << text << "'";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE((std::string(error.what()) + error.hint()).find(text), std::string::npos) << error.what();
  }
}

}  // namespace tessera::models
