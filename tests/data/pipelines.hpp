// Pipelines for tests: small records, functions on records, and the expected results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <muster/core/hash.hpp>
#include <muster/core/random.hpp>
#include <muster/data/pipeline.hpp>

#include "catch.hpp"
#include "test_records.hpp"

using sample_ids = std::vector<muster::sample_id>;

inline sample_ids sorted(sample_ids list) {
  std::sort(list.begin(), list.end());
  return list;
}

inline sample_ids all_but(std::uint64_t count, const std::set<muster::sample_id>& bad) {
  sample_ids list;
  for (muster::sample_id id = 0; id < count; ++id) {
    if (!bad.contains(id)) list.push_back(id);
  }
  return list;
}

inline std::uint64_t digest_of(const muster::minibatch& batch) {
  muster::digest all;
  for (const auto id : batch.samples) all.add(id);
  return all.add(batch.bytes).add(std::as_bytes(batch.labels)).value();
}

// Returns the records that the ranks of a world receive for the batch at the cursor, by sample.
template <class Loader>
std::map<muster::sample_id, std::uint64_t> records_of_batch(Loader& loader, int world) {
  std::map<muster::sample_id, std::uint64_t> found;
  for (int rank = 0; rank < world; ++rank) {
    const auto batch = loader.next({rank, world});
    REQUIRE(batch.labels.size() == batch.samples.size());
    for (std::size_t i = 0; i < batch.samples.size(); ++i) {
      REQUIRE(batch.labels[i] == static_cast<float>(batch.samples[i]));
      REQUIRE(found.emplace(batch.samples[i], muster::digest().add(batch.record(i)).value()).second);
    }
  }
  return found;
}

inline const auto negative = muster::each<std::uint8_t, std::uint8_t>(
    {16},
    [](std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(255 - in[i]);
    },
    1);

inline const auto noise = muster::each<std::uint8_t, float>(
    {16}, [](std::span<const std::uint8_t> in, std::span<float> out, muster::random_stream& random) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(in[i]) + static_cast<float>(random.uniform());
      }
    });

// Records that are wide enough to have batches prepared in pieces.
inline const auto wide_noise = muster::each<std::uint8_t, float>(
    {4096}, [](std::span<const std::uint8_t> in, std::span<float> out, muster::random_stream& random) {
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(in[i % in.size()]) + static_cast<float>(random.uniform()) / 2;
      }
    });

inline test_records small(std::uint64_t size, bool mapped = false, std::set<muster::sample_id> bad = {}) {
  return test_records({.size = size, .shape = {16}, .mapped = mapped, .bad = std::move(bad)});
}
