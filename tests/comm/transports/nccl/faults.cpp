// Failures on the test double: errors that NCCL reports by itself, and peers that never join or die.
#include <muster/comm/transports/nccl/communicator.hpp>

#include "catch.hpp"
#include "devices.hpp"

using muster::device_buffer;
using muster::device_span;
using muster::device_stream_ref;
using muster::seconds;
using muster::nccl::communicator;

namespace {

/// Runs all ranks and returns the exceptions that they threw. Checks that all communicators and all memory are
/// released.
std::vector<std::exception_ptr> failures(int ranks, seconds timeout,
                                         const std::function<void(communicator&, device_stream_ref)>& body) {
  auto thrown = devices::outcomes(ranks, [&](muster::group& world) {
    communicator all(world, {.timeout = timeout});
    const muster::device_stream stream;
    body(all, stream);
  });
  CHECK(nccl_double::communicators() == 0);
  CHECK(nccl_double::allocated_bytes() == 0);
  return thrown;
}

std::string text_of(const std::exception_ptr& thrown) { return thrown ? muster::describe(thrown) : "nothing"; }

template <class Error>
bool is(const std::exception_ptr& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Error&) {
    return true;
  } catch (...) {
  }
  return false;
}

void allreduce_once(communicator& all, device_stream_ref stream) {
  device_buffer<float> data(1000);
  all.allreduce(data.span(), muster::sum, stream).wait();
}

}  // namespace

TEST_CASE("an error that NCCL finds by itself ends the wait, here and at the peers") {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto error : {ncclRemoteError, ncclSystemError, ncclInternalError, ncclUnhandledCudaError}) {
      CAPTURE(ranks, error);
      const auto begin = muster::clock::now();
      const auto thrown = failures(ranks, seconds(20), [&](communicator& all, device_stream_ref stream) {
        allreduce_once(all, stream);
        if (all.rank() == 0) nccl_double::fail_here(error);
        for (;;) {
          device_buffer<float> data(1000);
          try {
            all.allreduce(data.span(), muster::sum, stream).wait();
          } catch (...) {
            const auto cause = std::current_exception();
            // All later calls throw the first cause.
            try {
              all.broadcast(data.span(), 0, stream).wait();
            } catch (...) {
              if (text_of(std::current_exception()) == text_of(cause)) std::rethrow_exception(cause);
            }
            throw std::runtime_error("a failed communicator took another call");
          }
        }
      });
      const bool about_ranks = error == ncclRemoteError || error == ncclSystemError;
      CHECK(is<muster::peer_failure>(thrown[0]) == about_ranks);
      CHECK_THAT(text_of(thrown[0]), contains("TEST DOUBLE"));
      for (int rank = 1; rank < ranks; ++rank) {
        const auto& peer_error = thrown[static_cast<std::size_t>(rank)];
        CHECK(is<muster::peer_failure>(peer_error));
        CHECK_THAT(text_of(peer_error), contains("rank 0 gave up"));
      }
      CHECK(muster::seconds_since(begin) < 20);  // through the failure report, not at the deadline
    }
  }
}

TEST_CASE("a peer that makes no call is found out by the deadline, at every rank") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const auto thrown = failures(ranks, seconds(0.5), [&](communicator& all, device_stream_ref stream) {
      allreduce_once(all, stream);
      if (all.rank() == ranks - 1) {  // busy with other work for longer than the timeout
        std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      }
      allreduce_once(all, stream);
    });
    int timeouts = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& failure = thrown[static_cast<std::size_t>(rank)];
      REQUIRE(failure);
      timeouts += is<muster::timeout_error>(failure) ? 1 : 0;
      CHECK((is<muster::timeout_error>(failure) || is<muster::peer_failure>(failure)));
    }
    CHECK(timeouts >= 1);
    CHECK(is<muster::peer_failure>(thrown.back()));
    CHECK_THAT(text_of(thrown.back()), contains("gave up"));
  }
}

TEST_CASE("a peer that never joins is named") {
  const auto thrown = devices::outcomes(3, [](muster::group& world) {
    if (world.rank() == 2) return std::this_thread::sleep_for(std::chrono::seconds(1));
    const communicator all(world, {.timeout = seconds(0.3)});
  });
  for (const int rank : {0, 1}) {
    const auto& failure = thrown[static_cast<std::size_t>(rank)];
    REQUIRE((is<muster::timeout_error>(failure) || is<muster::peer_failure>(failure)));
    CHECK_THAT(text_of(failure), contains("2"));
  }
  CHECK(nccl_double::communicators() == 0);
}

TEST_CASE("a peer that meets the others and then never connects is found out by the deadline") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const auto thrown = devices::outcomes(ranks, [&](muster::group& world) {
      if (world.rank() == ranks - 1) nccl_double::never_join_here();
      const communicator all(world, {.timeout = seconds(0.5)});
    });
    int timeouts = 0;
    for (const auto& failure : thrown) {
      CHECK((is<muster::timeout_error>(failure) || is<muster::peer_failure>(failure)));
      timeouts += is<muster::timeout_error>(failure) ? 1 : 0;
    }
    CHECK(timeouts >= 1);
    CHECK(nccl_double::communicators() == 0);
  }
}

TEST_CASE("two ranks cannot have one device") {
  const auto thrown = devices::outcomes(3, [](muster::group& world) {
    if (world.rank() == 2) muster::use_device(1);
    const communicator all(world, {.timeout = seconds(5)});
  });
  for (const auto& failure : thrown) {
    REQUIRE(is<muster::configuration_error>(failure));
    CHECK_THAT(text_of(failure), contains("ranks 1 and 2 have the same device, double:01"));
  }
  CHECK(nccl_double::communicators() == 0);
}

TEST_CASE("a peer that dies amid a collective ends it at every survivor") {
  for (const int ranks : {2, 3, 4}) {
    for (const bool noticed : {true, false}) {
      CAPTURE(ranks, noticed);
      const auto thrown =
          failures(ranks, seconds(noticed ? 20 : 0.5), [&](communicator& all, device_stream_ref stream) {
            for (int round = 0; round < 3; ++round) allreduce_once(all, stream);
            if (all.rank() == ranks - 1) {
              nccl_double::die_here(noticed);
              return;
            }
            allreduce_once(all, stream);
          });
      CHECK(!thrown.back());
      for (int rank = 0; rank + 1 < ranks; ++rank) {
        const auto& failure = thrown[static_cast<std::size_t>(rank)];
        REQUIRE(failure);
        CHECK((is<muster::peer_failure>(failure) || (!noticed && is<muster::timeout_error>(failure))));
      }
    }
  }
}

TEST_CASE("what a group knows ends a wait for devices: a rank that gave up is named") {
  const auto thrown = devices::outcomes(3, [](muster::group& world) {
    communicator all(world, {.timeout = seconds(20)});
    const muster::device_stream stream;
    allreduce_once(all, stream);
    if (world.rank() == 1) {
      world.abort("the disk is full", 3);
      return;
    }
    allreduce_once(all, stream);
  });
  CHECK(!thrown[1]);
  for (const int rank : {0, 2}) {
    const auto& failure = thrown[static_cast<std::size_t>(rank)];
    REQUIRE(is<muster::peer_failure>(failure));
    CHECK_THAT(text_of(failure), contains("rank 1 gave up (the disk is full)"));
    CHECK(muster::exit_status_of(failure) == 3);
  }
}

TEST_CASE("a work that was never waited for leaves its buffer alone, and its error to the next call") {
  const auto thrown = failures(2, seconds(0.3), [](communicator& all, device_stream_ref stream) {
    if (all.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      return;
    }
    {
      device_buffer<float> data(1000);
      const auto dropped = all.allreduce(data.span(), muster::sum, stream);
    }  // the destructor waits until the deadline
    if (!all.failed()) throw std::runtime_error("nobody came, and it did not fail");
    allreduce_once(all, stream);
  });
  CHECK(is<muster::timeout_error>(thrown[0]));
}

TEST_CASE("ranks are rebuilt after a death, with a new id, and go on") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    const auto new_hub = std::make_shared<muster::thread_hub>(ranks - 1);
    const auto thrown = devices::outcomes(ranks, [&](muster::group& world) {
      communicator all(world, {.timeout = devices::patience});
      const muster::device_stream stream;
      auto data = devices::on_device(std::vector<float>(100, 1.0f), stream);
      auto registration = all.register_memory(data.span());
      try {
        muster::barrier(world);  // may fail as well: other ranks may have detected the death and left the group already
        if (world.rank() == 0) {
          nccl_double::die_here(true);
          return;
        }
        allreduce_once(all, stream);
        throw std::runtime_error("an allreduce with the dead ended well");
      } catch (const muster::peer_failure&) {
      }
      muster::group survivors(std::make_unique<muster::thread_transport>(new_hub, world.rank() - 1));
      all.rebuild(survivors);
      registration = all.register_memory(data.span());
      all.allreduce(data.span(), muster::sum, stream).wait();
      if (devices::on_host(data.span(), stream) != std::vector<float>(100, static_cast<float>(ranks - 1)))
        throw std::runtime_error("the survivors' sum is wrong");
      muster::barrier(survivors);
    });
    for (const auto& failure : thrown) {
      if (failure) FAIL(text_of(failure));
    }
    CHECK(nccl_double::communicators() == 0);
    CHECK(nccl_double::registrations() == 0);
  }
}
