#include <muster/comm/bootstrap/tcp_store.hpp>

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include <muster/comm/bootstrap/stores/tcp/store_client.hpp>
#include <muster/comm/bootstrap/stores/tcp/store_protocol.hpp>
#include <muster/comm/net/handshake.hpp>
#include <muster/comm/net/socket.hpp>
#include "catch.hpp"
#include "comm/net/exactly.hpp"
#include "dying.hpp"
#include "places.hpp"
#include "worker.hpp"

using muster::deadline_after;
using muster::seconds;
using muster::store_server;
using muster::tcp_store;
using muster::detail::address;
using muster::detail::tcp_socket;
using places::soon;

namespace {

auto in_a_moment() { return deadline_after(seconds(0.1)); }

/// Returns an unauthenticated connection to the server.
tcp_socket stranger_at(const std::string& where) { return tcp_socket::connect(address::parse(where), soon()); }
tcp_socket stranger_at(const store_server& server) { return stranger_at(server.address()); }

/// Returns a connection that has proved that it knows the token.
tcp_socket guest_at(const std::string& where, const std::string& token) {
  using namespace muster::detail;
  auto socket = stranger_at(where);
  auto exchange = handshake::connect(store_secret(token), {store_client_name, store_server_name, 0});
  exchange.conclude(socket, soon());
  if (exchange.current_state() != handshake::state::done)
    throw std::runtime_error("the server does not take the proof");
  return socket;
}

tcp_socket guest_at(const store_server& server, const std::string& token) { return guest_at(server.address(), token); }

void write(const tcp_socket& socket, const std::string& text) {
  test::write_exactly(socket, std::as_bytes(std::span(text)), soon());
}

/// Returns true if the peer ends the connection in time.
bool ends(const tcp_socket& socket) {
  std::array<std::byte, 4096> buffer;
  try {
    for (;;) {
      if (!muster::detail::wait_for(socket.file(), POLLIN, soon())) return false;
      (void)socket.read_some(buffer);
    }
  } catch (const muster::detail::socket_error& failed) {
    return failed.closed();
  }
}

/// Waits until the server's counts satisfy the condition.
template <class Holds>
bool becomes_true(Holds&& holds) {
  for (const auto until = soon(); muster::clock::now() < until;) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

/// Returns true if the server serves a regular client at once.
bool serves(const store_server& server, const std::string& token) {
  tcp_store store(server.address(), token, soon());
  const auto entry = store.get("check", soon());
  return store.compare_and_swap("check", entry.version, "x", soon()).swapped;
}

}  // namespace

TEST_CASE("all calls fail as soon as the server ends, those under way too") {
  auto server = std::make_unique<store_server>("127.0.0.1:0", "t");
  tcp_store store(server->address(), "t", soon());
  std::atomic<int> reported = 0;
  std::vector<std::jthread> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.emplace_back([&] {
      try {
        (void)store.watch("key", 0, soon());
      } catch (const muster::peer_failure& lost) {
        if (std::string(lost.what()).find("the store " + store.where() + " is lost (") == 0) ++reported;
      }
    });
  }
  (void)store.get("key", soon());
  server.reset();
  waiting.clear();
  CHECK(reported == 4);
  CHECK_THROWS_AS(store.get("key", soon()), muster::peer_failure);
  CHECK_THROWS_AS(store.compare_and_swap("key", 0, "x", soon()), muster::peer_failure);
  CHECK_THROWS_AS(store.watch("key", 0, soon()), muster::peer_failure);
}

TEST_CASE("a server that is started again with its folder goes on where the last one was", "[kept]") {
  std::string name = (std::filesystem::temp_directory_path() / "muster-kept-XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(name.data());
  std::optional<store_server> server(std::in_place, "127.0.0.1:0", "t", folder / "data");
  const auto where = server->address();
  tcp_store lasting(where, "t", soon(), nullptr, muster::when_lost::connect_again);
  auto draw = muster::random_stream(20261124, 1);
  std::map<std::string, muster::store_entry> expected;
  std::uint64_t last = 0;
  for (int round = 0; round < 6; ++round) {
    tcp_store other(where, "t", soon());
    for (int i = 0; i < 40; ++i) {
      const std::string key = "key " + std::to_string(draw.below(10));
      const auto entry = lasting.get(key, soon());
      CHECK(entry == expected[key]);
      const std::string value(draw.below(3000), static_cast<char>('a' + draw.below(26)));
      if (draw.below(4) == 0) {
        CHECK(lasting.compare_and_swap(key, entry.version, std::nullopt, soon()).swapped);
        expected[key] = {};
        continue;
      }
      const auto swapped = lasting.compare_and_swap(key, entry.version, value, soon());
      REQUIRE(swapped.swapped);
      CHECK(swapped.now.version > last);
      last = swapped.now.version;
      expected[key] = {last, value};
    }
    const auto held = other.compare_and_swap("held", 0, "of a client", soon(), muster::store_life::of_client);
    REQUIRE(held.swapped);
    last = held.now.version;
    CHECK_THROWS_WITH(store_server("127.0.0.1:0", "t", folder / "data"), contains("another process has it open"));
    server.reset();
    // Appends a record that was not written completely.
    if (round % 2 == 1) std::ofstream(folder / "data" / "store", std::ios::app) << "half a record";
    server.emplace(where, "t", folder / "data");
    CHECK_THROWS_AS(other.get("held", soon()), muster::peer_failure);
    // A call under way when the connection ends fails once.
    std::optional<muster::store_entry> held_now;
    for (int attempt = 0; attempt < 2 && !held_now; ++attempt) {
      try {
        held_now = lasting.get("held", soon());
      } catch (const muster::peer_failure&) {
      }
    }
    REQUIRE(held_now);
    CHECK_FALSE(*held_now);
  }
  for (const auto& [key, value] : expected) CHECK(lasting.get(key, soon()) == value);
  server.reset();
  std::ofstream(folder / "data" / "store") << "of something else";
  CHECK_THROWS_WITH(store_server("127.0.0.1:0", "t", folder / "data"), contains("cannot be kept in"));
  std::filesystem::remove_all(folder);
}

TEST_CASE("a journal with any bit wrong is refused, and one cut anywhere uses no version twice", "[kept]") {
  std::string name = (std::filesystem::temp_directory_path() / "muster-kept-XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(name.data());
  std::uint64_t last = 0;
  {
    store_server server("127.0.0.1:0", "t", folder);
    tcp_store store(server.address(), "t", soon(), nullptr, muster::when_lost::connect_again);
    for (int i = 1; i <= 10; ++i)
      last = store.compare_and_swap("record", last, "generation " + std::to_string(i), soon()).now.version;
  }
  const auto path = folder / "store";
  std::ifstream file(path, std::ios::binary);
  const std::string journal{std::istreambuf_iterator<char>(file), {}};
  const auto start_with = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
    return std::make_unique<store_server>("127.0.0.1:0", "t", folder);
  };
  for (std::size_t at = 0; at < journal.size(); at += 5) {
    CAPTURE(at);
    std::string damaged = journal;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    CHECK_THROWS_AS(start_with(damaged), muster::error);
  }
  CHECK_THROWS_WITH(start_with("muster-store 1\n" + journal.substr(16)),
                    contains(path.string()) && contains("is damaged"));
  CHECK_THROWS_AS(start_with(""), muster::configuration_error);
  for (std::size_t size = 15; size <= journal.size(); size += 23) {
    CAPTURE(size);
    const auto server = start_with(journal.substr(0, size));
    tcp_store store(server->address(), "t", soon());
    // Its clients are notified that the table is another.
    if (!store.get(muster::detail::store_identity_key, soon())) continue;
    const auto entry = store.get("record", soon());
    const auto written = store.compare_and_swap("record", entry.version, "new", soon());
    CHECK((written.swapped && written.now.version > last));
  }
  std::filesystem::remove_all(folder);
}

namespace {

/// Returns a client that opens the store and writes "record", by messages of the protocol.
tcp_socket opened_at(const std::string& where, const std::string& name) {
  using namespace muster::detail;
  auto guest = guest_at(where, "t");
  std::string words;
  append_frame(words, store_request{.call = store_call::open, .id = 1, .version = 1000, .value = name});
  append_frame(words, store_request{.call = store_call::swap, .id = 2, .key = "record", .value = "of a job"});
  write(guest, words);
  tcp_store observer(where, "t", soon());  // has no part in the table
  REQUIRE(becomes_true([&] { return static_cast<bool>(observer.get("record", soon())); }));
  return guest;
}

/// Returns the record that a new client finds.
std::string record_at(const store_server& server, double patience) {
  tcp_store begins(server.address(), "t", deadline_after(seconds(patience)), nullptr, muster::when_lost::connect_again);
  return begins.get("record", soon()).value;
}

}  // namespace

TEST_CASE("a store is cleared when its clients have closed it or ended, and not when connections end") {
  using namespace muster::detail;
  store_server server("127.0.0.1:0", "t");
  {
    auto guest = opened_at(server.address(), store_client_identity());
    const linger reset{1, 0};
    if (GENERATE(true, false)) ::setsockopt(guest.file(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  }
  CHECK(record_at(server, 0.4) == "of a job");

  store_server closed("127.0.0.1:0", "t");
  {
    const auto guest = opened_at(closed.address(), store_client_identity());
    std::string farewell;
    append_frame(farewell, store_request{.call = store_call::leave});
    write(guest, farewell);
  }
  CHECK(record_at(closed, 60).empty());

  store_server left("127.0.0.1:0", "t");
  const pid_t child = ::fork();
  if (child == 0) ::pause();
  std::string of_child = store_client_identity();
  {
    std::istringstream words(of_child);
    std::string space;
    words >> space;
    std::ifstream status("/proc/" + std::to_string(child) + "/stat");
    std::string word;
    for (int i = 0; i < 22; ++i) status >> word;
    of_child = space + " " + std::to_string(child) + " " + word + " of the child";
  }
  { const auto guest = opened_at(left.address(), of_child); }
  CHECK(record_at(left, 0.4) == "of a job");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);

  store_server ended("127.0.0.1:0", "t");
  { const auto guest = opened_at(ended.address(), of_child); }
  CHECK(record_at(ended, 60).empty());
}

TEST_CASE(
    "a client that closes the store does so at once for the next one, and clients that begin together share one "
    "table") {
  store_server server("127.0.0.1:0", "t");
  for (int round = 0; round < 3; ++round) {
    std::vector<std::future<bool>> all;
    for (int i = 0; i < 4; ++i) {
      all.push_back(std::async(std::launch::async, [&] {
        tcp_store store(server.address(), "t", soon(), nullptr, muster::when_lost::connect_again);
        const bool is_first = store.compare_and_swap("first", 0, "x", soon()).swapped;
        const auto count = [&] { return store.get("count", soon()); };
        for (auto entry = count(); !store.compare_and_swap("count", entry.version, entry.value + "x", soon()).swapped;)
          entry = count();
        for (auto entry = count(); entry.value.size() < 4;) entry = store.watch("count", entry.version, soon()).value();
        return is_first;
      }));
    }
    CHECK(std::ranges::count_if(all, [](auto& store) { return store.get(); }) == 1);
  }
}

TEST_CASE("a server that was stopped takes no client for gone whose connection ended meanwhile") {
  std::string where;
  { where = store_server("127.0.0.1:0", "t").address(); }
  places::place served("tcp");
  served.words = {"tcp", where, "t"};
  places::worker server(served, {"serve"});
  (void)tcp_store(where, "t", soon()).get("anything", soon());  // it serves
  {
    const auto guest = opened_at(where, muster::detail::store_client_identity());
    server.stop();
  }  // as a client that receives nothing for 20 s
  auto begins = std::async(std::launch::async, [&] {
    tcp_store store(where, "t", deadline_after(seconds(1)), nullptr, muster::when_lost::connect_again);
    return store.get("record", soon()).value;
  });
  server.send(SIGCONT);
  CHECK(begins.get() == "of a job");
}

TEST_CASE("jobs with different names that open one store do not meet in it") {
  const store_server server("127.0.0.1:0", "t");
  muster::launch_env launch;
  launch.kind = muster::launch_env::launcher::generic;
  launch.rank = 1;
  launch.size = 2;
  const auto open = [&](std::string job) {
    std::vector<std::string> words{"program", "--rendezvous", "tcp://" + server.address(), "--token", "t"};
    if (!job.empty()) words.insert(words.end(), {"--job", std::move(job)});
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int count = static_cast<int>(words.size());
    return muster::open_store(muster::settings(count, arguments.data()), launch);
  };
  const auto first = open("first"), again = open("first"), second = open("second"), unnamed = open("");
  REQUIRE(first->compare_and_swap("tcp/0", 0, "of the first", soon()).swapped);
  CHECK(again->get("tcp/0", soon()).value == "of the first");
  CHECK(again->watch("tcp/0", 0, soon())->value == "of the first");
  CHECK(second->compare_and_swap("tcp/0", 0, "of the second", soon()).swapped);
  CHECK(unnamed->compare_and_swap("tcp/0", 0, "of none", soon()).swapped);
  CHECK(first->get("tcp/0", soon()).value == "of the first");
}

TEST_CASE("a client that connects again finds that the server has lost its values", "[kept]") {
  std::optional<store_server> server(std::in_place, "127.0.0.1:0", "t");
  const auto where = server->address();
  tcp_store store(where, "t", soon(), nullptr, muster::when_lost::connect_again);
  REQUIRE(store.compare_and_swap("key", 0, "value", soon()).swapped);
  server.reset();
  CHECK_THROWS_AS(store.get("key", in_a_moment()), muster::error);
  CHECK_THROWS_AS(store.get("key", in_a_moment()), muster::timeout_error);
  server.emplace(where, "t");
  CHECK_THROWS_AS(store.get("key", soon()), muster::store_left_behind);
  CHECK_THROWS_AS(store.compare_and_swap("key", 0, "x", soon()), muster::store_left_behind);
}

TEST_CASE("a store opens as soon as a server listens, and not at all where none does") {
  std::string where;
  { where = store_server("127.0.0.1:0", "t").address(); }
  CHECK_THROWS_AS(tcp_store(where, "t", in_a_moment()), muster::timeout_error);
  CHECK_THROWS_WITH(tcp_store(where, "t", in_a_moment()),
                    contains("no store at tcp://" + where + " answered in time ("));
  std::unique_ptr<store_server> server;
  std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    server = std::make_unique<store_server>(where, "t");
  });
  tcp_store store("127.0.0.1:1," + where, "t", soon());
  CHECK_FALSE(store.get("key", soon()));
  later.join();
  CHECK_THROWS_AS(store_server(where, "t"), muster::store_address_taken);
  CHECK_THROWS_AS(store_server("203.0.113.1:0", "t"), muster::configuration_error);
  CHECK_THROWS_AS(store_server("localhost:0", "t"), muster::configuration_error);
  CHECK_THROWS_AS(tcp_store("no-such-host.invalid:1", "t", in_a_moment()), muster::configuration_error);
}

TEST_CASE("a client that does not know the token is told, dropped and counted") {
  const store_server server("127.0.0.1:0", "a secret");
  for (const std::string token : {"", "a secre", "another", "a secret "}) {
    CAPTURE(token);
    CHECK_THROWS_MATCHES(tcp_store(server.address(), token, soon()), muster::configuration_error,
                         Catch::Message("the server at tcp://" + server.address() +
                                        " does not have this job's token (it serves the store of another job, or is "
                                        "not a store of muster); give all ranks the same MUSTER_TOKEN, or choose "
                                        "another port"));
  }
  CHECK(serves(server, "a secret"));
  constexpr int tries = 4 * muster::detail::max_rejections;
  CHECK(becomes_true([&] { return server.connection_counts().unauthenticated >= tries; }));
  CHECK(server.connection_counts().served == 1);
  CHECK(server.connection_counts().offenders == 0);
}

TEST_CASE("a client of a server that died is not of another job, and finds the next server at its address") {
  // The server may close several connections: a server that waits for a processor closes unfinished handshakes.
  const int clients = GENERATE(1, 5);
  const char* const token = GENERATE(static_cast<const char*>(nullptr), "a secret");
  CAPTURE(clients, token != nullptr);
  const dying_server first(clients, token);
  auto opened = std::async(std::launch::async, [&] {
    return tcp_store(first.where(), "a secret", soon(), nullptr, muster::when_lost::connect_again);
  });
  std::optional<store_server> next;
  REQUIRE(becomes_true([&] {
    try {
      next.emplace(first.where(), "a secret");
    } catch (const muster::store_address_taken&) {
    }
    return next.has_value();
  }));
  CHECK_FALSE(opened.get().get("key", soon()));
}

TEST_CASE("connections that send garbage, leave or are silent hold up no client") {
  const auto seed = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  CAPTURE(seed);
  muster::random_stream random(seed);
  const store_server server("127.0.0.1:0", "t");
  std::vector<tcp_socket> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(stranger_at(server));
  CHECK(serves(server, "t"));
  for (int i = 0; i < 50; ++i) {
    std::string garbage(1 + random.below(3000), '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    auto connection = stranger_at(server);
    try {
      write(connection, garbage);
      if (i % 2 == 0 && garbage.size() > 100) CHECK(ends(connection));
    } catch (const muster::detail::socket_error& failed) {
      CHECK(failed.closed());
    }
  }
  CHECK(serves(server, "t"));
  for (const auto& connection : silent) CHECK(ends(connection));  // after five seconds
  CHECK(becomes_true([&] { return server.connection_counts().unauthenticated == 350; }));
}

TEST_CASE("a thousand strangers at a time leave room for those in order") {
  const store_server server("127.0.0.1:0", "t");
  std::vector<tcp_socket> silent;
  for (int i = 0; i < 1000; ++i) {
    silent.push_back(stranger_at(server));
    if (i % 250 == 249) CHECK(serves(server, "t"));
  }
  CHECK(becomes_true(
      [&] { return server.connection_counts().unauthenticated >= 488; }));  // the oldest connections were dropped
}

TEST_CASE("a client that talks garbage is dropped, and its keys vanish") {
  using namespace muster::detail;
  const store_server server("127.0.0.1:0", "t");
  tcp_store store(server.address(), "t", soon());
  std::vector<std::string> garbage{std::string("\xff\xff\xff\xff", 4), std::string(4, '\0'), std::string(40, '\x07')};
  std::string good;
  append_frame(good, {.call = store_call::get, .id = 1, .key = "key"});
  for (const std::size_t at : {4U, 5U, 6U, 7U}) {  // the call, the kind of value, the length of the key
    auto bad = good;
    bad[at] = '\x70';
    garbage.push_back(bad);
  }
  std::uint64_t offenders = 0;
  for (const auto& text : garbage) {
    auto guest = guest_at(server, "t");
    std::string begin;
    append_frame(begin, {.call = store_call::swap,
                         .id = 1,
                         .key = "of the guest",
                         .value = "x",
                         .life = muster::store_life::of_client});
    write(guest, begin);
    std::array<std::byte, 21> answer;
    test::read_exactly(guest, answer, soon());
    const auto reply = parse_reply(std::string_view(reinterpret_cast<const char*>(answer.data()), 21).substr(4));
    REQUIRE(reply);
    write(guest, text);
    CHECK(ends(guest));
    CHECK(becomes_true([&] { return server.connection_counts().offenders == offenders + 1; }));
    ++offenders;
    CHECK(store.watch("of the guest", reply->version, soon()) == muster::store_entry{});
  }
  CHECK(serves(server, "t"));
}

TEST_CASE("a frame that comes byte by byte is understood, and one that is cut short is forgotten") {
  using namespace muster::detail;
  const store_server server("127.0.0.1:0", "t");
  tcp_store store(server.address(), "t", soon());
  std::string text;
  append_frame(text, {.call = store_call::swap, .id = 1, .key = "slowly", .value = "came"});
  append_frame(text, {.call = store_call::swap, .id = 2, .key = "never", .value = "came"});
  const auto guest = guest_at(server, "t");
  guest.set_no_delay();
  for (std::size_t i = 0; i + 1 < text.size(); ++i) write(guest, text.substr(i, 1));
  CHECK(store.watch("slowly", 0, soon())->value == "came");
  guest.shutdown_write();
  CHECK(ends(guest));
  CHECK_FALSE(store.get("never", soon()));
}

TEST_CASE("a client that asks for much and receives nothing holds up no other client and does not fill the memory") {
  using namespace muster::detail;
  const store_server server("127.0.0.1:0", "t");
  tcp_store store(server.address(), "t", soon());
  REQUIRE(store.compare_and_swap("large", 0, std::string(muster::store_value_limit, 'x'), soon()).swapped);
  const auto glutton = guest_at(server, "t");
  std::string text;
  for (std::uint64_t id = 0; id < 100; ++id) append_frame(text, {.call = store_call::get, .id = id, .key = "large"});
  write(glutton, text);
  for (int i = 0; i < 20; ++i) CHECK(serves(server, "t"));
  // The client may be slow: all replies are available when it reads them.
  std::vector<std::byte> answers(100 * (21 + muster::store_value_limit));
  test::read_exactly(glutton, answers, soon());
  CHECK(first_frame({reinterpret_cast<const char*>(answers.data()), answers.size()})->bytes ==
        21 + muster::store_value_limit);
  CHECK(server.connection_counts().offenders == 0);
}

TEST_CASE("requests that came together are all answered, however fast the answers are taken", "[slow]") {
  using namespace muster::detail;
  // The server inherits this thread's only core, which reads replies between two writes of the server.
  cpu_set_t before, one_core;
  REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
  CPU_ZERO(&one_core);
  CPU_SET(::sched_getcpu(), &one_core);
  REQUIRE(::sched_setaffinity(0, sizeof one_core, &one_core) == 0);
  const store_server server("127.0.0.1:0", "t");
  tcp_store store(server.address(), "t", soon());
  constexpr std::size_t bytes = 200'000, requests = 100;
  REQUIRE(store.compare_and_swap("large", 0, std::string(bytes, 'x'), soon()).swapped);
  std::string text;
  for (std::uint64_t id = 0; id < requests; ++id)
    append_frame(text, {.call = store_call::get, .id = id, .key = "large"});
  std::vector<std::byte> answers(requests * (21 + bytes));
  for (int i = 0; i < 200; ++i) {
    const auto guest = guest_at(server, "t");
    write(guest, text);
    test::read_exactly(guest, answers, soon());
  }
  ::sched_setaffinity(0, sizeof before, &before);
}

TEST_CASE("a store that is full says so, and goes on when there is room") {
  const store_server server("127.0.0.1:0", "t");
  tcp_store store(server.address(), "t", soon());
  const std::string large(muster::store_value_limit, 'x');
  std::vector<std::uint64_t> versions;
  bool full = false;
  for (int i = 0; i < 300 && !full; ++i) {
    try {
      versions.push_back(store.compare_and_swap("key " + std::to_string(i), 0, large, soon()).now.version);
    } catch (const muster::error& refused) {
      CHECK_THAT(refused.what(), contains("is full"));
      full = true;
    }
  }
  CHECK(full);
  CHECK(versions.size() >= 250);
  CHECK(store.compare_and_swap("key 0", versions[0], "small", soon()).swapped);
  CHECK(store.compare_and_swap("another", 0, std::string(1000, 'x'), soon()).swapped);
}

TEST_CASE("calls at a server that is stopped end at their deadlines, and it takes no client for gone when it goes on") {
  std::string where;
  { where = store_server("127.0.0.1:0", "t").address(); }
  places::place served("tcp");
  served.words = {"tcp", where, "t"};
  places::worker server(served, {"serve"});
  tcp_store store(where, "t", soon());
  const auto entry = store.compare_and_swap("member", 0, "here", soon(), muster::store_life::of_client).now;
  server.stop();
  CHECK_THROWS_AS(store.get("member", in_a_moment()), muster::timeout_error);
  CHECK_THROWS_WITH(store.get("member", in_a_moment()), contains("get of 'member' at the store tcp://" + where));
  CHECK_FALSE(store.watch("member", entry.version, deadline_after(seconds(1.5))));
  server.send(SIGCONT);
  CHECK(store.get("member", soon()).value == "here");
  CHECK_FALSE(store.watch("member", entry.version, deadline_after(seconds(1.5))));
  server.send(SIGKILL);
  CHECK_THROWS_AS(store.watch("member", entry.version, soon()), muster::peer_failure);
}
