// A source of records in memory, with bad records and with counters for tests.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <muster/core/hash.hpp>
#include <muster/data/record_source.hpp>

/// A source of records of 3 x 32 x 32 bytes (or another shape). The bytes are a function of the id, and the label is
/// the id. Records in `bad` are bad. Counts reads. Records are mapped into memory if an option requests it.
class test_records {
 public:
  struct options {
    std::uint64_t size = 100;
    std::vector<std::uint64_t> shape = {3, 32, 32};
    bool mapped = false;
    std::set<muster::sample_id> bad = {};
    std::uint64_t version = 0;
  };
  explicit test_records(options chosen) : state_(std::make_shared<state>(std::move(chosen))) {}

  std::string_view name() const { return "test"; }
  std::uint64_t size() const { return state_->chosen.size; }
  std::uint64_t digest() const { return 77 + size() + (state_->chosen.version << 32); }
  const muster::data::record_schema& schema() const { return state_->schema; }
  void sizes(std::span<const muster::sample_id> ids, std::span<std::uint64_t> out) const {
    for (std::size_t k = 0; k < ids.size(); ++k) out[k] = state_->schema.record_bytes();
  }
  void read(std::span<const muster::sample_id> ids, const muster::data::record_rows& rows,
            std::vector<muster::bad_record>* bad = nullptr) const {
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const bool is_bad = state_->chosen.bad.contains(ids[k]);
      if (is_bad && bad == nullptr) throw muster::data_error(place(ids[k]), "is spoilt");
      if (is_bad) bad->push_back({ids[k], place(ids[k]), "is spoilt"});
      if (!rows.labels.empty()) rows.labels[k] = is_bad ? 0 : static_cast<float>(ids[k]);
      if (rows.bytes.empty()) continue;
      ++state_->reads;
      const auto& bytes = state_->bytes[ids[k]];
      std::byte* const output = rows.bytes.data() + k * bytes.size();
      if (is_bad) {
        std::memset(output, 0, bytes.size());
      } else {
        std::memcpy(output, bytes.data(), bytes.size());
      }
    }
  }
  bool mapped() const { return state_->chosen.mapped; }
  std::span<const std::byte> view(muster::sample_id id) const {
    if (state_->chosen.bad.contains(id)) throw muster::data_error(place(id), "is spoilt");
    ++state_->reads;
    return state_->bytes[id];
  }

  std::uint64_t reads() const { return state_->reads; }

 private:
  struct state {
    explicit state(options requested) : chosen(std::move(requested)) {
      schema.fields = {{"image", muster::dtype::uint8, chosen.shape}};
      schema.labels = {"label"};
      bytes.resize(chosen.size);
      for (std::uint64_t id = 0; id < chosen.size; ++id) {
        bytes[id].resize(schema.record_bytes());
        for (std::size_t i = 0; i < bytes[id].size(); ++i) {
          bytes[id][i] = static_cast<std::byte>(muster::mix(id * 65536 + i / 8) >> (i % 8 * 8) & 0xff);
        }
      }
    }
    options chosen;
    muster::data::record_schema schema;
    std::vector<std::vector<std::byte>> bytes;
    std::atomic<std::uint64_t> reads{0};
  };
  static muster::data_location place(muster::sample_id id) { return {"test", id + 1}; }

  std::shared_ptr<state> state_;
};
static_assert(muster::data::mapped_record_source<test_records>);
