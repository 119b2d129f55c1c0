// A kernel of the program that never ends. Every wait for it ends at its deadline, and the device is usable once the
// kernel has ended. All modules are loaded and all memory is allocated before the kernel starts: both would wait for
// the kernel.
#include <muster/comm/transports/nccl/communicator.hpp>

#include "catch.hpp"
#include "core/device/endless_kernel.hpp"
#include "devices.hpp"

#include <muster/core/device/kernels.hpp>

using muster::device_buffer;
using muster::device_event;
using muster::seconds;

namespace {

#ifdef MUSTER_TEST_DOUBLE
constexpr seconds deadline{0.5};
#else
constexpr seconds deadline{15};  // NCCL also has to connect within this time
#endif

bool computes(device_buffer<float>& values, muster::device_stream_ref stream) {
  muster::fill(values.span(), 3.0f, stream);
  return devices::on_host(values.span(), stream) == std::vector<float>(values.size(), 3.0f);
}

}  // namespace

TEST_CASE("a wait for a kernel that never ends is over at its deadline, and the device computes when it is gone") {
  MUSTER_NEEDS_DEVICE();
  const muster::device_stream stream;
  device_buffer<float> values(1000);
  REQUIRE(computes(values, stream));
  test::endless_kernel kernel(stream);
  const device_event behind(stream);
  CHECK_THROWS_AS(muster::wait_for(stream, muster::deadline_after(seconds(0.2))), muster::timeout_error);
  CHECK_THROWS_AS(behind.wait(muster::deadline_after(seconds(0.2))), muster::timeout_error);
  CHECK(kernel.runs());
  kernel.end();
  CHECK(behind.test());
  CHECK(computes(values, stream));
}

TEST_CASE("a collective behind a kernel that never ends fails at its deadline, and a new communicator works") {
  MUSTER_NEEDS_DEVICE();
  const auto thrown = devices::outcomes(1, [](muster::group& world) {
    const auto require = [](bool condition, const char* text) {
      if (!condition) throw std::runtime_error(text);
    };
    muster::nccl::communicator all(world, {.timeout = deadline});
    const muster::device_stream stream;
    device_buffer<float> values(1000);
    all.allreduce(values.span(), muster::sum, stream).wait();
    require(computes(values, stream), "the device computes at first");
    test::endless_kernel kernel(stream);
    const auto times_out = [&] {
      try {
        all.allreduce(values.span(), muster::sum, stream).wait();
      } catch (const muster::timeout_error&) {
        return true;
      }
      return false;
    };
    require(times_out(), "the deadline ends it");
    require(all.failed(), "and the communicator");
    require(times_out(), "which says why again");
    require(kernel.runs(), "all that while the kernel runs");
    kernel.end();
    require(computes(values, stream), "the device computes again");
    muster::group fresh(muster::make_self_transport());
    all.rebuild(fresh);
    all.allreduce(values.span(), muster::sum, stream).wait();
    require(devices::on_host(values.span(), stream) == std::vector<float>(1000, 3.0f), "and NCCL sums");
  });
  if (thrown[0]) FAIL(muster::describe(thrown[0]));
}
