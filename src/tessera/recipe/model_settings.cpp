#include "tessera/base/check.h"
#include "tessera/recipe/settings.h"

namespace tessera::recipe {

namespace {

template <auto member>
constexpr Read run = into<&Recipe::run, member>;
template <auto member>
constexpr Read model = into<&Recipe::model, member>;

void read_out(Recipe& recipe, const Given& given) {
  if (given.text.empty())
    throw UserError(Exit::usage, "recipe", given.key + " is empty",
                    "name a folder for this run; it is made where it does not exist");
  recipe.run.out = given.text;
}

bool loads_weights(const Facts& f) { return f.recipe.model.init != "random"; }

}  // namespace

std::vector<Setting> run_settings() {
  return {
      {"run.out", Kind::text, "runs/run", "folder that the run writes to", read_out},
      {"run.seed", Kind::integer, "0", "seed of initial weights, data order, noise and timesteps",
       run<&Recipe::Run::seed>},
      {"run.steps",
       Kind::integer,
       "1000",
       "optimiser steps of the whole run",
       run<&Recipe::Run::steps>,
       {.range = at_least(1)}},
      {"run.resume", Kind::text, "auto",
       "auto: resume from the newest complete checkpoint in run.out; no: start at step 0; or a checkpoint folder",
       run<&Recipe::Run::resume>},
      {"run.on_nan",
       Kind::choice,
       "stop",
       "on a NaN or infinite loss: stop the run or skip the step",
       run<&Recipe::Run::on_nan>,
       {.choices = "stop|skip", .in_stages = true}},
  };
}

std::vector<Setting> model_settings() {
  return {
      {"model.preset", Kind::text, "", "model size, e.g. wan2.1-t2v-1.3b", model<&Recipe::Model::preset>},
      {"model.path",
       Kind::text,
       "",
       "folder or file of weights; official or diffusers names",
       model<&Recipe::Model::path>,
       {.needs = {{loads_weights, "but for its config.json: model.init = \"random\" leaves its weights unread"}}}},
      {"model.family", Kind::text, "wan",
       "model family; wan-t2v, wan-i2v, wan-flf2v, wan-ti2v or wan-s2v override the type found in config.json and weights",
       model<&Recipe::Model::family>},
      {"model.init",
       Kind::choice,
       "auto",
       "initial weights; auto: load model.path where it is given, else random",
       model<&Recipe::Model::init>,
       {.choices = "auto|load|random"}},
      {"model.config.model_type", Kind::text, "", "t2v, i2v, flf2v, ti2v or s2v; empty: by the channels"},
      {"model.config.dim", Kind::integer, "", "width (hidden size)"},
      {"model.config.ffn_dim", Kind::integer, "", "width of the feed-forward layer"},
      {"model.config.num_heads", Kind::integer, "", "attention heads"},
      {"model.config.num_layers", Kind::integer, "", "transformer blocks"},
      {"model.config.in_dim", Kind::integer, "", "latent channels in"},
      {"model.config.out_dim", Kind::integer, "", "latent channels out"},
      {"model.config.freq_dim", Kind::integer, "", "width of the timestep embedding's sinusoids"},
      {"model.config.text_dim", Kind::integer, "", "width of text embeddings"},
      {"model.config.text_len", Kind::integer, "", "text tokens of a caption"},
      {"model.config.image_dim", Kind::integer, "", "width of CLIP features, for a model with an image branch"},
      {"model.config.image_len", Kind::integer, "", "CLIP tokens of one image"},
      {"model.config.cond_dim", Kind::integer, "", "s2v: channels of the pose latent, those of the autoencoder"},
      {"model.config.audio_dim", Kind::integer, "", "s2v: width of the speech encoder's hidden states"},
      {"model.config.num_audio_token", Kind::integer, "", "s2v: audio tokens of a latent frame"},
      {"model.config.audio_inject_layers", Kind::list, "", "s2v: blocks followed by audio cross-attention"},
      {"model.config.eps", Kind::number, "", "epsilon of the norms"},
  };
}

}  // namespace tessera::recipe
