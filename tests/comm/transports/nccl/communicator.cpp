#include <muster/comm/transports/nccl/communicator.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <sstream>
#include <tuple>

#include <muster/comm/collectives/allgather.hpp>

#include "catch.hpp"
#include "comm/routine.hpp"
#include "devices.hpp"
#include "same_bits.hpp"

using muster::block_of;
using muster::device_buffer;
using muster::device_span;
using muster::device_stream_ref;
using muster::nccl::communicator;

namespace {

/// Returns the input of rank `rank`: small whole numbers, whose sums and products every type represents exactly in any
/// order.
template <class T>
std::vector<T> input_of(std::size_t count, int rank, unsigned salt = 0) {
  std::mt19937 random(salt * 977 + static_cast<unsigned>(rank));
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(static_cast<float>(1 + random() % 3));
  return values;
}

/// Returns the expected result: all inputs combined on the host.
template <class T>
std::vector<T> combined(std::size_t count, int ranks, unsigned salt, const std::function<double(double, double)>& op,
                        double divisor = 1) {
  std::vector<double> sums;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto input = input_of<T>(count, rank, salt);
    if (rank == 0) {
      for (const T value : input) sums.push_back(static_cast<double>(value));
    } else {
      for (std::size_t i = 0; i < count; ++i) sums[i] = op(sums[i], static_cast<double>(input[i]));
    }
  }
  std::vector<T> result;
  for (const double sum : sums) result.push_back(static_cast<T>(static_cast<float>(sum / divisor)));
  return result;
}

template <class T>
std::vector<T> part_of(const std::vector<T>& values, muster::block part) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(part.first);
  return {first, first + static_cast<std::ptrdiff_t>(part.count)};
}

using test::same;

/// Throws an error that names the first element whose bits differ.
template <class T>
void require_same(const char* name, const std::vector<T>& found, const std::vector<T>& expected) {
  if (same(found, expected)) return;
  std::size_t index = 0;
  while (index < std::min(found.size(), expected.size()) &&
         std::memcmp(&found[index], &expected[index], sizeof(T)) == 0)
    ++index;
  std::ostringstream text;
  text << name << " of " << expected.size() << ": element " << index << " is " << static_cast<double>(found.at(index))
       << " and not " << static_cast<double>(expected.at(index));
  throw std::runtime_error(text.str());
}

constexpr std::size_t counts[] = {0, 1, 2, 7, 64, 1000, 65537};

}  // namespace

// Catch's checks support only one thread at a time, so ranks throw their failures.
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
        const auto check = [&](const char* name, auto op, const std::function<double(double, double)>& combine,
                               double divisor = 1) {
          const auto mine = input_of<T>(count, all.rank(), salt);
          auto in = devices::on_device(mine, stream);
          device_buffer<T> out(count);
          all.allreduce(device_span<const T>(in.span()), out.span(), op, stream).wait();
          require_same(name, devices::on_host(out.span(), stream),
                       combined<T>(count, all.size(), salt, combine, divisor));
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
        const auto in = devices::on_device(input_of<T>(count, all.rank(), salt), stream);
        for (int root = 0; root < ranks; ++root) {
          device_buffer<T> out(all.rank() == root ? count : 0);
          all.reduce(in.span(), out.span(), muster::sum, root, stream).wait();
          if (all.rank() == root) RANK_CHECK(same(devices::on_host(out.span(), stream), sums));

          auto data = devices::on_device(input_of<T>(count, all.rank(), salt), stream);
          all.broadcast(data.span(), root, stream).wait();
          RANK_CHECK(same(devices::on_host(data.span(), stream), input_of<T>(count, root, salt)));

          device_buffer<T> pieces(all.rank() == root ? count * static_cast<std::size_t>(ranks) : 0);
          all.gather(in.span(), pieces.span(), root, stream).wait();
          for (int sender = 0; all.rank() == root && sender < ranks; ++sender) {
            RANK_CHECK(
                same(devices::on_host(pieces.span().subspan(count * static_cast<std::size_t>(sender), count), stream),
                     input_of<T>(count, sender, salt)));
          }
          device_buffer<T> back(count);
          all.scatter(device_span<const T>(pieces.span()), back.span(), root, stream).wait();
          RANK_CHECK(same(devices::on_host(back.span(), stream), input_of<T>(count, all.rank(), salt)));
        }
        const auto mine = block_of(count, all.rank(), ranks);
        device_buffer<T> block(mine.count);
        all.reduce_scatter(in.span(), block.span(), muster::sum, stream).wait();
        RANK_CHECK(same(devices::on_host(block.span(), stream), part_of(sums, mine)));
        device_buffer<T> gathered(count);
        all.allgather(device_span<const T>(block.span()), gathered.span(), stream).wait();
        RANK_CHECK(same(devices::on_host(gathered.span(), stream), sums));
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
      const auto in = devices::on_device(input_of<T>(count * n, all.rank()), stream);
      device_buffer<T> out(count * n);
      all.all_to_all(in.span(), out.span(), stream).wait();
      for (int sender = 0; sender < ranks; ++sender) {
        const std::size_t first = count * static_cast<std::size_t>(sender);
        RANK_CHECK(
            same(devices::on_host(out.span().subspan(first, count), stream),
                 part_of(input_of<T>(count * n, sender), {count * static_cast<std::size_t>(all.rank()), count})));
      }
      // Around the ring: after `ranks` steps each rank has its own data again.
      auto current = devices::on_device(input_of<T>(count, all.rank()), stream);
      device_buffer<T> next(count);
      for (int step = 1; step <= ranks; ++step) {
        all.send_receive(device_span<const T>(current.span()), (all.rank() + 1) % ranks, next.span(),
                         (all.rank() + ranks - 1) % ranks, stream)
            .wait();
        std::swap(current, next);
        RANK_CHECK(
            same(devices::on_host(current.span(), stream), input_of<T>(count, (all.rank() + ranks - step) % ranks)));
      }
      if (ranks == 1) return;
      if (all.rank() == 0) all.send(device_span<const T>(current.span()), ranks - 1, stream).wait();
      if (all.rank() == ranks - 1) {
        all.receive(next.span(), 0, stream).wait();
        RANK_CHECK(same(devices::on_host(next.span(), stream), input_of<T>(count, 0)));
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
      std::vector<muster::nccl::work> pending;
      double expected = 1;
      for (int round = 0; round < 20; ++round) {
        const device_stream_ref stream = round % 2 == 0 ? first : second;
        if (!pending.empty()) pending.back().delay(stream);
        pending.push_back(all.allreduce(data.span(), muster::sum, stream));
        expected *= ranks;
      }
      pending.back().wait();
      RANK_CHECK(pending.back().test());  // a finished work remains finished
      RANK_CHECK(same(devices::on_host(data.span(), second), std::vector<double>(5000, expected)));
    });
  }
}

test::routine add_twice(test::run_queue& /*queue*/, communicator& all, device_span<double> data,
                        device_stream_ref stream) {
  auto kept = all.allreduce(data, muster::sum, stream);
  co_await kept;
  co_await all.allreduce(data, muster::sum, stream);
}

TEST_CASE("a collective on a device is waited for with a limit, and awaited by a coroutine") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    devices::run(ranks, [&](communicator& all, device_stream_ref stream) {
      RANK_CHECK(muster::nccl::work().wait_for(muster::seconds(0)));
      auto data = devices::on_device(std::vector<double>(5000, 1.0), stream);
      auto limited = all.allreduce(data.span(), muster::sum, stream);
      while (!limited.wait_for(muster::seconds(1e-3))) {
      }
      RANK_CHECK(same(devices::on_host(data.span(), stream), std::vector<double>(5000, ranks)));
      test::run_queue queue;
      add_twice(queue, all, data.span(), stream).finish();
      RANK_CHECK(same(devices::on_host(data.span(), stream), std::vector<double>(5000, ranks * ranks * ranks)));
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
        buckets.push_back(devices::on_device(input_of<float>(count, all.rank()), stream));
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
  CHECK(nccl_double::groups() == before + 2);  // one group call at each rank
#endif
}

TEST_CASE("memory stays registered while any registration of it is held") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    devices::run(ranks, [&](communicator& all, device_stream_ref stream) {
      auto data = devices::on_device(input_of<float>(4096, all.rank()), stream);
      auto handle = all.register_memory(data.span());
      RANK_CHECK(static_cast<bool>(handle));
      all.allreduce(data.span(), muster::sum, stream).wait();
      RANK_CHECK(same(devices::on_host(data.span(), stream), combined<float>(4096, ranks, 0, std::plus<>())));
      auto moved_handle = std::move(handle);
      RANK_CHECK(!static_cast<bool>(handle));  // NOLINT: moved from, which is tested
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
      } catch (const muster::configuration_error& error) {
        return std::string(error.what()).find(part) != std::string::npos;
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

// Calls that the compiler refuses.
static_assert(!muster::element_range<device_span<float>>);  // host collectives do not take a device's memory
static_assert(!muster::device_element<bool> && !muster::device_element<long double> && !muster::device_element<short>);
static_assert(!muster::nccl::device_operation<decltype(muster::min), float>);  // would lose a NaN
static_assert(!muster::nccl::device_operation<decltype(muster::mean), int>);
