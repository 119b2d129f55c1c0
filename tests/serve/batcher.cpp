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

/// A request with its rows and the reply's future.
struct test_request {
  std::vector<std::vector<float>> numbers;
  std::vector<std::span<const std::byte>> rows;
  struct outcome {
    std::promise<serve::prediction> promise;
    std::atomic<int> answers{0};
  };
  // Shared with the batcher, which may still run set_value() when the test ends.
  std::shared_ptr<outcome> result = std::make_shared<outcome>();
  std::future<serve::prediction> answer = result->promise.get_future();

  explicit test_request(std::vector<std::vector<float>> row_numbers) : numbers(std::move(row_numbers)) {
    for (const auto& each : numbers) rows.push_back(bytes_of(each));
  }
  [[nodiscard]] bool submit(serve::batcher& batcher,
                            muster::clock::time_point deadline = muster::clock::time_point::max()) {
    return batcher.submit({rows, deadline, [outcome = result](serve::prediction&& reply) {
                             if (++outcome->answers == 1) outcome->promise.set_value(std::move(reply));
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
    const auto gate = std::make_shared<prediction_gate>();
    serve::batcher model(sums{.factor = 2, .gate = gate}, {.max_batch = 7, .max_delay = delay, .queue = 1000});
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(seed + t);
        std::vector<std::unique_ptr<test_request>> all;
        for (int k = 0; k < 100; ++k) {
          all.push_back(std::make_unique<test_request>(rows_of(1 + random() % 7, static_cast<float>(random() % 1000))));
          if (!all.back()->submit(model)) ++wrong;
          if (random() % 4 == 0) (void)all.back()->answer.wait_for(50us);
        }
        for (const auto& each : all) {
          const auto reply = each->answer.get();
          std::vector<float> expected;
          for (const auto& row : each->numbers) expected.insert(expected.end(), {2 * (row[0] + 6), row[0]});
          if (reply.status != prediction_status::done || floats_of(reply.values) != expected) ++wrong;
        }
        for (const auto& each : all) wrong += each->result->answers != 1;
      });
    }
    for (auto& each : threads) each.join();
    CHECK(wrong == 0);
    CHECK(std::ranges::all_of(gate->batches, [](std::size_t rows) { return rows >= 1 && rows <= 7; }));
  }
}

TEST_CASE("no request waits while the model is idle, and those that came meanwhile are one batch") {
  const auto gate = std::make_shared<prediction_gate>();
  serve::batcher model(sums{.gate = gate}, {.max_batch = 8, .queue = 10});
  gate->block();
  test_request first(rows_of(1, 0));
  REQUIRE(first.submit(model));
  gate->await_blocked();  // the first request is predicted alone and at once
  test_request a(rows_of(2, 1)), b(rows_of(3, 2)), c(rows_of(3, 3)), d(rows_of(1, 4));
  for (auto* each : {&a, &b, &c, &d}) REQUIRE(each->submit(model));
  CHECK(model.waiting() == 4);
  gate->release();
  for (auto* each : {&a, &b, &c, &d}) CHECK(each->answer.get().status == prediction_status::done);
  CHECK(gate->batches == std::vector<std::size_t>{1, 8, 1});
}

TEST_CASE("a full batch does not wait for the delay to pass") {
  const auto gate = std::make_shared<prediction_gate>();
  serve::batcher model(sums{.gate = gate}, {.max_batch = 4, .max_delay = muster::seconds(1e5), .queue = 10});
  test_request a(rows_of(1, 0)), b(rows_of(3, 1));
  REQUIRE(a.submit(model));
  // This check may pass by chance, but a failure is always an error.
  CHECK(a.answer.wait_for(20ms) == std::future_status::timeout);
  REQUIRE(b.submit(model));
  CHECK(a.answer.get().status == prediction_status::done);
  CHECK(gate->batches == std::vector<std::size_t>{4});
}

TEST_CASE("a queue that is full takes no request, and a late one is not predicted") {
  const auto gate = std::make_shared<prediction_gate>();
  serve::batcher model(sums{.gate = gate}, {.max_batch = 4, .queue = 2});
  gate->block();
  test_request first(rows_of(1, 0)), late(rows_of(1, 1)), good(rows_of(2, 2)), more(rows_of(1, 3));
  REQUIRE(first.submit(model));
  gate->await_blocked();
  CHECK(late.submit(model, muster::clock::now()));
  CHECK(good.submit(model));
  CHECK_FALSE(more.submit(model));
  gate->release();
  CHECK(late.answer.get().status == prediction_status::expired);
  CHECK(good.answer.get().status == prediction_status::done);
  CHECK(more.result->answers == 0);
  CHECK(gate->batches == std::vector<std::size_t>{1, 2});
}

TEST_CASE("a row that is refused concerns its request alone, an exception all of its batch") {
  const auto gate = std::make_shared<prediction_gate>();
  serve::batcher model(sums{.gate = gate}, {.max_batch = 8, .queue = 10});
  const auto together = [&](std::vector<test_request*> all) {
    test_request first(rows_of(1, 0));
    gate->block();
    REQUIRE(first.submit(model));
    gate->await_blocked();
    for (auto* each : all) REQUIRE(each->submit(model));
    gate->release();
    (void)first.answer.get();
  };
  test_request good(rows_of(2, 1)), bad({{5, 0, 0, 0}, {-1, 0, 0, 0}}), third(rows_of(1, 9));
  together({&good, &bad, &third});
  const auto refused = bad.answer.get();
  CHECK(refused.status == prediction_status::refused);
  CHECK(refused.row == 1);
  CHECK(refused.problem == "begins with -1");
  CHECK(floats_of(good.answer.get().values) == std::vector<float>{7, 1, 8, 2});
  CHECK(floats_of(third.answer.get().values) == std::vector<float>{15, 9});
  test_request thrown({{-2, 0, 0, 0}}), beside(rows_of(1, 1)), next(rows_of(1, 1));
  together({&thrown, &beside});
  CHECK(thrown.answer.get().status == prediction_status::failed);
  CHECK(beside.answer.get().problem == "a row begins with -2");
  REQUIRE(next.submit(model));
  CHECK(next.answer.get().status == prediction_status::done);
}

TEST_CASE("a batcher that ends answers what waits") {
  const auto gate = std::make_shared<prediction_gate>();
  auto model = std::make_unique<serve::batcher>(sums{.gate = gate}, serve::batch_options{.max_batch = 1, .queue = 10});
  gate->block();
  test_request a(rows_of(1, 0)), b(rows_of(1, 1)), c(rows_of(1, 2));
  for (auto* each : {&a, &b, &c}) REQUIRE(each->submit(*model));
  gate->await_blocked();
  std::thread ends([&] { model.reset(); });
  gate->release();
  ends.join();
  for (auto* each : {&a, &b, &c}) CHECK(each->answer.get().status == prediction_status::done);
  CHECK_THROWS_AS(serve::batcher(sums(), {.max_batch = 0}), muster::configuration_error);
}

namespace {

/// A model like `sums` that prepares rows. prepare() records each row's first number, and waits at the gate.
struct prepared_sums : sums {
  std::shared_ptr<prediction_gate> prepare_gate = std::make_shared<prediction_gate>();
  std::shared_ptr<std::vector<float>> order = std::make_shared<std::vector<float>>();

  [[nodiscard]] std::size_t prepared_bytes() const { return description.input.row_bytes(); }
  void prepare(std::span<const std::byte> row, std::span<std::byte> output) const {
    prepare_gate->enter(1);
    const float first = floats_of(row)[0];
    order->push_back(first);
    if (first == -1) throw muster::data_error({"row"}, "begins with -1");
    std::ranges::copy(row, output.begin());
  }
  void predict_prepared(serve::prediction_batch& batch) const { predict(batch); }
};
static_assert(serve::preparing_predictor<prepared_sums>);

}  // namespace

TEST_CASE("rows are prepared in turn, so that no request waits for all rows of another") {
  const prepared_sums model;
  model.prepare_gate->block();
  serve::batcher requests(model, {.max_batch = 8, .queue = 3});
  test_request large(rows_of(3, 10)), small(rows_of(1, 20)), bad(rows_of(2, -1));
  REQUIRE(large.submit(requests));
  model.prepare_gate->await_blocked();
  REQUIRE(small.submit(requests));
  REQUIRE(bad.submit(requests));
  CHECK(requests.waiting() == 3);
  CHECK_FALSE(test_request(rows_of(1, 0)).submit(requests));
  model.prepare_gate->release();
  CHECK(floats_of(small.answer.get().values) == std::vector<float>{26, 20});
  const auto refused = bad.answer.get();
  CHECK(refused.status == prediction_status::refused);
  CHECK(refused.row == 0);
  CHECK(refused.problem == "begins with -1");
  CHECK(floats_of(large.answer.get().values) == std::vector<float>{16, 10, 17, 11, 18, 12});
  CHECK(*model.order == std::vector<float>{10, 20, -1, 11, 12});
}

// Regression: the request waited for ever, and the thread of the batcher used a processor.
TEST_CASE("a request that fits into no batch is refused at once") {
  serve::batcher model(sums{}, {.max_batch = 3});
  CHECK_THROWS_AS(test_request(rows_of(4, 0)).submit(model), muster::configuration_error);
  CHECK_THROWS_AS(test_request({}).submit(model), muster::configuration_error);
  test_request fits(rows_of(3, 0));
  REQUIRE(fits.submit(model));
  CHECK(fits.answer.get().status == prediction_status::done);
}
