#include "tessera/train/sampling.h"

#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/training.h"
#include "tessera/comm/world.h"
#include "tessera/engine/executor.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/transfer.h"
#include "tessera/train/prepare.h"
#include "tessera/train/validation.h"

namespace tessera::train {

namespace fs = std::filesystem;

Mesh fill_mesh(Mesh mesh, int world) {
  const int fixed = mesh.world();
  if (mesh[Axis::dp_shard] == 1 && world % fixed == 0) mesh[Axis::dp_shard] = world / fixed;
  if (mesh.world() != world)
    throw UserError(Exit::usage, "mesh",
                    "the mesh " + mesh.to_string() + " has " + std::to_string(mesh.world()) + " ranks, " +
                        std::to_string(world) + " were started",
                    "start as many with tessera launch -n, or change [mesh]");
  for (Axis axis : {Axis::pp, Axis::cp, Axis::sp, Axis::tp})
    if (mesh[axis] > 1)
      throw UserError(Exit::usage, "mesh", "axis " + std::string(axis_name(axis)) + " is not supported by this version",
                      "use dp_shard and dp_replicate");
  return mesh;
}

namespace {

void load_trained(Recipe recipe, const Job& job, const SampleOptions& options, engine::Store& store) {
  fs::path from = options.weights;
  if (from.empty()) {
    const auto newest = checkpoint::latest(fs::path(recipe.run.out) / "checkpoints");
    check_input(newest.has_value(), "sample", recipe.run.out + " has no whole checkpoint",
                "train first, or give weights with --weights DIR");
    from = *newest;
  }
  if (fs::exists(from / "manifest.json")) {
    checkpoint::TrainingCheckpoint saved(from);
    engine::restore(store, nullptr, saved);
  } else {
    recipe.model.path = from.string();
    recipe.model.init = "load";
    load_initial_weights(recipe, job, store);
  }
  log::info("sample: weights of " + from.string());
}

}  // namespace

int sample(Recipe recipe, const SampleOptions& options) {
  engine::Meter::install();
  const comm::Rendezvous place = comm::Rendezvous::from_env();
  log::set_rank(place.rank, place.world);
  const Mesh mesh = fill_mesh(recipe.mesh, place.world);
  comm::Comm comm(place, mesh, recipe.fault.timeout);
  const Job job = make_job(recipe);
  std::vector<std::string> prompts = options.prompts;
  if (prompts.empty())
    prompts = sample_prompts(recipe, recipe.sample.prompts.empty() ? read_items(recipe) : std::vector<data::Item>{});
  std::vector<std::string> texts = prompts;
  texts.push_back(recipe.sample.negative_prompt);
  const std::vector<at::Tensor> contexts = encode_texts(recipe, job, mesh, comm, place.rank, texts);

  Planned planned;
  planned.guidance_branches = job.guidance_branches;
  net::Sample shape;
  shape.x = at::zeros(job.latent, at::kFloat);
  shape.context = contexts.front();
  planned.spec = engine::measure(job.model->units(), job.model->pack({shape}), job.name, {.train = false});
  planned.choice.plan.mesh = mesh;
  planned.choice.plan.units.resize(planned.spec.units.size());
  const plan::Schedule schedule = planned.schedules(place.rank).sample;
  std::vector<std::string> prefixes;
  for (const auto& unit : job.model->units()) prefixes.push_back(unit->prefix());
  engine::Store store(planned.spec, prefixes, mesh, place.rank, at::kCPU, /*trainable=*/false);
  store.set_arena(schedule.arena);
  load_trained(recipe, job, options, store);
  engine::Executor executor(job.model->units(), store, comm, planned.plan(), place.rank, {});

  const fs::path folder = options.out.empty() ? fs::path(recipe.run.out) / "samples" : fs::path(options.out);
  for (size_t p = 0; p < prompts.size(); ++p) {
    Denoising denoising(recipe, job, static_cast<int>(p), contexts[p], contexts.back());
    while (!denoising.done())
      denoising.pass([&](const std::vector<net::Batch>& batches) { return executor.forward(schedule, 0, batches); });
    if (place.rank != 0) continue;
    fs::path file = folder;
    if (options.out.empty() || prompts.size() > 1) {
      fs::create_directories(folder);
      file = folder / ("sample-" + std::to_string(p) + ".mp4");
    }
    data::write_mp4(file, to_frames(job.codec->decode(denoising.latent()), recipe.data.fps));
    log::info("sample: " + file.string() + "  (" + prompts[p] + ")");
  }
  comm.barrier();
  return 0;
}

}  // namespace tessera::train
