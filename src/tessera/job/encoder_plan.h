#pragma once
// How a frozen encoder that is a list of units lies on the ranks while data are prepared.
//
//   plan::ModelSpec spec = ...;                                    // of the encoder's units
//   hold_as(spec, text_storage(recipe.data, recipe.plan).dtype);                     // second_storage, image_storage
//   const plan::Plan plan = encoder_plan(spec, mesh);
#include "tessera/plan/plan.h"
#include "tessera/recipe/recipe.h"

namespace tessera::job {

/// Encoders that take no more are whole on every rank, which encodes without waiting for others: a gather of a small
/// unit takes longer than its arithmetic.
inline constexpr int64_t kWholeEncoder = int64_t{64} << 20;

/// In what the weights of an encoder are held. Its arithmetic is fp32 in any case: a unit is widened when it is
/// gathered.
struct HeldWeights {
  DType dtype = DType::f32;
  bool rounded = false;  ///< values are not those of the file
  /// Bytes of a rank's device for weights and gathered units: a share of plan.budget, whose rest is for what encoders work in.
  /// 0: any number, as where the encoder stays beside the steps and is part of their plan.
  int64_t room = 0;
};
/// bf16 where the file has bf16 (the released UMT5-XXL: 11 GiB, not 21) or the recipe computes in 16 bits; fp32 for
/// random weights. By headers alone; a file that is not there counts as its encoder was released.
HeldWeights text_storage(const recipe::Recipe::Data& data, const recipe::Recipe::Planning& plan);
/// The same of the second text encoder, and of CLIP's image tower (2.4 GiB in fp32).
HeldWeights second_storage(const recipe::Recipe::Data& data, const recipe::Recipe::Planning& plan);
HeldWeights image_storage(const recipe::Recipe::Data& data, const recipe::Recipe::Planning& plan);

void hold_as(plan::ModelSpec& spec, DType dtype);

/// Sharded over the mesh, a unit at a time gathered; encoders up to kWholeEncoder whole on every rank. The input is too
/// small for a pipeline: the ranks of every stage run all units. What takes more than `room` (HeldWeights) is moved to the
/// host by units, from the last on.
plan::Plan encoder_plan(const plan::ModelSpec& spec, const Mesh& mesh, int64_t room = 0);

}  // namespace tessera::job
