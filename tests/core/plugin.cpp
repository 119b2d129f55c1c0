#include <muster/core/plugin.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <muster/core/error.hpp>

#include "catch.hpp"

namespace {

int loaded_at = -1;  // number of the constructions before this one
int constructions = 0;

const muster::plugin before_main("before main", [] { loaded_at = constructions++; });

struct ordinary_global {
  int position = constructions++;
  std::vector<std::string> names = muster::plugin_names();
};
const ordinary_global first_global;

}  // namespace

TEST_CASE("a plug-in is loaded once, before the variables behind it", "[plugin]") {
  CHECK(loaded_at == 0);
  CHECK(first_global.position == 1);
  CHECK(std::ranges::count(first_global.names, "before main") == 1);
  CHECK(before_main.name() == "before main");
}

TEST_CASE("two plug-ins cannot have one name", "[plugin]") {
  const auto load_again = [] { const muster::plugin again("before main", [] { ++constructions; }); };
  const int before = constructions;
  CHECK_THROWS_AS(load_again(), muster::configuration_error);
  CHECK_THROWS_WITH(load_again(), contains("'before main' cannot be loaded"));
  CHECK(constructions == before);
}
