#include <muster/train/statistics.hpp>

#include <exception>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/record_source.hpp>

#include "../comm/group/words.hpp"
#include "../core/wire.hpp"

namespace muster { inline namespace v0 {
namespace {

// Texts that one rank each has, and the others have empty: all of them at all ranks.
std::vector<std::string> texts_of_all(group& among, const std::vector<std::string>& mine, std::exception_ptr failure) {
  detail::wire_writer writer;
  for (const std::string& text : mine) writer.add_text(text);
  const auto of_all = detail::words_of_all(among, failure ? "" : writer.take());
  if (failure) std::rethrow_exception(failure);
  std::vector<std::string> texts(mine.size());
  for (const std::string& said : of_all) {
    if (said.empty())
      throw data_error({"statistics"}, "cannot be had (another rank cannot read its part); see what that rank says");
    detail::wire_reader reader(said);
    for (std::string& text : texts) text += reader.text();
  }
  return texts;
}

}  // namespace

source_statistics statistics(const loader& of, group& among) {
  const any_record_source& source = of.source();
  const std::string name(of.name());
  std::vector<std::string> texts(1);
  std::exception_ptr failure;
  const auto tried = [&](const auto& what) {
    try {
      what();
    } catch (...) {
      failure = std::current_exception();
    }
  };
  tried([&] {
    if (among.rank() == 0) texts[0] = detail::to_text(detail::kept_statistics(source));
  });
  source_statistics all = detail::statistics_from_text(texts_of_all(among, texts, failure).front(), name);
  const std::uint64_t first = all.records + all.left_out;
  if (first == source.size()) return all;
  texts.assign(detail::statistics_parts, "");
  const index_range mine = part_of(detail::statistics_parts, {among.rank(), among.size()});
  tried([&] {
    for (std::uint64_t part = mine.first; part < mine.last; ++part)
      texts[part] = detail::to_text(detail::statistics_of_part(source, first, static_cast<int>(part)));
  });
  for (const std::string& text : texts_of_all(among, texts, failure))
    all.merge(detail::statistics_from_text(text, name));
  return all;
}

}}  // namespace muster::v0
