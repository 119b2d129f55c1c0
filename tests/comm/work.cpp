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

}  // namespace

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
