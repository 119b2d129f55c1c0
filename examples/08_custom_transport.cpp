// A user-defined transport, selected by name. This transport wraps another transport and counts the messages that each
// rank sends. A transport written from scratch derives from muster::transport instead, and is checked in the same way.
//
//   $ mpirun -n 3 08_custom_transport --transport counting
//   200 cases of collectives, and messages in every order: as they should be
//   an allreduce of 1000 float32: rank 0 sent 1 messages, 4000 bytes
#include <cstdio>
#include <memory>
#include <vector>

#include <muster/muster.hpp>
#include <muster/testing/transport_kit.hpp>

struct counts {
  std::uint64_t messages = 0, bytes = 0;
};

class counting_transport final : public muster::transport_decorator {
 public:
  counting_transport(std::unique_ptr<muster::transport> inner, std::shared_ptr<counts> into)
      : transport_decorator(std::move(inner)), counts_(std::move(into)) {}

  void send(muster::request& r) override {
    ++counts_->messages;
    counts_->bytes += r.bytes;
    transport_decorator::send(r);
  }
  // A collective that the wrapped transport executes itself would not be counted. Without these abilities the library's
  // algorithms send messages.
  [[nodiscard]] muster::transport_abilities abilities() const override {
    auto all = transport_decorator::abilities();
    all.name = "counting";
    all.native_collectives = all.prefers_native = false;
    return all;
  }
  bool native(const muster::collective_call&, muster::request&) override { return false; }
  [[nodiscard]] std::unique_ptr<muster::transport> subgroup(const muster::subgroup_call& some) override {
    return std::make_unique<counting_transport>(transport_decorator::subgroup(some), counts_);
  }

 private:
  std::shared_ptr<counts> counts_;
};

std::shared_ptr<counts> sent = std::make_shared<counts>();

std::unique_ptr<muster::transport> connect(const muster::settings& configuration, const muster::launch_env& launch) {
  return std::make_unique<counting_transport>(muster::connect_transport("shm", configuration, launch), sent);
}

int main(int argc, char** argv) {
  muster::register_transport("counting", connect);  // on every process, before the first context
  return muster::run_main(argc, argv, [](muster::context&, muster::group& world) {
    muster::testing::check_transport(world);  // throws an error that describes the failure
    if (world.rank() == 0) std::printf("200 cases of collectives, and messages in every order: as they should be\n");

    muster::barrier(world);
    std::vector<float> values(1000, 1);
    const counts before = *sent;
    muster::allreduce(world, values, muster::sum, {.algorithm = muster::algorithm::recursive_doubling});
    if (world.rank() == 0)
      std::printf("an allreduce of 1000 float32: rank 0 sent %llu messages, %llu bytes\n",
                  static_cast<unsigned long long>(sent->messages - before.messages),
                  static_cast<unsigned long long>(sent->bytes - before.bytes));
  });
}
