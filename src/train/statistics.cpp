#include <muster/train/statistics.hpp>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/error.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/record_source.hpp>

namespace muster::inline v0 {
namespace {

// Texts that one rank each has: all of them at all ranks. Lengths and characters of the others are 0, so that a sum
// is what its rank has.
std::vector<std::string> texts_of_all(group& among, const std::vector<std::string>& mine, std::exception_ptr failure) {
  std::vector<std::uint64_t> lengths(mine.size() + 1);
  std::ranges::transform(mine, lengths.begin(), [](const std::string& text) { return text.size(); });
  lengths.back() = failure ? 1 : 0;
  allreduce(among, lengths, muster::sum);
  if (failure) std::rethrow_exception(failure);
  if (lengths.back() != 0) {
    throw data_error({"statistics"}, "cannot be had (another rank cannot read its part); see what that rank says");
  }
  std::uint64_t all = 0;
  for (const std::uint64_t length : lengths) all += length;
  std::vector<std::uint8_t> characters(all);
  auto at = characters.begin();
  for (std::size_t k = 0; k < mine.size(); at += static_cast<std::ptrdiff_t>(lengths[k++]))
    std::copy(mine[k].begin(), mine[k].end(), at);
  allreduce(among, characters, muster::sum);
  std::vector<std::string> texts;
  at = characters.begin();
  for (std::size_t k = 0; k < mine.size(); at += static_cast<std::ptrdiff_t>(lengths[k++]))
    texts.emplace_back(at, at + static_cast<std::ptrdiff_t>(lengths[k]));
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
    if (among.rank() == 0) texts[0] = detail::to_text(source.known_statistics().value_or(source_statistics()));
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

}  // namespace muster::inline v0
