#include "tessera/tools/import/deepspeed_types.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/check.h"
#include "tessera/recipe/recipe_table.h"
#include "tessera/tools/import/parts.h"

namespace tessera::tools {

namespace {

void reduce_type(Translator& t, const Given& g) {
  if (is_false(g.value)) return t.imply(g.name, "gradients are reduced in fp32");
  const std::string type = type_word(g.value);
  if (type.empty())
    throw UserError(Exit::usage, "import", g.shown() + ": expected fp32, bf16 or fp16",
                    "did you mean " + nearest(g.value, {"fp32", "bf16", "fp16"}).front() + "?");
  const std::string here = recipe::recipe_table().find("plan.reduce_dtype")->choices;
  if (("|" + here + "|").find("|" + type + "|") == std::string::npos)
    return t.refuse(g.name, "gradients are reduced in " + here);
  t.set("plan.reduce_dtype", type, {g.name});
}

/// DeepSpeed's accumulation dtype is the dtype in which Tessera stores gradients; the sum itself is fp32 here.
void stored_gradients(Translator& t, const Given& g) {
  const std::string type = type_word(g.value);
  if (type == "fp32")
    t.imply(g.name, "gradients are summed and kept in fp32");
  else if (type == "bf16")
    t.set("plan.grad_dtype", "bf16", {g.name}, "gradients are kept in bf16 between micro-batches and until the update");
  else
    t.refuse(g.name, "gradients are kept in fp32 or bf16");
}

Rule compute_type(const std::string& option, const std::string& type) {
  return by(option, "`plan.compute_dtype = " + type + "`", [type](Translator& t, const Given& g) {
    if (is_false(g.value))
      t.imply(g.name, "it is off");
    else
      t.set("plan.compute_dtype", type, {g.name}, "masters and states are fp32");
  });
}

/// Of what belongs to fp16: nothing while that is off.
Rule of_fp16(const std::string& option, const std::string& becomes, void (*then)(Translator& t, const Given& g)) {
  return by("fp16." + option, becomes, [then](Translator& t, const Given& g) {
    if (t.flag("fp16.enabled"))
      then(t, g);
    else
      t.imply(g.name, "fp16 is off");
  });
}

void static_scale(Translator& t, const Given& g) {
  if (t.number(g.name, 0) == 0)
    t.imply(g.name, "the loss scale is dynamic");
  else
    t.refuse(g.name, "the loss scale is dynamic: train.loss_scale is where it begins");
}

void first_scale(Translator& t, const Given& g) {
  t.set("train.loss_scale", number_text(std::exp2(t.number(g.name, 16))), {g.name}, "2 to the power of it");
}

/// Ulysses sends what attention computes with.
void sequence_type(Translator& t, const Given& g) {
  const std::string type = t.flag("bf16.enabled") ? "bf16" : t.flag("fp16.enabled") ? "fp16" : "fp32";
  if (g.value == type)
    t.imply(g.name, "Ulysses sends plan.compute_dtype");
  else
    t.refuse(g.name, "Ulysses sends plan.compute_dtype, here " + type);
}

void quantised_base(Translator& t, const Given& g) {
  if (is_false(g.value))
    t.imply(g.name, "it is off");
  else
    t.set(kFrozenDtype, "int8", {g.name}, "a LoRA's frozen base is stored and gathered in 8 bits");
}

}  // namespace

std::vector<Rule> deepspeed_type_rules() {
  return {
      by("communication_data_type", "`plan.reduce_dtype`", reduce_type),
      by("data_types.grad_accum_dtype", "`plan.grad_dtype`: fp32, null or bf16; else refused", stored_gradients),
      by("seq_parallel_communication_data_type", "refused unless it is plan.compute_dtype", sequence_type),
      by("zero_optimization.zero_quantized_nontrainable_weights", "`lora.base_dtype = int8`", quantised_base),
      compute_type("bf16.enabled", "bf16"),
      implied("bf16.check_grad_overflow", "run.on_nan says what a step without a finite loss does"),
      only("bf16.bf16_master_weights_and_grads", {"false"}, "masters are fp32", "set plan.masters = \"bf16\""),
      compute_type("fp16.enabled", "fp16"),
      of_fp16("loss_scale", "0; else refused: the loss scale is dynamic", static_scale),
      of_fp16("initial_scale_power", "`train.loss_scale`, a power of two", first_scale),
      of_fp16("loss_scale_window", "`train.loss_scale_window`",
              [](Translator& t, const Given& g) { t.set("train.loss_scale_window", g.value, {g.name}); }),
  };
}

}  // namespace tessera::tools
