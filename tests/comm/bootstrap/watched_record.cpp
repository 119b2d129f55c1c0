// An entry of a store, as seen by an owner that never waits.
#include <muster/comm/bootstrap/stores/watched_record.hpp>

#include <atomic>
#include <new>

#include <muster/comm/bootstrap/memory_store.hpp>

#include "catch.hpp"
#include "places.hpp"

namespace {

enum class trouble { none, away, left_behind, out_of_memory };

// A store in memory that fails on request.
class troubled_store final : public muster::any_store {
 public:
  troubled_store(muster::memory_store inner, const std::atomic<trouble>& now) : inner_(std::move(inner)), now_(&now) {}

  muster::store_entry get(std::string_view key, muster::clock::time_point until) override {
    return inner_.get(key, until);
  }
  muster::store_swap compare_and_swap(std::string_view key, std::uint64_t expected,
                                      std::optional<std::string_view> value, muster::clock::time_point until,
                                      muster::store_life life = muster::store_life::of_store) override {
    fail();
    return inner_.compare_and_swap(key, expected, value, until, life);
  }
  std::optional<muster::store_entry> watch(std::string_view key, std::uint64_t known, muster::clock::time_point until,
                                           const std::stop_token& stop) override {
    fail();
    return inner_.watch(key, known, until, stop);
  }
  [[nodiscard]] std::string where() const override { return inner_.where(); }

 private:
  void fail() const {
    if (*now_ == trouble::away) throw muster::timeout_error("watch", {}, "the store is away");
    if (*now_ == trouble::left_behind) throw muster::store_left_behind("the store was restarted");
    if (*now_ == trouble::out_of_memory) throw std::bad_alloc();
  }

  muster::memory_store inner_;
  const std::atomic<trouble>* now_;
};

struct watched {
  muster::memory_store store;
  std::atomic<trouble> now{trouble::none};
  muster::detail::watched_record record{std::make_shared<troubled_store>(store, now),
                                        "key",
                                        {muster::log_level::debug, "the record", "the test goes on"}};

  [[nodiscard]] muster::store_entry taken() {
    for (const auto until = places::soon(); muster::clock::now() < until;) {
      if (auto entry = record.take()) return std::move(*entry);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }
  template <class Condition>
  [[nodiscard]] static bool becomes_true(const Condition& condition) {
    for (const auto until = places::soon(); muster::clock::now() < until;) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
};

}  // namespace

TEST_CASE("a watched record gives what others write, and what became of its own swaps") {
  watched watched_entry;
  CHECK_FALSE(watched_entry.record.take());
  const auto first = watched_entry.store.compare_and_swap("key", 0, "first", places::soon()).now.version;
  CHECK(watched_entry.taken() == muster::store_entry{first, "first"});
  watched_entry.record.swap(first, "second");
  const auto second = watched_entry.taken();
  CHECK(second.value == "second");
  CHECK(watched_entry.store.get("key", places::soon()) == second);
  watched_entry.record.swap(first, "third");  // too late: the present entry is returned again
  CHECK(watched::becomes_true([&] { return watched_entry.record.take() == second; }));
  CHECK_FALSE(watched_entry.record.take_failure());
}

TEST_CASE("a watched record goes on when its store comes back, and says when that is in vain") {
  watched watched_entry;
  watched_entry.now = trouble::away;
  watched_entry.record.swap(0, "lost");
  CHECK(watched::becomes_true([&] { return watched_entry.record.take_failure(); }));
  CHECK_NOTHROW(watched_entry.record.check());
  watched_entry.now = trouble::none;
  (void)watched_entry.store.compare_and_swap("key", 0, "there", places::soon());
  CHECK(watched_entry.taken().value == "there");
  watched_entry.now = GENERATE(trouble::left_behind, trouble::out_of_memory);
  CHECK(watched::becomes_true([&] {
    try {
      watched_entry.record.check();
    } catch (const muster::store_left_behind&) {
      return watched_entry.now == trouble::left_behind;
    } catch (const std::bad_alloc&) {
      return watched_entry.now == trouble::out_of_memory;
    }
    return false;
  }));
}
