// The rendezvous store: what it keeps, whom it admits, and that nobody else can hold it up.
#include "tessera/comm/store.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "folder_test.h"
#include "raw_port.h"
#include "tessera/base/check.h"
#include "tessera/base/mesh.h"
#include "tessera/comm/comm.h"
#include "tessera/comm/token.h"

namespace tessera::comm {
namespace {

using testing::RawConnection;
using testing::SilentPort;

const std::string kToken = "0123456789abcdef0123456789abcdef";

struct NotAdmitted {
  Exit code = Exit::done;
  std::string text;
};

NotAdmitted refusal_of(int port, const StoreAccess& access, double patience = 30) {
  try {
    StoreClient client("127.0.0.1", port, access, patience);
  } catch (const UserError& error) {
    return {error.code(), error.what()};
  }
  return {};
}

/// Established connections of this process that end at the port on this side; -1: at any.
int connections_at(int port) {
  std::set<std::string> own;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    own.insert(std::filesystem::read_symlink(fd, gone).string());
  }
  int count = 0;
  std::ifstream in("/proc/self/net/tcp");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    const std::vector<std::string> row(std::istream_iterator<std::string>(words), {});
    if (row.size() < 10 || row[3] != "01" || !own.contains("socket:[" + row[9] + "]")) continue;
    count += port < 0 || std::stoi(row[1].substr(row[1].find(':') + 1), nullptr, 16) == port;
  }
  return count;
}
int all_connections() { return connections_at(-1); }

TEST(RendezvousStore, KeepsAllWhileItPausesAndAnswersWhenItGoesOn) {
  HostedStore store("127.0.0.1", 0, kToken);
  StoreClient client("127.0.0.1", store.port(), {kToken}, 30);
  client.set("a", "x");
  for (int round = 0; round < 3; ++round) {
    store.pause();
    store.pause();
    std::atomic<bool> answered = false;
    std::thread other([&] {
      StoreClient late("127.0.0.1", store.port(), {kToken}, 30);
      EXPECT_EQ(late.get("a"), "x");
      answered = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_FALSE(answered);
    store.resume();
    other.join();
    EXPECT_TRUE(answered);
    EXPECT_EQ(client.get("a"), "x");
  }
  store.pause();  // it may end so
}

TEST(RendezvousStore, KeepsWhatIsSetUntilItIsErased) {
  const HostedStore store("127.0.0.1", 0, kToken);
  StoreClient one("127.0.0.1", store.port(), {kToken}, 30), two("127.0.0.1", store.port(), {kToken}, 30);
  EXPECT_FALSE(two.get("a"));
  one.set("a", std::string("x\0y", 3));
  EXPECT_EQ(two.get("a"), std::string("x\0y", 3));
  EXPECT_EQ(two.compare_set("a", "", "z"), std::string("x\0y", 3)) << "it is set";
  EXPECT_EQ(two.compare_set("b", "other", "z"), "other") << "it is not set, and nothing was expected of it";
  EXPECT_EQ(two.compare_set("b", "", "z"), "z");
  EXPECT_EQ(one.compare_set("b", "z", "w"), "w");
  EXPECT_EQ(one.add("n", 5), 5);
  EXPECT_EQ(two.add("n", -7), -2);
  EXPECT_TRUE(one.check({"a", "b"}));
  EXPECT_FALSE(one.check({"a", "c"}));
  EXPECT_EQ(one.count(), 3);
  EXPECT_TRUE(one.erase("a"));
  EXPECT_FALSE(one.erase("a"));
  EXPECT_EQ(two.count(), 2);
  const std::string large(5 << 20, 'l');
  one.set("large", large);
  EXPECT_EQ(two.get("large"), large);
}

TEST(RendezvousStore, AnswersWhoWaitsWhenTheLastKeyIsSet) {
  const HostedStore store("127.0.0.1", 0, kToken);
  StoreClient setter("127.0.0.1", store.port(), {kToken}, 30);
  std::atomic<int> done{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i)
    waiters.emplace_back([&] {
      StoreClient waiter("127.0.0.1", store.port(), {kToken}, 30);
      setter.add("ready", 1);
      waiter.wait({"a", "b", "c"}, 60);
      ++done;
    });
  while (setter.add("ready", 0) < 4) std::this_thread::yield();
  for (const char* key : {"c", "a"}) setter.set(key, "1");
  EXPECT_EQ(done, 0);
  setter.set("b", "1");
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(done, 4);
  StoreClient late("127.0.0.1", store.port(), {kToken}, 30);
  EXPECT_THROW(late.wait({"never"}, 0.3), StoreGone);
  EXPECT_THROW(late.get("a"), StoreGone) << "the answer to wait could be taken for that of get";
}

/// Each rank says that it is there, and asks whether all are: not whether each of the others is.
TEST(RendezvousStore, IsAskedAsOftenByARankHoweverManyThereAre) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  constexpr int kRanks = 128;
  const HostedStore host("127.0.0.1", 0, "");
  const Mesh mesh = Mesh::parse("dp_shard=" + std::to_string(kRanks));
  std::vector<std::unique_ptr<Comm>> comms(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      const Rendezvous place{.rank = rank,
                             .world = kRanks,
                             .local_rank = rank,
                             .local_world = kRanks,
                             .port = host.port(),
                             .store_is_hosted = true};
      comms[static_cast<size_t>(rank)] = std::make_unique<Comm>(place, mesh, 120);
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_LT(host.served(), 100 * kRanks) << "of which most are questions of those that wait for the others";
}

/// Each first rank of many machines is connected with those of its group of machines, and the first of these with each other.
TEST(RelayedGroups, OfManyMachinesTellAllRanksByFewConnections) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  constexpr int kEach = 2, kRanks = 19 * kEach;  // groups of five machines, the last of four
  const HostedStore host("127.0.0.1", 0, "");
  const Mesh mesh = Mesh::parse("dp_shard=" + std::to_string(kRanks));
  std::vector<std::unique_ptr<Comm>> comms(kRanks);
  std::vector<std::thread> ranks;
  std::atomic<int> wrong{0};
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      const Rendezvous place{.rank = rank,
                             .world = kRanks,
                             .local_rank = rank % kEach,
                             .local_world = kEach,
                             .port = host.port(),
                             .store_is_hosted = true};
      auto& comm = comms[static_cast<size_t>(rank)] = std::make_unique<Comm>(place, mesh, 120);
      Group& all = comm->group("control", {kAllAxes.begin(), kAllAxes.end()});
      for (const int values : {1, 3}) {
        const std::vector<double> mine(static_cast<size_t>(values), 0.5 + rank);
        const auto rows = all.all_gather_doubles(mine);
        for (int i = 0; i < kRanks; ++i)
          wrong += rows[static_cast<size_t>(i)] != std::vector<double>(static_cast<size_t>(values), 0.5 + i);
      }
      for (const int root : {0, 1, 11, 26, kRanks - 1}) {
        at::Tensor text = at::full({7}, rank, at::kFloat);
        all.broadcast(text, root);
        wrong += !at::equal(text, at::full({7}, root, at::kFloat));
      }
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(wrong, 0);
  // Three groups of five and one of four, and between the firsts of these: both ends are of this process.
  const int to_store = connections_at(host.port());
  EXPECT_LE(all_connections() - 2 * to_store, 2 * (3 * 10 + 6 + 6)) << "of 171 between each two machines";
}

TEST(RendezvousStore, AdmitsWhoKnowsTheTokenAndSaysWhyNotWithoutIt) {
  const HostedStore closed("127.0.0.1", 0, kToken), open("127.0.0.1", 0, "");
  const NotAdmitted wrong = refusal_of(closed.port(), {"another token of this length!"}),
                    none = refusal_of(closed.port(), {}), needless = refusal_of(open.port(), {kToken});
  for (const auto& [refusal, words] : {std::pair(wrong, "knows another token than this process has"),
                                       {none, "asks for a token, which this process does not have"},
                                       {needless, "asks for no token, and this process has one"}}) {
    EXPECT_EQ(refusal.code, Exit::usage);
    EXPECT_NE(refusal.text.find(words), std::string::npos) << refusal.text;
    EXPECT_NE(refusal.text.find("TESSERA_TOKEN"), std::string::npos) << refusal.text;
    EXPECT_EQ(refusal.text.find(kToken.substr(0, 8)), std::string::npos) << "a token is printed";
    EXPECT_EQ(refusal.text.find("another token of"), std::string::npos) << "a token is printed";
  }
  EXPECT_EQ(refusal_of(open.port(), {}).text, "");
}

TEST(RendezvousStore, IsNotFooledByAHostThatDoesNotKnowTheToken) {
  const SilentPort port;
  std::thread impostor([&] {
    const int fd = port.accept();
    const std::string hello = std::string(wire::kMagic) + '\1' + wire::nonce();
    ::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL);
    char proof[wire::kProof];
    ::recv(fd, proof, sizeof proof, MSG_WAITALL);
    const std::string answer = '\1' + std::string(bytes_of(sha256("no proof")));
    ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
    ::recv(fd, proof, sizeof proof, 0);
    ::close(fd);
  });
  const NotAdmitted refusal = refusal_of(port.port(), {kToken});
  impostor.join();
  EXPECT_EQ(refusal.code, Exit::usage);
  EXPECT_NE(refusal.text.find("does not know the token of this process"), std::string::npos) << refusal.text;
}

std::string proof_for(const std::string& hello, const std::string& token) {
  const std::string mine = wire::nonce();
  const Digest proof = wire::proof(token, wire::End::client, hello.substr(wire::kMagic.size() + 1), mine);
  return std::string(wire::kMagic) + mine + std::string(bytes_of(proof));
}

TEST(RendezvousStore, ClosesOnStrangersAndServesTheOthers) {
  const HostedStore store("127.0.0.1", 0, kToken);
  StoreClient client("127.0.0.1", store.port(), {kToken}, 30);
  std::string overheard;  // the proof of another connection
  {
    const RawConnection admitted(store.port());
    overheard = proof_for(admitted.read(wire::kHello), kToken);
    admitted.send(overheard);
    EXPECT_EQ(admitted.read(wire::kAnswer).substr(0, 1), "\1");
  }
  const std::string request = wire::frame(wire::Op::set, {"launch/0/fault",
                                                          "5\x1f"
                                                          "mine"});
  for (const std::string& junk : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\0'),
                                  std::string("\0\x3c\x85\xf7\x3c\1\4done", 11), request, overheard,
                                  std::string(wire::kMagic) + std::string(64, 'p'), overheard + request}) {
    const RawConnection stranger(store.port());
    EXPECT_EQ(stranger.read(wire::kHello).size(), wire::kHello);
    stranger.send(junk);
    EXPECT_TRUE(stranger.closed()) << "it still listens to " << junk.size() << " bytes";
    client.set("still", "here");
  }
  EXPECT_EQ(client.count(), 1) << "a stranger set a key";
}

TEST(RendezvousStore, ServesWhileStrangersCrowdItsDoorAndSayNothing) {
  const HostedStore store("127.0.0.1", 0, kToken);
  std::vector<RawConnection> silent;
  for (int i = 0; i < 200; ++i) silent.emplace_back(store.port());
  for (size_t i = 0; i < silent.size(); i += 2) silent[i].send(std::string(wire::kMagic.substr(0, 5)));
  StoreClient client("127.0.0.1", store.port(), {kToken}, 60);
  for (int i = 0; i < 200; ++i) client.set(std::to_string(i), "x");
  EXPECT_EQ(client.count(), 200);
  EXPECT_TRUE(silent.front().closed()) << "a connection that says nothing is held for ever";
}

TEST(RendezvousStore, DropsWhoSpeaksItsWordsWrongly) {
  const HostedStore store("127.0.0.1", 0, "");  // whoever speaks them is admitted
  StoreClient client("127.0.0.1", store.port(), {}, 30);
  const auto sized = [](uint32_t size, const std::string& body) {
    return std::string(reinterpret_cast<const char*>(&size), 4) + body;
  };
  for (const std::string& wrong :
       {sized(0, ""), sized(0xffffffff, "x"), sized(2, std::string("\0\1", 2)),
        sized(6, std::string("\0\xff\xff\xff\x7fx", 6)), sized(1, "\x7f"), sized(1, std::string("\0", 1)),
        wire::frame(wire::Op::wait, {"never"}) + wire::frame(wire::Op::count, {}),
        wire::frame(wire::Op::add, {"n", "9223372036854775807"}) + wire::frame(wire::Op::add, {"n", "1"})}) {
    const RawConnection stranger(store.port());
    stranger.send(proof_for(stranger.read(wire::kHello), ""));
    EXPECT_EQ(stranger.read(wire::kAnswer).size(), wire::kAnswer);
    stranger.send(wrong);
    EXPECT_TRUE(stranger.closed()) << "after " << ::testing::PrintToString(wrong);
    client.set("still", "here");
  }
}

class RelayTest : public ::testing::Test {
 protected:
  std::unique_ptr<StoreRelay> relay() const {
    return StoreRelay::open("127.0.0.1", host->port(), {kToken}, 30, StoreRelay::own_name());
  }
  std::unique_ptr<StoreClient> client(const StoreRelay& by, const std::string& token = kToken) const {
    return std::make_unique<StoreClient>("127.0.0.1", host->port(), StoreAccess{.token = token, .relay = by.name()},
                                         30);
  }
  std::unique_ptr<HostedStore> host = std::make_unique<HostedStore>("127.0.0.1", 0, kToken);
};

TEST_F(RelayTest, OfAMachineHasOneConnectionForAllThatItServes) {
  const auto one = relay(), two = relay();
  std::vector<std::unique_ptr<StoreClient>> clients;
  for (int i = 0; i < 40; ++i) clients.push_back(client(i % 2 ? *one : *two));
  for (int i = 0; i < 40; ++i) clients[static_cast<size_t>(i)]->set("rank " + std::to_string(i), std::to_string(i));
  for (int i = 0; i < 40; ++i) EXPECT_EQ(clients[0]->get("rank " + std::to_string(i)), std::to_string(i));
  EXPECT_EQ(connections_at(host->port()), 2);
  EXPECT_FALSE(clients[0]->get("none"));
  EXPECT_EQ(clients[1]->compare_set("rank 3", "3", "other"), "other");
  EXPECT_EQ(clients[2]->compare_set("rank 3", "3", "third"), "other");
  EXPECT_EQ(clients[1]->add("n", 2) + clients[2]->add("n", 3), 7);
  EXPECT_TRUE(clients[3]->check({"rank 0", "n"}));
  EXPECT_TRUE(clients[3]->erase("n"));
  EXPECT_EQ(clients[4]->count(), 40);
  const std::string large(5 << 20, 'l'), largest(wire::kLargestFrame - 64, 'L');
  for (const std::string& text : {large, largest}) {
    clients[5]->set("large", text);
    EXPECT_EQ(clients[6]->get("large"), text);
  }
  EXPECT_EQ(clients[7]->another(30)->get("rank 7"), "7");
}

TEST_F(RelayTest, LetsSomeWaitWhileItServesTheOthers) {
  const auto by = relay();
  std::atomic<int> done{0};
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i)
    waiters.emplace_back([&, i] {
      client(*by)->wait({"a", "b" + std::to_string(i)}, 60);
      ++done;
    });
  {
    const auto leaves = client(*by);  // while the store has it among those that wait
    EXPECT_THROW(leaves->wait({"never"}, 0.2), StoreGone);
  }
  const auto setter = client(*by);
  for (const char* key : {"never", "b3", "b2", "b1", "b0"}) setter->set(key, "1");
  EXPECT_EQ(done, 0);
  setter->set("a", "1");
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(done, 4);
  by->pause();
  std::atomic<bool> answered = false;
  std::thread late([&] {
    EXPECT_EQ(client(*by)->get("a"), "1");
    answered = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(answered);
  by->resume();
  late.join();
}

TEST_F(RelayTest, ClosesOnWhoSpeaksWronglyAloneAndKnowsTheToken) {
  const auto by = relay();
  const auto good = client(*by);
  EXPECT_THROW(client(*by, "another token of as many characters"), UserError);
  const auto admitted = [&] {
    StoreClient stranger("127.0.0.1", host->port(), {.token = kToken, .relay = by->name()}, 30);
    return stranger.release();
  };
  for (const std::string& wrong : {std::string("\0\0\0\0", 4), wire::frame(127, {}), wire::frame(wire::Op::set, {"a"}),
                                   wire::frame(wire::Op::relayed, {"1", "x"}), wire::frame(wire::Op::left, {"1"}),
                                   wire::frame(wire::Op::wait, {"never"}) + wire::frame(wire::Op::count, {})}) {
    const int fd = admitted();
    ASSERT_EQ(::send(fd, wrong.data(), wrong.size(), MSG_NOSIGNAL), static_cast<ssize_t>(wrong.size()));
    pollfd waiting{fd, POLLIN, 0};
    char byte = 0;
    EXPECT_EQ(poll(&waiting, 1, 20'000), 1) << ::testing::PrintToString(wrong);
    EXPECT_LE(::recv(fd, &byte, 1, MSG_DONTWAIT), 0) << "it is answered: " << ::testing::PrintToString(wrong);
    ::close(fd);
    good->set("still", "here");
  }
  EXPECT_EQ(good->count(), 1);
}

TEST_F(RelayTest, EndsItsConnectionsWhenTheStoreDoes) {
  const auto by = relay();
  const auto client = this->client(*by);
  client->set("a", "1");
  StoreLink link("127.0.0.1", host->port(), {.token = kToken, .relay = by->name()}, 30);
  std::thread waiter([&] { EXPECT_THROW(client->wait({"never"}, 60), StoreGone); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int port = host->port();
  host.reset();
  waiter.join();
  try {
    link.set("beat/1", "1");
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("the rendezvous endpoint 127.0.0.1:" + std::to_string(port) + " is gone"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(StoreClient("127.0.0.1", port, {.token = kToken, .relay = by->name()}, 1), UserError);
}

TEST_F(RelayTest, OfANameThatIsTakenIsNone) {
  const auto by = relay();
  EXPECT_EQ(StoreRelay::open("127.0.0.1", host->port(), {kToken}, 30, by->name()), nullptr);
  EXPECT_EQ(connections_at(host->port()), 1);
}

/// As srun and mpirun start them: machines that are one here share a relay.
TEST_F(RelayTest, IsThatOfTheFirstRankWhereNoLauncherIs) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  constexpr int kRanks = 6, kEach = 3;
  const int port = host->port();
  host.reset();
  const Mesh mesh = Mesh::parse("dp_shard=" + std::to_string(kRanks));
  std::vector<std::unique_ptr<Comm>> comms(kRanks);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      const Rendezvous place{
          .rank = rank, .world = kRanks, .local_rank = rank % kEach, .local_world = kEach, .port = port};
      comms[static_cast<size_t>(rank)] = std::make_unique<Comm>(place, mesh, 60);
      comms[static_cast<size_t>(rank)]->barrier();
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(connections_at(port), 1);
}

TEST(RendezvousStore, APortThatAcceptsAndStaysSilentIsNamed) {
  const SilentPort port;
  const NotAdmitted refusal = refusal_of(port.port(), {kToken}, 1);
  EXPECT_EQ(refusal.code, Exit::rank_lost);
  EXPECT_NE(refusal.text.find("127.0.0.1:" + std::to_string(port.port()) +
                              " accepts connections but does not answer as a run does, within 1 s (no answer within"),
            std::string::npos)
      << refusal.text;
}

TEST(RendezvousStore, ACallEndsWhenTheHostFallsSilentOrEnds) {
  const SilentPort port;
  std::vector<int> accepted;
  std::thread host([&] {
    const int fd = port.accept();
    const std::string hello = std::string(wire::kMagic) + '\0' + wire::nonce();
    ::send(fd, hello.data(), hello.size(), MSG_NOSIGNAL);
    char proof[wire::kProof];
    ::recv(fd, proof, sizeof proof, MSG_WAITALL);
    const std::string_view given(proof + wire::kMagic.size(), wire::kNonce);
    const Digest mine =
        wire::proof("", wire::End::server, std::string_view(hello).substr(wire::kMagic.size() + 1), given);
    const std::string answer = '\1' + std::string(bytes_of(mine));
    ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
    accepted.push_back(fd);
  });
  StoreLink link("127.0.0.1", port.port(), {}, 0.5);
  host.join();
  int looked = 0;
  link.meanwhile([&] { ++looked; });
  try {
    link.set("beat/1", "1");
    ADD_FAILURE() << "nobody answered";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), Exit::rank_lost);
    EXPECT_NE(std::string(error.what()).find("cannot be reached (no answer within"), std::string::npos) << error.what();
  }
  EXPECT_GT(looked, 0) << "the launcher looks after its ranks meanwhile";
  ::close(accepted.at(0));

  auto store = std::make_unique<HostedStore>("127.0.0.1", 0, kToken);
  StoreClient client("127.0.0.1", store->port(), {kToken}, 30);
  store.reset();
  EXPECT_THROW(client.get("a"), StoreGone);
}

class TokenTest : public FolderTest {};

TEST_F(TokenTest, OfAFolderIsMadeOnceForItsOwnerAlone) {
  EXPECT_EQ(read_token(folder_ / "run"), "");
  const std::string token = make_token(folder_ / "run");
  EXPECT_EQ(token.size(), 64u);
  EXPECT_EQ(make_token(folder_ / "run"), token);
  EXPECT_EQ(read_token(folder_ / "run"), token);
  EXPECT_NE(make_token(folder_ / "other"), token);
  struct stat status {};
  ASSERT_EQ(stat((folder_ / "run/.token").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_ / "run"), {}), 1) << "something is left over";
}

TEST_F(TokenTest, ThatOthersCouldHaveReadIsNone) {
  const auto file = folder_ / "run/.token";
  make_token(folder_ / "run");
  chmod(file.c_str(), 0640);
  EXPECT_EQ(read_token(folder_ / "run"), "");
  std::filesystem::remove(file);
  std::ofstream(folder_ / "elsewhere") << kToken << "\n";
  chmod((folder_ / "elsewhere").c_str(), 0600);
  std::filesystem::create_symlink(folder_ / "elsewhere", file);
  EXPECT_EQ(read_token(folder_ / "run"), "");
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  EXPECT_EQ(read_token(folder_ / "run"), "") << "and nothing waits for a pipe";
}

TEST_F(TokenTest, OpensTheStoreAsSoonAsItIsInTheFolder) {
  const std::string token = make_token(folder_ / "run");
  std::filesystem::rename(folder_ / "run/.token", folder_ / "hidden");
  const HostedStore store("127.0.0.1", 0, token);
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    std::filesystem::rename(folder_ / "hidden", folder_ / "run/.token");
  });
  StoreClient client("127.0.0.1", store.port(), {"", folder_ / "run"}, 60);
  late.join();
  EXPECT_EQ(client.token(), token);
}

TEST(Token, OfTheEnvironmentIsNotShort) {
  setenv(kTokenVariable, "secret", 1);
  EXPECT_THROW(token_from_env(), UserError);
  setenv(kTokenVariable, kToken.c_str(), 1);
  EXPECT_EQ(token_from_env(), kToken);
  unsetenv(kTokenVariable);
  EXPECT_EQ(token_from_env(), "");
  EXPECT_NE(random_token(), random_token());
}

TEST(Token, LiesInTheFolderWhereAllSeeIt) {
  EXPECT_TRUE(shared_between_nodes("/proc", "127.0.0.1"));
  EXPECT_TRUE(shared_between_nodes("/proc", "localhost"));
  EXPECT_FALSE(shared_between_nodes("/proc/no/such/folder", "10.0.0.1"));
}

}  // namespace
}  // namespace tessera::comm
