#include <muster/core/function.hpp>

#include <functional>
#include <memory>
#include <string>

#include "catch.hpp"

using muster::detail::function;

namespace {

int twice(int value) { return 2 * value; }

}  // namespace

TEST_CASE("a function calls what it was converted from", "[function]") {
  int calls = 0;
  const function<int(int)> counts = [&calls](int step) { return calls += step; };
  CHECK(counts(2) == 2);
  const function<int(int)> copy = counts;
  CHECK(copy(3) == 5);
  CHECK(calls == 5);
  const function<void(int)> drops_the_result = counts;
  drops_the_result(1);
  CHECK(calls == 6);
  CHECK(function<int(int)>(twice)(4) == 8);
  CHECK(function<int(int)>(&twice)(5) == 10);
}

TEST_CASE("a function takes arguments that only move, and references", "[function]") {
  const function<std::unique_ptr<int>(std::unique_ptr<int>, std::string&)> passes = [](std::unique_ptr<int> value,
                                                                                       std::string& text) {
    text += "!";
    return value;
  };
  std::string text = "here";
  CHECK(*passes(std::make_unique<int>(7), text) == 7);
  CHECK(text == "here!");
}

TEST_CASE("copies share the object, which ends with the last of them", "[function]") {
  const auto token = std::make_shared<int>(1);
  {
    function<int()> first = [token] { return *token; };
    const function<int()> second = first;
    CHECK(token.use_count() == 2);
    first = {};
    CHECK(!first);
    CHECK(second() == 1);
  }
  CHECK(token.use_count() == 1);
}

TEST_CASE("a function of nothing is empty", "[function]") {
  CHECK(!function<void()>());
  CHECK(!function<void()>(std::function<void()>()));
  using pointer = void (*)();
  CHECK(!function<void()>(pointer{nullptr}));
  CHECK(function<void()>(std::function<void()>([] {})));
}
