// The messages of a parameter server, without its arithmetic: trainers push a gradient in as many parts as there are
// servers, and pull the parameters.
#pragma once

#include <mpi.h>
#include <simgrid/engine.h>
#include <smpi/smpi.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <muster/muster.hpp>

namespace simulation {

struct service {
  int servers;
  std::size_t bytes;  // Total bytes in the parameters.
  double compute;     // Seconds of a trainer's step.
  bool asynchronous;  // True to answer a trainer at once; false to answer when all trainers have pushed.
};

namespace detail {

constexpr std::uint32_t push_tag = 1, pull_tag = 2;

/// Memory whose content does not matter: all addresses map the same page, so that a hundred trainers fit into memory.
class folded {
 public:
  explicit folded(std::size_t bytes) : data_(static_cast<std::byte*>(SMPI_SHARED_MALLOC(bytes))) {}
  ~folded() { SMPI_SHARED_FREE(data_); }
  folded(const folded&) = delete;
  folded& operator=(const folded&) = delete;
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

/// Tests all messages in turn: the body of a tagged message is received only after its head was tested.
inline void finish(muster::transport& over, std::vector<std::unique_ptr<muster::request>>& messages) {
  while (true) {
    std::size_t left = 0;
    for (auto& each : messages) left += over.test(*each) ? 0 : 1;
    if (left == 0) return;
    over.pause(muster::clock::time_point::max());
  }
}

inline void post(muster::transport& over, muster::request& r, bool sends, int peer, std::uint32_t tag, std::byte* data,
                 std::size_t bytes) {
  r.data = data;
  r.bytes = bytes;
  r.peer = peer;
  r.tag = tag;
  if (sends) {
    over.send(r);
  } else {
    over.receive(r);
  }
}

}  // namespace detail

/// Returns the bytes in a server's part; the last part may be smaller.
[[nodiscard]] inline std::size_t part_of(const service& setup, int server) {
  const auto count = static_cast<std::size_t>(setup.servers);
  const std::size_t most = (setup.bytes + count - 1) / count;
  const std::size_t begin = most * static_cast<std::size_t>(server);
  return begin >= setup.bytes ? 0 : std::min(most, setup.bytes - begin);
}

namespace detail {

/// Receives `steps` pushes of every trainer and answers each push: at once, or when all trainers have pushed as often.
inline void serve(muster::transport& over, const service& setup, int server, int trainers, int steps,
                  std::byte* memory) {
  const std::size_t part = part_of(setup, server);
  std::vector<std::unique_ptr<muster::request>> pushes(static_cast<std::size_t>(trainers));
  std::vector<std::unique_ptr<muster::request>> answers;
  std::vector<int> pushed(pushes.size(), 0);
  const auto listen = [&](std::size_t trainer) {
    pushes[trainer] = std::make_unique<muster::request>();
    post(over, *pushes[trainer], false, setup.servers + static_cast<int>(trainer), push_tag, memory, part);
  };
  const auto answer = [&](std::size_t trainer) {
    answers.push_back(std::make_unique<muster::request>());
    post(over, *answers.back(), true, setup.servers + static_cast<int>(trainer), pull_tag, memory, part);
    if (pushed[trainer] < steps) listen(trainer);
  };
  for (std::size_t trainer = 0; trainer < pushes.size(); ++trainer) listen(trainer);
  int missing = trainers;  // Trainers that have not pushed in the current step.
  for (int left = steps * trainers; left > 0;) {
    bool moved = false;
    for (std::size_t trainer = 0; trainer < pushes.size(); ++trainer) {
      if (!pushes[trainer] || !over.test(*pushes[trainer])) continue;
      pushes[trainer].reset();
      moved = true;
      --left;
      ++pushed[trainer];
      if (setup.asynchronous) {
        answer(trainer);
      } else if (--missing == 0) {
        missing = trainers;
        for (std::size_t each = 0; each < pushes.size(); ++each) answer(each);
      }
    }
    for (auto& each : answers) (void)over.test(*each);
    if (!moved && left > 0) over.pause(muster::clock::time_point::max());
  }
  finish(over, answers);
}

}  // namespace detail

/// Runs a server on the ranks below `servers` and a trainer on the others, for `steps` steps each. Returns the time of
/// a trainer's steps, 0 on a server. Asynchronous trainers start one after another, spread over the time that one
/// trainer computes, because nothing synchronises them.
inline double serve_or_train(muster::group& world, const service& setup, int steps) {
  using namespace detail;
  auto& over = world.transport();
  const int trainers = world.size() - setup.servers;
  if (setup.servers < 1 || trainers < 1) {
    throw muster::configuration_error("no servers or no trainers (" + std::to_string(world.size()) + " ranks, " +
                                      std::to_string(setup.servers) + " are servers); change --servers");
  }
  const folded memory(setup.bytes);
  if (world.rank() < setup.servers) {
    serve(over, setup, world.rank(), trainers, steps, memory.data());
    return 0;
  }
  if (setup.asynchronous) smpi_execute(setup.compute * (world.rank() - setup.servers) / trainers);
  const double begin = simgrid_get_clock();
  for (int step = 0; step < steps; ++step) {
    smpi_execute(setup.compute);
    std::vector<std::unique_ptr<muster::request>> messages;
    std::size_t begin = 0;
    for (int server = 0; server < setup.servers; ++server) {
      const std::size_t part = part_of(setup, server);
      for (const bool sends : {false, true}) {
        messages.push_back(std::make_unique<muster::request>());
        post(over, *messages.back(), sends, server, sends ? push_tag : pull_tag, memory.data() + begin, part);
      }
      begin += part;
    }
    finish(over, messages);
  }
  return simgrid_get_clock() - begin;
}

}  // namespace simulation
