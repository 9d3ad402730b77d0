#include "tessera/engine/group_check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "tessera/base/check.h"
#include "tessera/base/mesh.h"
#include "tessera/base/random.h"
#include "tessera/plan/schedule_json.h"

namespace tessera::engine {

namespace {

using Sequence = std::vector<std::string>;

/// A hash in the two doubles that carry it exactly.
void push_hash(std::vector<double>& values, uint64_t hash) {
  values.push_back(static_cast<double>(hash >> 32));
  values.push_back(static_cast<double>(hash & 0xFFFFFFFFu));
}

uint64_t hash_at(const std::vector<double>& values, size_t i) {
  return static_cast<uint64_t>(values[i]) << 32 | static_cast<uint64_t>(values[i + 1]);
}

uint64_t hash_of(const Sequence& sequence) {
  std::string text;
  for (const std::string& collective : sequence) text += collective + "\n";
  return hash_text(text);
}

/// "gather:dp_shard[0,2]" -> 0, 2.
std::vector<int> members(const std::string& group, int world) {
  const size_t open = group.find('[');
  check_internal(open != group.npos && group.ends_with(']'), "engine.groups", "group " + group + " names no ranks");
  const std::string_view ranks = std::string_view(group).substr(open + 1, group.size() - open - 2);
  return *read_ranks(ranks, static_cast<size_t>(world));
}

class GroupCheck {
 public:
  GroupCheck(comm::Group& world, const std::vector<const plan::Schedule*>& schedules) : world_(world) {
    for (const plan::Schedule* schedule : schedules)
      for (auto& [group, collectives] : plan::group_sequences(*schedule)) {
        Sequence& all = sequences_[group];
        for (const std::string& text : collectives) all.push_back(schedule->phase + ": " + text);
      }
  }

  void run() {
    exchange_hashes();
    const auto found = find();
    // The lowest rank that finds a difference decides which one is reported.
    const auto rows = world_.all_gather_doubles({found ? 1.0 : 0.0, found ? static_cast<double>(found->other) : 0.0});
    for (size_t finder = 0; finder < rows.size(); ++finder)
      if (rows[finder][0] > 0)
        explain(static_cast<int>(finder), static_cast<int>(rows[finder][1]), found ? found->group : "");
  }

 private:
  struct Difference {
    std::string group;
    int other = 0;  ///< the first member with another sequence
  };

  /// Exchanges every group of every rank: hash of its name, hash of its sequence.
  void exchange_hashes() {
    double most = 0;
    for (const auto& row : world_.all_gather_doubles({static_cast<double>(sequences_.size())}))
      most = std::max(most, row[0]);
    std::vector<double> mine;
    for (const auto& [group, sequence] : sequences_)
      push_hash(mine, hash_text(group)), push_hash(mine, hash_of(sequence));
    mine.resize(static_cast<size_t>(most) * 4, 0.0);
    for (const auto& row : world_.all_gather_doubles(mine)) {
      auto& hashes = hashes_.emplace_back();
      for (size_t i = 0; i + 3 < row.size(); i += 4) hashes[hash_at(row, i)] = hash_at(row, i + 2);
    }
  }

  std::optional<Difference> find() const {
    for (const auto& [group, sequence] : sequences_)
      for (int member : members(group, world_.size())) {
        const auto& theirs = hashes_.at(static_cast<size_t>(member));
        const auto found = theirs.find(hash_text(group));
        if (found == theirs.end() || found->second != hash_of(sequence)) return Difference{group, member};
      }
    return std::nullopt;
  }

  [[noreturn]] void explain(int finder, int other, const std::string& group_here) {
    const std::string group = all_gather_text(group_here)[static_cast<size_t>(finder)];
    const auto own = sequences_.find(group);
    const Sequence mine = own == sequences_.end() ? Sequence{} : own->second;
    double longest = 0;
    for (const auto& row : world_.all_gather_doubles({static_cast<double>(mine.size())}))
      longest = std::max(longest, row[0]);
    std::vector<double> hashes;
    for (const std::string& collective : mine) push_hash(hashes, hash_text(collective));
    hashes.resize(static_cast<size_t>(longest) * 2, -1.0);
    const auto rows = world_.all_gather_doubles(hashes);
    const auto &a = rows[static_cast<size_t>(finder)], &b = rows[static_cast<size_t>(other)];
    const auto at = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin()) / 2;
    const auto texts = all_gather_text(at < mine.size() ? "'" + mine[at] + "'" : "nothing more");
    throw UserError(Exit::usage, "engine.groups",
                    "the ranks of group " + group + " would not run the same collectives: number " +
                        std::to_string(at + 1) + " is " + texts[static_cast<size_t>(finder)] + " on rank " +
                        std::to_string(finder) + " and " + texts[static_cast<size_t>(other)] + " on rank " +
                        std::to_string(other),
                    "start every rank with the same build of the program, the same recipe and the same plan");
  }

  /// The text of every rank, by rank; at most its first 240 bytes.
  std::vector<std::string> all_gather_text(const std::string& text) {
    std::vector<double> letters(text.begin(), text.begin() + static_cast<long>(std::min<size_t>(text.size(), 240)));
    letters.resize(240, 0.0);
    std::vector<std::string> texts;
    for (const auto& row : world_.all_gather_doubles(letters)) {
      std::string& gathered = texts.emplace_back();
      for (double letter : row)
        if (letter != 0) gathered += static_cast<char>(letter);
    }
    return texts;
  }

  comm::Group& world_;
  std::map<std::string, Sequence> sequences_;         // of this rank, by group
  std::vector<std::map<uint64_t, uint64_t>> hashes_;  // of each rank: group name to sequence
};

}  // namespace

void check_groups(comm::Comm& comm, const std::vector<const plan::Schedule*>& schedules) {
  comm::Group& world = comm.group("control", {kAllAxes.begin(), kAllAxes.end()});
  if (world.size() > 1) GroupCheck(world, schedules).run();
}

}  // namespace tessera::engine
