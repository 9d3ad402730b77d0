#pragma once
// Conversions that the importers of Sana's two trainers share (NVlabs' own and diffusers').
#include <string>

#include "tessera/tools/options/dialect.h"

namespace tessera::tools {

inline constexpr const char* kSprint =
    "SANA-Sprint is distilled, by Jacobian-vector products and a discriminator, which is not supported; its models are "
    "loaded, sampled and converted";

/// The model that `model.model` of a YAML names, with the options that choose among its forms.
void set_sana_model(Translator& t);

/// train.optimizer by the names of both trainers' classes: AdamW, its 8-bit form, CAME and its 8-bit form, Lion,
/// Prodigy, Adafactor. Refused where this version has no such optimiser.
void set_sana_optimiser(Translator& t, const std::string& option);

}  // namespace tessera::tools
