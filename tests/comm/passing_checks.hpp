// Checks of messages between ranks, over any transport. Every rank draws the same plan.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/messages.hpp>
#include <muster/core/random.hpp>
#include "require.hpp"

namespace test {

/// Checks random traffic: messages of any length between any ranks, also to the same rank, with several tags, received
/// in another order than sent, beside collectives.
inline void check_traffic(muster::group& world, std::uint64_t seed, int count) {
  struct planned {
    int from;
    int to;
    int tag;
    std::size_t length;
    double first;
  };
  const int me = world.rank();
  const auto n = static_cast<std::uint64_t>(world.size());
  muster::random_stream random(seed, n);
  std::vector<planned> plan;
  for (int i = 0; i < count; ++i) {
    const std::size_t lengths[] = {0, 1, random.below(100), random.below(20000), random.below(200000)};
    plan.push_back({static_cast<int>(random.below(n)), static_cast<int>(random.below(n)),
                    random.below(2) == 0 ? 0 : muster::largest_message_tag, lengths[random.below(std::size(lengths))],
                    random.uniform()});
  }
  std::deque<std::vector<double>> buffers;
  std::deque<muster::message_status> found;
  std::vector<muster::work> sends;
  struct awaited {
    const planned* message;
    const std::vector<double>* data;
    const muster::message_status* status;
    muster::work pending;
  };
  std::vector<awaited> receives;
  const auto send_all = [&] {
    for (const planned& message : plan) {
      if (message.from != me) continue;
      auto& data = buffers.emplace_back(message.length, message.first);
      sends.push_back(muster::send_async(world, data, message.to, {.tag = message.tag}));
    }
  };
  // Receives by tag, then by the order of the plan: another order than sent.
  const auto receive_all = [&] {
    for (const int tag : {muster::largest_message_tag, 0}) {
      for (const planned& message : plan) {
        if (message.to != me || message.tag != tag) continue;
        auto& data = buffers.emplace_back(message.length + 3, -1.0);
        auto& status = found.emplace_back();
        receives.push_back({&message, &data, &status,
                            muster::receive_async(world, data, message.from, {.tag = tag, .status = &status})});
      }
    }
  };
  if (seed % 2 == 0) send_all();
  receive_all();
  if (seed % 2 != 0) send_all();
  require(muster::allreduce(world, 1, muster::sum) == world.size(), "a collective beside messages");
  for (auto& each : receives) {
    each.pending.wait();
    require(each.status->source == each.message->from && each.status->tag == each.message->tag &&
                each.status->count<double>() == each.message->length,
            "the status of a message");
    for (std::size_t i = 0; i < each.data->size(); ++i)
      require((*each.data)[i] == (i < each.message->length ? each.message->first : -1.0), "the bytes of a message");
  }
  for (auto& each : sends) each.wait();
}

/// Checks send, receive, send_receive and probe, from a rank and from any.
inline void check_calls(muster::group& world) {
  const int me = world.rank();
  const int n = world.size();
  const int next = (me + 1) % n;
  const int before = (me + n - 1) % n;
  for (const std::size_t length : {std::size_t{1}, std::size_t{100000}}) {
    std::vector<int> out(length, me);
    std::vector<int> in(length, -1);
    const auto status = muster::send_receive(world, out, next, in, before, {.tag = 3});
    require(status.source == before && in.front() == before && in.back() == before, "send_receive");
    muster::send_receive_async(world, out, before, in, next).wait();
    require(in.back() == next, "send_receive_async");
    if (me != 0) muster::send(world, out, 0, {.tag = me});
    if (me == 0) {
      std::vector<int> got(length);
      for (int r = n - 1; r > 0; --r) {
        const auto there = muster::probe(world, r, {.tag = r});
        require(there.source == r && there.tag == r && there.count<int>() == length, "a probe");
        require(muster::probe(world, muster::any_rank, {.tag = r}).source == r, "a probe of any rank");
        muster::receive(world, got, muster::any_rank, {.tag = r});
        require(got.back() == r, "the message that was probed");
      }
      muster::message_status later;
      auto early = muster::probe_async(world, muster::any_rank, {.tag = 77, .status = &later});
      require(n == 1 || !early.test(), "there is no message yet");
      muster::barrier(world);
      if (n > 1) {
        early.wait();
        require(later.source == 1 && later.bytes == 2 * sizeof(int), "the later message");
        std::array<int, 2> pair{};
        muster::receive(world, pair, 1, {.tag = 77});
        require(pair[1] == 9, "the later message's bytes");
      } else {
        auto sent = muster::send_async(world, out, 0, {.tag = 77});
        early.wait();
        muster::receive(world, in, 0, {.tag = 77});
        sent.wait();
      }
    } else {
      muster::barrier(world);
      if (me == 1) muster::send(world, std::array{8, 9}, 0, {.tag = 77});
    }
    std::vector<int> seen;
    if (me == 0) {
      for (int r = 1; r < n; ++r) {
        std::array<int, 1> got{};
        const auto from = muster::receive(world, got, muster::any_rank, {.tag = 5});
        require(from.source == got[0], "any rank is the sender");
        seen.push_back(got[0]);
      }
      std::sort(seen.begin(), seen.end());
      for (int r = 1; r < n; ++r) require(seen[static_cast<std::size_t>(r - 1)] == r, "one from each");
    } else {
      muster::send(world, std::array{me}, 0, {.tag = 5});
    }
  }
}

}  // namespace test
