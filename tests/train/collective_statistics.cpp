#include <muster/train/collective_statistics.hpp>

#include <muster/core/error.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/synthetic.hpp>

#include <muster/data/sources/text_format.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"

TEST_CASE("statistics that ranks share are the same bits as those of one, for any number of ranks", "[slow]") {
  const auto data = muster::data::synthetic_epsilon(700, 4);
  const auto expected = muster::statistics(data);
  for (const int ranks : {1, 2, 3, 5}) {
    std::vector<muster::source_statistics> found(static_cast<std::size_t>(ranks));
    test::run_ranks(ranks, [&](muster::group& world) {
      const auto loader = data | muster::batch(10);
      found[static_cast<std::size_t>(world.rank())] = muster::statistics(loader, world);
    });
    for (const auto& result : found) REQUIRE(result == expected);
  }
}

TEST_CASE("a part that one rank cannot read is an error at every rank") {
  std::string text;
  for (int k = 0; k < 300; ++k) text += k == 290 ? "x\n" : "1\n";
  const auto file = std::make_shared<const muster::data::mapped_file>(std::vector<char>(text.begin(), text.end()));
  std::vector<std::string> messages(3);
  test::run_ranks(3, [&](muster::group& world) {
    const auto format = muster::data::detail::format_of_csv(file->text(), "t", {}, {});
    const auto loader = muster::data::detail::records_of_text(file, format, "csv:t", {}, {}) | muster::batch(10);
    try {
      (void)muster::statistics(loader, world);
    } catch (const muster::data_error& error) {
      messages[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  CHECK_THAT(messages[2], contains("t:291"));
  for (const int rank : {0, 1}) CHECK_THAT(messages[static_cast<std::size_t>(rank)], contains("another rank"));
}
