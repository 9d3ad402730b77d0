#include "stand_in.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "memory.h"
#include "tessera/ops/products.h"
#include "timeline.h"
#include "torch_device.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using device::Communicator;
using device::Message;

std::string random_text() {
  std::random_device random;
  return std::to_string((static_cast<uint64_t>(random()) << 32) | random());
}

/// Process and, where ranks are threads, the thread: no two are the same, however often processes get the same number.
thread_local std::string thread_name;
std::string who_am_i() {
  static const std::string process = std::to_string(getpid()) + "." + random_text();
  return process + thread_name;
}
bool is_alive(const std::string& who) { return kill(std::stoi(who), 0) == 0 || errno != ESRCH; }

fs::path folder() {
  const fs::path path = fs::temp_directory_path() / "tessera-stand-in";
  fs::create_directories(path);
  return path;
}

void write_whole(const fs::path& path, const std::string& text, const void* data, int64_t bytes) {
  const fs::path draft = path.string() + ".draft";
  std::ofstream out(draft, std::ios::binary);
  out << text << '\n';
  if (bytes) out.write(static_cast<const char*>(data), bytes);
  out.close();
  fs::rename(draft, path);
}

struct Member {
  std::string who;
  int64_t messages = 0;  // of this communicator, given to both
  bool greeted = false;
};

struct Link {
  std::string id, name;
  int index = 0;
  std::vector<Message> lent;
  Message window;
  std::vector<int64_t> offsets;  // of the members' windows in their blocks
  bool opening = false;
  std::atomic<bool> told = false;  // all offsets are there
  std::vector<Member> members;
  std::atomic<bool> aborted = false;
  std::atomic<int> under_way = 0;  // messages that a stream was given and has not left behind
  std::mutex mutex;
  std::string fault;
  bool greeted = false, rings = false;  // by messages of a byte, which say what the others will be

  bool between_stages() const { return name.starts_with("activations") || name.starts_with("gradients"); }
  void fail(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (fault.empty()) fault = why;
  }
};
Link& link_of(Communicator communicator) { return *static_cast<Link*>(communicator); }

/// How many messages a rank has issued with another, over all communicators that are compared.
struct Turns {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, int64_t> count;
};
Turns& turns() {
  static auto* once = new Turns;
  return *once;
}

/// One direction of a message with one member.
struct Part {
  int member;
  void* data;
  int64_t bytes;
  std::string path;  // the file's name, without its folder
  std::string text;  // its first line
};

/// Where a collective's tensors lie in the window. All members' have to lie at one offset, or all outside: the text that
/// members compare has it.
std::string in_window(const Link& link, const void* data) {
  const int64_t offset = static_cast<const char*>(data) - static_cast<const char*>(link.window.data);
  if (!link.window.data || offset < 0 || offset >= link.window.bytes) return "";
  return " at byte " + std::to_string(offset) + " of the window";
}

std::string describe(const Link& link, int64_t number) { return link.name + " number " + std::to_string(number); }

/// Waits for a part and takes it. Empty: it came.
std::string take(Link& link, const Part& part) {
  const fs::path path = folder() / part.path;
  const std::string& who = link.members[static_cast<size_t>(part.member)].who;
  for (int looks = 0; !fs::exists(path); ++looks) {
    if (link.aborted) return "aborted";
    if (looks % 100 == 99 && !is_alive(who) && !fs::exists(path))
      return "the process of member " + std::to_string(part.member) + " has ended";
    std::this_thread::sleep_for(std::chrono::microseconds(looks < 100 ? 50 : 500));
  }
  std::ifstream in(path, std::ios::binary);
  std::string text;
  std::getline(in, text);
  fs::remove(path);
  if (text != part.text)
    return "order of issue: between these ranks the next message is \"" + part.text + "\" here, and \"" + text +
           "\" on member " + std::to_string(part.member) + ": GPUs might wait for each other for ever";
  in.read(static_cast<char*>(part.data), part.bytes);
  return in.gcount() == part.bytes ? "" : "a message is shorter than " + std::to_string(part.bytes) + " bytes";
}

/// With TESSERA_SIMULATED_LENT=1 gathers and reductions, which are given slots, must lie in what was lent, if it took any.
void check_lent(Link& link, const std::vector<Part>& sent, const std::vector<Part>& received) {
  static const bool checks = std::getenv("TESSERA_SIMULATED_LENT") != nullptr;
  constexpr int64_t kGreeting = 16;
  if (!checks || link.lent.empty() || !(link.name.starts_with("gather:") || link.name.starts_with("reduce:"))) return;
  for (const auto* parts : {&sent, &received})
    for (const Part& part : *parts) {
      const auto has = [&](const Message& range) {
        const char* begin = static_cast<const char*>(memory().shadow_bytes(range.data, range.bytes));
        const auto* data = static_cast<const char*>(part.data);
        return begin <= data && data + part.bytes <= begin + range.bytes;
      };
      if (part.bytes > kGreeting && memory().shadow_contains(part.data) && std::ranges::none_of(link.lent, has))
        link.fail(link.name + " sends or receives " + std::to_string(part.bytes) + " bytes that it was not lent");
    }
}

/// What a message of the stand-in's own has lies in host memory.
void* bytes_at(const Message& m) { return memory().contains(m.data) ? memory().shadow_bytes(m.data, m.bytes) : m.data; }

/// What a rank sends and receives, numbered as it comes.
struct Parts {
  std::vector<Part> sent, received;
};
Parts parts_of(Link& link, const std::vector<Message>& out, const std::vector<Message>& in, const std::string& me,
               const std::string& more) {
  Parts parts;
  for (size_t i = 0; i < link.members.size(); ++i) {
    const Message o = i < out.size() ? out[i] : Message{}, n = i < in.size() ? in[i] : Message{};
    if (!o.bytes && !n.bytes) continue;
    Member& member = link.members[i];
    const int64_t number = member.messages++;
    std::string turn = link.id + "-" + std::to_string(number);
    if (!link.between_stages()) {
      const std::lock_guard lock(turns().mutex);
      turn = "turn-" + std::to_string(turns().count[{me, member.who}]++);
    }
    const auto part = [&](const Message& m, const std::string& from, const std::string& to) {
      return Part{static_cast<int>(i), bytes_at(m), m.bytes, from + "-" + to + "-" + turn,
                  describe(link, number) + " of " + std::to_string(m.bytes) + " bytes" + more};
    };
    if (o.bytes) parts.sent.push_back(part(o, me, member.who));
    if (n.bytes) parts.received.push_back(part(n, member.who, me));
  }
  return parts;
}

template <class Act>
void or_fail(Link& link, Act act) {
  try {
    act();
  } catch (const std::exception& error) {
    link.fail(error.what());
  }
}

void send(Link& link, const std::vector<Part>& sent) {
  or_fail(link, [&] {
    for (const Part& p : sent) write_whole(folder() / p.path, p.text, p.data, p.bytes);
  });
}

void take_all(Link& link, const std::vector<Part>& received, const std::function<void()>& then) {
  or_fail(link, [&] {
    for (const Part& p : received)
      if (const std::string why = take(link, p); !why.empty()) return link.fail(why);
    if (then) then();
  });
  --link.under_way;
}

/// Whether take_all() would wait for nobody.
bool has_arrived(const Link& link, const std::vector<Part>& received) {
  return link.aborted || std::ranges::all_of(received, [&](const Part& p) {
           return fs::exists(folder() / p.path) || !is_alive(link.members[static_cast<size_t>(p.member)].who);
         });
}

/// `then`: done by the stream behind the messages; `uses`: what it does with memory of the device. `more`: what members
/// compare beside numbers and sizes. As NCCL wants, a message is of a graph, or captured, for all of its members or for none.
void pass(Link& link, const std::vector<Message>& out, const std::vector<Message>& in, std::vector<Use> uses,
          std::function<void()> then, const std::string& more = "") {
  const std::string me = who_am_i();
  for (size_t i = 0; i < link.members.size(); ++i) {
    if (i < out.size() && out[i].bytes && memory().contains(out[i].data))
      uses.push_back(read(out[i].data, out[i].bytes));
    if (i < in.size() && in[i].bytes && memory().contains(in[i].data)) uses.push_back(written(in[i].data, in[i].bytes));
  }
  const bool captured = timeline().captures();
  const Parts parts = parts_of(link, out, in, me, more + (captured ? ", captured" : ""));
  ++link.under_way;
  check_lent(link, parts.sent, parts.received);
  timeline().run("message", uses,
                 [&link, parts, then] { send(link, parts.sent), take_all(link, parts.received, then); });
  if (!captured) return;
  const auto begun = std::make_shared<Parts>();
  timeline().repeated_by(
      [&link, out, in, me, more, begun] {
        ++link.under_way;
        *begun = parts_of(link, out, in, me, more + ", of a graph");
        send(link, begun->sent);
      },
      [&link, begun] { return has_arrived(link, begun->received); },
      [&link, begun, then] { take_all(link, std::exchange(*begun, {}).received, then); });
}

/// As NCCL, which tells a communicator's kernels to end and waits until its streams have done with them: they may stand behind
/// a message of another communicator, which goes on waiting for its peer unless it is of the same call.
void abort_all(const std::vector<Communicator>& communicators) {
  for (const Communicator communicator : communicators) link_of(communicator).aborted = true;
  for (const Communicator communicator : communicators)
    while (link_of(communicator).under_way > 0 && timeline().fault().empty())
      std::this_thread::sleep_for(std::chrono::microseconds(100));
}

/// NCCL connects two ranks at their first message, and takes memory for that: it was to be a greeting.
void connect_or_check(Link& link, const std::vector<Message>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].bytes == 1)
      link.greeted = link.members[i].greeted = true;
    else if (messages[i].bytes > 1 && link.greeted && !link.members[i].greeted)
      link.fail(link.name + " sends to or receives from member " + std::to_string(i) + ", which was not greeted");
  }
}

void exchange(Communicator communicator, const std::vector<Message>& out, const std::vector<Message>& in) {
  Link& link = link_of(communicator);
  connect_or_check(link, out), connect_or_check(link, in);
  pass(link, out, in, {}, {});
}

/// The same of the rings of collectives.
void connect_or_check_rings(Link& link, int64_t bytes) {
  if (bytes <= 16)
    link.greeted = link.rings = true;
  else if (link.greeted && !link.rings)
    link.fail(link.name + " has a collective of the library, and its rings were not greeted");
}

/// out [n] = the members' values [n], added from the last member to the first: an order that is not that of ranks. Member i
/// sends the others what `part_of` says of them.
void sum(Link& link, float* out, const float* in, int64_t n, const std::function<const float*(int)>& part_of) {
  const int members = static_cast<int>(link.members.size()), me = link.index;
  const auto parts =
      std::make_shared<std::vector<std::vector<float>>>(members, std::vector<float>(static_cast<size_t>(n)));
  const int64_t bytes = n * static_cast<int64_t>(sizeof(float));
  std::vector<Message> send(link.members.size()), receive(send);
  for (int i = 0; i < members; ++i)
    if (i != me) send[i] = {const_cast<float*>(part_of(i)), bytes}, receive[i] = {(*parts)[i].data(), bytes};
  pass(
      link, send, receive, {read(in, bytes), written(out, bytes)},
      [=, from = memory().shadow(in, n), to = memory().shadow(out, n)] {
        std::copy_n(from, n, (*parts)[me].data());
        for (int64_t v = 0; v < n; ++v) {
          float total = (*parts)[members - 1][v];
          for (int i = members - 2; i >= 0; --i) total += (*parts)[i][v];
          to[v] = total;
        }
      },
      in_window(link, in - (out == in ? 0 : me * n)) + in_window(link, out));
}

void reduce_scatter(Communicator communicator, float* out, const float* in, int64_t n) {
  Link& link = link_of(communicator);
  connect_or_check_rings(link, n * static_cast<int64_t>(sizeof(float)));
  sum(link, out, in + link.index * n, n, [&](int member) { return in + member * n; });
}

void all_reduce(Communicator communicator, float* values, int64_t n) {
  connect_or_check_rings(link_of(communicator), n * static_cast<int64_t>(sizeof(float)));
  sum(link_of(communicator), values, values, n, [&](int) { return values; });
}

void all_gather(Communicator communicator, void* out, const void* in, int64_t bytes) {
  Link& link = link_of(communicator);
  connect_or_check_rings(link, bytes);
  std::vector<Message> send(link.members.size()), receive(send);
  for (size_t i = 0; i < send.size(); ++i) {
    char* place = static_cast<char*>(out) + static_cast<int64_t>(i) * bytes;
    if (static_cast<int>(i) == link.index) {
      TORCH_CHECK(in == place, "the stand-in of NCCL gathers in place");
      continue;
    }
    send[i] = {const_cast<void*>(in), bytes}, receive[i] = {place, bytes};
  }
  pass(link, send, receive, {}, {}, in_window(link, out));
}

/// What the members of this process told the others. They lie there until the process ends: a member that has freed its
/// communicator may be looked for by one that is late.
struct Told {
  std::mutex mutex;
  std::vector<fs::path> files;
  void add(const fs::path& file) {
    const std::lock_guard lock(mutex);
    files.push_back(file);
  }
  ~Told() {
    std::error_code ignored;
    for (const fs::path& file : files) fs::remove(file, ignored);
  }
};
Told& told() {
  static Told once;
  return once;
}

/// As NCCL logs it. TESSERA_SIMULATED_WAY="NET/Socket/0" is another way than from GPU to GPU.
std::mutex log_mutex;
std::string log_text;
void write_log(int index, int size) {
  const char* wanted = std::getenv("TESSERA_SIMULATED_WAY");
  const std::lock_guard lock(log_mutex);
  for (int i = 0; i < size; ++i)
    if (i != index)
      log_text += "host:1:2 [0] NCCL INFO Channel 00/0 : " + std::to_string(index) + "[0] -> " + std::to_string(i) +
                  "[0] via " + (wanted ? wanted : "P2P/CUMEM") + "\n";
}

/// TESSERA_SIMULATED_NCCL_HAS_NO_MEMORY="a reason": it gives none.
void* take_block(int64_t bytes, std::string& why) {
  check_placed();
  if (const char* refused = std::getenv("TESSERA_SIMULATED_NCCL_HAS_NO_MEMORY")) {
    why = refused;
    return nullptr;
  }
  void* block = memory().take(bytes, current_device());
  if (!block) why = "the device is out of memory";
  return block;
}

/// What is lent must be memory of the device, and not its whole block: between machines NCCL registers every byte of it with
/// each network card.
bool lend(Communicator communicator, void* data, int64_t bytes) {
  Link& link = link_of(communicator);
  memory().shadow_bytes(data, bytes);
  const void* block = device::block().data;
  TORCH_CHECK(!memory().contains(block) || bytes < memory().bytes_of(block), link.name,
              " is lent the whole block of the device");
  if (std::getenv("TESSERA_SIMULATED_TAKES_NO_BLOCK")) return false;
  link.lent.push_back({data, bytes});
  return true;
}

/// As NCCL 2.28 does: members tell each other where in their blocks their windows begin, which is to be one place.
/// TESSERA_SIMULATED_REFUSES_WINDOW=1: member 1 is refused it, after the others have opened theirs.
std::optional<std::string> open_window(Communicator communicator, void* data, int64_t bytes) {
  Link& link = link_of(communicator);
  const char* refused = std::getenv("TESSERA_SIMULATED_REFUSES_WINDOW");
  if (!std::exchange(link.opening, true)) {
    TORCH_CHECK(!link.window.data, link.name, " opens a second window");
    const void* block = device::block().data ? device::block().data : link.lent[0].data;
    link.offsets.assign(link.members.size(), static_cast<char*>(data) - static_cast<const char*>(block));
    std::vector<Message> send(link.members.size()), receive(send);
    for (size_t i = 0; i < send.size(); ++i)
      if (static_cast<int>(i) != link.index)
        send[i] = {&link.offsets[static_cast<size_t>(link.index)], 8}, receive[i] = {&link.offsets[i], 8};
    link.told = false;
    pass(
        link, send, receive, {}, [&link] { link.told = true; }, " for a window of " + std::to_string(bytes) + " bytes");
  }
  {
    const std::lock_guard lock(link.mutex);
    if (!link.fault.empty()) return link.fault;
  }
  if (!link.told) return std::nullopt;
  for (const int64_t offset : link.offsets)
    if (offset != link.offsets[0])
      return "windows begin at " + std::to_string(offset) + " and " + std::to_string(link.offsets[0]);
  if (refused && std::to_string(link.index) == refused) return "the stand-in refuses windows";
  link.window = {data, bytes}, link.opening = false;
  return "";
}

void close_window(Communicator communicator) { link_of(communicator).window = {}; }

/// Members tell each other who they are. The host waits here, as it does in NCCL until all are connected.
Communicator connect(const std::string& id, int size, int index, int channels, const std::string& name) {
  check_placed();
  timeline().work_late(true);
  auto link = std::make_unique<Link>();
  link->id = id, link->name = name, link->index = index;
  const auto path = [&](int member) { return folder() / (id + "-member-" + std::to_string(member)); };
  write_whole(path(index), who_am_i(), nullptr, 0);
  told().add(path(index));
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int i = 0; i < size; ++i) {
    while (!fs::exists(path(i))) {
      TORCH_CHECK(std::chrono::steady_clock::now() < until, "member ", i, " of ", name, " did not connect");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::ifstream in(path(i));
    std::getline(in, link->members.emplace_back().who);
  }
  write_log(index, size);
  return link.release();
}

std::string fault(Communicator communicator) {
  Link& link = link_of(communicator);
  const std::lock_guard lock(link.mutex);
  return link.fault;
}

bool settled(Communicator communicator) {
  if (const std::string why = fault(communicator); !why.empty()) throw std::runtime_error(why);
  return true;
}

}  // namespace

void become_rank(const std::string& name) { thread_name = "." + name; }

const device::Communicators& stand_in_communicators() {
  static constexpr device::Communicators table = {
      .absence =
          [] {
            const char* without = std::getenv("TESSERA_SIMULATED_WITHOUT_NCCL");
            return std::string(without ? without : "");
          },
      .version = [] { return std::string("NCCL (a stand-in)"); },
      .new_id = random_text,
      .connect = connect,
      .told =
          [] {
            const std::lock_guard lock(log_mutex);
            return std::exchange(log_text, {});
          },
      .take = take_block,
      .give = [](void* data) { memory().give(data); },
      .lend = lend,
      .open_window = open_window,
      .close_window = close_window,
      .settled = settled,
      .fault = fault,
      .exchange = tessera::testing::exchange,
      .all_gather = all_gather,
      .reduce_scatter = reduce_scatter,
      .all_reduce = all_reduce,
      .abort_all = abort_all,
      .free =
          [](Communicator communicator) {
            link_of(communicator).aborted = true;
            timeline().await_all();                                   // what is queued still looks at it
            if (link_of(communicator).window.data) std::terminate();  // NCCL would leave the others' memory mapped
            delete &link_of(communicator);
          },
  };
  return table;
}

ProductsAsked& products_asked() {
  static ProductsAsked asked = [] {
    ProductsAsked made;
    if (const char* version = std::getenv("TESSERA_SIMULATED_PRODUCTS")) made.version = version;
    return made;
  }();
  return asked;
}

namespace {

constexpr uint64_t kAlgorithms = 8;

/// The matrix where a kernel has it.
at::Tensor matrix(const void* data, int64_t rows, int64_t cols, bool turned, int64_t stride, at::ScalarType type) {
  const int64_t lines = turned ? cols : rows, length = turned ? rows : cols;
  const auto bytes = ((lines - 1) * stride + length) * static_cast<int64_t>(c10::elementSize(type));
  const at::Tensor t =
      at::from_blob(memory().shadow_bytes(data, bytes), {lines, length}, {stride, 1}, at::TensorOptions(type));
  return turned ? t.t() : t;
}

std::vector<ops::ProductAlgorithm> algorithms_of(const ops::ProductCall& call, int most) {
  products_asked().most = most;
  std::vector<ops::ProductAlgorithm> all;
  for (uint64_t i = 1; i <= kAlgorithms; ++i)
    all.push_back({{i, static_cast<uint64_t>(call.shape.m), static_cast<uint64_t>(call.shape.n)}});
  return all;
}

/// As LibTorch's operators on a CPU.
std::string multiply(const ops::ProductCall& call, const ops::ProductAlgorithm& algorithm) {
  const ops::ProductShape& s = call.shape;
  const uint64_t index = algorithm.words[0];
  if (index == 0 || index > kAlgorithms || algorithm.words[1] != static_cast<uint64_t>(s.m) ||
      algorithm.words[2] != static_cast<uint64_t>(s.n))
    return "no algorithm of this product";
  if (products_asked().refused.contains(index)) return "not supported";
  products_asked().algorithms.push_back(index);
  const at::Tensor a = matrix(call.a, s.m, s.k, s.a_turned, s.a_stride, s.of),
                   b = matrix(call.b, s.k, s.n, s.b_turned, s.b_stride, s.of),
                   out = matrix(call.out, s.m, s.n, false, s.out_stride, s.to),
                   bias = call.bias ? matrix(call.bias, 1, s.n, false, s.n, s.to).select(0, 0) : at::Tensor();
  const auto use = [](const void* data, int64_t values, at::ScalarType type, bool writes) {
    return Use{data, values * static_cast<int64_t>(c10::elementSize(type)), writes};
  };
  timeline().run("mm",
                 {use(call.a, a.numel(), s.of, false), use(call.b, b.numel(), s.of, false),
                  use(call.out, out.numel(), s.to, true)},
                 [=, add = s.add, slow = index != products_asked().fastest] {
                   const at::AutoDispatchBelowADInplaceOrView below_autograd;
                   if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(3));
                   const bool wide = a.scalar_type() != out.scalar_type();
                   const at::Tensor x = wide ? a.to(at::kFloat) : a, y = wide ? b.to(at::kFloat) : b;
                   at::Tensor to = out;
                   if (bias.defined())
                     at::addmm_out(to, bias, x, y);
                   else
                     at::addmm_out(to, to, x, y, add ? 1 : 0);
                 });
  timeline().computes(2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k));
  return "";
}

}  // namespace

const device::ProductLibrary& stand_in_products() {
  static const device::ProductLibrary library = {[] { return products_asked().version; }, algorithms_of, multiply};
  return library;
}

}  // namespace tessera::testing
