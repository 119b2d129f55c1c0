#include <muster/elastic/membership/service.hpp>

#include <new>

#include <muster/comm/bootstrap/memory_store.hpp>

#include "catch.hpp"

namespace {

// A store whose every watch fails with an exception that is not an error of muster.
class exhausted_store final : public muster::any_store {
 public:
  muster::store_entry get(std::string_view key, muster::clock::time_point until) override {
    return inner_.get(key, until);
  }
  muster::store_swap compare_and_swap(std::string_view key, std::uint64_t expected,
                                      std::optional<std::string_view> value, muster::clock::time_point until,
                                      muster::store_life life = muster::store_life::of_store) override {
    return inner_.compare_and_swap(key, expected, value, until, life);
  }
  std::optional<muster::store_entry> watch(std::string_view, std::uint64_t, muster::clock::time_point,
                                           const std::stop_token&) override {
    throw std::bad_alloc();
  }
  [[nodiscard]] std::string where() const override { return inner_.where(); }

 private:
  muster::memory_store inner_;
};

}  // namespace

TEST_CASE("what a thread of the membership throws ends the rank's part, not the process") {
  using namespace muster::detail;
  muster::elastic::member self;
  self.id = 1;
  auto socket = std::make_unique<datagram_socket>("lo", "the test", "token");
  self.process = process_identity::own();
  self.datagram_endpoints = socket->endpoints();
  membership_service under_test(std::make_shared<exhausted_store>(), std::move(socket), self, {}, 5);
  CHECK_THROWS_AS(under_test.next(muster::clock::now() + std::chrono::seconds(20)), std::bad_alloc);
  CHECK(under_test.must_stop(0));
  CHECK_THROWS_AS(under_test.next(muster::clock::now()), std::bad_alloc);
}
