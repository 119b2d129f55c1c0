// The tcp transport beyond what every transport does: its settings, peers that do not authenticate, peers that break
// the rules or fall silent.
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "comm/net/exactly.hpp"
#include "comm/oracle.hpp"
#include "comm/ranks.hpp"

namespace {

namespace tcp = muster::detail;
using namespace std::chrono_literals;

constexpr muster::seconds patience{30};

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

/// Runs a body as ranks that are connected by that plan.
std::vector<std::exception_ptr> outcomes(const tcp::tcp_plan& plan, int ranks,
                                         const std::function<void(muster::group&, tcp::tcp_mesh&)>& body) {
  test::tcp_job job(ranks, plan);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto& failure = thrown[static_cast<std::size_t>(rank)];
      try {
        auto made = job.connect(rank);
        tcp::tcp_mesh& mesh = made->mesh();
        muster::group world(std::move(made), {});
        try {
          body(world, mesh);
        } catch (...) {
          failure = std::current_exception();
          world.abort(muster::describe(failure));
        }
      } catch (...) {
        failure = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

void run(const tcp::tcp_plan& plan, int ranks, const std::function<void(muster::group&, tcp::tcp_mesh&)>& body) {
  for (const auto& thrown : outcomes(plan, ranks, body)) {
    if (thrown) std::rethrow_exception(thrown);
  }
}

tcp::address first_address(const std::string& card) { return tcp::read_endpoints(card, 0).addresses.front(); }

/// Rank 1 of two, by hand: it knows the secret, and does then what the test wants.
class impostor {
 public:
  explicit impostor(const std::vector<std::string>& endpoints) : cards_(endpoints) {
    std::vector<std::string_view> parts{"of the test"};
    parts.insert(parts.end(), cards_.begin(), cards_.end());
    secret_ = tcp::job_secret(parts);
    control = connect(0);
    stream = connect(1);
  }
  void send(tcp::tcp_socket& over, const tcp::frame& head, std::span<const std::byte> payload = {}) {
    test::write_exactly(over, tcp::encode(head), until());
    test::write_exactly(over, payload, until());
  }
  /// The answer to an announcement.
  void hear_clear() {
    tcp::frame_header bytes;
    test::read_exactly(stream, bytes, until());
    tcp::frame head;
    require(tcp::decode(bytes, head) == nullptr && head.kind == tcp::frame_kind::cts, "it is cleared");
  }
  static muster::clock::time_point until() { return muster::deadline_after(patience); }
  /// A rank listens when it connects, not before.
  static tcp::tcp_socket reach(const tcp::address& listener) {
    for (const auto limit = until();;) {
      try {
        return tcp::tcp_socket::connect(listener, limit);
      } catch (const tcp::socket_error&) {
        if (muster::clock::now() > limit) throw;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  tcp::tcp_socket control;
  tcp::tcp_socket stream;

 private:
  tcp::tcp_socket connect(std::uint32_t line) {
    auto socket = reach(first_address(cards_[0]));
    auto talk = tcp::handshake::connect(secret_, {1, 0, line});
    talk.conclude(socket, until());
    require(talk.now() == tcp::handshake::state::done, "the handshake succeeds");
    return socket;
  }

  std::vector<std::string> cards_;
  tcp::job_secret secret_;
};

/// Rank 0, and rank 1 by hand.
struct odd_pair {
  explicit odd_pair(const tcp::tcp_plan& plan = test::tcp_job::busy_plan()) : job(2, plan) {
    std::thread side([&] { other = std::make_unique<impostor>(job.endpoints()); });
    mine = job.connect(0);
    side.join();
  }
  /// What rank 0 is told of the end of rank 1, while it waits for that.
  std::string hear_end(muster::request& r) const {
    const auto until = muster::deadline_after(patience);
    muster::control_message message;
    while (!mine->poll(message)) {
      require(muster::clock::now() < until, "a notice comes");
      (void)mine->test(r);
      mine->pause(muster::deadline_after(muster::seconds(0.05)));
    }
    require(message.what == muster::control_message::kind::gone && message.origin == 1, "it says that rank 1 is gone");
    return message.text;
  }

  test::tcp_job job;
  std::unique_ptr<impostor> other;
  std::unique_ptr<tcp::tcp_transport> mine;
};

/// What rank 0 hears of rank 1 after it did that.
std::string heard_after(const std::function<void(impostor&)>& deed,
                        const tcp::tcp_plan& plan = test::tcp_job::busy_plan()) {
  const odd_pair pair(plan);
  std::vector<std::byte> data(100000);
  muster::request r;  // so that the stream is read
  r.data = data.data();
  r.bytes = data.size();
  r.peer = 1;
  r.tag = 7;
  pair.mine->receive(r);
  auto done = std::async(std::launch::async, [&] { deed(*pair.other); });
  auto text = pair.hear_end(r);
  r.owner->cancel(r);
  done.get();
  return text;
}

/// All that this process has end, as if a device on their way had forgotten them.
void break_connections() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int file = std::stoi(entry.path().filename());
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    if (::getpeername(file, reinterpret_cast<sockaddr*>(&peer), &length) == 0 && peer.ss_family != AF_UNIX)
      ::shutdown(file, SHUT_RDWR);
  }
}

/// A message of bytes that are all `value`, or room for one.
struct parcel {
  parcel(std::size_t bytes, std::uint8_t value) : data(bytes, value) {
    r.data = reinterpret_cast<std::byte*>(data.data());
    r.bytes = bytes;
  }
  /// As part of that collective.
  parcel(std::size_t bytes, std::uint8_t value, std::uint64_t sequence) : parcel(bytes, value) {
    r.signature.kind = muster::collective::broadcast;
    r.signature.sequence = sequence;
  }
  parcel& with(int peer, std::uint32_t tag) {
    r.peer = peer;
    r.tag = tag;
    return *this;
  }
  void finish(muster::transport& over) {
    const auto until = muster::deadline_after(patience);
    while (!over.test(r)) {
      require(muster::clock::now() < until, "a message comes to its end");
      over.pause(muster::deadline_after(0.01s));
    }
  }
  [[nodiscard]] bool is_all(std::uint8_t value) const {
    return std::all_of(data.begin(), data.end(), [value](auto b) { return b == value; });
  }

  std::vector<std::uint8_t> data;
  muster::request r;
};

/// Ranks as threads that tell each other something beside what is tested.
class flag {
 public:
  void raise() { raised_ = true; }
  void wait() const {
    const auto until = muster::deadline_after(2 * patience);
    while (!raised_) {
      require(muster::clock::now() < until, "another rank comes to where it says so");
      std::this_thread::sleep_for(1ms);
    }
  }

 private:
  std::atomic<bool> raised_{false};
};

tcp::frame message_of(std::uint64_t bytes) {
  tcp::frame head;
  head.tag = 7;
  head.total = bytes;
  return head;
}

}  // namespace

TEST_CASE("every plan of connections gives the results of the oracle", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  SECTION("lazy") { plan.lazy = true; }
  SECTION("checksums") { plan.limits.checksum = true; }
  SECTION("small windows") { plan.limits.window = 5000; }
  SECTION("checksums, small windows, lazy") {
    plan.limits.checksum = true;
    plan.limits.window = 5000;
    plan.lazy = true;
  }
  for (const int ranks : {2, 4, 5}) {
    run(plan, ranks, [](muster::group& world, tcp::tcp_mesh&) {
      test::check_cases(test::cases_of_run(150), world);
      auto half = world.split(world.rank() % 2);
      require(muster::allreduce(half, 1, muster::sum) == half.size(), "a group of some");
    });
  }
}

// The connection once kept a pointer to the message, which was freed.
TEST_CASE("a group is closed after a message of its that came before its receive", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.window = 4096;
  run(plan, 2, [](muster::group& world, tcp::tcp_mesh&) {
    for (int round = 0; round < 20; ++round) {
      auto both = world.split(0);
      std::vector<int> values(8000, world.rank() == 0 ? round : -1);
      if (world.rank() == 1) muster::barrier(world);  // what it reads before that is put aside
      muster::broadcast(both, std::span(values), 0);
      if (world.rank() == 0) muster::barrier(world);
      require(std::count(values.begin(), values.end(), round) == 8000, "the root's values");
    }
  });
}

// More tagged messages than there is credit for, of all sizes, and no receive for them: collectives pass.
TEST_CASE("collectives do not wait behind tagged messages that have no receive", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.eager = 1000;
  plan.limits.credit = 8000;
  run(plan, 3, [](muster::group& world, tcp::tcp_mesh&) {
    auto& over = world.transport();
    constexpr std::size_t count = 60;
    const auto size_of = [](std::size_t i) { return i * i * 37 % 30000; };
    std::vector<std::vector<std::uint8_t>> data(count);
    std::vector<muster::request> sent(count);
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + 2) % world.size();
    for (std::size_t i = 0; i < count; ++i) {
      data[i].assign(size_of(i), static_cast<std::uint8_t>(i));
      sent[i].data = reinterpret_cast<std::byte*>(data[i].data());
      sent[i].bytes = data[i].size();
      sent[i].peer = next;
      sent[i].tag = 1 + static_cast<std::uint32_t>(i % 3);
      over.send(sent[i]);
    }
    std::vector<double> values(30000, 1.0);
    for (int i = 0; i < 5; ++i) muster::allreduce(world, values, muster::sum);
    require(values[29999] == 243.0, "the sum");
    // Tag by tag, from the last, so that what lies in front is put aside.
    for (std::uint32_t tag = 3; tag >= 1; --tag) {
      for (std::size_t i = tag - 1; i < count; i += 3) {
        std::vector<std::uint8_t> got(30000);
        muster::request r;
        r.data = reinterpret_cast<std::byte*>(got.data());
        r.bytes = got.size();
        r.peer = i % 2 == 0 ? previous : muster::any_source;
        r.tag = tag;
        over.receive(r);
        const auto until = muster::deadline_after(patience);
        while (!over.test(r)) {
          require(muster::clock::now() < until, "it comes");
          over.pause(muster::deadline_after(0.01s));
        }
        require(r.received == size_of(i) && r.source == previous, "in its order");
        for (std::size_t k = 0; k < r.received; ++k) require(got[k] == static_cast<std::uint8_t>(i), "its content");
      }
    }
    for (auto& r : sent) {
      const auto until = muster::deadline_after(patience);
      while (!over.test(r)) require(muster::clock::now() < until, "it is gone");
    }
    muster::barrier(world);
  });
}

// A rank waits for what lies behind: it puts aside what its peer may send unasked, and the rest stays with the peer.
TEST_CASE("what is put aside of collectives that a rank has not come to is limited", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.credit = 400'000;
  const std::size_t bytes = GENERATE(0, 1000, 90'000, 1'000'000);
  constexpr std::size_t count = 2000;
  const std::size_t messages = bytes < 10'000 ? count : 40;
  flag behind_has_come, counted;
  run(plan, 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto& over = world.transport();
    std::deque<parcel> all;
    for (std::size_t i = 0; i < messages; ++i)
      all.emplace_back(bytes, world.rank() == 0 ? static_cast<std::uint8_t>(i) : 0, i).with(1 - world.rank(), 0);
    parcel behind(8, 1);
    behind.with(1 - world.rank(), 5);
    if (world.rank() == 0) {
      for (auto& one : all) over.send(one.r);
      over.send(behind.r);
      behind.finish(over);
      behind_has_come.wait();
      const auto gone = static_cast<std::size_t>(
          std::count_if(all.begin(), all.end(), [&](parcel& one) { return over.test(one.r); }));
      counted.raise();
      require(gone * (bytes + 256) <= 400'000, "no more than the credit has gone: " + std::to_string(gone));
      for (auto& one : all) one.finish(over);
    } else {
      over.receive(behind.r);
      behind.finish(over);
      behind_has_come.raise();
      counted.wait();
      for (auto& one : all) over.receive(one.r);
      for (std::size_t i = 0; i < messages; ++i) {
        all[i].finish(over);
        require(all[i].is_all(static_cast<std::uint8_t>(i)), "message " + std::to_string(i) + " in its order");
      }
    }
    muster::barrier(world);
  });
}

// What lay unread in it may be sent anew: an eager message ends for its sender even without a receive.
TEST_CASE("a group that is closed gives back the credit of what it had not taken", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.credit = 40'000;
  flag done;
  run(plan, 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto& over = world.transport();
    parcel last(20'000, 3);
    last.with(1 - world.rank(), 5);
    {
      auto twin = world.duplicate();
      if (world.rank() == 0) {
        parcel left(30'000, 2);
        twin.transport().send(left.with(1, 5).r);
        left.finish(twin.transport());
      }
      muster::barrier(world);  // behind it: it is put aside
    }
    for (int i = 0; i < 2; ++i) muster::barrier(world);  // there and back
    if (world.rank() == 0) {
      over.send(last.r);
      last.finish(over);
      done.raise();
    } else {
      done.wait();
      over.receive(last.r);
      last.finish(over);
      require(last.is_all(3), "its content");
    }
    muster::barrier(world);
  });
}

TEST_CASE("a large message for a group that its receiver has closed ends for its sender", "[tcp]") {
  const bool comes_late = GENERATE(false, true);
  flag closed;
  run(test::tcp_job::busy_plan(), 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto twin = std::make_unique<muster::group>(world.duplicate());
    if (world.rank() == 0) {
      parcel large(10'000'000, 1, 0);
      if (comes_late) closed.wait();
      twin->transport().send(large.with(1, 0).r);
      (void)twin->transport().test(large.r);
      muster::barrier(world);
      large.finish(twin->transport());
    } else if (comes_late) {
      twin.reset();
      closed.raise();
      muster::barrier(world);
    } else {
      muster::barrier(world);
      twin.reset();
    }
    muster::barrier(world);
  });
}

// Both groups are judged by the same clock, in the order in which they were left.
TEST_CASE("a rank that leaves a group is reported gone where others need it, and not where it did all", "[tcp]") {
  run(test::tcp_job::busy_plan(), 2, [](muster::group& world, tcp::tcp_mesh&) {
    std::optional<muster::group> finished(world.duplicate()), needed(world.duplicate());
    muster::barrier(*finished);
    if (world.rank() == 1) {
      finished.reset();
      needed.reset();
    } else {
      std::string told;
      try {
        muster::barrier(*needed);
      } catch (const muster::peer_failure& gone) {
        told = gone.what();
      }
      require(told.find("left before it finished") != std::string::npos, "rank 1 is gone from the other: " + told);
      for (muster::control_message message; finished->transport().poll(message);)
        require(message.what != muster::control_message::kind::gone, std::string("it is not gone: ") + message.text);
    }
    muster::barrier(world);
  });
}

TEST_CASE("groups that were closed long ago are forgotten", "[tcp]") {
  tcp::matcher messages(1, {});
  constexpr std::uint64_t many = 5000;
  for (std::uint64_t generation = 0; generation < many; ++generation) {
    tcp::tcp_channel group(generation, {0}, 0, 1);
    messages.open(group);
    messages.close(group);
  }
  CHECK(messages.is_closed(many - 1));
  CHECK(messages.is_closed(many - 1000));
  CHECK_FALSE(messages.is_closed(0));
}

TEST_CASE("ranks with different tokens do not come together, and the error says what was seen", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.patience = muster::seconds(1);
  test::tcp_job job(2, plan);
  std::string text[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        (void)job.connect(rank, rank == 0 ? "this" : "that");
      } catch (const muster::error& refused) {
        text[rank] = refused.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_THAT(text[0], contains("rank 1"));
  CHECK_THAT(text[1], contains("rank 0"));
  CHECK_THAT(text[1], contains("token"));
}

// They come while ranks connect and while they work: some say nothing, some talk garbage, some begin as ranks do.
TEST_CASE("strangers neither hold up a job nor break it, and are counted", "[tcp]") {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  const std::size_t idle = std::min<std::size_t>(1000, (files.rlim_cur - 200) / 3);
  test::tcp_job job(2);
  const auto listener = first_address(job.endpoints()[0]);
  std::vector<tcp::tcp_socket> silent;
  const auto come = [&](std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) silent.push_back(impostor::reach(listener));
  };
  const auto babble = [&](std::uint64_t seed, std::string_view begins) {
    auto one = impostor::reach(listener);
    muster::random_stream random(20261121, seed);
    std::vector<std::byte> bytes(100000);
    for (auto& b : bytes) b = static_cast<std::byte>(random.below(256));
    std::memcpy(bytes.data(), begins.data(), begins.size());
    try {
      test::write_exactly(one, bytes, impostor::until());
    } catch (const tcp::socket_error&) {  // it is thrown out before it has said all
    }
  };
  std::atomic<bool> strangers_are_through{false};
  const auto patience = impostor::until();
  std::uint64_t counted = 0;
  const auto work = [&](int rank) {
    auto made = job.connect(rank);
    tcp::tcp_mesh& mesh = made->mesh();
    muster::group world(std::move(made), {});
    for (int through = 0; through == 0;) {
      require(muster::allreduce(world, 1, muster::sum) == 2, "the sum");
      // Work goes on until most of them were counted: some still wait in the listener's queue when the last has
      // connected.
      if (rank == 0 && strangers_are_through)
        through = mesh.strangers() > idle / 2 || muster::clock::now() >= patience ? 1 : 0;
      muster::broadcast(world, std::span(&through, 1), 0);
    }
    if (rank == 0) counted = mesh.strangers();
  };
  std::exception_ptr thrown[2];
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  }
  come(idle);
  babble(1, "");
  babble(2, "");
  babble(3, "muster ranks 1\n");
  strangers_are_through = true;
  for (auto& rank : ranks) rank.join();
  for (const auto& failure : thrown) {
    INFO((failure ? muster::describe(failure) : ""));
    CHECK(failure == nullptr);
  }
  CHECK(counted > idle / 2);
}

TEST_CASE("a peer that breaks the rules is lost, and the notice says what was seen", "[tcp]") {
  struct way {
    const char* seen;
    std::function<void(impostor&)> deed;
  };
  const std::vector<way> ways = {
      {"its connection ended", [](impostor& other) { other.stream = {}; }},
      {"its connection", [](impostor& other) { other.control = {}; }},
      {"a malformed frame",
       [](impostor& other) {
         const std::vector<std::byte> zeroes(1000);
         test::write_exactly(other.stream, zeroes, impostor::until());
       }},
      {"a malformed frame",
       [](impostor& other) {
         const std::vector<std::byte> zeroes(1000);
         test::write_exactly(other.control, zeroes, impostor::until());
       }},
      {"in the middle of a message",
       [](impostor& other) {
         const auto header = tcp::encode(message_of(100));
         test::write_exactly(other.stream, std::span(header).first(40), impostor::until());
         other.stream = {};
       }},
      {"in the middle of a message",
       [](impostor& other) {
         const std::vector<std::byte> some(99);
         other.send(other.stream, message_of(100), some);
         other.stream = {};
       }},
      {"out of order",
       [](impostor& other) {
         auto head = message_of(0);
         head.sequence = 1;
         other.send(other.stream, head);
       }},
      {"checksum of a payload",
       [](impostor& other) {
         auto head = message_of(60);
         head.flags = tcp::frame::has_checksum;
         const std::vector<std::byte> some(64);
         other.send(other.stream, head, some);
       }},
      {"without a clear-to-send",
       [](impostor& other) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::data;
         other.send(other.stream, head);
       }},
      {"not announced",
       [](impostor& other) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::cts;
         other.send(other.stream, head);
       }},
      {"more credit",
       [](impostor& other) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::credit;
         head.set_number(1);
         other.send(other.stream, head);
       }},
      {"more than it has credit for",
       [](impostor& other) {
         auto head = message_of(tcp::largest_message);  // no receive waits for a message with this tag
         head.tag = 8;
         other.send(other.stream, head);
       }},
      {"more than it has credit for",
       [](impostor& other) {
         auto head = message_of(1 << 20);
         const std::vector<std::byte> some(1 << 20);
         try {
           for (head.tag = 0; head.sequence < 4; ++head.sequence) other.send(other.stream, head, some);
         } catch (const tcp::socket_error&) {  // it is lost before the last has gone
         }
       }},
      {"another size than its request-to-send",
       [](impostor& other) {
         auto head = message_of(100000);
         head.kind = tcp::frame_kind::rts;
         other.send(other.stream, head);
         other.hear_clear();
         head = message_of(200000);  // more than was announced
         head.kind = tcp::frame_kind::data;
         head.sequence = 1;
         head.set_number(0);
         other.send(other.stream, head);
       }},
      {"control frame on a data stream",
       [](impostor& other) {
         auto head = message_of(0);
         head.kind = tcp::frame_kind::beat;
         other.send(other.stream, head);
       }},
  };
  for (const auto& way : ways) {
    const std::string text = heard_after(way.deed);
    INFO(text);
    CHECK_THAT(text, contains(way.seen));
    CHECK_THAT(text, contains("rank 1 is gone"));
  }
}

TEST_CASE("a message that a lost rank had only begun to send is dropped, one that it had sent arrives", "[tcp]") {
  const bool waits = GENERATE(false, true);  // a receive, when it begins
  auto begun = message_of(100);
  begun.tag = 9;
  begun.sequence = 1;
  std::size_t bytes = 0;
  SECTION("cut off") { bytes = 40; }
  SECTION("cut off where a line ends") { bytes = 64; }
  SECTION("only announced") { begun.kind = tcp::frame_kind::rts; }
  const odd_pair pair;
  auto& mine = *pair.mine;
  parcel awaited(100, 0), first(100, 0), second(100, 0), own(100, 2);
  mine.receive(awaited.with(1, 7).r);  // so that the stream is read
  const auto receive = [&] {
    for (parcel* const one : {&first, &second}) mine.receive(one->with(muster::any_source, 9).r);
  };
  if (waits) receive();
  auto whole = message_of(64);
  whole.tag = 9;
  const std::vector<std::byte> some(64, std::byte{1});
  pair.other->send(pair.other->stream, whole, some);
  pair.other->send(pair.other->stream, begun, std::span(some).first(bytes));
  pair.other->stream = {};
  (void)pair.hear_end(awaited.r);
  if (!waits) receive();
  mine.send(own.with(0, 9).r);
  CHECK(mine.test(first.r));
  CHECK((first.r.source == 1 && first.r.received == 64));
  CHECK(mine.test(second.r));
  if (waits) {
    CHECK((second.r.source == 1 && second.r.received == 0));
    mine.receive(second.with(muster::any_source, 9).r);
    CHECK(mine.test(second.r));
  }
  CHECK((second.r.source == 0 && second.is_all(2)));
}

TEST_CASE("a group that renews a rank whose connections broke talks to it again, and others have lost it", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  constexpr int times = 3;
  std::atomic<int> arrived{0};
  const auto meet = [&](int count) {
    ++arrived;
    const auto until = muster::deadline_after(patience);
    while (arrived < 2 * count) {
      require(muster::clock::now() < until, "the other comes to where it says so");
      std::this_thread::sleep_for(1ms);
    }
  };
  run(plan, 2, [&](muster::group& world, tcp::tcp_mesh&) {
    auto renewing = world.duplicate();
    auto losing = world.duplicate();
    auto& over = renewing.transport();
    const int other = 1 - world.rank();
    int met = 0;
    for (int round = 1; round <= times; ++round) {
      parcel before(round == 1 ? 1000 : 100'000, 1), reading(10, 0);  // of no use to each other
      over.receive(reading.with(muster::any_source, 9).r);
      over.send(before.with(other, 8).r);
      meet(++met);
      if (world.rank() == 0) break_connections();
      meet(++met);
      const auto until = muster::deadline_after(patience);
      for (muster::control_message message;
           !over.poll(message) || message.what != muster::control_message::kind::gone;) {
        require(muster::clock::now() < until, "the break is seen");
        (void)over.test(before.r);
        over.pause(muster::deadline_after(0.01s));
      }
      // One of the two is slow, and the other has sent again before it looks.
      if (world.rank() == round % 2) std::this_thread::sleep_for(100ms);
      require(over.renew(other, until), "it is renewed");
      parcel sent(200'000, static_cast<std::uint8_t>(round)), got(1'000'000, 0);
      over.receive(got.with(muster::any_source, 8).r);
      over.send(sent.with(other, 8).r);
      got.finish(over);
      sent.finish(over);
      require(got.r.received == 200'000 && got.data.front() == round, "it gets what was sent after it");
      meet(++met);
    }
    for (auto* const lost : {&losing, &world}) {
      bool failed = false;
      try {
        muster::barrier(*lost);
      } catch (const muster::peer_failure&) {
        failed = true;
      }
      require(failed, "a group that did not renew it has lost it");
    }
  });
}

TEST_CASE("a rank that has ended is not renewed, which is seen before the time for it is over", "[tcp]") {
  const odd_pair pair;
  parcel awaited(100, 0);
  pair.mine->receive(awaited.with(1, 7).r);
  pair.other->stream = {};
  pair.other->control = {};
  (void)pair.hear_end(awaited.r);
  CHECK(pair.mine->renew(1, muster::deadline_after(10 * patience)));
  (void)pair.hear_end(awaited.r);
  CHECK_FALSE(pair.mine->renew(1, muster::deadline_after(10 * patience)));
}

TEST_CASE("a peer whose connections stand and that is silent is lost for its silence", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.beat = muster::seconds(0.02);
  plan.missed = 20;
  CHECK_THAT(heard_after([](impostor&) {}, plan), contains("no heartbeat for 400 ms"));
}

TEST_CASE("a peer that takes nothing for long is waited for as long as the call may take", "[tcp]") {
  // Its system has no more room and says so: TCP_USER_TIMEOUT would count that as silence.
  tcp::tcp_plan plan;
  plan.patience = muster::seconds(1);
  constexpr std::size_t count = std::size_t{16} << 20;
  run(plan, 2, [](muster::group& world, tcp::tcp_mesh&) {
    std::vector<float> values(count, world.rank() == 0 ? 1.0f : 0.0f);
    if (world.rank() == 1) std::this_thread::sleep_for(4s);
    muster::broadcast(world, std::span(values), 0, {.algorithm = muster::algorithm::tree, .timeout = patience});
    require(values.front() == 1.0f && values.back() == 1.0f, "the broadcast is not the root's");
  });
}

TEST_CASE("a send that is taken back in its middle ends for its receiver", "[tcp]") {
  auto plan = test::tcp_job::busy_plan();
  plan.limits.credit = 100'000'000;
  run(plan, 2, [](muster::group& world, tcp::tcp_mesh&) {
    auto& over = world.transport();
    const auto finish = [&](muster::request& r) {
      const auto until = muster::deadline_after(patience);
      while (!over.test(r)) {
        require(muster::clock::now() < until, "it comes to its end");
        over.pause(muster::deadline_after(0.01s));
      }
    };
    std::vector<std::uint8_t> data(50'000'000);
    muster::request r;
    r.data = reinterpret_cast<std::byte*>(data.data());
    r.bytes = data.size();
    r.peer = 1 - world.rank();
    r.signature.kind = muster::collective::broadcast;  // as part of a collective: it comes unasked
    if (world.rank() == 0) {
      std::fill(data.begin(), data.end(), std::uint8_t{7});
      over.send(r);
      require(r.owner != nullptr, "more than the system takes at once");
      r.owner->cancel(r);
      std::fill(data.begin(), data.end(), std::uint8_t{0});
      muster::request behind;
      std::uint8_t last = 9;
      behind.data = reinterpret_cast<std::byte*>(&last);
      behind.bytes = 1;
      behind.peer = 1;
      behind.tag = 5;
      over.send(behind);
      finish(behind);
    } else {
      over.receive(r);
      finish(r);
      require(std::all_of(data.begin(), data.end(), [](auto b) { return b == 7; }), "the content that was sent");
      std::uint8_t last = 0;
      muster::request behind;
      behind.data = reinterpret_cast<std::byte*>(&last);
      behind.bytes = 1;
      behind.peer = 0;
      behind.tag = 5;
      over.receive(behind);
      finish(behind);
      require(last == 9, "and what was sent after it");
    }
  });
}
