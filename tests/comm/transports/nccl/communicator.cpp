#include <muster/comm/transports/nccl/communicator.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <sstream>
#include <tuple>

#include <muster/comm/collectives/allgather.hpp>

#include "catch.hpp"
#include "devices.hpp"
#include "same_bits.hpp"

using muster::block_of;
using muster::device_buffer;
using muster::device_span;
using muster::device_stream_ref;
using muster::nccl::communicator;

namespace {

/// What rank `rank` brings: small whole numbers, whose sums and products any type holds exactly in any order.
template <class T>
std::vector<T> brought(std::size_t count, int rank, unsigned salt = 0) {
  std::mt19937 random(salt * 977 + static_cast<unsigned>(rank));
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(static_cast<float>(1 + random() % 3));
  return values;
}

/// The oracle: by hand, over what all ranks brought.
template <class T>
std::vector<T> combined(std::size_t count, int ranks, unsigned salt, const std::function<double(double, double)>& op,
                        double divisor = 1) {
  std::vector<double> sums;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto one = brought<T>(count, rank, salt);
    if (rank == 0) {
      for (const T value : one) sums.push_back(static_cast<double>(value));
    } else {
      for (std::size_t i = 0; i < count; ++i) sums[i] = op(sums[i], static_cast<double>(one[i]));
    }
  }
  std::vector<T> made;
  for (const double sum : sums) made.push_back(static_cast<T>(static_cast<float>(sum / divisor)));
  return made;
}

template <class T>
std::vector<T> part_of(const std::vector<T>& whole, muster::block part) {
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(part.first);
  return {first, first + static_cast<std::ptrdiff_t>(part.count)};
}

using test::same;

/// Throws where the first of the bits differ.
template <class T>
void require_same(const char* what, const std::vector<T>& found, const std::vector<T>& wanted) {
  if (same(found, wanted)) return;
  std::size_t at = 0;
  while (at < std::min(found.size(), wanted.size()) && std::memcmp(&found[at], &wanted[at], sizeof(T)) == 0) ++at;
  std::ostringstream text;
  text << what << " of " << wanted.size() << ": element " << at << " is " << static_cast<double>(found.at(at))
       << " and not " << static_cast<double>(wanted.at(at));
  throw std::runtime_error(text.str());
}

constexpr std::size_t counts[] = {0, 1, 2, 7, 64, 1000, 65537};

}  // namespace

// Catch's checks are for one thread at a time: ranks throw what they found.
#define RANK_CHECK(condition) \
  if (!(condition)) throw std::runtime_error("rank " + std::to_string(all.rank()) + ": " #condition)

TEMPLATE_TEST_CASE("an allreduce on devices is the sum, the product or the extreme of all ranks", "", std::int8_t,
                   std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, muster::float16,
                   muster::bfloat16, float, double) {
  using T = TestType;
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    devices::run(ranks, [&](communicator& all, device_stream_ref stream) {
      unsigned salt = 0;
      for (const std::size_t count : counts) {
        ++salt;
        const auto check = [&](const char* what, auto op, const std::function<double(double, double)>& by,
                               double divisor = 1) {
          const auto mine = brought<T>(count, all.rank(), salt);
          auto in = devices::on_device(mine, stream);
          device_buffer<T> out(count);
          all.allreduce(device_span<const T>(in.span()), out.span(), op, stream).wait();
          require_same(what, devices::on_host(out.span(), stream), combined<T>(count, all.size(), salt, by, divisor));
          RANK_CHECK(same(devices::on_host(in.span(), stream), mine));
          all.allreduce(in.span(), op, stream).wait();  // in place
          RANK_CHECK(same(devices::on_host(in.span(), stream), devices::on_host(out.span(), stream)));
        };
        check("sum", muster::sum, std::plus<>());
        check("product", muster::product, std::multiplies<>());
        if constexpr (std::is_integral_v<T>) {
          check("min", muster::min, [](double a, double b) { return std::min(a, b); });
          check("max", muster::max, [](double a, double b) { return std::max(a, b); });
        } else if (all.size() != 3) {  // thirds are rounded
          check("mean", muster::mean, std::plus<>(), all.size());
        }
      }
    });
  }
}

TEST_CASE("the other collectives on devices give what the oracle gives, for any length") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    devices::run(ranks, [&](communicator& all, device_stream_ref stream) {
      using T = float;
      for (const std::size_t count : counts) {
        const auto salt = static_cast<unsigned>(count);
        const auto sums = combined<T>(count, ranks, salt, std::plus<>());
        const auto in = devices::on_device(brought<T>(count, all.rank(), salt), stream);
        for (int root = 0; root < ranks; ++root) {
          device_buffer<T> out(all.rank() == root ? count : 0);
          all.reduce(in.span(), out.span(), muster::sum, root, stream).wait();
          if (all.rank() == root) RANK_CHECK(same(devices::on_host(out.span(), stream), sums));

          auto data = devices::on_device(brought<T>(count, all.rank(), salt), stream);
          all.broadcast(data.span(), root, stream).wait();
          RANK_CHECK(same(devices::on_host(data.span(), stream), brought<T>(count, root, salt)));

          device_buffer<T> pieces(all.rank() == root ? count * static_cast<std::size_t>(ranks) : 0);
          all.gather(in.span(), pieces.span(), root, stream).wait();
          for (int from = 0; all.rank() == root && from < ranks; ++from) {
            RANK_CHECK(
                same(devices::on_host(pieces.span().subspan(count * static_cast<std::size_t>(from), count), stream),
                     brought<T>(count, from, salt)));
          }
          device_buffer<T> back(count);
          all.scatter(device_span<const T>(pieces.span()), back.span(), root, stream).wait();
          RANK_CHECK(same(devices::on_host(back.span(), stream), brought<T>(count, all.rank(), salt)));
        }
        const auto mine = block_of(count, all.rank(), ranks);
        device_buffer<T> block(mine.count);
        all.reduce_scatter(in.span(), block.span(), muster::sum, stream).wait();
        RANK_CHECK(same(devices::on_host(block.span(), stream), part_of(sums, mine)));
        device_buffer<T> whole(count);
        all.allgather(device_span<const T>(block.span()), whole.span(), stream).wait();
        RANK_CHECK(same(devices::on_host(whole.span(), stream), sums));
      }
    });
  }
}

TEST_CASE("messages between devices reach their receivers") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    devices::run(ranks, [&](communicator& all, device_stream_ref stream) {
      using T = std::int32_t;
      const std::size_t count = 1000;
      const auto n = static_cast<std::size_t>(ranks);
      const auto in = devices::on_device(brought<T>(count * n, all.rank()), stream);
      device_buffer<T> out(count * n);
      all.all_to_all(in.span(), out.span(), stream).wait();
      for (int from = 0; from < ranks; ++from) {
        const std::size_t first = count * static_cast<std::size_t>(from);
        RANK_CHECK(same(devices::on_host(out.span().subspan(first, count), stream),
                        part_of(brought<T>(count * n, from), {count * static_cast<std::size_t>(all.rank()), count})));
      }
      // Around the ring: after as many steps as there are ranks everything is back.
      auto here = devices::on_device(brought<T>(count, all.rank()), stream);
      device_buffer<T> next(count);
      for (int step = 1; step <= ranks; ++step) {
        all.send_receive(device_span<const T>(here.span()), (all.rank() + 1) % ranks, next.span(),
                         (all.rank() + ranks - 1) % ranks, stream)
            .wait();
        std::swap(here, next);
        RANK_CHECK(same(devices::on_host(here.span(), stream), brought<T>(count, (all.rank() + ranks - step) % ranks)));
      }
      if (ranks == 1) return;
      if (all.rank() == 0) all.send(device_span<const T>(here.span()), ranks - 1, stream).wait();
      if (all.rank() == ranks - 1) {
        all.receive(next.span(), 0, stream).wait();
        RANK_CHECK(same(devices::on_host(next.span(), stream), brought<T>(count, 0)));
      }
    });
  }
}

TEST_CASE("collectives on streams need no wait of the processor between them") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    devices::run(ranks, [&](communicator& all, device_stream_ref first) {
      const muster::device_stream second;
      auto data = devices::on_device(std::vector<double>(5000, 1.0), first);
      std::vector<muster::nccl::work> under_way;
      double expected = 1;
      for (int round = 0; round < 20; ++round) {
        const device_stream_ref stream = round % 2 == 0 ? first : second;
        if (!under_way.empty()) under_way.back().hold_back(stream);
        under_way.push_back(all.allreduce(data.span(), muster::sum, stream));
        expected *= ranks;
      }
      under_way.back().wait();
      RANK_CHECK(under_way.back().test());  // and so is what has no call any more
      RANK_CHECK(same(devices::on_host(data.span(), second), std::vector<double>(5000, expected)));
    });
  }
}

TEST_CASE("a list of buckets is one group call, and gives each its sum") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    devices::run(ranks, [&](communicator& all, device_stream_ref stream) {
      std::vector<device_buffer<float>> buckets;
      std::vector<device_span<float>> list;
      for (const std::size_t count : counts)
        buckets.push_back(devices::on_device(brought<float>(count, all.rank()), stream));
      for (auto& bucket : buckets) list.push_back(bucket.span());
      all.allreduce(std::span<const device_span<float>>(list), muster::sum, stream).wait();
      for (const auto& bucket : buckets) {
        RANK_CHECK(
            same(devices::on_host(bucket.span(), stream), combined<float>(bucket.size(), ranks, 0, std::plus<>())));
      }
    });
  }
#ifdef MUSTER_TEST_DOUBLE
  const auto before = nccl_double::groups();
  devices::run(2, [&](communicator& all, device_stream_ref stream) {
    device_buffer<float> a(10), b(10);
    const device_span<float> list[] = {a.span(), b.span()};
    all.allreduce(std::span<const device_span<float>>(list), muster::sum, stream).wait();
  });
  CHECK(nccl_double::groups() == before + 2);  // one at each rank
#endif
}

TEST_CASE("memory stays registered while any registration of it is held") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    devices::run(ranks, [&](communicator& all, device_stream_ref stream) {
      auto data = devices::on_device(brought<float>(4096, all.rank()), stream);
      auto held = all.register_memory(data.span());
      RANK_CHECK(static_cast<bool>(held));
      all.allreduce(data.span(), muster::sum, stream).wait();
      RANK_CHECK(same(devices::on_host(data.span(), stream), combined<float>(4096, ranks, 0, std::plus<>())));
      auto moved = std::move(held);
      RANK_CHECK(!static_cast<bool>(held));  // NOLINT: moved from, and says so
    });
  }
#ifdef MUSTER_TEST_DOUBLE
  CHECK(nccl_double::registrations() == 0);
#endif
}

TEST_CASE("what does not fit is refused before it reaches NCCL") {
  MUSTER_NEEDS_DEVICE();
  devices::run(1, [](communicator& all, device_stream_ref stream) {
    const device_buffer<float> in(8);
    device_buffer<float> out(7);
    const auto refused = [](const std::function<void()>& call, const std::string& part) {
      try {
        call();
      } catch (const muster::configuration_error& why) {
        return std::string(why.what()).find(part) != std::string::npos;
      }
      return false;
    };
    RANK_CHECK(refused([&] { all.allreduce(in.span(), out.span(), muster::sum, stream).wait(); }, "7 elements"));
    RANK_CHECK(refused([&] { all.broadcast(out.span(), 1, stream).wait(); }, "cannot be rank 1"));
    RANK_CHECK(refused([&] { all.reduce_scatter(in.span(), out.span(), muster::sum, stream).wait(); }, "asks for 8"));
    RANK_CHECK(refused([] { muster::use_device(1000); }, "no device 1000"));
    RANK_CHECK(!all.failed());
  });
}

// What is refused when it is compiled.
static_assert(!muster::element_range<device_span<float>>);  // host collectives do not take a device's memory
static_assert(!muster::device_element<bool> && !muster::device_element<long double> && !muster::device_element<short>);
static_assert(!muster::nccl::device_operation<decltype(muster::min), float>);  // would lose a NaN
static_assert(!muster::nccl::device_operation<decltype(muster::mean), int>);
