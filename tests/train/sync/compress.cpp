#include <muster/train/sync/compress.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include <muster/core/events.hpp>
#include <muster/core/random.hpp>
#include <muster/train/sync/gradient_sync.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "core/codec/trim.hpp"
#include "train/heap.hpp"

namespace {

const std::vector<std::string> methods = {"float16",  "bfloat16",  "qsgd8",      "sign",
                                          "topk:0.1", "stride:10", "powersgd:2", "trim:2"};

/// An arena and its gradients' reducer, with several buckets.
struct rig {
  heap memory;
  muster::arena arena{memory,
                      {{"first", {24, 17}}, {"bias", {24}}, {"one", {}}, {"none", {0, 3}}, {"last", {13, 9, 3}}}};
  muster::gradient_sync sync;
  std::uint64_t step = 0;

  explicit rig(const std::string& method)
      : sync(arena, {.bucket = 2000, .first_bucket = 1500, .codec = muster::compress(method)}) {}

  /// Draws this rank's gradients of a step.
  void draw(int rank, std::uint64_t of_step) {
    muster::random_stream random(17, of_step * 100 + static_cast<std::uint64_t>(rank));
    for (std::size_t tensor = 0; tensor < arena.shapes().size(); ++tensor) {
      for (float& value : arena.gradient(tensor)) value = static_cast<float>(random.normal());
    }
  }
  /// Reduces the gradients over the ranks.
  void reduce(muster::group& ranks) {
    auto pass = sync.begin(ranks);
    pass.add_samples(1);
    pass.divided_by(ranks.size());
    for (std::size_t tensor = arena.shapes().size(); tensor-- > 0;) pass.ready(tensor);
    pass.wait();
  }
  [[nodiscard]] std::vector<float> gradients() { return {arena.gradients().begin(), arena.gradients().end()}; }
};

std::vector<float> residuals_of(muster::state& all, std::size_t size) {
  for (const auto& part : all.parts()) {
    if (part.name != "residuals of error feedback") continue;
    const auto bytes = part.save();
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  return std::vector<float>(size);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("what is summed and the residuals are all gradients there were, with the same bits at every rank") {
  const auto method = GENERATE(from_range(methods));
  const int ranks = GENERATE(1, 2, 3, 4);
  if (method == "sign") return;  // a vote is not a sum
  constexpr std::uint64_t steps = 6;
  CAPTURE(method, ranks);
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::vector<float>> results(n);
  std::vector<std::vector<float>> residuals(n);
  std::vector<double> exact, got;
  test::run_ranks(ranks, [&](muster::group& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    rig mine(method);
    muster::state all(mine.arena);
    for (; mine.step < steps; ++mine.step) {
      all.begin_step();
      mine.draw(world.rank(), mine.step);
      mine.reduce(world);
      all.commit_step();
      const auto result = mine.gradients();
      results[rank].insert(results[rank].end(), result.begin(), result.end());
    }
    residuals[rank] = residuals_of(all, mine.arena.gradients().size());
  });
  rig scratch(method);
  exact.resize(scratch.arena.gradients().size());
  got.resize(exact.size());
  for (std::uint64_t step = 0; step < steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      scratch.draw(rank, step);
      for (std::size_t i = 0; i < exact.size(); ++i) exact[i] += static_cast<double>(scratch.arena.gradients()[i]);
    }
  }
  for (std::size_t rank = 1; rank < n; ++rank) REQUIRE(same_bits(results[rank], results[0]));
  for (std::size_t i = 0; i < results[0].size(); ++i) got[i % got.size()] += static_cast<double>(results[0][i]);
  for (const auto& residual : residuals) {
    for (std::size_t i = 0; i < residual.size(); ++i) got[i] += static_cast<double>(residual[i]);
  }
  // The first three methods have no residuals: their errors remain.
  const double margin = method == "float16" ? 0.02 : method == "bfloat16" ? 0.3 : method == "qsgd8" ? 0.6 : 2e-4;
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    REQUIRE(got[i] == Approx(exact[i]).margin(margin));
  }
}

TEST_CASE("gaps between tensors stay zeros") {
  const auto method = GENERATE(from_range(methods));
  CAPTURE(method);
  std::size_t nonzero = 0;
  test::run_ranks(2, [&](muster::group& world) {
    rig mine(method);
    for (; mine.step < 3; ++mine.step) {
      mine.draw(world.rank(), mine.step);
      mine.reduce(world);
      mine.sync.commit();
    }
    if (world.rank() == 0)
      nonzero =
          mine.arena.gradients().size() - static_cast<std::size_t>(std::ranges::count(mine.arena.gradients(), 0.0f));
  });
  CHECK(nonzero <= 24 * 17 + 24 + 1 + 13 * 27);
}

TEST_CASE("a step that did not happen is run again with the same result, and what it made is not kept") {
  const auto method = GENERATE(from_range(methods));
  CAPTURE(method);
  std::vector<float> first, again, without_hooks, next_step;
  test::run_ranks(3, [&](muster::group& world) {
    rig mine(method), plain(method);
    muster::state all(mine.arena);
    const auto attempt = [&](rig& instance) {
      instance.draw(world.rank(), instance.step);
      instance.reduce(world);
      return instance.gradients();
    };
    for (; mine.step < 3; ++mine.step) {  // so that there are residuals
      all.begin_step();
      (void)attempt(mine);
      all.commit_step();
    }
    for (; plain.step < 3; ++plain.step) {
      (void)attempt(plain);
      plain.sync.commit();
    }
    all.begin_step();
    const auto first_attempt = attempt(mine);
    all.roll_back();
    all.begin_step();
    const auto two = attempt(mine);
    all.commit_step();
    (void)attempt(plain);
    const auto third_attempt = attempt(plain);  // not committed: like a step that was rolled back
    ++mine.step;
    mine.draw(world.rank(), mine.step - 1);
    mine.reduce(world);
    if (world.rank() != 0) return;
    first = first_attempt;
    again = two;
    without_hooks = third_attempt;
    next_step = mine.gradients();
  });
  CHECK(same_bits(first, again));
  CHECK(same_bits(first, without_hooks));
  if (method != "float16" && method != "bfloat16")
    CHECK(!same_bits(first, next_step));  // its residuals or its random numbers
}

TEST_CASE("residuals and factors survive in a state, and one of another shape is refused") {
  const auto method = GENERATE("topk:0.1", "powersgd:2");
  std::vector<float> original, restored;
  test::run_ranks(2, [&](muster::group& world) {
    rig mine(method), copy(method);
    muster::state source(mine.arena), destination(copy.arena);
    for (; mine.step < 3; ++mine.step) {
      source.begin_step();
      mine.draw(world.rank(), mine.step);
      mine.reduce(world);
      source.commit_step();
    }
    const auto& parts = source.parts();
    const auto& destination_parts = destination.parts();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].name != destination_parts[i].name) throw std::logic_error("the parts have other names");
      if (!parts[i].save) {
        std::ranges::copy(parts[i].bytes, destination_parts[i].bytes.begin());
        continue;
      }
      destination_parts[i].load(parts[i].save());
      bool refused = false;
      try {
        destination_parts[i].load(std::vector<std::byte>(12));
      } catch (const muster::configuration_error&) {
        refused = true;
      }
      if (!refused) throw std::logic_error("a part of another size is taken over");
    }
    for (rig* instance : {&mine, &copy}) {
      instance->draw(world.rank(), 3);
      instance->reduce(world);
    }
    if (world.rank() != 0) return;
    original = mine.gradients();
    restored = copy.gradients();
  });
  CHECK(!original.empty());
  CHECK(same_bits(original, restored));
}

TEST_CASE("signs are voted on, tensor by tensor") {
  constexpr int ranks = 3;
  std::vector<float> voted;
  test::run_ranks(ranks, [&](muster::group& world) {
    rig mine("sign");
    mine.draw(world.rank(), 0);
    mine.reduce(world);
    if (world.rank() == 0) voted = mine.gradients();
  });
  rig scratch("sign");
  const auto base = scratch.arena.gradients().data();
  for (std::size_t tensor = 0; tensor < scratch.arena.shapes().size(); ++tensor) {
    const auto values = scratch.arena.gradient(tensor);
    std::vector<int> balance(values.size());
    double scales = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      scratch.draw(rank, 0);
      double sum = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        sum += std::fabs(static_cast<double>(values[i]));
        balance[i] += std::signbit(values[i]) ? -1 : 1;
      }
      if (!values.empty()) scales += sum / static_cast<double>(values.size());
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double expected = balance[i] < 0 ? -scales : scales;
      REQUIRE(static_cast<double>(voted[static_cast<std::size_t>(values.data() - base) + i]) == Approx(expected));
    }
  }
}

TEST_CASE("what is sent is what the codec says") {
  const auto sent = [](const std::string& method) {
    std::uint64_t bytes = 0;
    test::run_ranks(2, [&](muster::group& world) {
      rig mine(method);
      mine.draw(world.rank(), 0);
      mine.reduce(world);
      if (world.rank() == 0) bytes = mine.sync.bytes_sent();
    });
    return bytes;
  };
  // The tensors have 408, 24, 1, 0 and 351 values.
  CHECK(sent("float16") == 2 * (408 + 24 + 2 + 0 + 352));
  CHECK(sent("qsgd8") == (4 + 408) + (4 + 24) + (4 + 4) + 0 + (4 + 352));
  CHECK(sent("sign") == (4 + 4 * 13) + (4 + 4) + (4 + 4) + 0 + (4 + 4 * 11));
  CHECK(sent("topk:0.1") == 8 * (41 + 3 + 1 + 0 + 36));
  CHECK(sent("stride:10") == 4 * (41 + 3 + 1 + 0 + 36));
  CHECK(sent("trim:1") == 408 + 24 + 4 + 0 + 352);
  CHECK(sent("powersgd:2") == 4 * (2 * (24 + 17) + 24 + 1 + 0 + 2 * (13 + 27)));
}

TEST_CASE("PowerSGD cuts the extents of a tensor where rows and columns together are least") {
  struct cut {
    std::vector<std::size_t> extents;
    std::uint64_t sides;
  };
  for (const auto& [extents, sides] :
       {cut{{3, 3, 16, 32}, 144 + 32}, cut{{32, 16, 3, 3}, 32 + 144}, cut{{5, 7, 6}, 35 + 6}, cut{{64, 10}, 64 + 10}}) {
    test::run_ranks(2, [&, &shape = extents, total = sides](muster::group& world) {
      heap memory;
      muster::arena arena(memory, {{"kernel", shape}});
      muster::gradient_sync sync(arena, {.codec = muster::compress("powersgd:1")});
      auto pass = sync.begin(world);
      pass.add_samples(1);
      pass.ready(0);
      pass.wait();
      if (sync.bytes_sent() != 4 * total) throw std::runtime_error("two factors of one column each were sent");
    });
  }
}

TEST_CASE("a tracker counts the bytes that were sent, not those that were compressed") {
  struct counter final : muster::event_sink {
    void record(const muster::event& event) noexcept override {
      if (event.kind == muster::activity::bucket || event.kind == muster::activity::communication) bytes += event.bytes;
    }
    std::uint64_t bytes = 0;
  };
  const auto method = GENERATE(from_range(methods));
  CAPTURE(method);
  test::run_ranks(2, [&](muster::group& world) {
    heap memory;
    muster::arena arena(memory, {{"first", {24, 17}}, {"bias", {24}}, {"last", {13, 9, 3}}});
    muster::gradient_sync sync(arena, {.bucket = 1000, .first_bucket = 200, .codec = muster::compress(method)});
    counter recorded;
    const muster::scoped_event_sink registration(recorded);
    for (int step = 0; step < 2; ++step) {
      recorded.bytes = 0;
      auto pass = sync.begin(world);
      pass.add_samples(1);
      for (std::size_t tensor = 0; tensor < 3; ++tensor) pass.ready(tensor);
      pass.wait();
      sync.commit();
      if (recorded.bytes != sync.bytes_sent())
        throw std::runtime_error(std::to_string(recorded.bytes) + " bytes were recorded, and " +
                                 std::to_string(sync.bytes_sent()) + " sent");
    }
  });
}

TEST_CASE("descent along compressed gradients of ranks that differ comes to where all of them want it") {
  const auto method = GENERATE(from_range(methods));
  CAPTURE(method);
  constexpr int ranks = 4;
  double distance = 0, start = 0;
  test::run_ranks(ranks, [&](muster::group& world) {
    rig mine(method);
    const std::size_t size = mine.arena.gradients().size();
    std::vector<float> aims(size), middle(size), at(size);
    for (int rank = 0; rank < ranks; ++rank) {  // (at - aim of the rank)^2 / 2, summed over the ranks
      mine.draw(rank, 99);
      for (std::size_t i = 0; i < size; ++i) middle[i] += mine.arena.gradients()[i] / ranks;
      if (rank == world.rank()) aims = mine.gradients();
    }
    const double first = std::inner_product(middle.begin(), middle.end(), middle.begin(), 0.0);
    for (; mine.step < 600; ++mine.step) {
      for (std::size_t tensor = 0; tensor < mine.arena.shapes().size(); ++tensor) {
        const auto values = mine.arena.gradient(tensor);
        const auto place = static_cast<std::size_t>(values.data() - mine.arena.gradients().data());
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = (at[place + i] - aims[place + i]) / ranks;
      }
      mine.reduce(world);
      mine.sync.commit();
      const float rate = 0.05f / (1.0f + 0.02f * static_cast<float>(mine.step));
      for (std::size_t i = 0; i < size; ++i) at[i] -= rate * mine.arena.gradients()[i];
    }
    if (world.rank() != 0) return;
    start = first;
    for (std::size_t i = 0; i < size; ++i)
      distance += static_cast<double>(at[i] - middle[i]) * static_cast<double>(at[i] - middle[i]);
  });
  CHECK(distance < 0.1 * start);
}

TEST_CASE("no compression is no codec, and a bad one is refused") {
  CHECK_FALSE(muster::compress("none"));
  CHECK_THROWS_AS(muster::compress("topk:2"), muster::configuration_error);
  std::string words[] = {"program", "--compress=powersgd:0"};
  char* argv[] = {words[0].data(), words[1].data(), nullptr};
  int argc = 2;
  const muster::settings chosen(argc, argv);
  CHECK_THROWS_WITH(muster::compress(chosen), contains("is not a whole number from 1 to 1024"));
}
