// PowerSGD on devices compared to PowerSGD on the host.
#include <algorithm>
#include <cmath>
#include <cstring>

#include <muster/core/device/kernels.hpp>
#include <muster/core/random.hpp>
#include <muster/train/device/gradients.hpp>
#include <muster/train/sync/compress.hpp>

#include "catch.hpp"
#include "comm/transports/nccl/devices.hpp"
#include "same_bits.hpp"
#include "train/heap.hpp"

namespace device_powersgd {

using values = std::vector<float>;

/// Returns shapes: matrices with more than one block, whose rows are and are not multiples of 16 bytes, short and wide,
/// narrow and tall; and tensors that are not compressed: vectors, small and empty tensors.
std::vector<muster::tensor_shape> shapes() {
  return {{"large", {300, 264}},      {"bias", {24}},     {"one", {}},         {"none", {0, 3}},
          {"kernel", {3, 3, 16, 16}}, {"odd", {37, 131}}, {"wide", {9, 1000}}, {"tall", {700, 10}},
          {"small", {3, 4}},          {"last", {24, 17}}};
}

/// Returns a rank's gradient in a step. With `poor` each matrix has rank 1, except that all matrices are zeros in the
/// first step.
values gradient(std::size_t tensor, int rank, std::uint64_t step, bool poor) {
  muster::random_stream random(17, step * 1000 + tensor * 10 + static_cast<std::uint64_t>(rank));
  const auto shape = shapes()[tensor];
  const std::size_t columns = shape.extents.empty() ? 1 : shape.extents.back();
  values row(columns), result(shape.size());
  for (float& value : row) value = static_cast<float>(random.normal());
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (!poor)
      result[i] = static_cast<float>(random.normal());
    else if (step > 0)
      result[i] = row[i % columns] * static_cast<float>(1 + i / columns % 7);
  }
  return result;
}

/// The sums of a step, by tensor.
using sums = std::vector<values>;

class on_host {
 public:
  on_host(std::size_t rank, muster::group& ranks)
      : sync_(arena_, {.bucket = 100000, .codec = muster::compress("powersgd:" + std::to_string(rank))}),
        ranks_(&ranks) {}

  sums run(std::uint64_t step, bool poor = false, bool commits = true) {
    auto pass = sync_.begin(*ranks_);
    pass.add_samples(1);
    pass.divided_by(ranks_->size());
    for (std::size_t tensor = shapes().size(); tensor-- > 0;) {
      std::ranges::copy(gradient(tensor, ranks_->rank(), step, poor), arena_.gradient(tensor).begin());
      pass.ready(tensor);
    }
    pass.wait();
    if (commits) sync_.commit();
    sums result;
    for (std::size_t tensor = 0; tensor < shapes().size(); ++tensor)
      result.emplace_back(arena_.gradient(tensor).begin(), arena_.gradient(tensor).end());
    return result;
  }
  muster::arena& arena() { return arena_; }
  [[nodiscard]] std::uint64_t bytes() const { return sync_.bytes_sent(); }

 private:
  heap memory_;
  muster::arena arena_{memory_, shapes()};
  muster::gradient_sync sync_;
  muster::group* ranks_;
};

class on_device {
 public:
  on_device(std::size_t rank, muster::nccl::communicator& devices)
      : sync_(muster::powersgd_on(arena_, devices, rank), {.bucket = 100000}), devices_(&devices) {}

  /// Starts all buckets, and abandons the pass.
  void start(std::uint64_t step) {
    auto pass = sync_.begin();
    give(pass, step, false);
  }
  sums run(std::uint64_t step, bool poor = false, bool commits = true) {
    auto pass = sync_.begin();
    give(pass, step, poor);
    pass.wait();
    if (commits) sync_.commit();
    sums result;
    for (std::size_t tensor = 0; tensor < shapes().size(); ++tensor)
      result.push_back(devices::on_host(arena_.gradient(tensor), arena_.stream()));
    return result;
  }
  muster::device_arena& arena() { return arena_; }
  [[nodiscard]] std::uint64_t bytes() const { return sync_.bytes_sent(); }
  [[nodiscard]] std::size_t buckets() const { return sync_.buckets().size(); }

 private:
  void give(muster::backward_pass& pass, std::uint64_t step, bool poor) {
    pass.add_samples(1);
    pass.divided_by(devices_->size());
    for (std::size_t tensor = shapes().size(); tensor-- > 0;) {
      const auto host_values = gradient(tensor, devices_->rank(), step, poor);
      muster::copy(std::span<const float>(host_values), arena_.gradient(tensor), arena_.stream());
      pass.ready(tensor);
    }
  }

  muster::device_stream stream_;
  muster::device_arena arena_{shapes(), stream_};
  muster::gradient_sync sync_;
  muster::nccl::communicator* devices_;
};

double norm(const values& vector, const values& subtracted = {}) {
  double squares = 0;
  for (std::size_t i = 0; i < vector.size(); ++i) {
    const double value =
        static_cast<double>(vector[i]) - (subtracted.empty() ? 0.0 : static_cast<double>(subtracted[i]));
    squares += value * value;
  }
  return std::sqrt(squares);
}
void require_close(const sums& a, const sums& b, const std::string& where) {
  for (std::size_t tensor = 0; tensor < a.size(); ++tensor) {
    const double apart = norm(a[tensor], b[tensor]), size = norm(b[tensor]);
    if (!(apart <= 1e-4 * size)) {
      throw std::runtime_error(where + ": '" + shapes()[tensor].name + "' is " + std::to_string(apart) + " of " +
                               std::to_string(size) + " away");
    }
  }
}
void require_same(const sums& a, const sums& b, const std::string& context) {
  for (std::size_t tensor = 0; tensor < a.size(); ++tensor)
    if (!test::same(a[tensor], b[tensor]))
      throw std::runtime_error(context + ": '" + shapes()[tensor].name + "' differs");
}

std::vector<std::byte> save(muster::state& all, const std::string& part) {
  for (const auto& candidate : all.parts())
    if (candidate.name == part) return candidate.save();
  throw std::runtime_error("the state has no " + part);
}
values floats(const std::vector<std::byte>& bytes) {
  values result(bytes.size() / sizeof(float));
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}
constexpr const char* part_names[] = {"residuals of error feedback", "factors of PowerSGD"};

void run_all(int ranks, const std::function<void(muster::group&, muster::nccl::communicator&)>& body) {
  for (const auto& failure : devices::outcomes(ranks, [&](muster::group& world) {
         muster::nccl::communicator all(world, {.timeout = devices::patience});
         body(world, all);
       }))
    if (failure) FAIL(muster::describe(failure));
}

}  // namespace device_powersgd

using namespace device_powersgd;

TEST_CASE("PowerSGD on devices gives the sums of the host's, of the same size, with the same bits at every rank") {
  MUSTER_NEEDS_DEVICE();
  constexpr std::uint64_t steps = 4;
  for (const int ranks : devices::worlds()) {
    for (const std::size_t rank : {1u, 2u, 4u, 6u}) {
      CAPTURE(ranks, rank);
      std::vector<std::vector<sums>> at(static_cast<std::size_t>(ranks));
      run_all(ranks, [&](muster::group& world, muster::nccl::communicator& all) {
        on_host host(rank, world);
        on_device device(rank, all);
        muster::state hosts{host.arena()}, own{device.arena()};
        if (device.buckets() < 2) throw std::runtime_error("one bucket only");
        for (std::uint64_t step = 0; step < steps; ++step) {
          auto result = device.run(step);
          require_close(result, host.run(step), "step " + std::to_string(step));
          const auto gaps = 4 * 16 * shapes().size();
          if (ranks > 1 && (device.bytes() < host.bytes() || device.bytes() > host.bytes() + gaps))
            throw std::runtime_error("bytes: " + std::to_string(device.bytes()));
          at[static_cast<std::size_t>(world.rank())].push_back(std::move(result));
        }
        for (const char* part : part_names) {
          const auto theirs = floats(save(hosts, part)), ours = floats(save(own, part));
          if (ours.size() != theirs.size() || !(norm(ours, theirs) <= 1e-4 * norm(theirs)))
            throw std::runtime_error(std::string("the ") + part + " are " + std::to_string(norm(ours, theirs)) +
                                     " away");
        }
      });
      for (const auto& rank_sums : at)
        for (std::uint64_t step = 0; step < steps; ++step) require_same(rank_sums[step], at[0][step], "a rank");
    }
  }
}

TEST_CASE("on devices, too, what PowerSGD sums and its residuals are all gradients there were, zeros and poor ones") {
  MUSTER_NEEDS_DEVICE();
  constexpr std::uint64_t steps = 4;
  for (const int ranks : devices::worlds()) {
    CAPTURE(ranks);
    std::vector<values> residuals(static_cast<std::size_t>(ranks));
    std::vector<sums> got;
    run_all(ranks, [&](muster::group& world, muster::nccl::communicator& all) {
      on_device device(2, all);
      muster::state own{device.arena()};
      for (std::uint64_t step = 0; step < steps; ++step) {
        auto result = device.run(step, true);
        if (world.rank() == 0) got.push_back(std::move(result));
      }
      residuals[static_cast<std::size_t>(world.rank())] = floats(save(own, part_names[0]));
    });
    heap memory;
    muster::arena layout(memory, shapes());
    for (std::size_t tensor = 0; tensor < shapes().size(); ++tensor) {
      std::vector<double> missing(shapes()[tensor].size());
      for (std::uint64_t step = 0; step < steps; ++step) {
        for (std::size_t i = 0; i < missing.size(); ++i) missing[i] -= static_cast<double>(got[step][tensor][i]);
        for (int rank = 0; rank < ranks; ++rank) {
          const auto input = gradient(tensor, rank, step, true);
          for (std::size_t i = 0; i < missing.size(); ++i) missing[i] += static_cast<double>(input[i]);
        }
      }
      for (const auto& residual : residuals)
        for (std::size_t i = 0; i < missing.size(); ++i)
          missing[i] -= static_cast<double>(residual[layout.places()[tensor].first + i]);
      CAPTURE(shapes()[tensor].name);
      for (const double value : missing) REQUIRE(std::abs(value) < 1e-3);
      if (shapes()[tensor].name == "large") {  // rank 1 at each rank and step: the second column restarts
        CHECK(norm(got[0][tensor]) == 0);
        CHECK(norm(got[1][tensor]) > 0);
      }
    }
  }
}

TEST_CASE("a step of PowerSGD on devices that did not happen leaves nothing, and its state goes elsewhere and back") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    CAPTURE(ranks);
    run_all(ranks, [&](muster::group& world, muster::nccl::communicator& all) {
      on_device first(2, all), plain(2, all), copy_on_device(2, all);
      on_host host(2, world);
      muster::state of_first{first.arena()}, state_of_copy{copy_on_device.arena()}, of_host{host.arena()};
      for (std::uint64_t step = 0; step < 2; ++step) {
        (void)first.run(step + 50, false, false);  // fails later
        require_same(first.run(step), plain.run(step), "a step again");
      }
      const auto digest = of_first.digest();
      (void)host.run(7);
      for (muster::state* destination : {&state_of_copy, &of_host}) {
        for (const auto& part : of_first.parts())
          for (const auto& target : destination->parts())
            if (part.save && target.load && part.name == target.name) target.load(part.save());
      }
      if (of_first.digest() != digest || save(state_of_copy, part_names[0]) != save(of_first, part_names[0]))
        throw std::runtime_error("the state was not copied");
      const auto next = first.run(2);
      require_same(copy_on_device.run(2), next, "elsewhere");
      require_close(host.run(2), next, "on the host");
    });
  }
}

TEST_CASE("a pass of PowerSGD on devices that was left does not touch what is written to gradients later") {
  MUSTER_NEEDS_DEVICE();
  for (const int ranks : devices::worlds()) {
    CAPTURE(ranks);
    run_all(ranks, [&](muster::group&, muster::nccl::communicator& all) {
      on_device device(4, all);
      device.start(0);
      muster::fill(device.arena().gradients(), 5.0f, device.arena().stream());
      { const muster::device_buffer<float> freed(1); }  // waits for all streams
      for (const float value : devices::on_host(device.arena().gradients(), device.arena().stream()))
        if (value != 5.0f) throw std::runtime_error("a gradient is " + std::to_string(value));
    });
  }
}

TEST_CASE("PowerSGD on a device that is used wrongly says so") {
  MUSTER_NEEDS_DEVICE();
  run_all(1, [&](muster::group&, muster::nccl::communicator& all) {
    on_device device(2, all);
    CHECK_THROWS_WITH(muster::powersgd_on(device.arena(), all, 0), contains("cannot have rank 0"));
    muster::state own{device.arena()};
    for (const auto& part : own.parts())
      if (part.name == part_names[1])
        CHECK_THROWS_WITH(part.load({}), contains("factors of PowerSGD cannot be restored"));
  });
}
