#include "tessera/base/check.h"
#include "tessera/base/random.h"
#include "tessera/comm/comm.h"

namespace tessera::comm {

namespace {

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& t : tensors) sum += t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
  return sum;
}

/// Plain loops: they run on a lane's thread, where LibTorch would start its own.
void add_to(float* __restrict out, const float* __restrict in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] += in[i];
}

}  // namespace

Group::Group(std::string name, std::string axis, std::vector<int> members, int index, std::unique_ptr<Transport> transport)
    : name_(std::move(name)), axis_(std::move(axis)), members_(std::move(members)), index_(index), transport_(std::move(transport)) {}

void Group::run(const char* what, const std::vector<at::Tensor>& out, const std::vector<at::Tensor>& in) {
  sent_ += bytes_of(out);
  try {
    transport_->exchange(out, in);
  } catch (const std::exception& error) {
    throw UserError(Exit::rank_lost, "comm", std::string(what) + " of " + std::to_string(bytes_of(out)) + " bytes on " + name_ +
                    " did not finish: a rank died or did not come within fault.timeout", "the launcher names the rank; restart to resume from the last checkpoint");
  }
}

void Group::all_gather(at::Tensor out, const at::Tensor& in) {
  const int64_t n = in.numel();
  std::vector<at::Tensor> send(size()), receive(size());
  for (int i = 0; i < size(); ++i) {
    if (i == index_) continue;
    send[i] = in;
    receive[i] = out.narrow(0, i * n, n);
  }
  std::memcpy(out.mutable_data_ptr<float>() + index_ * n, in.const_data_ptr<float>(), static_cast<size_t>(n) * sizeof(float));
  if (size() > 1) run("all_gather", send, receive);
}

void Group::reduce_scatter(at::Tensor shard, const at::Tensor& flat, at::Tensor scratch, bool accumulate) {
  const int64_t n = shard.numel();
  std::vector<at::Tensor> send(size()), receive(size());
  for (int i = 0; i < size(); ++i) {
    if (i == index_) continue;
    send[i] = flat.narrow(0, i * n, n);
    receive[i] = scratch.narrow(0, i * n, n);
  }
  if (size() > 1) run("reduce_scatter", send, receive);
  // Rank order, whoever adds: ((g0 + g1) + g2) ..., then onto what earlier micro-batches left.
  float* total = scratch.mutable_data_ptr<float>() + index_ * n;
  const float* mine = flat.const_data_ptr<float>() + index_ * n;
  for (int i = 0; i < size(); ++i) {
    const float* part = i == index_ ? mine : scratch.const_data_ptr<float>() + i * n;
    float* target = accumulate ? total : shard.mutable_data_ptr<float>();
    if (i == 0)
      std::memcpy(target, part, static_cast<size_t>(n) * sizeof(float));
    else
      add_to(target, part, n);
  }
  if (accumulate) add_to(shard.mutable_data_ptr<float>(), total, n);
}

void Group::all_reduce(at::Tensor tensor) {
  if (size() == 1) return;
  const int64_t n = tensor.numel();
  buffer_.resize(static_cast<size_t>(n * size()));
  at::Tensor all = at::from_blob(buffer_.data(), {n * size()}, at::kFloat);
  std::vector<at::Tensor> send(size()), receive(size());
  for (int i = 0; i < size(); ++i) {
    if (i == index_) continue;
    send[i] = tensor;
    receive[i] = all.narrow(0, i * n, n);
  }
  std::memcpy(buffer_.data() + index_ * n, tensor.const_data_ptr<float>(), static_cast<size_t>(n) * sizeof(float));
  run("all_reduce", send, receive);
  std::memcpy(tensor.mutable_data_ptr<float>(), buffer_.data(), static_cast<size_t>(n) * sizeof(float));
  for (int i = 1; i < size(); ++i) add_to(tensor.mutable_data_ptr<float>(), buffer_.data() + i * n, n);
}

std::vector<std::vector<double>> Group::all_gather_doubles(const std::vector<double>& mine) {
  std::vector<std::vector<double>> rows(size(), std::vector<double>(mine.size()));
  rows[index_] = mine;
  if (size() == 1 || mine.empty()) return rows;
  const auto tensor = [](const std::vector<double>& v) {
    return at::from_blob(const_cast<double*>(v.data()), {static_cast<int64_t>(v.size())}, at::kDouble);
  };
  std::vector<at::Tensor> send(size()), receive(size());
  for (int i = 0; i < size(); ++i) {
    if (i == index_) continue;
    send[i] = tensor(mine);
    receive[i] = tensor(rows[i]);
  }
  const int64_t sent = sent_;
  run("all_gather", send, receive);
  sent_ = sent;  // control traffic is not booked on an axis
  return rows;
}

void Group::barrier() {
  if (size() > 1) all_gather_doubles({1.0});
}

int64_t Group::take_sent_bytes() { return std::exchange(sent_, 0); }

void Comm::barrier() { group("control", {kAllAxes.begin(), kAllAxes.end()}).barrier(); }

void Comm::check_agreement(std::string_view what, std::string_view text) {
  const uint64_t hash = hash_text(text);
  const auto rows = group("control", {kAllAxes.begin(), kAllAxes.end()})
                        .all_gather_doubles({static_cast<double>(hash >> 32), static_cast<double>(hash & 0xFFFFFFFFu)});
  for (size_t r = 1; r < rows.size(); ++r)
    if (rows[r] != rows[0])
      throw UserError(Exit::usage, "comm", "rank " + std::to_string(r) + " has another " + std::string(what) + " than rank 0",
                      "start every rank with the same recipe, flags and files");
}

std::map<std::string, int64_t> Comm::take_sent_bytes() {
  std::map<std::string, int64_t> bytes;
  for (auto& [key, group] : groups_)
    if (!group->axis().empty() && !key.starts_with("control")) bytes[group->axis()] += group->take_sent_bytes();
  return bytes;
}

}  // namespace tessera::comm
