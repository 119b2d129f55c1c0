#include <muster/data/cursor.hpp>

#include "catch.hpp"

TEST_CASE("two cursors of one row of epochs have no difference, wherever they are") {
  muster::cursor current{.order = muster::sample_order::shuffled, .dataset = 1, .size = 10, .seed = 2, .batch = 3};
  muster::cursor saved = current;
  saved.epoch = 5;
  saved.position = 9;
  CHECK(muster::data::detail::difference(saved, current).empty());
}

TEST_CASE("each field that makes another row of epochs is named with both its values") {
  const muster::cursor current{
      .order = muster::sample_order::shuffled, .dataset = 1, .size = 10, .seed = 2, .batch = 3};
  const auto difference = [&](auto change) {
    muster::cursor saved = current;
    change(saved);
    return muster::data::detail::difference(saved, current);
  };
  CHECK(difference([](auto& saved) { saved.seed = 7; }) == "the seed is 7 there and 2 here");
  CHECK(difference([](auto& saved) { saved.batch = 7; }) == "the global batch is 7 there and 3 here");
  CHECK(difference([](auto& saved) { saved.size = 7; }) == "the number of samples is 7 there and 10 here");
  CHECK(difference([](auto& saved) { saved.version = 7; }) == "the version is 7 there and 2 here");
  CHECK(difference([](auto& saved) { saved.order = muster::sample_order::sequential; }) ==
        "the order is sequential there and shuffled here");
  CHECK(difference([](auto& saved) { saved.dataset = 0xab; }) ==
        "the dataset's digest is 00000000000000ab there and 0000000000000001 here");
  CHECK(difference([](auto& saved) { saved.seed = 7, saved.batch = 1; }) ==
        "the seed is 7 there and 2 here, the global batch is 1 there and 3 here");
}
