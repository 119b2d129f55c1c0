// Reproducible sums: the exact sum of each element, rounded once, by every algorithm and transport.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/buffers.hpp>
#include <muster/comm/collectives/reduce.hpp>
#include <muster/comm/collectives/reduce_scatter.hpp>
#include <muster/comm/collectives/scan.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "comm/oracle.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"

namespace {

__extension__ typedef __int128 wide;
using muster::algorithm;
constexpr double infinity = std::numeric_limits<double>::infinity();

template <class T>
using rows = std::vector<std::vector<T>>;

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Returns a number with a drawn exponent within 2^-range to 2^range, some of them zero.
template <class T>
T draw_number(muster::random_stream& random, int range) {
  if (random.below(8) == 0) return T(0.0f);
  const double fraction = 1 + static_cast<double>(random() >> 12) * 0x1p-52;
  const int exponent = static_cast<int>(random.below(static_cast<std::uint64_t>(2 * range + 1))) - range;
  const double value = std::ldexp(random.below(2) == 0 ? fraction : -fraction, exponent);
  if constexpr (std::same_as<T, double>) return value;
  return static_cast<T>(static_cast<float>(value));
}

template <class T>
rows<T> draw_rows(muster::random_stream& random, std::size_t ranks, std::size_t count, int range) {
  rows<T> all(ranks, std::vector<T>(count));
  for (std::size_t i = 0; i < count; ++i) {
    const bool cancels = random.below(4) == 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      all[r][i] = draw_number<T>(random, range);
      if (cancels && r % 2 == 1 && random.below(3) != 0)
        all[r][i] =
            static_cast<T>(-static_cast<std::conditional_t<std::same_as<T, double>, double, float>>(all[r - 1][i]));
    }
  }
  return all;
}

// Returns the result of the kernel for these ranks, without collectives.
template <class T>
std::vector<T> folded(const rows<T>& all, bool mean = false) {
  std::vector<T> result(all.front().size());
  std::vector<const std::byte*> in;
  for (const auto& row : all) in.push_back(reinterpret_cast<const std::byte*>(row.data()));
  std::byte* const out[] = {reinterpret_cast<std::byte*>(result.data())};
  muster::reduction::reproducible<T>(mean).fold(out, in, result.size() * sizeof(T));
  return result;
}

// Returns the value in units of 2^-64. Exact: the drawn exponents are small.
wide units(double value) {
  int exponent = 0;
  const auto digits = static_cast<std::int64_t>(std::ldexp(std::frexp(value, &exponent), 53));
  const int shift = exponent - 53 + 64;
  return shift >= 0 ? static_cast<wide>(digits) * (wide{1} << shift) : static_cast<wide>(digits) / (wide{1} << -shift);
}

template <class T>
T neighbour(T value, int step) {
  using bits = std::conditional_t<sizeof(T) == 2, std::uint16_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;
  return std::bit_cast<T>(static_cast<bits>(std::bit_cast<bits>(value) + static_cast<bits>(step)));
}

// Requires the T that is nearest to the exact sum, with an even last bit if two are.
template <class T>
void require_nearest(T result, wide exact) {
  const auto distance = [&](T value) {
    const wide apart = units(static_cast<double>(value)) - exact;
    return apart < 0 ? -apart : apart;
  };
  if (exact == 0)
    return test::require(std::bit_cast<std::array<char, sizeof(T)>>(result) == std::array<char, sizeof(T)>{}, "+0");
  test::require((static_cast<double>(result) < 0) == (exact < 0), "the sign of the exact sum");
  for (const int step : {-1, 1}) {
    const T other = neighbour(result, step);
    test::require(distance(result) <= distance(other), "the nearest number to the exact sum");
    const bool is_even = (std::bit_cast<std::array<unsigned char, sizeof(T)>>(result)[0] & 1) == 0;
    test::require(distance(result) < distance(other) || is_even, "ties to even");
  }
}

template <class T>
void check_kernel(std::uint64_t seed, int range) {
  muster::random_stream random(seed, 5);
  const auto ranks = 1 + random.below(random.below(4) == 0 ? 64 : 6);
  const auto count = 1 + random.below(600);
  auto all = draw_rows<T>(random, ranks, count, range);
  const auto result = folded(all);
  for (std::size_t i = 0; i < count; ++i) {
    wide exact = 0;
    for (const auto& row : all) exact += units(static_cast<double>(row[i]));
    require_nearest(result[i], exact);
  }
  std::reverse(all.begin(), all.end());
  test::require(same_bits(folded(all), result), "the order of the ranks changes no bit");
  all.emplace_back(count);
  test::require(same_bits(folded(all), result), "a rank with zeros changes no bit");
}

// Returns the input of a rank: the sums of its part of 64 shards, which are exact, so that any number of ranks has the
// same exact sum. Each of 64 ranks has one shard, and the first three have numbers that a float sum loses.
std::vector<float> shard_sums(std::uint64_t seed, int rank, int ranks, std::size_t count) {
  std::vector<float> sums(count);
  const auto part = muster::block_of(64, rank, ranks);
  for (std::size_t i = 0; i < count; ++i) {
    double total = 0;
    for (std::size_t shard = part.first; shard < part.first + part.count; ++shard) {
      const auto word = muster::mix(seed + 64 * i + shard);
      const double large = 0x1p30 * static_cast<double>(1 + muster::mix(seed + i) % 100);
      total += shard == 0 ? large : shard == 2 ? -large : static_cast<double>(word % 1000) * 0x1p-6 - 8;
    }
    sums[i] = static_cast<float>(total);
    test::require(static_cast<double>(sums[i]) == total, "an exact sum of shards");
  }
  return sums;
}

template <class T>
std::vector<T> reduced(muster::group& world, const std::vector<T>& in, muster::collective_options options, int how) {
  options.reproducible = true;
  std::vector<T> out(in.size());
  const auto n = world.size();
  const auto mine = muster::block_of(in.size(), world.rank(), n);
  switch (how) {
    case 0:
      muster::allreduce(world, in, out, muster::sum, options);
      break;
    case 1: {
      out = in;
      const auto cut = static_cast<std::ptrdiff_t>(in.size() / 3);
      std::span<T> parts[] = {{out.begin(), out.begin() + cut}, {out.begin() + cut, out.end()}};
      muster::allreduce(world, std::span<const std::span<T>>(parts), muster::sum, options);
      break;
    }
    case 2:
      options.algorithm = algorithm::automatic;
      muster::reduce(world, in, out, muster::sum, n - 1, options);
      muster::broadcast(world, out, n - 1);
      break;
    default: {
      options.algorithm = algorithm::automatic;
      std::vector<T> block(mine.count);
      muster::reduce_scatter(world, in, block, muster::sum, options);
      muster::allgather(world, block, out);
    }
  }
  return out;
}

// Inputs of all ranks, and the results.
template <class T>
struct drawn_case {
  drawn_case(std::uint64_t seed, int ranks, std::size_t count, int range) {
    muster::random_stream random(seed, 7);
    all = draw_rows<T>(random, static_cast<std::size_t>(ranks), count, range);
    sums = folded(all);
    means = folded(all, true);
  }
  rows<T> all;
  std::vector<T> sums, means;
};

template <class T>
void check_collectives(muster::group& world, const drawn_case<T>& drawn) {
  const auto& mine = drawn.all[static_cast<std::size_t>(world.rank())];
  for (const auto name : muster::algorithms_of(muster::collective::allreduce)) {
    if (name == algorithm::native && !world.abilities().native_collectives) continue;
    for (const int how : {0, 1})
      test::require(same_bits(reduced(world, mine, {.algorithm = name}, how), drawn.sums),
                    std::string(to_string(name)).c_str());
  }
  test::require(same_bits(reduced(world, mine, {}, 2), drawn.sums), "reduce");
  test::require(same_bits(reduced(world, mine, {}, 3), drawn.sums), "reduce_scatter");
  auto means = mine;
  muster::allreduce(world, means, muster::mean, {.reproducible = true});
  test::require(same_bits(means, drawn.means), "mean");
}

}  // namespace

TEST_CASE("a reproducible sum is the exact sum, rounded once") {
  const auto cases = test::cases_of_run(300);
  std::cout << "seed " << cases.seed << " (MUSTER_TEST_SEED sets another)\n";
  for (std::uint64_t c = 0; c < 300; ++c) {
    const auto seed = cases.seed + c;
    INFO("case seed " << seed);
    REQUIRE_NOTHROW(check_kernel<float>(seed, c % 2 == 0 ? 2 : 30));
    REQUIRE_NOTHROW(check_kernel<double>(seed, c % 2 == 0 ? 1 : 10));
    REQUIRE_NOTHROW(check_kernel<muster::bfloat16>(seed, c % 2 == 0 ? 2 : 40));
    REQUIRE_NOTHROW(check_kernel<muster::float16>(seed, 7));
  }
}

TEST_CASE("a reproducible sum of any magnitudes loses no bit") {
  constexpr double most = std::numeric_limits<double>::max();
  constexpr double least = std::numeric_limits<double>::denorm_min();
  const auto sum = [](const std::vector<double>& values) {
    rows<double> all;
    for (const double value : values) all.push_back(std::vector<double>(9, value));
    const auto result = folded(all);
    test::require(same_bits(result, std::vector<double>(9, result[0])), "vectors and the rest");
    return result[0];
  };
  CHECK(sum({1e300, 3e-300, -1e300}) == 3e-300);
  CHECK(sum({1e300, 1e-10, least, -1e-10, -1e300}) == least);
  CHECK(sum({most, most, -most, -most, 2}) == 2);
  CHECK(sum({most, most, -most}) == most);
  CHECK(sum({most, most, 1}) == infinity);
  CHECK(sum({1, 0x1p-53, 0x1p-200}) == 1 + 0x1p-52);
  CHECK(sum({1, 0x1p-53, -0x1p-1000}) == 1);
  CHECK(sum({-1, -0x1p-53, -0x1p-200}) == -1 - 0x1p-52);
  CHECK(std::isnan(sum({infinity, -infinity, 1})));
  CHECK(sum({-infinity, most, most}) == -infinity);
  CHECK(std::bit_cast<std::uint64_t>(sum({-0.0, -0.0, -0.0})) == 0);
  const auto quiet = std::bit_cast<std::uint64_t>(std::numeric_limits<double>::quiet_NaN());
  CHECK(std::bit_cast<std::uint64_t>(sum({std::bit_cast<double>(0xfff8000000001234u), 1, 2})) == quiet);
  CHECK(folded<float>({{1e6f}, {1e-6f}, {-1e6f}})[0] == 1e-6f);
  CHECK(folded<float>({{std::numeric_limits<float>::max()}, {std::numeric_limits<float>::max()}, {-1e38f}})[0] ==
        infinity);
  CHECK(static_cast<float>(folded<muster::float16>({{65504.0f}, {65504.0f}, {-65504.0f}})[0]) == 65504.0f);
}

TEST_CASE("a reproducible reduction has the same bits by every algorithm and transport") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const int ranks = GENERATE(1, 2, 3, 5, 8, 16, 64);
  const auto seed = test::cases_of_run(1).seed;
  std::cout << "seed " << seed << " (MUSTER_TEST_SEED sets another)\n";
  if (ranks == 64 && over != test::fabric::threads && over != test::fabric::shm) return;  // 64 ranks have 2,016 sockets
  // at three ranks, blocks of more than one piece
  const std::vector<std::size_t> counts = ranks == 64  ? std::vector<std::size_t>{7, 1000}
                                          : ranks == 3 ? std::vector<std::size_t>{1, 7, 1000, 400000}
                                                       : std::vector<std::size_t>{1, 7, 5000};
  for (const std::size_t count : counts) {
    INFO(count << " elements");
    const auto few = std::min<std::size_t>(count, 1000);
    const drawn_case<float> floats(seed + count, ranks, count, count < 2000 ? 60 : 12);
    const drawn_case<double> doubles(seed + count, ranks, few, 200);
    const drawn_case<muster::bfloat16> brains(seed + count, ranks, few, 60);
    const drawn_case<muster::float16> halves(seed + count, ranks, few, 14);
    REQUIRE_NOTHROW(test::run_ranks(over, ranks,
                                    [&](muster::group& world) {
                                      check_collectives(world, floats);
                                      check_collectives(world, doubles);
                                      check_collectives(world, brains);
                                      check_collectives(world, halves);
                                    },
                                    {.timeout = muster::seconds(120)}));
  }
}

TEST_CASE("a reproducible sum has the same bits for 1 to 64 ranks") {
  const auto seed = test::cases_of_run(1).seed;
  std::vector<float> first;
  for (const int ranks : {1, 2, 3, 5, 8, 16, 64}) {
    std::vector<float> result;
    REQUIRE_NOTHROW(test::run_ranks(test::fabric::threads, ranks, [&](muster::group& world) {
      auto sums = reduced(world, shard_sums(seed, world.rank(), world.size(), 500), {}, 0);
      if (world.rank() == 0) result = std::move(sums);
    }));
    if (first.empty()) first = result;
    INFO(ranks << " ranks, seed " << seed);
    CHECK(same_bits(result, first));
  }
}

TEST_CASE("a buffer that is cut at 1,000 drawn places has the same reproducible sums") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const auto seed = test::cases_of_run(1).seed;
  REQUIRE_NOTHROW(test::run_ranks(over, 3, [&](muster::group& world) {
    muster::random_stream random(seed, 11);
    const auto all = draw_rows<float>(random, 3, 20000, 60);
    const auto& mine = all[static_cast<std::size_t>(world.rank())];
    std::vector<std::size_t> cuts = {0, mine.size()};
    for (int k = 0; k < 1000; ++k) cuts.push_back(random.below(mine.size()));
    std::sort(cuts.begin(), cuts.end());
    auto pieces = mine;
    for (std::size_t k = 0; k + 1 < cuts.size(); ++k)
      muster::allreduce(world, std::span(pieces).subspan(cuts[k], cuts[k + 1] - cuts[k]), muster::sum,
                        {.reproducible = true});
    test::require(same_bits(pieces, folded(all)), "the whole buffer's bits");
  }));
}

TEST_CASE("reproducible operations are sums of numbers") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const muster::collective_options options{.reproducible = true};
  REQUIRE_NOTHROW(test::run_ranks(over, 3, [&](muster::group& world) {
    const auto refuses = [&](const std::string& text, const std::function<void()>& call) {
      std::string what;
      try {
        call();
      } catch (const muster::configuration_error& refused) {
        what = refused.what();
      }
      test::require(what.find(text) != std::string::npos, ("an error with '" + text + "', not '" + what + "'").c_str());
    };
    std::vector<float> data(5, 1.5f);
    std::vector<long double> extended(5);
    refuses("a max of float32 cannot be reproducible", [&] { muster::allreduce(world, data, muster::max, options); });
    refuses("a product of float32", [&] { muster::allreduce(world, data, muster::product, options); });
    refuses("a user function of float32", [&] {
      muster::allreduce(
          world, data, [](float a, float b) { return a + b; }, options);
    });
    refuses("a sum of extended", [&] { muster::allreduce(world, extended, muster::sum, options); });
    refuses("scan: a sum", [&] { muster::scan(world, data, data, muster::sum, options); });
    test::require(muster::allreduce(world, world.rank(), muster::max, options) == 2, "integers");
    test::require(muster::allreduce(world, 0.25 * world.rank(), muster::mean, options) == 0.25, "a single mean");
  }));
  const auto thrown = test::outcomes(over, 3, [&](muster::group& world) {
    std::vector<float> data(5);
    muster::allreduce(world, data, muster::sum, {.reproducible = world.rank() == 1});
  });
  for (const auto& failure : thrown)
    CHECK(muster::exit_status_of(failure) == static_cast<int>(muster::error_kind::mismatch));
}
