#include "tessera/sample/sampling.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "tessera/base/check.h"
#include "tessera/base/log.h"
#include "tessera/base/random.h"
#include "tessera/checkpoint/file.h"
#include "tessera/checkpoint/training.h"
#include "tessera/comm/rendezvous.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/measure.h"
#include "tessera/engine/store/transfer.h"
#include "tessera/families/registry.h"
#include "tessera/job/assumed.h"
#include "tessera/job/codec.h"
#include "tessera/job/device.h"
#include "tessera/job/given_checks.h"
#include "tessera/models/lora_file.h"
#include "tessera/planning/mesh_checks.h"
#include "tessera/planning/planning.h"
#include "tessera/prepare/conditioner.h"
#include "tessera/prepare/pace.h"
#include "tessera/prepare/prepare.h"
#include "tessera/sample/validation.h"

namespace tessera::sample {

namespace fs = std::filesystem;

namespace {

/// Values of experts.train other than auto.
std::vector<std::string> expert_words(const recipe::Recipe& recipe) {
  std::vector<std::string> words = families::expert_names(families::of(recipe.model.family));
  words.insert(words.begin(), "both");
  return words;
}

/// `router`: of a run with a gate, else null.
void load_trained(recipe::Recipe recipe, const job::Job& job, const SampleOptions& options, engine::Store& store,
                  job::GateRouter* router) {
  fs::path from = options.weights;
  if (from.empty() && !options.loras.empty()) from = recipe.model.path;
  if (from.empty()) {
    const auto newest = checkpoint::latest(fs::path(recipe.run.out) / "checkpoints");
    check_input(newest.has_value(), "sample", recipe.run.out + " has no complete checkpoint",
                "train first, or give weights with --weights DIR");
    from = *newest;
  }
  if (fs::exists(from / "manifest.json")) {
    checkpoint::TrainingCheckpoint saved(from);
    const bool averaged = recipe.sample.weights == "ema";
    if (recipe.lora.on) job::load_initial_weights(recipe, job, store);  // the checkpoint has only the adapters
    const checkpoint::Json& there = saved.manifest().experts;
    const bool student = there.is_object() && there.contains("critic");  // which is not sampled
    if (!student) job::check_experts(job.experts, saved.manifest());
    job::each_expert(store, job.experts, [&](size_t, const std::string& prefix) {
      (averaged ? engine::restore_average : engine::restore)(store, saved, student ? "student." : prefix);
    });
    if (router) router->resume(saved);
    log::info(std::string("sample: ") + (averaged ? "average of the weights" : "weights") + " of " + from.string());
    return;
  }
  if (router) router->load_model(from);
  if (recipe.lora.on &&
      models::is_lora(models::open_source(job.experts.several() ? from / job.experts.list[0].folder : from))) {
    recipe.lora.init = from.string();
    job::load_initial_weights(recipe, job, store);
  } else {
    recipe.model.path = from.string();
    recipe.model.init = "load";
    const job::Experts there = job::find_experts(recipe);
    check_input(there.size() == job.experts.size(), "sample",
                from.string() + " holds " + std::to_string(there.size()) + " denoiser(s), the recipe has " +
                    std::to_string(job.experts.size()),
                job.experts.gated ? "set experts.count to that number"
                                  : "set experts.train accordingly: " + families::listed(expert_words(recipe), "or"));
    for (const job::Expert& expert : there.list) job::check_text_encoders(recipe.data, job, expert.path);
    job::load_weights_of(recipe, job, there, store);
  }
  log::info("sample: weights of " + from.string());
}

/// An exported model has everything of the weights that its run began with: it takes their place where they are gone.
void stand_in(recipe::Recipe& recipe, const SampleOptions& options) {
  if (recipe.lora.on || recipe.model.path.empty() || fs::exists(recipe.model.path)) return;
  const fs::path given = options.weights, exported = fs::path(recipe.run.out) / "model";
  const fs::path model = given.empty() || fs::exists(given / "manifest.json") ? exported : given;
  if (!fs::exists(model)) return;
  log::info("sample: " + recipe.model.path + " is not there any more, " + model.string() + " takes its place");
  recipe.model.path = model.string();
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g %%", 100 * share);
  return text;
}

/// Refuses what looks like a file of a format that is not written: q.webm, q.xyz. A name with a dot is a folder's where
/// the folder is there, where a slash ends it, and where the ending is a number (run-1.5).
void check_ending(const std::string& out) {
  const std::string ending = fs::path(out).extension().string();
  const bool a_word = std::ranges::any_of(ending, [](unsigned char c) { return std::isalpha(c) != 0; });
  if (!a_word || data::clip_format_of(out) || fs::is_directory(out)) return;
  throw UserError(
      Exit::usage, "sample", "--out " + out + ": " + ending + " is not a supported format",
      "give an .mp4 or .gif, a .png for a picture, or a folder with --format frames for all frames; a folder "
      "with such a name ends in a slash: " +
          out + "/");
}

data::ClipFormat format_of(const SampleOptions& options) {
  if (options.format) return *options.format;
  return data::clip_format_of(options.out).value_or(data::ClipFormat::mp4);
}

}  // namespace

std::vector<std::string> sample_files(const SampleOptions& options, const std::string& run_out, size_t prompts) {
  const data::ClipFormat format = format_of(options);
  if (!options.strengths.empty()) {  // one file, whatever it shows
    SampleOptions one = options;
    one.strengths.clear(), one.seeds.clear();
    const std::vector<std::string> files = sample_files(one, run_out, 1);
    if (files[0] == options.out) return files;
    return {(fs::path(files[0]).parent_path() / ("grid" + data::extension(format))).string()};
  }
  const auto by_name = data::clip_format_of(options.out);
  if (by_name && *by_name != format)
    throw UserError(Exit::usage, "sample",
                    "--out " + options.out + " ends in another format than --format " +
                        std::string(data::kClipFormats[static_cast<size_t>(format)]),
                    "leave --format out, or change the extension");
  check_ending(options.out);
  const size_t seeds = std::max<size_t>(options.seeds.size(), 1), clips = prompts * seeds;
  const bool one_file = by_name || (format == data::ClipFormat::frames && !fs::is_directory(options.out));
  if (!options.out.empty() && clips == 1 && one_file) return {options.out};
  if (by_name)
    throw UserError(Exit::usage, "sample", std::to_string(clips) + " clips do not fit in one file, " + options.out,
                    "give a folder with --out");
  const fs::path folder = options.out.empty() ? fs::path(run_out) / "samples" : fs::path(options.out);
  std::vector<std::string> files;
  for (size_t i = 0; i < clips; ++i) {
    std::string name = "sample-" + std::to_string(i / seeds);
    if (seeds > 1) name += "-seed-" + std::to_string(options.seeds[i % seeds]);
    files.push_back((folder / (name + data::extension(format))).string());
  }
  return files;
}

namespace {

/// Throws UserError (disk) where the clips could not be written, before hours go into them.
void check_places(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    if (const fs::path folder = fs::path(file).parent_path(); !folder.empty())
      checkpoint::make_folder(folder, "check --out");
    const checkpoint::DurableFile tried(file, 0);  // taken away again
  }
}

}  // namespace

data::Frames grid(const std::vector<std::vector<data::Frames>>& rows) {
  const data::Frames& first = rows.at(0).at(0);
  data::Frames all{.count = 0,
                   .height = first.height * static_cast<int>(rows.size()),
                   .width = first.width * static_cast<int>(rows[0].size()),
                   .fps = first.fps,
                   .rgb = {}};
  for (const auto& row : rows)
    for (const data::Frames& clip : row) all.count = std::max(all.count, clip.count);
  all.rgb.resize(static_cast<size_t>(all.count) * all.frame_bytes());
  const size_t line = static_cast<size_t>(first.width) * 3, whole = static_cast<size_t>(all.width) * 3;
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t c = 0; c < rows[r].size(); ++c)
      for (int f = 0; f < all.count; ++f) {
        const data::Frames& clip = rows[r][c];
        check_internal(clip.height == first.height && clip.width == first.width, "sample", "clips of several sizes");
        const uint8_t* from = clip.rgb.data() + static_cast<size_t>(std::min(f, clip.count - 1)) * clip.frame_bytes();
        uint8_t* to = all.frame(f) + r * static_cast<size_t>(first.height) * whole + c * line;
        for (int y = 0; y < first.height; ++y) std::copy_n(from + y * line, line, to + y * whole);
      }
  return all;
}

int sample(recipe::Recipe recipe, const SampleOptions& options) {
  engine::Meter::install();
  const comm::Rendezvous place = comm::rendezvous_from_env();
  log::set_rank(place.rank, place.world);
  job::choose_device(recipe.run.device, place);
  if (const std::string line = job::settle_compute(recipe); !line.empty()) log::info("sample: " + line);
  if (!options.loras.empty()) recipe.lora.on = false;  // they take the place of the run's own
  stand_in(recipe, options);
  recipe.plan.budget = job::reserve_device(place, recipe.plan.budget);
  const Mesh mesh = planning::fill_mesh(recipe.mesh, place.world);
  comm::Comm comm(place, mesh, recipe.fault.timeout);
  job::check_devices(comm);
  if (recipe.distill.of_noise()) recipe.distill = {};  // of its networks the student is sampled
  recipe::Recipe trained = recipe;
  if (!recipe.lora.on) trained.model.init = "load";  // from a checkpoint or a file: none of it is random
  const job::Job job = job::make_job(trained);
  planning::check_mesh(mesh, *job.model, job.latent);
  if (recipe.sample.chunk > 0 && !job.model->conditions().chunks_in_time)
    throw UserError(Exit::usage, "sample.chunk",
                    std::to_string(recipe.sample.chunk) + ": the model makes whole clips alone",
                    "leave it out, or sample with a model that takes chunks (docs/long-clips.md)");
  std::vector<std::string> prompts = prepare::moving_prompts(recipe.data, recipe.sample, options.prompts);
  if (prompts.empty())
    prompts = prepare::sample_prompts(recipe.data, recipe.sample,
                                      recipe.sample.prompts.empty() ? prepare::read_items(recipe) : data::Items{});
  const std::vector<std::string> files = sample_files(options, recipe.run.out, prompts.size());
  if (format_of(options) == data::ClipFormat::png && recipe.data.frames != 1)
    throw UserError(Exit::usage, "sample",
                    "a .png holds one frame, the samples have " + std::to_string(recipe.data.frames),
                    "name an .mp4 or a .gif, or a folder with --format frames");
  if (place.rank == 0) check_places(files);
  if (!recipe.sample.negative_prompt.empty() && recipe.sample.guidance == 1)
    log::warn("sample: the negative prompt has no effect at guidance 1; set --sample.guidance, 5 is usual");
  const std::vector<prepare::EncodedText> texts =
      prepare::encode_prompts(recipe, job, mesh, comm, place.rank, prompts, recipe.sample.negative_prompt);

  std::vector<std::vector<prepare::Extras>> extras(prompts.size());  // for each prompt's clips
  std::vector<data::Sound> sounds;
  const ClipChain chain(job, recipe);
  std::vector<ChainedSample> begun;
  std::vector<prepare::Pictures> pictures;
  {
    const net::Conditions wanted = job.model->conditions();
    const bool own_clips = !recipe.data.paths.empty() || !recipe.data.metadata.empty() || !recipe.sets.empty();
    const auto clips = [&] { return own_clips ? prepare::read_items(recipe) : data::Items{}; };
    pictures = prepare::prompt_pictures(recipe, prompts, clips, wanted);
    prepare::Conditioner conditioner(recipe, job, mesh, comm, place.rank);
    const auto poses = prepare::prompt_poses(recipe.sample, prompts, clips, wanted);
    const auto controls = prepare::prompt_controls(recipe.sample, prompts, clips, wanted);
    sounds = prepare::prompt_sounds(recipe.data, recipe.sample, prompts, clips, wanted, chain.sound_seconds());
    sounds.resize(prompts.size());  // silent, for a model without audio input
    for (size_t p = 0; p < prompts.size(); ++p) {
      begun.push_back(chain.begin(sounds[p], pictures[p]));
      const int64_t known = begun[p].windows.length > 0 ? 1 : begun[p].clips;  // before anything is made
      for (int64_t clip = 0; clip < known; ++clip)
        extras[p].push_back(conditioner.for_sampling(pictures[p], chain.segment(sounds[p], clip), recipe.data.frames,
                                                     poses[p], chain.start(clip), controls[p]));
    }
  }

  planning::Planned planned;
  planned.guidance_branches = job.guidance_branches;
  std::array<int64_t, 4> at_once = job.latent;
  if (recipe.sample.chunk > 0) at_once[1] = net::chunk_bounds(job.latent[1], recipe.sample.chunk)[1];
  net::Batch shape = job.model->pack({job::blank_sample(recipe, *job.model, at_once)});
  net::History measured;
  net::History::Left left;
  measured.storing = &left;  // every pass of a chunk leaves something, so that all send alike
  if (recipe.sample.chunk > 0) shape.tokens.history = std::make_shared<net::History>(measured);
  planned.spec = engine::measure(
      job.model->units(), shape, job.name,
      {.train = false, .mesh = mesh, .compute = recipe.plan.compute, .attention = recipe.plan.attention});
  planned.choice.plan.mesh = mesh;
  planned.choice.plan.param_dtype = recipe.plan.param_dtype;  // the dtype that the model was trained with
  planned.choice.plan.experts = static_cast<int>(job.experts.size());
  planned.choice.plan.idle = recipe.plan.idle.value_or(plan::Tier::device);
  planned.choice.plan.compute = recipe.plan.compute;
  planned.choice.plan.attention = recipe.plan.attention;
  planned.choice.plan.units.resize(planned.spec.units.size());
  const auto program = std::make_shared<const plan::Program>(planned.plan(), planned.schedules(place.rank).sample);
  const plan::MemoryParts host = plan::memory_curve(planned.spec, planned.plan(), program->schedule, place.rank).host;
  job::place_host_memory(comm, host.parameters + host.slots);  // of what is not trained there is nothing else
  engine::Engine engine(job.model->units(), planned.spec, planned.plan(), comm, place.rank,
                        {.trainable = false, .nvme = recipe.plan.disk()});
  engine.use(*program);
  std::optional<job::GateRouter> router;
  if (job.experts.gated) router.emplace(recipe, job.experts.size(), job.model->context_dim());
  comm::Group& world = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  const std::vector<int64_t> seeds = options.seeds.empty() ? std::vector{recipe.sample.seed} : options.seeds;
  /// Clip `i` with the weights as they are: its frames on rank 0, and what the audio changes.
  const auto make = [&](size_t i, std::optional<double>& effect) {
    const size_t p = i / seeds.size();
    recipe.sample.seed = seeds[i % seeds.size()];
    ChainedSample made = begun[p];
    prepare::Extras extra = extras[p].front();
    for (int64_t clip = 0; clip < made.clips; ++clip) {
      Denoising denoising(recipe, job, job, static_cast<int>(p), texts[p], texts.back(), extra, clip);
      if (recipe.sample.chunk > 0) denoising.in_chunks(recipe.sample.chunk, recipe.sample.chunk_reach);
      while (!denoising.done()) denoising.pass(expert_passes(job, router ? &*router : nullptr, engine, program, 0));
      if (clip == 0) effect = denoising.audio_effect();
      const bool goes_on = clip + 1 < made.clips;
      prepare::Extras next;
      prepare::Pace pace(comm, mesh);  // the other ranks wait for rank 0 without a time-out
      pace.run([&] {
        if (place.rank == 0) chain.append(made, extra, denoising.latent());
        if (goes_on) next = chain.next(made, clip + 1, extra, pictures[p], place.rank == 0);
        pace.barrier();
      });
      share(next, world);
      if (clip + 1 < std::ssize(extras[p])) extra = extras[p][static_cast<size_t>(clip + 1)];
      for (auto& [name, value] : next) extra[name] = value;
    }
    return made.frames;
  };
  const auto write = [&](const std::string& file, const data::Frames& made, const data::Sound& sound) {
    const data::Frames frames = options.enlarge > 1 ? data::enlarged(made, options.enlarge) : made;
    if (const fs::path folder = fs::path(file).parent_path(); !folder.empty())
      checkpoint::make_folder(folder, "check --out");
    checkpoint::remove_dead_partials_of(file);
    if (fs::is_directory(file)) checkpoint::remove_dead_partials(file);  // of a clip as frames
    if (format_of(options) == data::ClipFormat::mp4)
      data::write_mp4(file, frames, sound);
    else
      data::write_clip(file, frames, format_of(options));
  };

  const size_t clips = prompts.size() * seeds.size();
  std::vector<std::vector<data::Frames>> rows(clips);  // of a grid, on rank 0
  for (const double factor : options.strengths) {
    load_trained(recipe, job, options, engine.store(), router ? &*router : nullptr);
    std::vector<LoraStrength> loras = options.loras;
    for (LoraStrength& lora : loras) lora.strength *= factor;
    add_loras(loras, job, engine.store(), comm);
    std::optional<double> effect;
    for (size_t i = 0; i < clips; ++i)
      if (data::Frames frames = make(i, effect); place.rank == 0) rows[i].push_back(std::move(frames));
  }
  if (!options.strengths.empty()) {
    if (place.rank == 0) {
      write(files[0], grid(rows), {});
      log::info("sample: " + files[0] + "  (a column for each of " + std::to_string(options.strengths.size()) +
                " strengths, a row for each of " + std::to_string(clips) + (clips == 1 ? " clip)" : " clips)"));
    }
    comm.barrier();
    return 0;
  }

  load_trained(recipe, job, options, engine.store(), router ? &*router : nullptr);
  const bool named = !options.loras.empty();  // they take the place of sample.lora
  add_loras(named ? options.loras : recipe.sample.loras, job, engine.store(), comm, /*one_each=*/!named);
  for (size_t i = 0; i < clips; ++i) {
    std::optional<double> effect;
    const data::Frames frames = make(i, effect);
    if (place.rank != 0) continue;
    const size_t p = i / seeds.size();
    write(files[i], frames, sounds[p]);
    if (effect) log::info("sample: the audio changes the prediction by " + percent(*effect));
    log::info("sample: " + files[i] + "  (" + prompts[p] + ", seed " + std::to_string(seeds[i % seeds.size()]) + ")");
  }
  comm.barrier();
  return 0;
}

RunBranches expert_passes(const job::Job& job, const job::GateRouter* router, engine::Engine& engine,
                          const plan::ProgramPtr& program, int64_t step) {
  return [&job, &engine, router, program, step](const std::vector<net::Batch>& batches, double t,
                                                const at::Tensor& context) {
    const auto run = [&](size_t expert) {
      engine.swap(expert);
      return engine.forward(program, batches, step);
    };
    return router ? router->predict(t, context, run) : run(job.experts.serving(t));
  };
}

}  // namespace tessera::sample
