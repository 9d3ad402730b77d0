#include "tessera/prepare/stage_data.h"

#include <algorithm>

#include "tessera/base/log.h"

namespace tessera::prepare {

std::vector<StageData> data_of_expert(const std::vector<StageData>& data, const std::vector<int64_t>& first_steps) {
  std::vector<StageData> own = data;
  for (size_t p = 0; p < own.size(); ++p) {
    own[p].first_step = first_steps.at(p);
    if (p > 0) own[p].follow(own[p - 1]);
  }
  return own;
}

void StageData::follow(const StageData& before) {
  position = order.go_on(before.samples_before(first_step));
  go_on_in_sets(before.seen_before(first_step));
}

std::vector<StageData::Seen> StageData::seen_before(int64_t step) const {
  const std::vector<int64_t> samples = order.of_sets(position_of(step));
  std::vector<Seen> seen;
  for (size_t s = 0; s < sets.size(); ++s) seen.push_back({sets[s], samples[s]});
  return seen;
}

void StageData::go_on_in_sets(const std::vector<Seen>& seen) {
  std::vector<int64_t> samples = order.of_sets(position);
  for (size_t s = 0; s < sets.size(); ++s) {
    const auto known = std::ranges::find(seen, sets[s], &Seen::set);
    samples[s] = known == seen.end() ? 0 : known->samples;
  }
  order.go_on_in_sets(position, samples);
}

void go_on_behind(std::vector<StageData>& data, int64_t done, data::SampleOrder::Place seen,
                  const std::vector<StageData::Seen>& of_sets) {
  if (done <= 0 || seen == data::SampleOrder::Place{}) return;
  size_t p = data.size() - 1;
  while (p > 0 && data[p].first_step > done) --p;
  const int64_t samples = seen.epoch * data[p].order.size() + seen.cursor;
  const bool same_sets = of_sets.empty() || data[p].seen_before(done + 1) == of_sets;
  if (samples == data[p].samples_before(done + 1) && same_sets) return;
  data[p].position = data[p].order.go_on(samples);
  data[p].first_step = done + 1;
  if (!of_sets.empty()) data[p].go_on_in_sets(of_sets);
  for (size_t next = p + 1; next < data.size(); ++next) data[next].follow(data[next - 1]);
}

namespace {

/// The held-out clips of a part, in its shapes; null where no loss of them is measured.
std::shared_ptr<const PreparedData> prepare_held_out(recipe::Recipe recipe, const job::Job& job, const Mesh& mesh,
                                                     comm::Comm& comm, int rank, PrepareOptions options) {
  if (!recipe.eval.on()) return nullptr;
  recipe.eval.held_out = true;
  recipe.data.repeats = 1;
  if (!recipe.eval.paths.empty()) {
    recipe.data.paths = recipe.eval.paths, recipe.data.metadata.clear();
    recipe.sets.clear();  // the shapes of all are those of data.clips
  }
  options.prompts = options.null_caption = false;
  if (rank == 0) log::info("clips that are held out:");
  return std::make_shared<const PreparedData>(prepare(recipe, job, mesh, comm, rank, options));
}

}  // namespace

std::vector<StageData> prepare_parts(recipe::Recipe& recipe, const job::Job& job, const Mesh& mesh, comm::Comm& comm,
                                     int rank, PrepareOptions options) {
  options.prompts = options.prompts && recipe::any_samples(recipe::run_parts(recipe));
  const auto first = std::make_shared<const PreparedData>(
      prepare(recipe.sets.empty() ? recipe : recipe.at_stage(0), job, mesh, comm, rank, options));
  recipe.set("data.tokenizer", first->tokenizer().string());
  options.text_beside = first->text_beside();
  std::vector<StageData> result;
  const std::vector<recipe::RunPart> parts = recipe::run_parts(recipe);
  for (size_t p = 0; p < parts.size(); ++p) {
    const recipe::RunPart& part = parts[p];
    std::shared_ptr<const PreparedData> samples = p == 0 ? first : result.back().samples;
    if (p > 0 && !recipe::same_data(part.recipe, parts[p - 1].recipe)) {
      if (rank == 0) log::info(part.name() + ": " + part.changes);
      samples = recipe::in_part(part, [&] {
        return std::make_shared<const PreparedData>(prepare(part.recipe, job, mesh, comm, rank, options));
      });
    }
    std::map<int, int64_t> batches = recipe::batches(part.recipe);
    for (auto& [bucket, batch] : batches) batch = part.recipe.clips_of(batch);
    data::ImageTurns images{.every = part.recipe.data.images_every};
    const std::vector<data::Bucket>& shapes = part.recipe.data.clips.buckets;
    for (size_t b = 0; b < shapes.size(); ++b)
      if (shapes[b].frames == 1) images.buckets.insert(static_cast<int>(b));
    data::BatchOrder order(static_cast<uint64_t>(recipe.run.seed), samples->buckets(),
                           part.recipe.clips_of(part.recipe.train.global_batch), batches, samples->sets(), images);
    const int64_t stride = order.stride();
    const bool same = p > 0 && samples == result.back().samples;
    auto held_out = same ? result.back().held_out : prepare_held_out(part.recipe, job, mesh, comm, rank, options);
    StageData data{samples, std::move(order), part.first, 0, stride, std::move(held_out)};
    for (const recipe::Recipe::DataSet& set : part.recipe.sets) data.sets.push_back(set.name);
    data.times = part.recipe.pairs() ? 2 : 1;
    if (p > 0) data.follow(result.back());
    result.push_back(std::move(data));
  }
  return result;
}

}  // namespace tessera::prepare
