// Waiting for a collective: limits and deadlines.
#include <muster/comm/work.hpp>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/error.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "comm/routine.hpp"

namespace {

// The transport of rank 0 in a large group. Every message is done at its third test: the first test is when the message
// is awaited, and each turn has one test, so that each turn of a wait advances a single message.
class always_moving final : public muster::transport {
 public:
  explicit always_moving(int size) : size_(size) {}
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] muster::transport_abilities abilities() const override {
    return {.name = "always moving", .costs = {}};
  }
  [[nodiscard]] bool oversubscribed() const override { return false; }
  void send(muster::request& r) override { r.owner = this; }
  void receive(muster::request& r) override { r.owner = this; }
  bool test(muster::request& r) override {
    if (r.owner != nullptr && ++tests_ % 3 == 0) r.owner = nullptr;
    return r.owner == nullptr;
  }
  void cancel(muster::request& r) noexcept override { r.owner = nullptr; }
  void notify(int, const muster::control_message&) override {}
  bool poll(muster::control_message&) override { return false; }
  void pause(muster::clock::time_point) override { throw std::runtime_error("a turn moved nothing"); }
  [[nodiscard]] std::unique_ptr<muster::transport> subgroup(const muster::subgroup_call&) override { return nullptr; }

 private:
  int size_;
  std::uint64_t tests_ = 0;
};

using test::routine;
using test::run_queue;

// Adds up the ranks of the group `times` times, by works that are kept, temporary, and resumed by a named executor.
routine add_ranks(run_queue& queue, muster::group& world, int times, int& sum) {
  for (int k = 0; k < times; ++k) {
    std::vector<int> data(1000, world.rank());
    auto kept = muster::allreduce_async(world, data, muster::sum);
    co_await kept;
    co_await muster::allreduce_async(world, data, muster::max);
    co_await muster::resume_by(muster::barrier_async(world), [&](auto function) { queue.push_back(function); });
    sum += data[999];
  }
}

}  // namespace

TEST_CASE("coroutines of the program await works while others run") {
  const auto over = GENERATE(from_range(test::fabrics()));
  REQUIRE_NOTHROW(test::run_ranks(over, 3, [](muster::group& world) {
    run_queue queue;
    auto apart = world.duplicate();
    int first = 0, second = 0;
    auto one = add_ranks(queue, world, 20, first);
    auto other = add_ranks(queue, apart, 30, second);
    if (world.rank() == 1) {  // in another order
      other.finish();
      one.finish();
    } else {
      one.finish();
      other.finish();
    }
    if (first != 20 * 3 || second != 30 * 3) throw std::runtime_error("wrong sums");
  }));
}

TEST_CASE("the error of an awaited work is an exception in the coroutine") {
  const auto thrown = test::outcomes(test::fabric::threads, 2, [](muster::group& world) {
    run_queue queue;
    int sum = 0;
    if (world.rank() == 1) {
      add_ranks(queue, world, 1, sum).finish();
      throw muster::configuration_error("rank 1 stops");
    }
    add_ranks(queue, world, 2, sum).finish();
  });
  REQUIRE(thrown[0]);
  CHECK_THROWS_AS(std::rethrow_exception(thrown[0]), muster::peer_failure);
  CHECK_THAT(muster::describe(thrown[0]), contains("rank 1 stops"));
}

TEST_CASE("limits and deadlines hold while every turn moves something") {
  constexpr int ranks = 4096;  // twice as many turns, in a ring
  muster::group world(std::make_unique<always_moving>(ranks));
  std::vector<float> data(ranks);
  auto work = muster::allreduce_async(world, data, muster::sum, {.algorithm = muster::algorithm::ring});
  CHECK_FALSE(work.wait_for(muster::seconds(0)));
  work.wait();
  CHECK_THROWS_AS(muster::allreduce(world, data, muster::sum,
                                    {.algorithm = muster::algorithm::ring, .timeout = muster::seconds(1e-9)}),
                  muster::timeout_error);
}

TEST_CASE("the progress thread ends a collective at its deadline, whatever this rank does meanwhile") {
  const auto over = GENERATE(from_range(test::fabrics()));
  std::atomic<bool> ended{false};
  const auto thrown = test::outcomes(over, 2,
                                     [&](muster::group& world) {
                                       if (world.rank() == 1) return ended.wait(false);  // never calls the collective
                                       const std::shared_ptr<void> at_the_end(nullptr, [&](void*) {
                                         ended = true;
                                         ended.notify_all();
                                       });
                                       const auto work =
                                           muster::barrier_async(world, {.timeout = muster::seconds(0.05)});
                                       const auto until = muster::deadline_after(muster::seconds(30));
                                       while (!world.failed()) {
                                         if (muster::clock::now() >= until)
                                           throw std::runtime_error("the deadline has passed unnoticed");
                                         std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                       }
                                       muster::barrier(world);
                                     },
                                     {.progress_thread = true});
  REQUIRE(thrown[0]);
  CHECK_THAT(muster::describe(thrown[0]), contains("did not finish in 0.05 s"));
}
