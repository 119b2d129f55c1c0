#include <muster/serve/batcher.hpp>

#include <algorithm>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "models.hpp"

using namespace std::chrono_literals;
using namespace served;
using serve::prediction_status;

namespace {

/// A request with its rows, and its answer to come.
struct asked {
  std::vector<std::vector<float>> numbers;
  std::vector<std::span<const std::byte>> rows;
  struct outcome {
    std::promise<serve::prediction> promise;
    std::atomic<int> answers{0};
  };
  // The batcher's, too: it may be in set_value when the test is over.
  std::shared_ptr<outcome> made = std::make_shared<outcome>();
  std::future<serve::prediction> answer = made->promise.get_future();

  explicit asked(std::vector<std::vector<float>> of) : numbers(std::move(of)) {
    for (const auto& each : numbers) rows.push_back(bytes_of(each));
  }
  [[nodiscard]] bool submit(serve::batcher& to, muster::clock::time_point deadline = muster::clock::time_point::max()) {
    return to.submit({rows, deadline, [to = made](serve::prediction&& found) {
                        if (++to->answers == 1) to->promise.set_value(std::move(found));
                      }});
  }
};

std::vector<std::vector<float>> rows_of(std::size_t count, float first) {
  std::vector<std::vector<float>> rows;
  for (std::size_t k = 0; k < count; ++k) rows.push_back({first + static_cast<float>(k), 1, 2, 3});
  return rows;
}

}  // namespace

TEST_CASE("each request gets the answer to its own rows, once, in batches that are not too large") {
  const auto seed = std::random_device()();
  INFO("seed " << seed);
  for (const auto delay : {0ms, 1ms}) {
    const auto by = std::make_shared<control>();
    serve::batcher model(sums{.factor = 2, .by = by}, {.max_batch = 7, .max_delay = delay, .queue = 1000});
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(seed + t);
        std::vector<std::unique_ptr<asked>> all;
        for (int k = 0; k < 100; ++k) {
          all.push_back(std::make_unique<asked>(rows_of(1 + random() % 7, static_cast<float>(random() % 1000))));
          if (!all.back()->submit(model)) ++wrong;
          if (random() % 4 == 0) (void)all.back()->answer.wait_for(50us);
        }
        for (const auto& each : all) {
          const auto made = each->answer.get();
          std::vector<float> expected;
          for (const auto& row : each->numbers) expected.insert(expected.end(), {2 * (row[0] + 6), row[0]});
          if (made.status != prediction_status::done || floats_of(made.values) != expected) ++wrong;
        }
        for (const auto& each : all) wrong += each->made->answers != 1;
      });
    }
    for (auto& each : threads) each.join();
    CHECK(wrong == 0);
    CHECK(std::ranges::all_of(by->batches, [](std::size_t rows) { return rows >= 1 && rows <= 7; }));
  }
}

TEST_CASE("no request waits while the model is idle, and those that came meanwhile are one batch") {
  const auto by = std::make_shared<control>();
  serve::batcher model(sums{.by = by}, {.max_batch = 8, .queue = 10});
  by->hold();
  asked first(rows_of(1, 0));
  REQUIRE(first.submit(model));
  by->await_held();  // alone, and at once
  asked a(rows_of(2, 1)), b(rows_of(3, 2)), c(rows_of(3, 3)), d(rows_of(1, 4));
  for (auto* each : {&a, &b, &c, &d}) REQUIRE(each->submit(model));
  CHECK(model.waiting() == 4);
  by->release();
  for (auto* each : {&a, &b, &c, &d}) CHECK(each->answer.get().status == prediction_status::done);
  CHECK(by->batches == std::vector<std::size_t>{1, 8, 1});
}

TEST_CASE("a full batch does not wait for the delay to pass") {
  const auto by = std::make_shared<control>();
  serve::batcher model(sums{.by = by}, {.max_batch = 4, .max_delay = muster::seconds(1e5), .queue = 10});
  asked a(rows_of(1, 0)), b(rows_of(3, 1));
  REQUIRE(a.submit(model));
  CHECK(a.answer.wait_for(20ms) == std::future_status::timeout);  // may be too early to tell, and is never too late
  REQUIRE(b.submit(model));
  CHECK(a.answer.get().status == prediction_status::done);
  CHECK(by->batches == std::vector<std::size_t>{4});
}

TEST_CASE("a queue that is full takes no request, and a late one is not predicted") {
  const auto by = std::make_shared<control>();
  serve::batcher model(sums{.by = by}, {.max_batch = 4, .queue = 2});
  by->hold();
  asked first(rows_of(1, 0)), late(rows_of(1, 1)), good(rows_of(2, 2)), more(rows_of(1, 3));
  REQUIRE(first.submit(model));
  by->await_held();
  CHECK(late.submit(model, muster::clock::now()));
  CHECK(good.submit(model));
  CHECK_FALSE(more.submit(model));
  by->release();
  CHECK(late.answer.get().status == prediction_status::expired);
  CHECK(good.answer.get().status == prediction_status::done);
  CHECK(more.made->answers == 0);
  CHECK(by->batches == std::vector<std::size_t>{1, 2});
}

TEST_CASE("a row that is refused concerns its request alone, an exception all of its batch") {
  const auto by = std::make_shared<control>();
  serve::batcher model(sums{.by = by}, {.max_batch = 8, .queue = 10});
  const auto together = [&](std::vector<asked*> all) {
    asked first(rows_of(1, 0));
    by->hold();
    REQUIRE(first.submit(model));
    by->await_held();
    for (auto* each : all) REQUIRE(each->submit(model));
    by->release();
    (void)first.answer.get();
  };
  asked good(rows_of(2, 1)), bad({{5, 0, 0, 0}, {-1, 0, 0, 0}}), other(rows_of(1, 9));
  together({&good, &bad, &other});
  const auto refused = bad.answer.get();
  CHECK(refused.status == prediction_status::refused);
  CHECK(refused.row == 1);
  CHECK(refused.problem == "begins with -1");
  CHECK(floats_of(good.answer.get().values) == std::vector<float>{7, 1, 8, 2});
  CHECK(floats_of(other.answer.get().values) == std::vector<float>{15, 9});
  asked thrown({{-2, 0, 0, 0}}), beside(rows_of(1, 1)), next(rows_of(1, 1));
  together({&thrown, &beside});
  CHECK(thrown.answer.get().status == prediction_status::failed);
  CHECK(beside.answer.get().problem == "a row begins with -2");
  REQUIRE(next.submit(model));
  CHECK(next.answer.get().status == prediction_status::done);
}

TEST_CASE("a batcher that ends answers what waits") {
  const auto by = std::make_shared<control>();
  auto model = std::make_unique<serve::batcher>(sums{.by = by}, serve::batch_options{.max_batch = 1, .queue = 10});
  by->hold();
  asked a(rows_of(1, 0)), b(rows_of(1, 1)), c(rows_of(1, 2));
  for (auto* each : {&a, &b, &c}) REQUIRE(each->submit(*model));
  by->await_held();
  std::thread ends([&] { model.reset(); });
  by->release();
  ends.join();
  for (auto* each : {&a, &b, &c}) CHECK(each->answer.get().status == prediction_status::done);
  CHECK_THROWS_AS(serve::batcher(sums(), {.max_batch = 0}), muster::configuration_error);
}

namespace {

/// As sums, of rows that are prepared: each in turn is noted, and the first waits.
struct prepared_sums : sums {
  std::shared_ptr<control> prepares = std::make_shared<control>();
  std::shared_ptr<std::vector<float>> order = std::make_shared<std::vector<float>>();

  [[nodiscard]] std::size_t prepared_bytes() const { return what.input.row_bytes(); }
  void prepare(std::span<const std::byte> row, std::span<std::byte> to) const {
    prepares->enter(1);
    const float first = floats_of(row)[0];
    order->push_back(first);
    if (first == -1) throw muster::data_error({"row"}, "begins with -1");
    std::ranges::copy(row, to.begin());
  }
  void predict_prepared(serve::prediction_batch& batch) const { predict(batch); }
};
static_assert(serve::preparing_predictor<prepared_sums>);

}  // namespace

TEST_CASE("rows are prepared in turn, so that no request waits for all rows of another") {
  const prepared_sums model;
  model.prepares->hold();
  serve::batcher requests(model, {.max_batch = 8, .queue = 3});
  asked large(rows_of(3, 10)), small(rows_of(1, 20)), bad(rows_of(2, -1));
  REQUIRE(large.submit(requests));
  model.prepares->await_held();
  REQUIRE(small.submit(requests));
  REQUIRE(bad.submit(requests));
  CHECK(requests.waiting() == 3);
  CHECK_FALSE(asked(rows_of(1, 0)).submit(requests));
  model.prepares->release();
  CHECK(floats_of(small.answer.get().values) == std::vector<float>{26, 20});
  const auto refused = bad.answer.get();
  CHECK(refused.status == prediction_status::refused);
  CHECK(refused.row == 0);
  CHECK(refused.problem == "begins with -1");
  CHECK(floats_of(large.answer.get().values) == std::vector<float>{16, 10, 17, 11, 18, 12});
  CHECK(*model.order == std::vector<float>{10, 20, -1, 11, 12});
}
