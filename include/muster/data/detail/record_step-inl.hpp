#pragma once

#include <muster/data/record_step.hpp>

#include <algorithm>
#include <exception>
#include <numeric>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

MUSTER_INLINE void record_step::follow(std::unique_ptr<record_step> before) {
  before_ = std::move(before);
  depth_ = before_->depth_ + 1;
  refresh();
}

MUSTER_INLINE void record_step::replace(any_record_source source) {
  before_->replace(std::move(source));
  refresh();
}

MUSTER_INLINE void record_step::refresh() {
  set_properties();
  record_bytes_ = schema_.record_bytes();
}

MUSTER_INLINE void record_step::sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const {
  if (record_bytes_ == 0) return source().sizes(ids, out);  // steps that compute new records produce fixed records
  std::fill_n(out.begin(), ids.size(), record_bytes_);
}

MUSTER_INLINE void record_step::read(const chain_request& request, chain_scratch& scratch) const {
  auto& level = level_of(scratch);
  const std::size_t count = request.ids.size();
  level.read_views.resize(count);
  views(request, level.read_views, scratch);
  if (std::ranges::all_of(level.read_views, [](const auto& view) { return view.empty(); })) return;
  level.sizes.resize(count);
  sizes(request.ids, level.sizes);
  std::byte* output = request.output.data();
  for (std::size_t k = 0; k < count; output += level.sizes[k++]) {
    if (level.read_views[k].empty() || level.read_views[k].data() == output) continue;
    // The positions of the records are known before they are copied, so the next record is prefetched during the copy.
    if (k + 1 < count) fetch_ahead(level.read_views[k + 1]);
    std::memcpy(output, level.read_views[k].data(), level.sizes[k]);
  }
}

class source_step final : public record_step {
 public:
  explicit source_step(any_record_source source) : source_(std::move(source)) { refresh(); }

  const any_record_source& source() const override { return source_; }
  cache_statistics cache() const override { return {}; }
  void replace(any_record_source source) override {
    source_ = std::move(source);
    refresh();
  }

  void views(const chain_request& request, std::span<std::span<const std::byte>> out,
             chain_scratch& scratch) const override {
    if (source_.mapped() && (request.output.empty() || record_bytes_ != 0)) return views_of_memory(request, out);
    if (!request.output.empty()) {
      std::ranges::fill(out, std::span<const std::byte>());
      return source_.read(request.ids, {request.output, request.labels}, request.bad);
    }
    auto& level = level_of(scratch);
    level.sizes.resize(request.ids.size());
    source_.sizes(request.ids, level.sizes);
    std::span<std::byte> bytes = level.reserve(std::accumulate(level.sizes.begin(), level.sizes.end(), std::size_t{0}));
    source_.read(request.ids, {bytes, request.labels}, request.bad);
    for (std::size_t k = 0; k < out.size(); bytes = bytes.subspan(level.sizes[k++]))
      out[k] = request.is_bad(request.ids[k]) ? std::span<const std::byte>() : bytes.first(level.sizes[k]);
  }

 private:
  void set_properties() override { schema_ = source_.schema(); }

  void views_of_memory(const chain_request& request, std::span<std::span<const std::byte>> out) const {
    source_.views(request.ids, out, request.bad);
    if (request.labels.empty()) return;
    std::vector<bad_record> found;  // includes the bad records of views()
    source_.read(request.ids, {{}, request.labels}, request.bad == nullptr ? nullptr : &found);
    for (bad_record& record : found) {
      if (!request.is_bad(record.id)) request.bad->push_back(std::move(record));
    }
    for (std::size_t k = 0; k < out.size() && !found.empty(); ++k) {
      if (request.is_bad(request.ids[k])) out[k] = {};
    }
  }

  any_record_source source_;
};

MUSTER_INLINE std::unique_ptr<record_step> make_source_step(any_record_source source) {
  return std::make_unique<source_step>(std::move(source));
}

MUSTER_INLINE void transform_step::set_properties() {
  const record_schema& in = before().schema();
  schema_ = output(in);
  if (schema_.form != record_form::fixed || schema_.record_bytes() == 0) {
    throw configuration_error("the function of " + std::string(name_) + "() makes records of " + to_string(schema_) +
                              " (they must be of fixed form, and not empty); give it a shape");
  }
  alignment_ = 1;
  for (const record_field& field : in.fields) alignment_ = std::max(alignment_, size_of(field.type));
  if (in.form == record_form::sparse) alignment_ = alignof(sparse_entry);
  randoms_ = before().randoms() + (random_ ? 1 : 0);
  const std::uint64_t earlier = before().processing_version();
  const std::uint64_t own = function_version();
  version_ = earlier == 0 || own == 0 ? 0 : digest().add(earlier).add(own).add(to_string(schema_)).value();
}

MUSTER_INLINE void transform_step::views(const chain_request& request, std::span<std::span<const std::byte>> out,
                                         chain_scratch& scratch) const {
  auto& level = level_of(scratch);
  const auto bytes = request.output.empty() ? level.reserve(request.ids.size() * record_bytes_) : request.output;
  const std::size_t bad_before = request.bad == nullptr ? 0 : request.bad->size();
  chain_request input = request;
  input.output = {};
  level.views.resize(request.ids.size());
  before().views(input, level.views, scratch);
  apply(request, level.views, bytes, level.aligned);
  const bool any_bad = request.bad != nullptr && request.bad->size() != bad_before;
  for (std::size_t k = 0; k < out.size(); ++k) {
    out[k] = bytes.subspan(k * record_bytes_, record_bytes_);
    if (any_bad && request.is_bad(request.ids[k])) out[k] = {};
  }
}

MUSTER_INLINE void transform_step::failed(const chain_request& request, sample_id id) const {
  try {
    throw;
  } catch (const data_error& error) {
    data_location where = error.where();
    if (where.file.empty()) {  // a function receives a record without its location
      where = source().location_of(id);
      if (!where.offset) where.offset = error.where().offset;
    }
    if (request.bad == nullptr) throw data_error(where, error.problem());
    request.bad->push_back({id, where, error.problem()});
  } catch (const std::exception& error) {
    std::throw_with_nested(data_error({std::string(source().name())},
                                      "record " + std::to_string(id) + " made " + std::string(name_) + "() fail (" +
                                          error.what() + "); correct the function or the record"));
  }
}

}}}}  // namespace muster::v0::data::detail
