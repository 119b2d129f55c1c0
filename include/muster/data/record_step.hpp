// The steps of a pipeline over records. Each step computes a piece of a batch from the output of the previous step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/random.hpp>
#include <muster/data/cache.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/record_transform.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// The buffers that one thread keeps for a step between pieces of batches, to avoid allocations.
struct chain_scratch_level {
  buffer<std::byte> bytes;
  buffer<std::byte> aligned;
  std::vector<std::span<const std::byte>> views;
  std::vector<std::span<const std::byte>> read_views;
  std::vector<std::uint64_t> sizes;
  std::vector<sample_id> ids;
  std::vector<std::size_t> missing_indices;
  std::vector<float> labels;

  /// Returns a buffer of `size` bytes. At least one byte is allocated, so that no view into the buffer is null.
  [[nodiscard]] std::span<std::byte> reserve(std::size_t size) {
    const std::size_t needed = size == 0 ? 1 : size;
    if (bytes.size() < needed) bytes = buffer<std::byte>(needed);
    return bytes.span().first(size);
  }
};
/// The scratch buffers for all steps of a chain. It grows without moving existing levels.
using chain_scratch = std::vector<std::unique_ptr<chain_scratch_level>>;

/// The requested piece of a batch. Bad records are appended to `bad`, and their views are null.
struct chain_request {
  std::span<const sample_id> ids;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::span<float> labels;                 ///< labels to fill; empty: none
  std::vector<bad_record>* bad = nullptr;  ///< null: a bad record is a data_error
  std::span<std::byte> output = {};  ///< destination for new records, one after another; empty: the scratch buffers

  [[nodiscard]] bool is_bad(sample_id id) const noexcept {
    if (bad == nullptr) return false;
    for (const bad_record& entry : *bad) {
      if (entry.id == id) return true;
    }
    return false;
  }
  /// Returns the labels of the k-th id.
  [[nodiscard]] std::span<float> labels_of(std::size_t k) const noexcept {
    const std::size_t width = ids.empty() ? 0 : labels.size() / ids.size();
    return labels.subspan(k * width, width);
  }
};

/// The interface of the steps in a pipeline: a source, or a step that computes records from the records of the previous
/// step. Each virtual call processes a piece of a batch. Any number of threads may read at once.
class record_step {
 public:
  virtual ~record_step() = default;
  record_step(const record_step&) = delete;
  record_step& operator=(const record_step&) = delete;

  /// Sets the previous step. Throws configuration_error if this step cannot follow `before`.
  void follow(std::unique_ptr<record_step> before);
  /// Replaces the source at the start of the chain.
  virtual void replace(any_record_source source);

  [[nodiscard]] virtual const any_record_source& source() const { return before_->source(); }
  [[nodiscard]] virtual cache_statistics cache() const { return before_->cache(); }
  [[nodiscard]] const record_schema& schema() const noexcept { return schema_; }
  /// Returns the combined version of all steps up to and including this step, without the source's data. 0: unknown.
  [[nodiscard]] std::uint64_t processing_version() const noexcept { return version_; }
  /// Returns the number of random steps up to and including this step. A random step yields a different record in each
  /// epoch.
  [[nodiscard]] std::size_t randoms() const noexcept { return randoms_; }
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;

  /// Writes the records to the request's `output`, one after another. Bad records occupy space, too.
  void read(const chain_request& request, chain_scratch& scratch) const;
  /// Writes a view of every record to `out`. The views of bad records are null. A step may write the records to the
  /// request's `output` instead; a source then sets all views to null, and other steps set views of `output`. The views
  /// are valid until the scratch is used again.
  virtual void views(const chain_request& request, std::span<std::span<const std::byte>> out,
                     chain_scratch& scratch) const = 0;

 protected:
  record_step() = default;
  /// Reads the properties of the previous step after that step, or its source, has been set or replaced.
  void refresh();
  /// The part of refresh() that depends on the kind of step: sets the fields below.
  virtual void set_properties() = 0;
  [[nodiscard]] const record_step& before() const noexcept { return *before_; }
  [[nodiscard]] chain_scratch_level& level_of(chain_scratch& scratch) const {
    while (scratch.size() <= depth_) scratch.push_back(std::make_unique<chain_scratch_level>());
    return *scratch[depth_];
  }

  record_schema schema_;
  std::uint64_t version_ = 1;
  std::size_t randoms_ = 0;
  std::size_t record_bytes_ = 0;  // bytes of a record of schema_

 private:
  std::unique_ptr<record_step> before_;  // null for a source
  std::size_t depth_ = 0;
};

/// Returns the step at the start of a chain.
[[nodiscard]] std::unique_ptr<record_step> make_source_step(any_record_source source);
/// Returns the step that cache() appends to a chain.
[[nodiscard]] std::unique_ptr<record_step> make_cache_step(cache_options options);

/// The step that map() and augment() append to a chain, without the user's function.
class transform_step : public record_step {
 public:
  void views(const chain_request& request, std::span<std::span<const std::byte>> out,
             chain_scratch& scratch) const final;

 protected:
  transform_step(std::string_view name, bool random) noexcept : name_(name), random_(random) {}

  [[nodiscard]] virtual record_schema output(const record_schema& input_schema) = 0;
  [[nodiscard]] virtual std::uint64_t function_version() const = 0;
  /// Calls the function for each record that is not null. `copy` is a buffer for records that are not aligned.
  virtual void apply(const chain_request& request, std::span<const std::span<const std::byte>> inputs,
                     std::span<std::byte> outputs, buffer<std::byte>& copy) const = 0;

  void set_properties() final;
  /// Returns `view`, or an aligned copy if `view` is not aligned for its elements.
  [[nodiscard]] std::span<const std::byte> aligned(std::span<const std::byte> view, buffer<std::byte>& copy) const {
    if (reinterpret_cast<std::uintptr_t>(view.data()) % alignment_ == 0) return view;
    if (copy.size() < view.size()) copy = buffer<std::byte>(view.size());
    std::memcpy(copy.data(), view.data(), view.size());
    return copy.span().first(view.size());
  }
  /// Returns the random stream of a record. No other use of the seed has the same stream, and steps that are not random
  /// do not change it.
  [[nodiscard]] random_stream stream_of(const chain_request& request, sample_id id) const noexcept {
    return random_stream(mix(request.seed ^ (0x6175676d656e7400ULL + randoms())) + request.epoch, id);
  }
  /// Handles the exception that the function is throwing: a data_error marks the record as bad. Any other exception is
  /// nested in a data_error that names the record.
  void failed(const chain_request& request, sample_id id) const;

 private:
  std::string_view name_;
  bool random_;
  std::size_t alignment_ = 1;
};

/// A transform_step with the user's function. If `Random` is true, the function receives a random stream.
template <class F, bool Random>
class function_step final : public transform_step {
 public:
  explicit function_step(F f) : transform_step(Random ? "augment" : "map", Random), f_(std::move(f)) {}

 private:
  record_schema output(const record_schema& input_schema) override { return f_.output(input_schema); }
  std::uint64_t function_version() const override {
    if constexpr (Random)
      return 0;
    else
      return f_.version();
  }
  void apply(const chain_request& request, std::span<const std::span<const std::byte>> inputs,
             std::span<std::byte> outputs, buffer<std::byte>& copy) const override {
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      if (k + 1 < inputs.size()) fetch_ahead(inputs[k + 1]);
      if (inputs[k].data() == nullptr) continue;
      const std::span<const std::byte> record = aligned(inputs[k], copy);
      const std::span<std::byte> result = outputs.subspan(k * record_bytes_, record_bytes_);
      try {
        if constexpr (Random) {
          random_stream random = stream_of(request, request.ids[k]);
          f_(record, result, random);
        } else {
          f_(record, result);
        }
      } catch (...) {
        failed(request, request.ids[k]);
      }
    }
  }

  F f_;
};

}}}}  // namespace muster::v0::data::detail
