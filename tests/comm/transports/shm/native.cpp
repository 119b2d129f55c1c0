// Native collectives over shm, advanced by a single thread: a random stream selects the rank to advance, instead of the
// system's scheduler.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/core/buffer.hpp>
#include <muster/core/random.hpp>

#include "../../ranks.hpp"
#include "catch.hpp"

namespace {

using muster::block_of;
using muster::collective;
using muster::collective_call;
using values = muster::buffer<std::uint32_t>;

struct scenario {
  int ranks;
  bool apart;                          // simulates cores without a shared cache
  std::uint64_t registered;            // a bit for each rank: set if its buffers are in memory of the transport
  std::vector<collective_call> calls;  // the calls, the same at all ranks; the buffers are set for each rank
};

/// Returns element i of a rank's input for a call.
std::uint32_t input(int rank, std::size_t call, std::size_t i) {
  return static_cast<std::uint32_t>(static_cast<std::size_t>(rank + 1) * 1'000'003 + call * 7'919 + i);
}

class driven_rank {
 public:
  driven_rank(std::unique_ptr<muster::detail::shm_transport> transport, const scenario& all)
      : transport_(std::move(transport)), all_(all) {
    const bool registered = (all.registered >> transport_->rank() & 1) != 0;
    auto* const memory = registered ? transport_->memory() : std::pmr::new_delete_resource();
    std::size_t most = 0;
    for (const auto& call : all.calls) most = std::max(most, call.count);
    in_ = values(most, memory);
    out_ = values(most, memory);
  }

  [[nodiscard]] bool finished() const { return call_ == all_.calls.size() && !pending_; }

  /// Starts the next call, or advances the pending call. Returns true if a call has started or completed.
  bool move() {
    if (finished()) return false;
    bool begins = false;
    if (!pending_) {
      start();
      begins = true;
    }
    if (!transport_->test(*pending_)) return begins;
    pending_.reset();
    check();
    ++call_;
    return true;
  }

 private:
  void start() {
    collective_call& call = pending_call_ = all_.calls[call_];
    const auto own = block_of(call.count, transport_->rank(), transport_->size());
    const std::size_t input_count = call.kind == collective::allgather ? own.count : call.count;
    const std::size_t first = call.kind == collective::allgather ? own.first : 0;
    for (std::size_t i = 0; i < input_count; ++i) in_[i] = input(transport_->rank(), call_, first + i);
    call.in = reinterpret_cast<const std::byte*>(in_.data());
    call.out = reinterpret_cast<std::byte*>(out_.data());
    pending_.emplace();
    REQUIRE(transport_->native(call, *pending_));
  }

  void check() {
    const auto& call = all_.calls[call_];
    const int me = transport_->rank();
    const int n = transport_->size();
    const auto own = block_of(call.count, me, n);
    std::size_t wrong = 0;
    const auto compare = [&](std::size_t first, std::size_t count, auto&& expected) {
      for (std::size_t i = 0; i < count; ++i) wrong += out_[i] != expected(first + i) ? 1 : 0;
    };
    const auto sum = [&](std::size_t i) {
      std::uint32_t total = 0;
      for (int rank = 0; rank < n; ++rank) total += input(rank, call_, i);
      return total;
    };
    if (call.kind == collective::broadcast) {
      if (me != call.root) compare(0, call.count, [&](std::size_t i) { return input(call.root, call_, i); });
    } else if (call.kind == collective::allgather) {
      for (int rank = 0; rank < n; ++rank) {
        const auto part = block_of(call.count, rank, n);
        for (std::size_t i = part.first; i < part.first + part.count; ++i)
          wrong += out_[i] != input(rank, call_, i) ? 1 : 0;
      }
    } else if (call.kind == collective::reduce_scatter) {
      compare(own.first, own.count, sum);
    } else if (call.kind == collective::allreduce || me == call.root) {
      compare(0, call.count, sum);
    }
    CAPTURE(call_, static_cast<int>(call.kind), call.count, call.root, me);
    CHECK(wrong == 0);
  }

  std::unique_ptr<muster::detail::shm_transport> transport_;
  const scenario& all_;
  values in_, out_;
  std::size_t call_ = 0;
  collective_call pending_call_;
  std::optional<muster::request> pending_;
};

scenario draw(muster::random_stream& random, const muster::reduction& sum) {
  constexpr collective kinds[] = {collective::allreduce, collective::reduce, collective::reduce_scatter,
                                  collective::allgather, collective::broadcast};
  const std::uint64_t registered[] = {0, 0, ~std::uint64_t{0}, random.below(16)};  // none, all, some
  scenario drawn{2 + static_cast<int>(random.below(3)), random.below(2) == 0, registered[random.below(4)], {}};
  // Medium sizes: more calls than a slot holds contributions. Large sizes: usually several chunks for each rank's
  // block.
  const bool medium = random.below(2) == 0;
  for (std::uint64_t k = 0; k < (medium ? 20 : 3); ++k) {
    collective_call call;
    call.kind = kinds[random.below(5)];
    call.count = medium ? 1 + random.below(45'000) : 5000 + random.below(600'000);
    call.root = static_cast<int>(random.below(static_cast<std::uint64_t>(drawn.ranks)));
    call.element_size = sizeof(std::uint32_t);
    call.reduce = sum;
    call.sequence = k;
    call.type = muster::dtype_of<std::uint32_t>();
    drawn.calls.push_back(call);
  }
  return drawn;
}

}  // namespace

// Regression: the chunk size was 0 among 256 ranks, and the number of rounds is a quotient by that size.
TEST_CASE("the chunks of a staging area are whole cache lines and fit it, among any number of ranks") {
  namespace shm = muster::detail;
  for (std::size_t ranks = 2; ranks <= 4096; ++ranks) {
    const std::size_t chunk = shm::staging_chunk_bytes(ranks);
    const bool is_whole = chunk > 0 && chunk % (ranks < 256 ? 4096 : shm::cache_line) == 0;
    const bool fits = shm::staging_depth * (ranks + 1) * chunk <= shm::staging_bytes(ranks);
    if (is_whole && fits) continue;
    CAPTURE(ranks, chunk);
    CHECK(is_whole);
    CHECK(fits);
  }
}

TEST_CASE("native collectives over shm give the same results in whatever order their ranks move on", "[slow]") {
  constexpr std::uint64_t seed = 20261126;
  CAPTURE(seed);
  const auto sum = muster::reduction::of<std::uint32_t>(muster::sum);
  for (std::uint64_t round = 0; round < 60; ++round) {
    CAPTURE(round);
    muster::random_stream random(seed, round);
    const auto all = draw(random, sum);
    const auto n = static_cast<std::size_t>(all.ranks);
    const test::shared_memory memory(all.ranks, all.apart);
    std::vector<std::unique_ptr<muster::detail::shm_transport>> transports(n);
    std::vector<std::thread> connecting;
    for (std::size_t r = 0; r < n; ++r)
      connecting.emplace_back([&, r] { transports[r] = memory.connect(static_cast<int>(r)); });
    for (auto& thread : connecting) thread.join();
    std::deque<driven_rank> ranks;
    for (auto& transport : transports) ranks.emplace_back(std::move(transport), all);

    std::size_t stopped = 0;  // this rank is not advanced
    std::uint64_t idle = 0;   // consecutive moves without effect
    const auto unfinished = [&] {
      return std::any_of(ranks.begin(), ranks.end(), [](auto& r) { return !r.finished(); });
    };
    while (unfinished() && idle < 100'000) {
      if (random.below(200) == 0) stopped = random.below(n + 1);
      const auto selected = random.below(n);
      if (selected == stopped) continue;
      idle = ranks[selected].move() ? 0 : idle + 1;
    }
    REQUIRE_FALSE(unfinished());  // otherwise the ranks wait for each other
  }
}
