#pragma once

#include <muster/train/collective_statistics.hpp>

#include <exception>
#include <string>
#include <vector>

#include <muster/comm/group/words.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 {
namespace detail {

// Gathers texts at all ranks. Each text is set at a single rank and empty at the other ranks.
inline std::vector<std::string> gather_texts(group& ranks, const std::vector<std::string>& mine,
                                             std::exception_ptr failure) {
  detail::wire_writer writer;
  for (const std::string& text : mine) writer.add_text(text);
  const auto rank_texts = detail::allgather_strings(ranks, failure ? "" : writer.take());
  if (failure) std::rethrow_exception(failure);
  std::vector<std::string> texts(mine.size());
  for (const std::string& rank_text : rank_texts) {
    if (rank_text.empty())
      throw data_error({"statistics"}, "are not available (another rank cannot read its part); see that rank's error");
    detail::wire_reader reader(rank_text);
    for (std::string& text : texts) text += reader.text();
  }
  return texts;
}

}  // namespace detail

MUSTER_INLINE source_statistics statistics(const loader& training_data, group& ranks) {
  const data::any_record_source& source = training_data.source();
  const std::string name(training_data.name());
  std::vector<std::string> texts(1);
  std::exception_ptr failure;
  const auto guarded = [&](const auto& f) {
    try {
      f();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  guarded([&] {
    if (ranks.rank() == 0) texts[0] = data::detail::to_text(data::detail::kept_statistics(source));
  });
  source_statistics all = data::detail::statistics_from_text(detail::gather_texts(ranks, texts, failure).front(), name);
  const std::uint64_t first = all.records + all.left_out;
  if (first == source.size()) return all;
  texts.assign(data::detail::statistics_parts, "");
  const index_range mine = part_of(data::detail::statistics_parts, {ranks.rank(), ranks.size()});
  guarded([&] {
    for (std::uint64_t part = mine.first; part < mine.last; ++part)
      texts[part] = data::detail::to_text(data::detail::statistics_of_part(source, first, static_cast<int>(part)));
  });
  for (const std::string& text : detail::gather_texts(ranks, texts, failure))
    all.merge(data::detail::statistics_from_text(text, name));
  return all;
}

}}  // namespace muster::v0
