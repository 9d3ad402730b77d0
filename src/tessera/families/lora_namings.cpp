#include "tessera/families/lora_namings.h"

namespace tessera::families {

namespace {

constexpr LoraForm kForms[] = {
    {.naming = "diffusers",
     .prefix = "transformer.",
     .file = "pytorch_lora_weights.safetensors",
     .flat = false,
     .settings = true,
     .divides_by_base = false,
     .down = ".lora_A.weight",
     .up = ".lora_B.weight",
     .up_bias = ".lora_B.bias",
     .alpha = "",
     .magnitude = ".lora_magnitude_vector",
     .diff = "",
     .diff_bias = ""},
    {.naming = "comfyui",
     .prefix = "diffusion_model.",
     .file = "lora.safetensors",
     .flat = false,
     .settings = false,
     .divides_by_base = true,
     .down = ".lora_A.weight",
     .up = ".lora_B.weight",
     .up_bias = "",
     .alpha = ".alpha",
     .magnitude = ".dora_scale",
     .diff = ".diff",
     .diff_bias = ".diff_b"},
    {.naming = "kohya",
     .prefix = "lora_unet_",
     .file = "lora.safetensors",
     .flat = true,
     .settings = false,
     .divides_by_base = true,
     .down = ".lora_down.weight",
     .up = ".lora_up.weight",
     .up_bias = "",
     .alpha = ".alpha",
     .magnitude = ".dora_scale",
     .diff = "",
     .diff_bias = ""},
    {.naming = "diffsynth",
     .prefix = "",
     .file = "lora.safetensors",
     .flat = false,
     .settings = false,
     .divides_by_base = false,
     .down = ".lora_A.default.weight",
     .up = ".lora_B.default.weight",
     .up_bias = "",
     .alpha = ".alpha",
     .magnitude = "",
     .diff = "",
     .diff_bias = ""},
    {.naming = "peft",
     .prefix = "base_model.model.",
     .file = "adapter_model.safetensors",
     .flat = false,
     .settings = true,
     .divides_by_base = false,
     .down = ".lora_A.weight",
     .up = ".lora_B.weight",
     .up_bias = ".lora_B.bias",
     .alpha = "",
     .magnitude = ".lora_magnitude_vector",
     .diff = "",
     .diff_bias = ""},
};

constexpr std::string_view kNoSana =
    "ComfyUI's nodes and NVlabs' code hold Sana's queries, keys and values in one matrix, where no adapter of one of "
    "them fits; kohya's and DiffSynth's programs have no Sana";
constexpr std::string_view kNoMmdit =
    "ComfyUI and kohya's scripts hold queries, keys and values of this model in one matrix, where no adapter of one of "
    "them fits; DiffSynth has its own names";
constexpr std::string_view kNoHunyuan =
    "ComfyUI holds the queries, keys and values of a stream in one matrix, where no adapter of one of them fits; DiffSynth "
    "has its own names";
constexpr std::string_view kNoStdit = "ComfyUI, kohya's scripts and DiffSynth have no Open-Sora 1";
constexpr std::string_view kOwn = "Tessera";

}  // namespace

const LoraForm* lora_form(std::string_view naming) {
  for (const LoraForm& form : kForms)
    if (form.naming == naming) return &form;
  return nullptr;
}

const std::vector<LoraRoute>& lora_routes() {
  using enum LoraModules;
  static const std::vector<LoraRoute> routes = {
      {"wan", "diffusers", diffusers, "diffusers"},
      {"wan", "comfyui", official, "ComfyUI, diffusers, DiffSynth"},
      {"wan", "kohya", official, "musubi-tuner, ComfyUI, diffusers"},
      {"wan", "diffsynth", official, "DiffSynth, ComfyUI"},
      {"wan", "peft", official, "peft on the official code's model"},
      {"sana", "diffusers", diffusers, "diffusers"},
      {"sana", "peft", diffusers, "peft on diffusers' model"},
      {"sana", "comfyui", none, kNoSana},
      {"sana", "kohya", none, kNoSana},
      {"sana", "diffsynth", none, kNoSana},
      {"opensora", "diffusers", diffusers, kOwn},  // rows of queries and keys stand in another order there
      {"opensora", "peft", official, "peft on the official code's model with fused_qkv = False"},
      {"opensora", "comfyui", none, kNoMmdit},
      {"opensora", "kohya", none, kNoMmdit},
      {"opensora", "diffsynth", none, kNoMmdit},
      {"stdit", "diffusers", diffusers, kOwn},
      {"stdit", "peft", official, kOwn},
      {"stdit", "comfyui", none, kNoStdit},
      {"stdit", "kohya", none, kNoStdit},
      {"stdit", "diffsynth", none, kNoStdit},
      {"hunyuan", "diffusers", diffusers, "diffusers"},
      {"hunyuan", "peft", official, "peft on the official code's model"},
      {"hunyuan", "kohya", official, "musubi-tuner"},
      {"hunyuan", "comfyui", none, kNoHunyuan},
      {"hunyuan", "diffsynth", none, kNoHunyuan},
  };
  return routes;
}

LoraRoute lora_route(std::string_view family, std::string_view naming) {
  for (const LoraRoute& route : lora_routes())
    if (route.family == family && route.naming == naming) return route;
  return {family, naming, naming == "diffusers" ? LoraModules::diffusers : LoraModules::official, kOwn};
}

}  // namespace tessera::families
